#!/bin/sh
# The tables and figures of DefSent+ (arXiv 2405.16153). Usage and variables: see common.sh in this folder.
#   sh examples/papers/defsent-plus.sh bert-base-uncased data
# Tables 1, 2 and 8; 3 and 6 with corpora/; 4 with senteval/. Figures 1 and 3 to 8: the entries of each step.
# Further data: dictionary/NAME, rows with an entry and a definition, required. The first file by name is the
# dictionary of all tables (the paper: Oxford and WordNet, see examples/dictionary.sh); each further file is a row of
# table 2. corpora/NAME, sentences for SimCSE and SNCSE (the paper starts from published checkpoints: START=CHECKPOINT).
# sts12 to sts16 and sickr.test in sts/, for the averages.
# BASE needs the head of a language model, for DefSent. Other variables as for examples/defsent_plus.sh, which does the
# steps: PRESET, LR, ENTRY, ICA.
# The recipe of the paper: 10 seeds of each step, one epoch of 331,472 definitions in batches of 32, 10,359 steps.
# For a network of the size of BERT-base, a step took 3.2 CPU seconds (one thread, fp32, the mean of 4 steps, few
# entries): a run takes 9 CPU hours, and the 110 runs of tables 2 and 8 about 1,000; not measured on a GPU.
here=$(dirname "$0") seeds=0..9
# shellcheck source=examples/papers/common.sh
. "$here/common.sh"
set -- "$data"/dictionary/*
[ -e "$1" ] || { echo "$paper.sh: $data/dictionary: no dictionary" >&2 && exit 66; }
steps() ( # NAME ROWS BASE VARIABLE=VALUE...
    name=$1 rows=$2 start=$3 && shift 3
    [ $# -eq 0 ] || export "$@"
    example "$name" defsent_plus.sh "$rows" "$choose" "$pairs" "$start"
)

# Table 1, and the rows of each dictionary. That of single tokens is a part of the first one.
dictionary() { # NAME FILE
    TOKENIZER=$base SAMPLE="${quick:+--entries 400}" \
        sh "$here/../dictionary.sh" "$work/rows/$1.jsonl" "$2" >"$work/rows/$1.tsv"
    sed "s/^/$1	/; 1s/^$1/dictionary/" "$work/rows/$1.tsv"
}
own=$work/rows/all.jsonl
make "$work/tables/dictionary-all.tsv" dictionary all "$1"
(export SINGLE=yes && make "$work/tables/dictionary-single.tsv" dictionary single "$1")
shift
names=''
for path; do
    name=$(basename "$path") && name=${name%%.*} names="$names ${name%%.*}"
    make "$work/tables/dictionary-$name.tsv" dictionary "$name" "$path"
done
awk 'FNR > 1 || NR == 1' "$work"/tables/dictionary-*.tsv

# Table 2: three steps, the last with and without ICA; one step with other dictionaries; DefSent, which learns from
# entries of one token.
if [ ! -d "$work/runs/plain-3" ]; then
    steps steps "$own" "$base" ICA=none
    mv "$work/runs/steps/step-3" "$work/runs/plain-3"
fi
steps steps "$own" "$base"
family=${PRESET:-bert-base}
train defsent defsent "$own" --dev "$choose" --preset "$family-cls"
set --
flags='--batch 16' # of the two smaller dictionaries: 7,639 and 4,223 steps
for name in single $names; do
    steps "$name" "$work/rows/$name.jsonl" "$base" STEPS=1
    set -- "$@" "1-$name=$work/runs/$name/step-1"
done
flags=''
report 2 --baseline=1 "no-tuning=$base#mean" defsent "$@" "1=$work/runs/steps/step-1" "2=$work/runs/steps/step-2" \
    "3=$work/runs/plain-3" "3-ica=$work/runs/steps/step-3"

# Table 8: readout of the definitions of entries and of those that are trained, after step 1.
set --
[ -n "$quick" ] && poolings=cls || poolings='cls mean'
for pooling in $poolings; do
    for entry in cls mean; do
        flags="--set pooling=$pooling"
        steps "$pooling-$entry" "$own" "$base" STEPS=1 "ENTRY=$entry"
        set -- "$@" "1-$pooling-$entry=$work/runs/$pooling-$entry/step-1"
    done
done
flags=''
[ -z "$averages" ] || report 8 "$@"

# Tables 3 and 6: one step from SimCSE and from SNCSE.
step_from() { # NAME CHECKPOINT
    steps "$1+1" "$own" "$2" STEPS=1 "PRESET=$1-$family"
}
for corpus in "$data"/corpora/*; do break; done
if [ -n "${START:-}" ]; then
    step_from simcse "$START"
    simcse=$START
elif [ -e "$corpus" ]; then
    make "$work/rows/corpus.jsonl" some "$corpus" 64
    make "$work/rows/negated.jsonl" sentkit augment "$work/rows/corpus.jsonl" --op negate -q
    train simcse simcse "$work/rows/corpus.jsonl" --dev "$choose" --preset "$family"
    train sncse sncse "$work/rows/negated.jsonl" --dev "$choose" --preset "$family"
    for start in simcse sncse; do
        step_from "$start" "$(first "$start")"
    done
    simcse=$work/runs/simcse
else
    missing 'tables 3 and 6' "no $data/corpora, and START is not set"
fi
last="3-ica=$work/runs/steps/step-3"
set -- "simcse+1=$work/runs/simcse+1/step-1" "sncse+1=$work/runs/sncse+1/step-1"
if [ -n "${simcse:-}" ]; then
    report 3 "simcse=$simcse" sncse "$@"
    report 6 "$last" "$@"
fi
if senteval 'table 4'; then report 4 defsent "$last" ${simcse:+"simcse=$simcse"} sncse "$@"; fi

# Figures 1 and 3 to 8: the entries of each step, and the correlations of their axes.
for step in 1 2 3; do figure "entries-$step" defsent/axes "$work/runs/steps/entries-$step.safetensors"; done
for name in 3 3-ica; do
    figure "correlation-$name" defsent/correlations "$work/runs/steps/entries-$name.safetensors"
done
