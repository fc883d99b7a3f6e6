#!/bin/sh
# ConSERT from rows to a table of scores, in one of its four modes.
# Usage: sh examples/consert.sh MODE ROWS DEV TEST [BASE]
#   MODE  unsup: two disturbed views of each text. joint: that and the labels of pairs.
#         sup-unsup, joint-unsup: a first run on the labelled pairs NLI, and from there a second on texts.
#   ROWS  texts, or pairs as two texts each (the paper: all of the STS sets); for joint, labelled pairs
#   DEV   pairs with a score, which choose the step (the paper: the dev set of the STS benchmark)
#   TEST  pairs with a score, for the table
#   BASE  the encoder to start from: nano, or as in the paper bert-base-uncased
# Variables: NLI=pairs.jsonl for the modes of two runs; SIZE=base or large, the recipe, by default that of BASE;
# SEEDS=0..4; SETTINGS='--epochs 1'; OUT=FOLDER keeps the checkpoints, and a second call continues there.
# FIELDS and ENCODE: see recipe.sh.
set -eu
[ $# -ge 4 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
mode=$1 rows=$2 dev=$3 test=$4 base=${5:-nano}
. "$(dirname "$0")/recipe.sh"
case $base in
nano) size=${SIZE:-base} ;;
*) size=${SIZE:-$(base_of "$base" 'a recipe: SIZE=base or SIZE=large')} ;;
esac
size=${size##*-}
dev=$(pairs "$dev" dev)
test=$(pairs "$test" test)

vectors "$test" "$base" "$work/base.safetensors"

train() { # ROWS FROM TO PRESET SEEDS
    # shellcheck disable=SC2086 # settings are several words
    sentkit train consert "$1" -m "$2" -o "$3" --preset "$4-$size" --seed "$5" --dev "$dev" --resume $settings
}

case $mode in
*-unsup)
    train "${NLI:?the labelled pairs of the first run}" "$base" "$work/first" "${mode%-unsup}" "$seeds"
    for first in "$work/first" "$work"/first/seed-*; do # each seed continues its first run
        [ -f "$first/sentkit.json" ] || continue        # one seed is in first, several are in first/seed-N
        seed=${first##*[!0-9]}
        train "$rows" "$first" "$work/run${first#"$work/first"}" "$mode" "${seed:-$seeds}"
    done
    ;;
*) train "$rows" "$base" "$work/run" "$mode" "$seeds" ;;
esac

table "$test" "$work/base.safetensors"
