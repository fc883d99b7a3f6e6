#!/bin/sh
# SimCSE from rows to a table of scores: texts train it unsupervised, triplets supervised.
# Usage: sh examples/simcse.sh ROWS DEV TEST [BASE]
#   ROWS  texts (the paper: a million of Wikipedia), or anchor, positive and negative (the paper: of NLI)
#   DEV   pairs with a score, which choose the step (the paper: the dev set of the STS benchmark)
#   TEST  pairs with a score, for the table
#   BASE  the encoder to start from: nano, or as in the paper bert-base-uncased
# Variables: SEEDS=0..4; SETTINGS='--preset bert-large';
# OUT=FOLDER keeps the checkpoints, and a second call continues there.
# FIELDS='--field text_a=sent1 --field text_b=sent2 --field score=rating' if the fields of DEV and TEST have other
# names; for those of the rows: SETTINGS='--field text=title'.
set -eu
rows=$1 dev=$2 test=$3 base=${4:-nano}
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
method=simcse
if sentkit cat "$rows" --head 1 | grep -q '"anchor":'; then method=simcse-sup; fi
# shellcheck disable=SC2086 # settings are several words
sentkit train "$method" "$rows" -m "$base" -o "$work/run" --seed "$seeds" --dev "$dev" --resume $settings

set -- "$work/base.safetensors"
for made in "$work/run" "$work"/run/seed-*; do
    [ -f "$made/sentkit.json" ] || continue # one seed is in run, several are in run/seed-N
    sentkit encode "$test" --precision fp32 -m "$made" -o "$made.safetensors" -f
    set -- "$@" "$made.safetensors"
done
sentkit score "$@" --gold score --baseline "$work/base.safetensors"
