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
# Variables, here with their defaults: STEPS=3; LR='5e-5 4e-5 3e-5', one for each step; ENTRY=mean, or cls, the
# readout of definitions; ICA='--scale auto --keep-width', flags of `whiten fit`, or ICA=none; SEEDS=0..2.
# Others: SETTINGS='--set pooling=mean', for all steps; SETTINGS_1, SETTINGS_2 and so on, for one step;
# PRESET=roberta-base, the preset of step 1, where step N uses roberta-base-stepN and LR has no default; OUT=FOLDER
# keeps entries and checkpoints, and a second run continues there. FIELDS and ENCODE: see recipe.sh.
# As in the paper, from RoBERTa: PRESET=roberta-base ENTRY=cls ICA=none.
# --scale auto gives ICA's axes the deviation that the entries had. The paper's own, which is
# ICA='--scale 100 --variance arbitrary --keep-signs --keep-width', depends on the number of entries and fits 150,518. The paper
# gains by ICA where BERT's pooler projects, and loses where a language model's head does (RoBERTa): see ICA=none.
set -eu
dictionary=$1 dev=$2 test=$3 base=$4
preset=${PRESET:-} steps=${STEPS:-3} entry=${ENTRY:-mean}
rates=${LR:-}
[ -n "$rates$preset" ] || rates='5e-5 4e-5 3e-5'
ica=${ICA:---scale auto --keep-width}
. "$(dirname "$0")/recipe.sh"
dev=$(pairs "$dev" dev)
test=$(pairs "$test" test)

best() { # the checkpoint of the highest dev score, of the lines that train prints
    python3 -c 'import json, sys
found = [row for row in map(json.loads, sys.stdin) if "seeds" not in row and row["dev"] is not None]
if not found: sys.exit("no run has a correlation on DEV")
print(max(found, key=lambda row: row["dev"])["checkpoint"])'
}

vectors "$test" "$base" "$work/base.safetensors"
maker=$base step=0
while [ "$step" -lt "$steps" ]; do
    step=$((step + 1))
    rate=${rates%% *} rates=${rates#"${rates%% *}"} rates=${rates# }
    [ -n "$rate$preset" ] || break # no rate is left
    eval "own=\${SETTINGS_$step:-}"
    [ "$step" = 1 ] || of_step=-step$step
    entries=$work/entries-$step.safetensors
    # Built again each time: the same encoder gives the same bytes, and a run resumes only with these.
    sentkit build-entries "$dictionary" -m "$maker" --readout "$entry" -o "$entries" -f
    if [ "$step" = "$steps" ] && [ "$step" -gt 1 ] && [ "$ica" != none ]; then
        # shellcheck disable=SC2086 # flags are several words
        sentkit whiten fit "$entries" --kind ica --seed 42 $ica -o "$work/ica.safetensors" -f
        plain=$entries entries=$work/entries-$step-ica.safetensors
        sentkit whiten apply "$plain" -t "$work/ica.safetensors" -o "$entries" -f
    fi
    # shellcheck disable=SC2086 # settings are several words
    sentkit train defsent-plus "$dictionary" -m "$base" --entries "$entries" -o "$work/step-$step" \
        ${preset:+--preset "$preset${of_step:-}"} ${rate:+--lr "$rate"} \
        --seed "$seeds" --dev "$dev" --resume $settings $own >"$work/step-$step.runs"
    cat "$work/step-$step.runs"
    maker=$(best <"$work/step-$step.runs")
    vectors "$test" "$maker" "$work/step-$step.safetensors"
done

set -- "$work/base.safetensors"
for made in "$work"/step-*.safetensors; do set -- "$@" "$made"; done
sentkit score "$@" --gold score --baseline "$work/base.safetensors"
