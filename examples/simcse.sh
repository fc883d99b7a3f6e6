#!/bin/sh
# SimCSE from rows to a table of scores: texts train it unsupervised, triplets supervised.
# Usage: sh examples/simcse.sh ROWS DEV TEST [BASE]
#   ROWS  texts (the paper: a million of Wikipedia), or anchor, positive and negative (the paper: of NLI)
#   DEV   pairs with a score, which choose the step (the paper: the dev set of the STS benchmark)
#   TEST  pairs with a score, for the table
#   BASE  the encoder to start from: nano, or as in the paper bert-base-uncased
# Variables: SEEDS=0..4; SETTINGS='--preset bert-large';
# OUT=FOLDER keeps the checkpoints, and a second call continues there.
# FIELDS and ENCODE: see recipe.sh.
set -eu
[ $# -ge 3 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
rows=$1 dev=$2 test=$3 base=${4:-nano}
. "$(dirname "$0")/recipe.sh"
dev=$(pairs "$dev" dev)
test=$(pairs "$test" test)

vectors "$test" "$base" "$work/base.safetensors"
method=simcse
case $settings in
*'--field anchor='*) method=simcse-sup ;; # the rows have another name for this field
*) if sentkit cat "$rows" --head 1 | grep -q '"anchor":'; then method=simcse-sup; fi ;;
esac
# shellcheck disable=SC2086 # settings are several words
sentkit train "$method" "$rows" -m "$base" -o "$work/run" --seed "$seeds" --dev "$dev" --resume $settings

table "$test" "$work/base.safetensors"
