#!/bin/sh
# Compare transforms of the vector space. Each is fitted to the sentences of TRAIN, without their scores, and
# applied to the pairs of TEST: a line of the table for each, against the vectors without a transform.
# Usage: sh examples/whiten.sh CHECKPOINT TRAIN TEST
#   CHECKPOINT  an encoder: nano, or as in BERT-whitening bert-base-uncased with READOUT=mean-first-last
#   TRAIN TEST  pairs with text_a and text_b; those of TEST have a score
# Variables: READOUT=cls; DIM=128, the numbers that the reduced whitening keeps; OUT=FOLDER keeps vectors and
# transforms, and is overwritten; FIELDS and ENCODE: see recipe.sh. --kind ica is not here: it is a rotated whitening,
# and a rotation does not change cosines.
set -eu
[ $# -ge 3 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
model=$1 train=$2 test=$3
readout=${READOUT:-}
dim=${DIM:-128}
. "$(dirname "$0")/recipe.sh"
test=$(pairs "$test" test)
mkdir -p "$work/transforms"

vectors "$train" "$model" "$work/train.safetensors" ${readout:+--readout "$readout"}
vectors "$test" "$model" "$work/none.safetensors" ${readout:+--readout "$readout"}

set -- "$work/none.safetensors"
for kind in center standardize abtt whitening "whitening --dim $dim" flow; do
    name=$(echo "$kind" | tr -d ' -')
    # shellcheck disable=SC2086 # a kind with its flags
    sentkit whiten fit "$work/train.safetensors" --kind $kind -o "$work/transforms/$name.safetensors" -f
    sentkit whiten apply "$work/none.safetensors" -t "$work/transforms/$name.safetensors" -o "$work/$name.safetensors" -f
    set -- "$@" "$work/$name.safetensors"
done
sentkit score "$@" --gold score --baseline "$work/none.safetensors"
