#!/bin/sh
# Is a new checkpoint at least as good as the old one? Exit 1 if its Spearman is under a floor.
# Usage: sh examples/gate.sh PAIRS.jsonl OLD NEW FLOOR
set -eu
pairs=$1 old=$2 new=$3 floor=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sentkit encode "$pairs" --precision fp32 -m "$old" -o "$work/old.safetensors"
sentkit encode "$pairs" --precision fp32 -m "$new" -o "$work/new.safetensors"
sentkit score "$work/new.safetensors" --gold score --baseline "$work/old.safetensors" --fail-under "$floor"
