#!/bin/sh
# Score each layer and readout of an encoder on pairs (figure 1 of SG-BERT, for any checkpoint).
# Usage: sh examples/layers.sh PAIRS.jsonl [MODEL]; the pairs hold text_a, text_b and score.
set -eu
pairs=$1
model=${2:-nano}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sentkit encode "$pairs" --precision fp32 -m "$model" --readout 'L*:cls,L*:mean,L*:max' -o "$work/sweep"
sentkit score "$work"/sweep/*.safetensors --gold score
