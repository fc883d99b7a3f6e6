#!/bin/sh
# Find the word for a description: search held-out definitions among all entries, before and after DefSent+.
# Prints how often the right entry is among the first 10 (recall@10), and other scores of both searches.
# Usage: sh examples/reverse_dictionary.sh DICTIONARY BASE
#   DICTIONARY  rows with an entry and a definition. Every fifth definition is held out, counting those that have
#         another definition beside them and occur once in the dictionary: a definition that a synonym shares
#         would find the synonym. Take a part of a large dictionary by entry, never by row:
#         python3 examples/sample_dictionary.py dictionary.jsonl --entries 5000 --min-definitions 3 >part.jsonl
#   BASE  the encoder to start from, with a pooler or a language model's head: bert-base-uncased
# Variables: POOLING=cls|mean, the pooler's input; SETTINGS='--epochs 2'; OUT=FOLDER keeps all files.
set -eu
[ $# -ge 2 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
dictionary=$1 base=$2
pooling=${POOLING:-mean}
settings=${SETTINGS:-}
work=${OUT:-$(mktemp -d)}
[ -n "${OUT:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"

sentkit cat "$dictionary" >"$work/all.jsonl"
python3 -c 'import collections, json, sys
rows = [(json.loads(line), line) for line in open(sys.argv[3])]
texts = [" ".join(row["definition"].split()).casefold() for row, _ in rows]
left = collections.Counter(row["entry"] for row, _ in rows)
uses = collections.Counter(texts)
kept, held, queries, qrels = (open(path, "w") for path in (sys.argv[1], sys.argv[2], *sys.argv[4:]))
several = queried = 0
for (row, line), text in zip(rows, texts, strict=True):
    free = left[row["entry"]] > 1 and uses[text] == 1
    several += free
    out = free and several % 5 == 0
    left[row["entry"]] -= out
    (held if out else kept).write(line)
    if out:
        queried += 1
        print(json.dumps({"id": queried, "text": row["definition"]}), file=queries)
        print(json.dumps({"query-id": queried, "corpus-id": row["entry"], "score": 1}), file=qrels)
if several < 5: sys.exit("reverse_dictionary.sh: no definition can be held out: too few entries have several")' \
    "$work/known.jsonl" "$work/held.jsonl" "$work/all.jsonl" "$work/queries.jsonl" "$work/qrels.jsonl"

search() { # ENCODER READOUT FLAGS...: encode the definitions and search them among the entries
    model=$1 readout=$2 && shift 2
    sentkit encode "$work/queries.jsonl" --precision fp32 -m "$model" --readout "$readout" \
        -o "$work/queries.safetensors" -f
    sentkit search --queries "$work/queries.safetensors" --corpus "$entries" --top 100 --field id=entry "$@" \
        -o "$work/hits.jsonl" -f
    sentkit score "$work/hits.jsonl" --qrels "$work/qrels.jsonl"
}

entries=$work/entries.safetensors
sentkit build-entries "$work/known.jsonl" -m "$base" --readout mean -o "$entries" -f
search "$base" mean
# shellcheck disable=SC2086 # settings are several words
sentkit train defsent-plus "$work/known.jsonl" -m "$base" --entries "$entries" -o "$work/made" \
    --set "pooling=$pooling" --resume $settings >"$work/run"
search "$work/made" "pooler:$pooling" --metric dot
