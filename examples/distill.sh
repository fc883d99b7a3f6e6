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
# OUT=FOLDER keeps the vectors and checkpoints, and a second call continues there.
# FIELDS and ENCODE: see recipe.sh.
set -eu
[ $# -ge 5 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
texts=$1 dev=$2 test=$3 teacher=$4 student=$5
SEEDS=${SEEDS:-0}
. "$(dirname "$0")/recipe.sh"
dev=$(pairs "$dev" dev)
test=$(pairs "$test" test)

[ -f "$work/texts.safetensors" ] || sentkit encode "$texts" -m "$teacher" -o "$work/texts.safetensors"
vectors=$work/texts.safetensors
if [ -n "${DIM:-}${SVD:-}" ]; then
    vectors=$work/texts-${DIM:-svd}.safetensors
    [ -f "$vectors" ] || {
        [ -n "${SVD:-}" ] ||
            sentkit whiten fit "$work/texts.safetensors" --kind svd --dim "$DIM" -o "$work/svd.safetensors" -f
        sentkit whiten apply "$work/texts.safetensors" -t "${SVD:-$work/svd.safetensors}" -o "$vectors"
    }
fi
# shellcheck disable=SC2086 # settings are several words
sentkit train distill "$vectors" -m "$student" -o "$work/run" --seed "$seeds" --dev "$dev" \
    --resume $settings

vectors "$test" "$student" "$work/student.safetensors" --readout mean
vectors "$test" "$teacher" "$work/teacher.safetensors"
table "$test" "$work/student.safetensors" "$work/teacher.safetensors"
