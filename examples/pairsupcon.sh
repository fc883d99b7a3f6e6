#!/bin/sh
# PairSupCon from labelled pairs to a table of scores: classify pairs and contrast partners.
# Usage: sh examples/pairsupcon.sh PAIRS DEV TEST [BASE]
#   PAIRS  pairs labelled entailment or contradiction (the paper: of SNLI and MNLI); neutral ones are skipped
#   DEV    pairs with a score, evaluated on the way; as in the paper, the last weights are kept by default
#   TEST   pairs with a score, for the table
#   BASE   the encoder to start from: nano, or as in the paper bert-base-uncased
# Variables: SEEDS=0..4; SETTINGS='--set chunk=64', the batch of 1024 in less memory, or '--set final=best';
# OUT=FOLDER keeps the checkpoints, and a second call continues there.
# FIELDS and ENCODE: see recipe.sh.
set -eu
[ $# -ge 3 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
pairs=$1 dev=$2 test=$3 base=${4:-nano}
. "$(dirname "$0")/recipe.sh"
dev=$(pairs "$dev" dev)
test=$(pairs "$test" test)

vectors "$test" "$base" "$work/base.safetensors"
# shellcheck disable=SC2086 # settings are several words
sentkit train pairsupcon "$pairs" -m "$base" -o "$work/run" --seed "$seeds" --dev "$dev" --resume $settings

table "$test" "$work/base.safetensors"
