#!/bin/sh
# Domain shift (figure 4 of SG-BERT): train an encoder on the texts of each domain, and score it on all domains. The
# output is a table with tabs for `python3 -m sentkit.papers.sg_bert.figures domains`: a line for each encoder, domain
# and seed. The first lines are those of BASE.
# Usage: sh examples/domain-shift.sh METHOD BASE TEST ROWS...
#   METHOD  of sentkit train, such as sg-bert
#   BASE    the encoder to start from
#   TEST    pairs with a score and their domain
#   ROWS    files with training rows, one of each domain; the name of a file is the name of its domain
# Variables: DOMAIN=topic, the field of TEST with the domain; DEV=dev.jsonl, pairs with a score, which choose the step;
# SEEDS=0..4; SETTINGS='--epochs 1'; OUT=FOLDER keeps the checkpoints, and also has the picture domains.svg.
# FIELDS and ENCODE: see recipe.sh.
set -eu
[ $# -ge 4 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
method=$1 base=$2 test=$3
shift 3
field=${DOMAIN:-topic} dev=${DEV:-}
. "$(dirname "$0")/recipe.sh"
test=$(pairs "$test" test)
[ -z "$dev" ] || dev=$(pairs "$dev" dev)

scores() { # NAME CHECKPOINT: a line for each domain
    vectors "$test" "$2" "$work/test.safetensors"
    sentkit score "$work/test.safetensors" --gold score --group "$field" | python3 -c 'import json, sys
for domain, report in json.load(sys.stdin)["groups"].items():
    score = "-" if report["spearman"] is None else report["spearman"]
    print(sys.argv[1], domain, report["n"], score, sep="\t")' "$1"
}

table() {
    printf 'trained\tdomain\tn\tspearman\n'
    scores base "$base"
    for rows; do
        name=$(basename "$rows")
        name=${name%%.*}
        # shellcheck disable=SC2086 # settings are several words
        sentkit train "$method" "$rows" -m "$base" -o "$work/$name" --seed "$seeds" ${dev:+--dev "$dev"} --resume \
            $settings >"$work/$name.runs"
        for checkpoint in "$work/$name" "$work/$name"/seed-*; do
            [ -f "$checkpoint/sentkit.json" ] || continue # one seed is in NAME, several are in NAME/seed-N
            scores "$name" "$checkpoint"
        done
    done
}

table "$@" >"$work/domains.tsv"
cat "$work/domains.tsv"
[ -z "${OUT:-}" ] || python3 -m sentkit.papers.sg_bert.figures domains "$work/domains.tsv" --name trained --domain domain \
    -o "$work/domains.svg" -f
