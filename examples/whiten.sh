#!/bin/sh
# Compare transforms of the vector space. Each is fitted to the sentences of TRAIN, without their scores, and
# applied to the pairs of TEST: a line of the table for each, against the vectors without a transform.
# Usage: sh examples/whiten.sh CHECKPOINT TRAIN TEST
#   CHECKPOINT  an encoder: nano, or as in BERT-whitening bert-base-uncased with READOUT=mean-first-last
#   TRAIN TEST  pairs with text_a and text_b; those of TEST have a score. FIELDS is for both
# Variables: READOUT=cls; DIM=128, the numbers that the reduced whitening keeps; OUT=FOLDER keeps vectors and
# transforms, and is overwritten; FIELDS and ENCODE: see recipe.sh.
# The column ICA in README.md is made by hand, because the script has no line for it: ICA is a rotated whitening, and a
# rotation does not change cosines. After a call with OUT=FOLDER:
#   sentkit whiten fit FOLDER/train.safetensors --kind ica -o FOLDER/transforms/ica.safetensors
#   sentkit whiten apply FOLDER/none.safetensors -t FOLDER/transforms/ica.safetensors -o FOLDER/ica.safetensors
#   sentkit score FOLDER/none.safetensors FOLDER/ica.safetensors --gold score --baseline FOLDER/none.safetensors
set -eu
[ $# -ge 3 ] || { sed -n 's/^# Usage/usage/p' "$0" >&2 && exit 2; }
model=$1 train=$2 test=$3
readout=${READOUT:-}
dim=${DIM:-128}
. "$(dirname "$0")/recipe.sh"
train=$(pairs "$train" train)
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
