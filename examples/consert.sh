#!/bin/sh
# ConSERT from rows to a table of scores, in one of its four modes.
# Usage: sh examples/consert.sh MODE ROWS DEV TEST [BASE]
#   MODE  unsup: two disturbed views of each text. joint: that and the labels of pairs.
#         sup-unsup, joint-unsup: a first run on the labelled pairs NLI, and from there a second on texts.
#   ROWS  texts, or pairs as two texts each (the paper: all of the STS sets); for joint, labelled pairs
#   DEV   pairs with a score, which choose the step (the paper: the dev set of the STS benchmark)
#   TEST  pairs with a score, for the table
#   BASE  the encoder to start from: nano, or as in the paper bert-base-uncased
# Variables: NLI=pairs.jsonl for the modes of two runs; SIZE=large for the recipe of bert-large-uncased;
# SEEDS=0..4; SETTINGS='--epochs 1'; OUT=FOLDER keeps the checkpoints, and a second call continues there.
# FIELDS='--field text_a=sent1 --field text_b=sent2 --field score=rating' if the fields of DEV and TEST have other
# names; for those of the rows: SETTINGS='--field text=title'.
set -eu
mode=$1 rows=$2 dev=$3 test=$4 base=${5:-nano}
size=${SIZE:-base}
seeds=${SEEDS:-0..2}
settings=${SETTINGS:-}
work=${OUT:-$(mktemp -d)}
[ -n "${OUT:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"
if [ -n "${FIELDS:-}" ]; then
    # shellcheck disable=SC2086 # fields are several words
    sentkit cat "$dev" $FIELDS -o "$work/dev.jsonl" -f
    # shellcheck disable=SC2086
    sentkit cat "$test" $FIELDS -o "$work/test.jsonl" -f
    dev=$work/dev.jsonl test=$work/test.jsonl
fi

sentkit encode "$test" --precision fp32 -m "$base" -o "$work/base.safetensors" -f

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

set -- "$work/base.safetensors"
for made in "$work/run" "$work"/run/seed-*; do
    [ -f "$made/sentkit.json" ] || continue
    sentkit encode "$test" --precision fp32 -m "$made" -o "$made.safetensors" -f
    set -- "$@" "$made.safetensors"
done
sentkit score "$@" --gold score --baseline "$work/base.safetensors"
