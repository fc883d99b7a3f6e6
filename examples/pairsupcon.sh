#!/bin/sh
# PairSupCon from labelled pairs to a table of scores: classify pairs and contrast partners.
# Usage: sh examples/pairsupcon.sh PAIRS DEV TEST [BASE]
#   PAIRS  pairs labelled entailment or contradiction (the paper: of SNLI and MNLI); neutral ones are skipped
#   DEV    pairs with a score, evaluated on the way; as in the paper, the last weights are kept by default
#   TEST   pairs with a score, for the table
#   BASE   the encoder to start from: nano, or as in the paper bert-base-uncased
# Variables: SEEDS=0..4; SETTINGS='--set chunk=64', the batch of 1024 in less memory, or '--set final=best';
# OUT=FOLDER keeps the checkpoints, and a second call continues there.
# FIELDS='--field text_a=sent1 --field text_b=sent2 --field score=rating' if the fields of DEV and TEST have other
# names; for those of the rows: SETTINGS='--field text=title'.
set -eu
pairs=$1 dev=$2 test=$3 base=${4:-nano}
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
# shellcheck disable=SC2086 # settings are several words
sentkit train pairsupcon "$pairs" -m "$base" -o "$work/run" --seed "$seeds" --dev "$dev" --set final=last --resume $settings

set -- "$work/base.safetensors"
for made in "$work/run" "$work"/run/seed-*; do
    [ -f "$made/sentkit.json" ] || continue # one seed is in run, several are in run/seed-N
    sentkit encode "$test" --precision fp32 -m "$made" -o "$made.safetensors" -f
    set -- "$@" "$made.safetensors"
done
sentkit score "$@" --gold score --baseline "$work/base.safetensors"
