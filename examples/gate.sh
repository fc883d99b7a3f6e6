#!/bin/sh
# Is a new checkpoint at least as good as the old one? Exit 1 if its Spearman is under a floor.
# Usage: sh examples/gate.sh PAIRS.jsonl OLD NEW FLOOR
# Variables: FIELDS='--field text_a=sent1 --field text_b=sent2 --field score=rating' if the fields have other names.
set -eu
pairs=$1 old=$2 new=$3 floor=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "${FIELDS:-}" ]; then
    # shellcheck disable=SC2086 # fields are several words
    sentkit cat "$pairs" $FIELDS -o "$work/pairs.jsonl"
    pairs=$work/pairs.jsonl
fi

sentkit encode "$pairs" --precision fp32 -m "$old" -o "$work/old.safetensors"
sentkit encode "$pairs" --precision fp32 -m "$new" -o "$work/new.safetensors"
sentkit score "$work/new.safetensors" --gold score --baseline "$work/old.safetensors" --fail-under "$floor"
