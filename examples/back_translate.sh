#!/bin/sh
# Back-translations: each text with its translation into another language and back, as rows with text_a and text_b, for
# the rows BT of SG-BERT (`sentkit train sg-bert --preset bt`; papers/papers.py reads them as DATA/paraphrases/stsb.jsonl).
# Usage: sh examples/back_translate.sh TEXTS OUT [THERE BACK]
#   TEXTS  texts, or pairs as two texts each; the paper: the train, dev and test pairs of the STS benchmark
#   OUT    the rows to create
#   THERE, BACK  checkpoints of `sentkit translate`; as in appendix A.2: facebook/wmt19-en-de and facebook/wmt19-de-en
# Variables: SEARCH='--set beams=100', flags of `sentkit translate`; as in the paper, 100 beams.
set -eu
[ $# -eq 2 ] || [ $# -eq 4 ] || { echo 'usage: back_translate.sh TEXTS OUT [THERE BACK]' >&2 && exit 2; }
texts=$1 out=$2 there=${3:-facebook/wmt19-en-de} back=${4:-facebook/wmt19-de-en}
search=${SEARCH:---set beams=100}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sentkit cat "$texts" >"$work/rows.jsonl"
python3 -c 'import json, sys
for row in map(json.loads, sys.stdin):
    for name in ("text", "text_a", "text_b"):
        if name in row:
            print(json.dumps({"text": row[name]}))' <"$work/rows.jsonl" >"$work/texts.jsonl"
# shellcheck disable=SC2086 # flags are several words
sentkit translate "$work/texts.jsonl" -m "$there" --keep text_a $search >"$work/there.jsonl"
# shellcheck disable=SC2086
sentkit translate "$work/there.jsonl" -m "$back" $search >"$work/back.jsonl"
python3 -c 'import json, sys
for row in map(json.loads, sys.stdin):
    print(json.dumps({"text_a": row["text_a"], "text_b": row["text"]}, ensure_ascii=False))' <"$work/back.jsonl" >"$out.part"
mv "$out.part" "$out"
