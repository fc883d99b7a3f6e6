#!/bin/sh
# Distillation: a small encoder learns the vectors of a large one, from texts to a table of scores.
# Usage: sh examples/distill.sh TEXTS DEV TEST TEACHER STUDENT
#   TEXTS    rows with a text
#   DEV      pairs with a score, which choose the step
#   TEST     pairs with a score, for the table
#   TEACHER  the encoder to learn from, such as sentence-transformers/all-MiniLM-L6-v2
#   STUDENT  the encoder to start from, such as a language model with few layers
# Variables: SEEDS=0..4; SETTINGS='--lr 5e-4 --set relational=1';
# DIM=256 takes the vectors of TEACHER in their first principal directions. With the width of STUDENT, the
# checkpoint needs no linear map.
# SVD=FILE takes these directions from an earlier run (svd.safetensors in its OUT), whose checkpoint can be STUDENT.
# OUT=FOLDER keeps the vectors and checkpoints, and a second call continues there. Other TEXTS, another TEACHER or other
# directions in the same OUT are an error.
# FIELDS and ENCODE: see recipe.sh.
set -eu
[ $# -ge 5 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
texts=$1 dev=$2 test=$3 teacher=$4 student=$5
SEEDS=${SEEDS:-0}
. "$(dirname "$0")/recipe.sh"
dev=$(pairs "$dev" dev)
test=$(pairs "$test" test)

# A folder, because --resume encodes only missing blocks, and refuses other texts and another teacher.
# shellcheck disable=SC2086 # flags are several words
sentkit encode "$texts" -m "$teacher" ${ENCODE:-} -o "$work/texts/" --resume -q
targets=$work/texts
if [ -n "${DIM:-}${SVD:-}" ]; then
    # Projected again each time: train --resume refuses vectors in other directions.
    directions=${SVD:-$work/svd.safetensors}
    [ -n "${SVD:-}" ] || sentkit whiten fit "$work/texts" --kind svd --dim "$DIM" -o "$directions" -f
    targets=$work/texts-${DIM:-svd}.safetensors
    sentkit whiten apply "$work/texts" -t "$directions" -o "$targets" -f
fi
# shellcheck disable=SC2086 # settings are several words
sentkit train distill "$targets" -m "$student" -o "$work/run" --seed "$seeds" --dev "$dev" \
    --resume $settings

vectors "$test" "$student" "$work/student.safetensors" --readout mean
vectors "$test" "$teacher" "$work/teacher.safetensors"
table "$test" "$work/student.safetensors" "$work/teacher.safetensors"
