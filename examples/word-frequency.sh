#!/bin/sh
# The frequency of tokens (figure 4 of ConSERT, and its table of word vectors): the mean length of the word vectors and
# their distances and dot products with the nearest ones by rank, and the scores of pairs without the most frequent
# tokens in the mean.
# Usage: sh examples/word-frequency.sh PAIRS.jsonl [MODEL]...; the pairs hold text_a, text_b and score.
# The folders of the models have different names.
# Variables: COUNTS='5 36 500', the numbers of tokens, at most 500; READOUT=mean, any of the means: mean-last2 as in
# the paper; OUT=FOLDER keeps vectors and reports, and also has the pictures words-1.svg, ... and masking.svg.
set -eu
[ $# -ge 1 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
pairs=$1
shift
[ $# -gt 0 ] || set -- nano
counts=${COUNTS:-1 2 5 10 20 36 50 100 200}
readout=${READOUT:-mean-last2}
work=${OUT:-$(mktemp -d)}
[ -n "${OUT:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"
figure() { python3 -m sentkit.papers.consert.figures "$@"; }
encode_without() { # MODEL TOKENS OUT; without the tokens in the file TOKENS
    python3 - "$pairs" "$readout" "$@" <<'PYTHON'
import sys
from sentkit.papers.consert.figures import encode_without
pairs, readout, model, tokens, out = sys.argv[1:]
encode_without(pairs, tokens or None, model=model, readout=readout, output=out)
PYTHON
}

place=0
: >"$work/scores.jsonl"
for model; do
    place=$((place + 1))
    own=$work/$place
    [ -z "${OUT:-}" ] || figure words "$pairs" --model "$model" -o "$work/words-$place.svg"
    figure words "$pairs" --model "$model" -o "$own.words.jsonl" # the first lines are the most frequent tokens
    name=$(basename "$model")
    sed -n "s|^{\"series\":\"mean\([^\"]*\)\"|{\"model\":\"$name\",\"mean\":\"\1\"|p" "$own.words.jsonl"
    encode_without "$model" '' "$own-0.safetensors"
    sentkit score "$own-0.safetensors" --gold score >>"$work/scores.jsonl"
    for count in $counts; do
        sed -n '/^{"token"/p' "$own.words.jsonl" | head -n "$count" >"$own.tokens.jsonl"
        encode_without "$model" "$own.tokens.jsonl" "$own-$count.safetensors"
        sentkit score "$own-$count.safetensors" --gold score >>"$work/scores.jsonl"
    done
done
[ -z "${OUT:-}" ] || figure masking "$work/scores.jsonl" -o "$work/masking.svg"
figure masking "$work/scores.jsonl"
