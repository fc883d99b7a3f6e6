#!/bin/sh
# Labelled pairs and triplets for training, from SNLI, MNLI and the files of SimCSE and PairSupCon as distributed.
# Usage: sh examples/nli.sh OUT FILE...
#   OUT   a folder: pairs.jsonl for pairsupcon.sh and for sbert and ConSERT, triplets.jsonl for simcse.sh
#   FILE  snli_1.0_train.jsonl multinli_1.0_train.jsonl (or .txt, each also .gz), as in SBERT and PairSupCon; or
#         nli_for_simcse.csv, or nli_train_posneg.csv, which PairSupCon's README makes of it
# The training files of SNLI and MNLI together have 314,315 entailed and 314,090 contradicted pairs; the CSV files have
# 275,601 of each. A file with one of these names and other counts is an error.
set -eu
[ $# -ge 2 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
out=$1
shift
rows=$(dirname "$0")/nli_rows.py
mkdir -p "$out"
trap 'rm -f "$out"/*.part' EXIT
python3 "$rows" "$@" >"$out/pairs.part"
python3 "$rows" --triplets "$@" >"$out/triplets.part" 2>/dev/null # the counts are those of the pairs
for name in pairs triplets; do
    echo "$name.jsonl: $(wc -l <"$out/$name.part") rows"
    mv "$out/$name.part" "$out/$name.jsonl"
done
