#!/bin/sh
# Draw the pictures of examples/README.md, each with its numbers in a .jsonl file, from nano and the data of this folder.
# Usage: sh examples/pictures.sh [FOLDER]; without FOLDER, examples/pictures.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/pictures}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

draw() { # NAME KIND...: the picture NAME.svg and its numbers NAME.jsonl
    name=$1
    shift
    sentkit plot "$@" -o "$folder/$name.svg" -f
    sentkit plot "$@" -o "$folder/$name.jsonl" -f
}

data=$here/data
sentkit encode "$data/news.jsonl" --precision fp32 -o news.safetensors
head -n 6 "$data/titles.txt" | sentkit encode --precision fp32 -o titles.safetensors
sentkit encode "$data/pairs.jsonl" --precision fp32 -o pairs.safetensors
sentkit encode "$data/pairs.jsonl" --precision fp32 -o layers --readout 'L*:cls,L*:mean,L*:max' -q
sentkit score layers/*.safetensors --gold score -q >layers.jsonl

draw space space news.safetensors --by pca --label label
draw heat heat titles.safetensors
draw pairs pairs pairs.safetensors --gold score
draw layers sweep layers.jsonl
