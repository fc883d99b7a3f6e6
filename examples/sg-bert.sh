#!/bin/sh
# SG-BERT from texts to a table of scores: [CLS] learns from the layers of a frozen copy of itself.
# Usage: sh examples/sg-bert.sh TEXTS DEV TEST [BASE]
#   TEXTS  texts (the paper: those of the STS benchmark, without their scores); of pairs they come by
#          { sentkit cat pairs.csv --field text=text_a; sentkit cat pairs.csv --field text=text_b; } > texts.jsonl
#   DEV    pairs with a score, which choose the step (the paper: the dev set of the STS benchmark)
#   TEST   pairs with a score, for the table
#   BASE   the encoder to start from: nano, or as in the paper bert-base-uncased
# Variables: SEEDS=0..7, as many as in the paper; SETTINGS='--set objective=opt2';
# OUT=FOLDER keeps the checkpoints, and a second call continues there.
# FIELDS and ENCODE: see recipe.sh.
set -eu
[ $# -ge 3 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
texts=$1 dev=$2 test=$3 base=${4:-nano}
. "$(dirname "$0")/recipe.sh"
dev=$(pairs "$dev" dev)
test=$(pairs "$test" test)

vectors "$test" "$base" "$work/base.safetensors"
# shellcheck disable=SC2086 # settings are several words
sentkit train sg-bert "$texts" -m "$base" -o "$work/run" --seed "$seeds" --dev "$dev" --resume $settings

table "$test" "$work/base.safetensors"
