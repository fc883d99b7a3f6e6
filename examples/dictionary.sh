#!/bin/sh
# A dictionary for DefSent and DefSent+ from its sources: merge them, draw entries with all of their definitions, and
# print the figures of table 1 of DefSent+ with lengths in tokens.
# Usage: sh examples/dictionary.sh OUT SOURCE...
#   OUT     the rows to create, for example dictionary.jsonl
#   SOURCE  files of WordNet (data.noun and others), of Ishiwatari et al. (oxford/train.txt and others), of DefSent or
#           DefSent+, or JSONL rows with entry and definition; dictionary_rows.py describes the formats
# Variables: TOKENIZER=bert-base-uncased, a folder or a hub name, for the lengths; SINGLE=yes keeps entries of one token
# only, as DefSent does; SAMPLE='--entries 10000', flags of sample_dictionary.py.
# The dictionaries of the paper: a) Oxford and WordNet, 331,472 definitions of 150,518 entries, at most 138 tokens;
# b) Oxford, 122,209 of 36,767, at most 108; c) Oxford with SINGLE=yes, 67,553 of 9,647, at most 85, for RoBERTa too with
# the tokenizer of BERT.
set -eu
[ $# -ge 2 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
out=$1
shift
here=$(dirname "$0")
tokenizer=${TOKENIZER:-bert-base-uncased}
single=${SINGLE:-}
trap 'rm -f "$out.merged" "$out.part"' EXIT

python3 "$here/dictionary_rows.py" ${single:+--single-tokens "$tokenizer"} "$@" >"$out.merged"
# shellcheck disable=SC2086 # flags are several words
python3 "$here/sample_dictionary.py" "$out.merged" ${SAMPLE:-} >"$out.part"
python3 -c 'import json, statistics, sys
from transformers import AutoTokenizer
rows = [json.loads(line) for line in open(sys.argv[1])]
entries = len({row["entry"] for row in rows})
if not entries: sys.exit("dictionary.sh: no entries")
lengths = [len(ids) for ids in AutoTokenizer.from_pretrained(sys.argv[2])([row["definition"] for row in rows])["input_ids"]]
print("definitions", "entries", "per entry", "mean tokens", "most tokens", sep="\t")
print(len(rows), entries, f"{len(rows) / entries:.2f}", f"{statistics.fmean(lengths):.2f}", max(lengths), sep="\t")' \
    "$out.part" "$tokenizer"
mv "$out.part" "$out"
