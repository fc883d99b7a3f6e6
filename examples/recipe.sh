#!/bin/sh
# The part that the recipes share; they source it. Their variables:
#   SEEDS=0..4                           the seeds of all runs; 0..2 by default
#   SETTINGS='--epochs 1 --field text=title'   flags of `sentkit train`
#   ENCODE='--precision bf16 --dim 128'  flags of `sentkit encode`; --precision fp32 by default
#   FIELDS='--field text_a=sent1 --field text_b=sent2 --field score=rating'   the fields of DEV and TEST
#   OUT=FOLDER                           keeps vectors and checkpoints, and a second call continues there
# shellcheck disable=SC2034,SC2086 # the recipes use the variables; SETTINGS, ENCODE and FIELDS are several words
seeds=${SEEDS:-0..2}
settings=${SETTINGS:-}
work=${OUT:-$(mktemp -d)}
[ -n "${OUT:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"

pairs() { # FILE NAME: print the name of the pairs with the fields that sentkit reads
    if [ -z "${FIELDS:-}" ]; then echo "$1" && return; fi
    sentkit cat "$1" $FIELDS -o "$work/$2.jsonl" -f && echo "$work/$2.jsonl"
}

base_of() { # MODEL ADVICE: the encoder of the papers that it is, by family and size, such as bert-base
    python3 -c 'import sys
from sentkit.errors import SentkitError
from sentkit.papers.published import published_base
model, advice = sys.argv[1:]
try:
    base = published_base(model)
except SentkitError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
if base is None:
    print(f"{model}: the papers have no settings for an encoder of this family and size", file=sys.stderr)
    print(f"  choose {advice}", file=sys.stderr)
    sys.exit(2)
print(base)' "$@"
}

vectors() ( # ROWS MODEL FILE [FLAGS...]: encode rows into a vector file
    rows=$1 model=$2 file=$3 && shift 3
    sentkit encode "$rows" -m "$model" "$@" ${ENCODE:---precision fp32} -o "$file" -f
)

table() ( # TEST BASELINE VECTORS...: the scores on TEST of vectors, and of the seeds of the run
    test=$1 baseline=$2 && shift
    for checkpoint in "$work/run" "$work"/run/seed-*; do
        [ -f "$checkpoint/sentkit.json" ] || continue # one seed is in run, several are in run/seed-N
        vectors "$test" "$checkpoint" "$checkpoint.safetensors"
        set -- "$@" "$checkpoint.safetensors"
    done
    sentkit score "$@" --gold score --baseline "$baseline"
)
