#!/bin/sh
# Score each layer and readout of an encoder on pairs (figure 1 of SG-BERT, for any checkpoint), with a test of the
# difference from its default readout: a table on a terminal, otherwise JSON for `sentkit plot sweep`.
# Usage: sh examples/layers.sh PAIRS.jsonl [MODEL]; the pairs hold text_a, text_b and score.
# Variables FIELDS, the names of the fields, and ENCODE: see recipe.sh.
set -eu
[ $# -ge 1 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
. "$(dirname "$0")/recipe.sh"
rows=$(pairs "$1" pairs)
rm -f "$work"/sweep/L*.safetensors # another encoder may have had more layers
vectors "$rows" "${2:-nano}" "$work/sweep" --readout 'L*:cls,L*:mean,L*:max'
vectors "$rows" "${2:-nano}" "$work/sweep/default.safetensors"
cd "$work/sweep" # for short names in the table
sentkit score default.safetensors L*.safetensors --gold score --baseline default.safetensors
