#!/bin/sh
# Score each layer and readout of an encoder on pairs (figure 1 of SG-BERT, for any checkpoint).
# Usage: sh examples/layers.sh PAIRS.jsonl [MODEL]; the pairs hold text_a, text_b and score.
# Variables FIELDS, the names of the fields, and ENCODE: see recipe.sh.
set -eu
[ $# -ge 1 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
. "$(dirname "$0")/recipe.sh"
vectors "$(pairs "$1" pairs)" "${2:-nano}" "$work/sweep" --readout 'L*:cls,L*:mean,L*:max'
sentkit score "$work"/sweep/*.safetensors --gold score
