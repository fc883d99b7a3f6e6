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
for count in $counts; do
    # `figure words` lists only the first 500 tokens by their exact rank.
    if ! echo "$count" | grep -qx '[1-9][0-9]*' || [ "$count" -gt 500 ]; then
        echo "word-frequency.sh: COUNTS has $count: a number from 1 to 500 is needed" >&2
        exit 2
    fi
done
figure() { python3 -m sentkit.papers.consert.figures "$@"; }
encode_without() { # MODEL TOKENS OUT; without the tokens in the file TOKENS
    python3 - "$pairs" "$readout" "$@" <<'PYTHON'
import sys
from sentkit.errors import SentkitError
from sentkit.papers.consert.figures import encode_without
pairs, readout, model, tokens, out = sys.argv[1:]
try:
    encode_without(pairs, tokens or None, model=model, readout=readout, output=out, force=True)
except SentkitError as error:
    print(f"word-frequency.sh: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
PYTHON
}

number=0 # of the model
: >"$work/scores.jsonl"
for model; do
    number=$((number + 1))
    files=$work/$number
    [ -z "${OUT:-}" ] || figure words "$pairs" --model "$model" -o "$work/words-$number.svg" -f
    figure words "$pairs" --model "$model" -o "$files.words.jsonl" -f # the first lines are the most frequent tokens
    # The lines of the means. Distances and dot products are those of the k nearest tokens.
    name=$(basename "$model")
    sed -n -e "s|^{\"series\":\"mean\",|{\"model\":\"$name\",|p" \
        -e "s|^{\"series\":\"mean, k = \([0-9]*\)\",|{\"model\":\"$name\",\"k\":\1,|p" "$files.words.jsonl"
    encode_without "$model" '' "$files-0.safetensors"
    sentkit score "$files-0.safetensors" --gold score >>"$work/scores.jsonl"
    for count in $counts; do
        sed -n '/^{"token"/p' "$files.words.jsonl" | head -n "$count" >"$files.tokens.jsonl"
        encode_without "$model" "$files.tokens.jsonl" "$files-$count.safetensors"
        sentkit score "$files-$count.safetensors" --gold score >>"$work/scores.jsonl"
    done
done
[ -z "${OUT:-}" ] || figure masking "$work/scores.jsonl" -o "$work/masking.svg" -f
figure masking "$work/scores.jsonl"
