#!/bin/sh
# Evaluate a checkpoint on STS, multilingual STS, clustering, transfer tasks and few-shot learning, and print the
# tables of the papers with their figures and, as the last line of each, the figures found here.
# Usage: sh examples/evaluate.sh CHECKPOINT... DATA
#   CHECKPOINT  an encoder: a folder, a hub name, a file of word vectors. Several are the seeds of one run, such as
#         runs/seed-*, and the tables show their mean and, in parentheses, their standard deviation (of a sample).
#   DATA  a folder with any of these, as .jsonl or .jsonl.gz; other files in the three folders are named:
#     sts/{sts12,sts13,sts14,sts15,sts16,stsb,sickr}[.test]  pairs with a score; a year with all of its parts
#     sts/{sts14_es,sts17_track1_arar,sts17_track3_eses,sts17_track5_enen}[.test]  the same, in other languages too
#     clustering/NAME      rows with text and label: agnews, biomedical, searchsnippets, stackoverflow, tweet, ...
#     senteval/{mr,cr,subj,mpqa}, senteval/{trec,mrpc}.{train,test}, senteval/sst2.{train,dev,test}
# Variables: READOUT=cls; ENCODE='--max-length 512', flags of `sentkit encode`; SUITES='sts clustering', of
# sts sts-multilingual clustering senteval few-shot; SEEDS=0..9 of k-means; PROBE='--head senteval --nhid 50', the
# classifier of SG-BERT; PROBE_SEEDS=0..4 of the probes; OUT=FOLDER, a new one, keeps vectors and reports.
# A data set that fails does not stop the others: it is named at the end, and the exit code is 1.
set -eu
[ $# -ge 2 ] || { echo 'usage: evaluate.sh CHECKPOINT... DATA' >&2 && exit 2; }
count=$#
for data; do # the last argument is DATA, the others remain in "$@"
    shift
    count=$((count - 1))
    [ "$count" = 0 ] || set -- "$@" "$data"
done
[ -d "$data" ] || { echo "evaluate.sh: $data: not a folder of data" >&2 && exit 66; }
here=$(dirname "$0")
all='sts sts-multilingual clustering senteval few-shot'
suites=" ${SUITES:-$all} "
for suite in $suites; do
    case " $all " in *" $suite "*) ;; *) echo "evaluate.sh: SUITES: $suite: not one of $all" >&2 && exit 2 ;; esac
done
encode() { # ROWS FLAGS...
    # shellcheck disable=SC2086 # flags are several words
    sentkit encode "$@" -m "$model" ${READOUT:+--readout "$READOUT"} ${ENCODE:-}
}

for model; do # a wrong checkpoint or flag ends here
    echo 'a sentence' | encode - -q >/dev/null
done
trap 'exit 130' INT
trap 'exit 143' TERM
if [ -n "${OUT:-}" ]; then
    mkdir "$OUT"
    work=$OUT
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
english='sts12 sts13 sts14 sts15 sts16 stsb sickr'
multilingual='sts14_es sts17_track1_arar sts17_track3_eses sts17_track5_enen'
transfer='mr cr subj mpqa sst2 trec mrpc'
: >"$work/failed"

wanted() { # SUITE
    case $suites in *" $1 "*) ;; *) false ;; esac
}

found() ( # NAME...: the first of these files that exists
    for name; do
        for path in "$data/$name.jsonl" "$data/$name.jsonl.gz"; do
            [ ! -e "$path" ] || { echo "$path" && exit; }
        done
    done
    false
)

unused() ( # name the files that no suite reads
    {
        for name in $english $multilingual; do found "sts/$name.test" "sts/$name" || :; done
        for name in $transfer; do
            found "senteval/$name.train" "senteval/$name" || :
            for part in test dev; do found "senteval/$name.$part" || :; done
        done
    } >"$work/known"
    for path in "$data"/sts/* "$data"/clustering/* "$data"/senteval/*; do
        case $path in
        */clustering/*.jsonl | */clustering/*.jsonl.gz) ;;
        *) [ ! -e "$path" ] || grep -qxF -e "$path" "$work/known" || echo "evaluate.sh: not used: $path" >&2 ;;
        esac
    done
)

vectors() ( # PATH: the file of its rows with vectors, made once
    made=$folder/vectors/$(basename "$(dirname "$1")")-$(basename "$1" | sed 's/\.jsonl.*//').safetensors
    [ -e "$made" ] || encode "$1" -o "$made" >&2 || exit
    echo "$made"
)

report() ( # SUITE NAME COMMAND...: write its report, or note that it failed
    made=$folder/reports/$1/$2.json name=$1/$2 && shift 2
    if "$@" >"$made.part"; then mv "$made.part" "$made"; else
        rm "$made.part"
        echo "$model: $name" >>"$work/failed"
    fi
)

each() { # 0..4 or 1,3: the seeds
    case $1 in *..*) seq "${1%..*}" "${1#*..}" ;; *) echo "$1" | tr , '\n' ;; esac
}

probe() ( # PATH PARTS FLAGS...: tested on a part that exists, or in folds; a line for each seed
    stem=$(echo "$1" | sed 's/\.train\.jsonl.*//; s/\.jsonl.*//') parts=$2
    rows=$(vectors "$1") || exit
    shift 2
    set -- "$rows" --label label "$@"
    for part in $parts; do
        path=$(found "${stem#"$data/"}.$part") || continue
        rows=$(vectors "$path") || exit
        set -- "$@" "--$part" "$rows"
    done
    if [ -z "${PROBE_SEEDS:-}" ]; then
        sentkit probe "$@"
        exit
    fi
    for seed in $(each "$PROBE_SEEDS"); do sentkit probe "$@" --seed "$seed" || exit; done
)

score() { # PATH
    rows=$(vectors "$1") && sentkit score "$rows" --gold score
}

cluster() { # PATH
    rows=$(vectors "$1") && sentkit cluster "$rows" --truth label --seed "${SEEDS:-0..9}"
}

evaluate() {
    for suite in $suites; do mkdir -p "$folder/reports/$suite"; done
    for name in $english; do
        path=$(found "sts/$name.test" "sts/$name") || continue
        ! wanted sts || report sts "$name" score "$path"
    done
    for name in $multilingual; do
        path=$(found "sts/$name.test" "sts/$name") || continue
        ! wanted sts-multilingual || report sts-multilingual "$name" score "$path"
    done
    for path in "$data"/clustering/*.jsonl "$data"/clustering/*.jsonl.gz; do
        [ -e "$path" ] || continue
        ! wanted clustering || report clustering "$(basename "$path" | sed 's/\.jsonl.*//')" cluster "$path"
    done
    for name in $transfer; do
        path=$(found "senteval/$name.train" "senteval/$name") || continue
        # shellcheck disable=SC2086 # flags are several words
        ! wanted senteval || report senteval "$name" probe "$path" 'test dev' ${PROBE:-}
        ! wanted few-shot || report few-shot "$name" probe "$path" test --few-shot 16
    done
}

unused
: >"$work/folders"
for model; do
    folder=$work/$(basename "$model")
    while [ -e "$folder" ]; do folder=${folder}_; done # two seeds may have the same name
    mkdir -p "$folder/vectors" "$folder/reports"
    evaluate
    echo "$folder/reports" >>"$work/folders"
done
set --
while read -r folder; do set -- "$@" "$folder"; done <"$work/folders"
code=0
python3 "$here/published.py" "$@" || code=$?
if [ -s "$work/failed" ]; then
    echo 'evaluate.sh: these failed, for the reasons above:' >&2
    sed 's/^/  /' "$work/failed" >&2
    code=1
fi
exit "$code"
