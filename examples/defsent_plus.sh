#!/bin/sh
# DefSent+ from a dictionary to a table of scores, by progressive separate training. Each step builds a vector for
# every entry with the best encoder of the step before, and trains on them from the same first weights. ICA makes
# the axes of the last step's entries independent.
# Usage: sh examples/defsent_plus.sh DICTIONARY DEV TEST BASE
#   DICTIONARY  rows with an entry and a definition (the paper: 331,472 of Oxford and WordNet). Take a part of a large
#         dictionary by entry, never by row: a sample of rows leaves most entries with one definition.
#         python3 examples/sample_dictionary.py dictionary.jsonl --entries 10000 >part.jsonl
#   DEV   pairs with a score, which choose the seed and its readout (the dev set of the STS benchmark)
#   TEST  pairs with a score, for the table
#   BASE  the encoder that every step starts from: as in the paper bert-base-uncased, or one of SimCSE. It needs
#         a pooler or a language model's head; `sentkit train mlm --set head=fresh` gives one to nano.
# Variables: PRESET=bert-base, bert-large, roberta-base or roberta-large, by default that of the family and the size of
# BASE; another BASE needs it. Step N uses PRESET-stepN. PRESET=simcse-bert-base and others are for one step, from a
# checkpoint of SimCSE or SNCSE. It determines these variables, which are printed: STEPS=3; ENTRY=mean, for RoBERTa cls,
# the readout of definitions; ICA='--scale auto --keep-width', flags of `whiten fit`, for RoBERTa none.
# Others: LR='5e-5 4e-5 3e-5', one rate for each step; SEEDS=0..2; SETTINGS='--set pooling=mean', for all steps;
# SETTINGS_1, SETTINGS_2 and so on, for one step; OUT=FOLDER keeps entries and checkpoints, and a second run continues
# there. FIELDS and ENCODE: see recipe.sh.
# --scale auto gives ICA's axes the deviation that the entries had. The paper's own, which is
# ICA='--scale 100 --variance arbitrary --keep-signs --keep-width', depends on the number of entries and fits 150,518. The paper
# gains by ICA where BERT's pooler projects, and loses where a language model's head does (RoBERTa): see ICA=none.
set -eu
[ $# -ge 4 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
dictionary=$1 dev=$2 test=$3 base=$4
. "$(dirname "$0")/recipe.sh"
preset=${PRESET:-$(base_of "$base" 'a recipe: PRESET=bert-base, bert-large, roberta-base or roberta-large')}
case $preset in
*roberta*) entry=${ENTRY:-cls} ica=${ICA:-none} ;;
*) entry=${ENTRY:-mean} ica=${ICA:---scale auto --keep-width} ;;
esac
case $preset in
simcse-roberta-large | sncse-roberta-large) steps=${STEPS:-2} ;;
simcse-* | sncse-*) steps=${STEPS:-1} ;;
*) steps=${STEPS:-3} ;;
esac
# shellcheck disable=SC2086 # rates are several words
set -- ${LR:-}
[ $# -eq 0 ] || [ $# -eq "$steps" ] || {
    echo "defsent_plus.sh: LR needs one rate for each step, $steps, but has $#" >&2
    exit 2
}
echo "defsent_plus.sh: PRESET=$preset STEPS=$steps ENTRY=$entry ICA='$ica'" >&2
dev=$(pairs "$dev" dev)
test=$(pairs "$test" test)

best() { # the checkpoint of the highest dev score, of the lines that train prints
    python3 -c 'import json, sys
runs = [row for row in map(json.loads, sys.stdin) if "seeds" not in row and row["dev"] is not None]
if not runs: sys.exit("no run has a correlation on DEV")
print(max(runs, key=lambda row: row["dev"])["checkpoint"])'
}

vectors "$test" "$base" "$work/base.safetensors"
encoder=$base # of the entries: the best one of the step before
for step in $(seq "$steps"); do
    rate=
    if [ $# -gt 0 ]; then
        rate=$1
        shift
    fi
    eval "settings_of_step=\${SETTINGS_$step:-}"
    preset_of_step=$preset-step$step
    [ "$step" -gt 1 ] || preset_of_step=$preset
    entries=$work/entries-$step.safetensors
    # Built again each time: the same encoder gives the same bytes, and a run resumes only with these.
    sentkit build-entries "$dictionary" -m "$encoder" --readout "$entry" -o "$entries" -f
    if [ "$step" = "$steps" ] && [ "$step" -gt 1 ] && [ "$ica" != none ]; then
        # shellcheck disable=SC2086 # flags are several words
        sentkit whiten fit "$entries" --kind ica --seed 42 $ica -o "$work/ica.safetensors" -f
        sentkit whiten apply "$entries" -t "$work/ica.safetensors" -o "$work/entries-$step-ica.safetensors" -f
        entries=$work/entries-$step-ica.safetensors
    fi
    # shellcheck disable=SC2086 # settings are several words
    sentkit train defsent-plus "$dictionary" -m "$base" --entries "$entries" -o "$work/step-$step" \
        --preset "$preset_of_step" ${rate:+--lr "$rate"} \
        --seed "$seeds" --dev "$dev" --resume $settings $settings_of_step >"$work/step-$step.runs"
    cat "$work/step-$step.runs"
    encoder=$(best <"$work/step-$step.runs")
    vectors "$test" "$encoder" "$work/step-$step.safetensors"
done

set -- "$work/base.safetensors"
for step in $(seq "$steps"); do # OUT can also have steps of an earlier call
    set -- "$@" "$work/step-$step.safetensors"
done
sentkit score "$@" --gold score --baseline "$work/base.safetensors"
