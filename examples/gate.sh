#!/bin/sh
# Is a new checkpoint at least as good as the old one? Exit 1 if its Spearman is under a floor.
# Usage: sh examples/gate.sh PAIRS.jsonl OLD NEW FLOOR
# Variables FIELDS, the names of the fields, and ENCODE: see recipe.sh.
set -eu
old=$2 new=$3 floor=$4
. "$(dirname "$0")/recipe.sh"
pairs=$(pairs "$1" pairs)
vectors "$pairs" "$old" "$work/old.safetensors"
vectors "$pairs" "$new" "$work/new.safetensors"
sentkit score "$work/new.safetensors" --gold score --baseline "$work/old.safetensors" --fail-under "$floor"
