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
# OUT=FOLDER keeps the vectors and checkpoints, and a second call continues there.
# FIELDS='--field text_a=sent1 --field text_b=sent2 --field score=rating' if the fields of DEV and TEST have other
# names; for those of the rows: SETTINGS='--field text=title'.
set -eu
texts=$1 dev=$2 test=$3 teacher=$4 student=$5
seeds=${SEEDS:-0}
settings=${SETTINGS:-}
work=${OUT:-$(mktemp -d)}
[ -n "${OUT:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"
if [ -n "${FIELDS:-}" ]; then
    # shellcheck disable=SC2086 # fields are several words
    sentkit cat "$dev" $FIELDS -o "$work/dev.jsonl" -f
    # shellcheck disable=SC2086
    sentkit cat "$test" $FIELDS -o "$work/test.jsonl" -f
    dev=$work/dev.jsonl test=$work/test.jsonl
fi

[ -f "$work/texts.safetensors" ] || sentkit encode "$texts" -m "$teacher" -o "$work/texts.safetensors"
vectors=$work/texts.safetensors
if [ -n "${DIM:-}" ]; then
    vectors=$work/texts-$DIM.safetensors
    [ -f "$vectors" ] || {
        sentkit whiten fit "$work/texts.safetensors" --kind svd --dim "$DIM" -o "$work/svd.safetensors" -f
        sentkit whiten apply "$work/texts.safetensors" -t "$work/svd.safetensors" -o "$vectors"
    }
fi
# shellcheck disable=SC2086 # settings are several words
sentkit train distill "$vectors" -m "$student" -o "$work/run" --seed "$seeds" --dev "$dev" \
    --resume $settings

set --
for made in "$student" "$teacher" "$work/run" "$work"/run/seed-*; do
    case $made in
    "$student") file=$work/student.safetensors readout=mean ;;
    "$teacher") file=$work/teacher.safetensors readout= ;;
    *)
        [ -f "$made/sentkit.json" ] || continue # one seed is in run, several are in run/seed-N
        file=$made.safetensors readout=
        ;;
    esac
    sentkit encode "$test" --precision fp32 -m "$made" ${readout:+--readout "$readout"} -o "$file" -f
    set -- "$@" "$file"
done
sentkit score "$@" --gold score --baseline "$work/student.safetensors"
