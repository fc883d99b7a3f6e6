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
# FIELDS='--field text_a=sent1 --field text_b=sent2 --field score=rating' if the fields of DEV and TEST have other
# names; for those of the rows: SETTINGS='--field text=title'.
set -eu
texts=$1 dev=$2 test=$3 base=${4:-nano}
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
sentkit train sg-bert "$texts" -m "$base" -o "$work/run" --seed "$seeds" --dev "$dev" --resume $settings

set -- "$work/base.safetensors"
for made in "$work/run" "$work"/run/seed-*; do
    [ -f "$made/sentkit.json" ] || continue # one seed is in run, several are in run/seed-N
    sentkit encode "$test" --precision fp32 -m "$made" -o "$made.safetensors" -f
    set -- "$@" "$made.safetensors"
done
sentkit score "$@" --gold score --baseline "$work/base.safetensors"
