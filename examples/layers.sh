#!/bin/sh
# Score each layer and readout of an encoder on pairs (figure 1 of SG-BERT, for any checkpoint).
# Usage: sh examples/layers.sh PAIRS.jsonl [MODEL]; the pairs hold text_a, text_b and score.
# Variables: FIELDS='--field text_a=sent1 --field text_b=sent2 --field score=rating' if the fields have other names.
set -eu
pairs=$1
model=${2:-nano}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "${FIELDS:-}" ]; then
    # shellcheck disable=SC2086 # fields are several words
    sentkit cat "$pairs" $FIELDS -o "$work/pairs.jsonl"
    pairs=$work/pairs.jsonl
fi

sentkit encode "$pairs" --precision fp32 -m "$model" --readout 'L*:cls,L*:mean,L*:max' -o "$work/sweep"
sentkit score "$work"/sweep/*.safetensors --gold score
