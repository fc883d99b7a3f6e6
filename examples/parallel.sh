#!/bin/sh
# Encode a corpus in several processes of one machine into a vector folder.
# Usage: sh examples/parallel.sh CORPUS DIR [flags of `sentkit encode`]; CORPUS is .jsonl or .txt.
# Variables: JOBS=2 processes; THREADS=1 of each process. After an interruption the same command encodes only the
# missing blocks. GNU parallel can replace xargs, also on several machines that share the folder.
set -eu
[ $# -ge 2 ] || { echo 'usage: parallel.sh CORPUS DIR [FLAGS]' >&2 && exit 2; }
corpus=$1 folder=${2%/} jobs=${JOBS:-2}
shift 2
# xargs adds the shard as the last word: with -I it would also replace the placeholder in the paths.
seq "$jobs" | sed "s|\$|/$jobs|" | xargs -P "$jobs" -n 1 \
    sentkit encode "$corpus" -o "$folder/" --resume --threads "${THREADS:-1}" "$@" --shard
sentkit check "$folder" --shards "$jobs"
