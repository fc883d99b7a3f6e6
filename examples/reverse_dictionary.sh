#!/bin/sh
# The word for a description: definitions that were held out look for their entry among all entries, before
# DefSent+ and after. Prints how often it stands first, among the first 3, and among the first 10.
# Usage: sh examples/reverse_dictionary.sh DICTIONARY BASE
#   DICTIONARY  rows with an entry and a definition; of entries with several definitions every fifth is held out
#   BASE  the encoder to begin from, with a pooler or a language model's head: bert-base-uncased
# Variables: POOLING=cls|mean, what the pooler is given; SETTINGS='--epochs 2'; OUT=FOLDER keeps everything.
set -eu
dictionary=$1 base=$2
pooling=${POOLING:-mean}
settings=${SETTINGS:-}
work=${OUT:-$(mktemp -d)}
[ -n "${OUT:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"

sentkit cat "$dictionary" | python3 -c 'import collections, json, sys
rows = [(json.loads(line)["entry"], line) for line in sys.stdin]
left = collections.Counter(entry for entry, _ in rows)
kept, held = open(sys.argv[1], "w"), open(sys.argv[2], "w")
several = 0
for entry, line in rows:
    several += left[entry] > 1
    out = left[entry] > 1 and several % 5 == 0
    left[entry] -= out
    (held if out else kept).write(line)' "$work/known.jsonl" "$work/held.jsonl"

entries=$work/entries.safetensors
sentkit build-entries "$work/known.jsonl" -m "$base" --readout mean -o "$entries" -f
sentkit encode "$work/held.jsonl" --precision fp32 --field text=definition -m "$base" --readout mean |
    sentkit search --corpus "$entries" --gold entry
# shellcheck disable=SC2086 # settings are several words
sentkit train defsent-plus "$work/known.jsonl" -m "$base" --entries "$entries" -o "$work/made" \
    --set "pooling=$pooling" --resume $settings >"$work/run"
sentkit encode "$work/held.jsonl" --precision fp32 --field text=definition -m "$work/made" --readout "pooler:$pooling" |
    sentkit search --corpus "$entries" --metric dot --gold entry
