#!/bin/sh
# What is a checkpoint worth? STS, multilingual STS, clustering, transfer and few-shot learning, on whatever files
# there are, and then the tables of the papers with their figures and, as the last line, those found here.
# Usage: sh examples/evaluate.sh CHECKPOINT DATA
#   CHECKPOINT  an encoder: a folder, a hub name, a file of word vectors
#   DATA  a folder that holds any of these, as .jsonl or .jsonl.gz:
#     sts/{sts12,sts13,sts14,sts15,sts16,stsb,sickr}[.test]  pairs with a score; a year with all of its parts
#     sts/{sts14_es,sts17_track1_arar,sts17_track3_eses,sts17_track5_enen}[.test]  the same, not in English alone
#     clustering/NAME      rows with text and label: agnews, biomedical, searchsnippets, stackoverflow, tweet, ...
#     senteval/{mr,cr,subj,mpqa}, senteval/{trec,mrpc}.{train,test}, senteval/sst2.{train,dev,test}
# Variables: READOUT=cls; SUITES='sts clustering', of sts sts-multilingual clustering senteval few-shot; SEEDS=0..9 of
# k-means; PROBE='--head senteval --nhid 50', SG-BERT's classifier; OUT=FOLDER, a new one, keeps vectors and reports.
set -eu
[ $# = 2 ] || { echo 'usage: evaluate.sh CHECKPOINT DATA' >&2 && exit 2; }
model=$1 data=$2
here=$(dirname "$0")
all='sts sts-multilingual clustering senteval few-shot'
suites=" ${SUITES:-$all} "
for suite in $suites; do
    case " $all " in *" $suite "*) ;; *) echo "evaluate.sh: SUITES: $suite: not one of $all" >&2 && exit 2 ;; esac
done
if [ -n "${OUT:-}" ]; then
    mkdir "$OUT"
    work=$OUT
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
fi
mkdir "$work/vectors" "$work/reports"

wanted() { # SUITE
    case $suites in *" $1 "*) mkdir -p "$work/reports/$1" ;; *) false ;; esac
}

found() { # NAME...: the first of these files that is there
    for name; do
        for path in "$data/$name.jsonl" "$data/$name.jsonl.gz"; do
            [ ! -e "$path" ] || { echo "$path" && return; }
        done
    done
    false
}

vectors() { # PATH: its rows with their vectors, made once
    made=$work/vectors/$(basename "$(dirname "$1")")-$(basename "$1" | sed 's/\.jsonl.*//').safetensors
    [ -e "$made" ] || sentkit encode "$1" --precision fp32 -m "$model" ${READOUT:+--readout "$READOUT"} -o "$made" >&2
    echo "$made"
}

probed() { # SUITE NAME FLAGS: tested on a part that is given, or in folds
    suite=$1 name=$2 && shift 2
    path=$(found "senteval/$name.train" "senteval/$name") || return 0
    rows=$(vectors "$path")
    set -- "$rows" --label label "$@"
    for part in test dev; do
        path=$(found "senteval/$name.$part") || continue
        [ "$suite$part" != few-shotdev ] || continue # there is nothing to choose
        rows=$(vectors "$path")
        set -- "$@" "--$part" "$rows"
    done
    sentkit probe "$@" >"$work/reports/$suite/$name.json"
}

scored() { # SUITE NAME...
    suite=$1 && shift
    for name; do
        path=$(found "sts/$name.test" "sts/$name") || continue
        rows=$(vectors "$path")
        sentkit score "$rows" --gold score >"$work/reports/$suite/$name.json"
    done
}

clustered() { # PATH...
    for path; do
        [ -e "$path" ] || continue
        rows=$(vectors "$path")
        report=$work/reports/clustering/$(basename "$path" | sed 's/\.jsonl.*//').json
        sentkit cluster "$rows" --truth label --seed "${SEEDS:-0..9}" >"$report"
    done
}

! wanted sts || scored sts sts12 sts13 sts14 sts15 sts16 stsb sickr
! wanted sts-multilingual || scored sts-multilingual sts14_es sts17_track1_arar sts17_track3_eses sts17_track5_enen
! wanted clustering || clustered "$data"/clustering/*.jsonl "$data"/clustering/*.jsonl.gz
for name in mr cr subj mpqa sst2 trec mrpc; do
    # shellcheck disable=SC2086 # flags are several words
    ! wanted senteval || probed senteval "$name" ${PROBE:-}
    ! wanted few-shot || probed few-shot "$name" --few-shot 16
done
python3 "$here/published.py" "$work/reports"
