#!/bin/sh
# Is a new checkpoint at least as good as the old one? Exit 1 if the paired test finds its Spearman more than
# MARGIN (default 0) below that of the old one, or if it is below FLOOR (default: none); x 100.
# Usage: sh examples/gate.sh PAIRS.jsonl OLD NEW [FLOOR [MARGIN]]
# Variables FIELDS, the names of the fields, and ENCODE: see recipe.sh.
set -eu
[ $# -ge 3 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
old=$2 new=$3 floor=${4:-} margin=${5:-0}
. "$(dirname "$0")/recipe.sh"
pairs=$(pairs "$1" pairs)
vectors "$pairs" "$old" "$work/old.safetensors"
vectors "$pairs" "$new" "$work/new.safetensors"
cd "$work" # for short names in the table
sentkit score new.safetensors --gold score --baseline old.safetensors \
    --fail-if-worse "$margin" ${floor:+--fail-under "$floor"}
