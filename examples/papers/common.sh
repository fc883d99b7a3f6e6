# Functions that the scripts of this folder share; they read this file. Usage of a script:
#   sh examples/papers/sg-bert.sh [--quick] BASE DATA
#     BASE  the encoder to start from, for example bert-base-uncased
#     DATA  a folder as `sentkit report --data` takes it, with sts/stsb.{train,dev,test}, as .jsonl or .jsonl.gz; the
#           scripts name further files
# --quick tries a script in minutes: few systems, a few steps of one seed, and tests on 200 rows of each set. The scores
# mean nothing.
# Variables: OUT=FOLDER, here PAPER-results, keeps runs, results and tables, and a second call continues there;
# SEEDS=0..7; SETTINGS='--device cuda', flags of `sentkit train` for all runs; FORMAT=latex, markdown or text, of the
# tables; FIGURES=svg, png or pdf of the figures, or json for their numbers, which needs no matplotlib.
# Lines with "not made" on stderr name each table and figure that needs another file or variable.
set -eu
paper=$(basename "$0" .sh)
quick=''
[ "${1:-}" != --quick ] || { quick=yes && shift; }
[ $# -eq 2 ] || { echo "usage: $paper.sh [--quick] BASE DATA" >&2 && exit 2; }
base=$1 data=$2 format=${FORMAT:-text}
[ -d "$data" ] || { echo "$paper.sh: $data: not a folder of data" >&2 && exit 66; }
work=${OUT:-$paper-${quick:+quick-}results}
mkdir -p "$work/rows" "$work/runs" "$work/tables" "$work/figures"
few=''
if [ -n "$quick" ]; then
    few='--batch 16 --epochs 1 --set max_length=64'
    seeds=0
fi
seeds=${SEEDS:-$seeds}

found() ( # NAME: the file of this data set; nothing if it is missing
    for path in "$data/$1.jsonl" "$data/$1.jsonl.gz"; do
        [ ! -e "$path" ] || { echo "$path" && exit; }
    done
)

needed() ( # NAME: the same, and an error if it is missing
    path=$(found "$1")
    [ -n "$path" ] || { echo "$paper.sh: $data/$1.jsonl: no such file" >&2 && exit 66; }
    echo "$path"
)

missing() { # TABLE WHAT
    echo "$paper.sh: not made: $1: $2" >&2
}

in_sts() { # NAME...: success if sts/ has all of these test sets
    for name; do [ -n "$(found "sts/$name.test")$(found "sts/$name")" ] || return 1; done
}

senteval() { # TABLE: success if it can be made; the classifiers of the transfer tasks take long
    [ -z "$quick" ] || { missing "$1" 'not part of --quick' && return 1; }
    [ -d "$data/senteval" ] || { missing "$1" "no $data/senteval" && return 1; }
}

make() ( # FILE COMMAND...: the output of a command as a file, made once
    made=$1 && shift
    [ ! -e "$made" ] || exit 0
    "$@" >"$made.part"
    mv "$made.part" "$made"
)

spread() { # ROWS: at most so many rows of stdin, from all parts of it
    awk -v most="$1" '{ row[NR] = $0 } END {
        step = NR > most ? NR / most : 1
        for (n = 1; n <= NR; n += step) print row[int(n)]
    }'
}

some() { # FILE ROWS: all rows; with --quick ROWS of them
    if [ -z "$quick" ]; then
        sentkit cat "$1" -q
    else
        sentkit cat "$1" -q >"$work/rows/whole.jsonl"
        spread "$2" <"$work/rows/whole.jsonl"
    fi
}

texts() { # FILE...: the texts of pairs as rows; with --quick the first 64
    python3 -c 'import gzip, itertools, json, sys
def texts(paths):
    for path in paths:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as rows:
            for row in map(json.loads, rows):
                yield from (row[name] for name in ("text", "text_a", "text_b") if name in row)
most = int(sys.argv[1]) if sys.argv[1] else None
for text in itertools.islice(texts(sys.argv[2:]), most):
    print(json.dumps({"text": text}))' "${quick:+64}" "$@"
}

train() ( # NAME METHOD ROWS FLAGS...: all seeds; -m in FLAGS replaces the base
    name=$1 method=$2 rows=$3 && shift 3
    echo "$paper.sh: training $name" >&2
    # shellcheck disable=SC2086 # settings are several words
    sentkit train "$method" "$rows" -m "$base" -o "$work/runs/$name" --seed "$seeds" \
        --resume -q "$@" $few ${SETTINGS:-} >"$work/runs/$name.jsonl"
)

example() ( # NAME SCRIPT ARGUMENTS...: run a script of the folder above, with OUT=runs/NAME
    name=$1 script=$2 && shift 2
    echo "$paper.sh: $script for $name" >&2
    OUT=$work/runs/$name SEEDS=$seeds SETTINGS="-q ${flags:-} $few ${SETTINGS:-}" \
        sh "$here/../$script" "$@" >"$work/runs/$name.jsonl"
)

sweep() ( # NAME METHOD FLAGS CHOICES...: run sweep.sh and write tables/NAME.tsv
    name=$1 method=$2 own=$3 && shift 3
    echo "$paper.sh: sweep.sh for $name" >&2
    ROWS=$rows DEV=$choose TEST=$pairs BASE=$base OUT=$work/runs/$name SEEDS=$seeds \
        SETTINGS="$own -q ${quick:+--epochs 4 --set max_length=64} ${SETTINGS:-}" \
        sh "$here/../sweep.sh" "$method" "$@" >"$work/tables/$name.tsv"
    cat "$work/tables/$name.tsv"
)

checkpoints() ( # NAME: the folder of each seed of a run
    for made in "$work/runs/$1/config.json" "$work/runs/$1"/seed-*/config.json; do
        [ ! -e "$made" ] || dirname "$made"
    done
)

first() { # NAME: that of the first seed
    checkpoints "$1" | sed -n 1p
}

vectors() { # NAME MODEL ROWS FLAGS...: rows/NAME.safetensors
    vectors=$work/rows/$1.safetensors model=$2 texts=$3 && shift 3
    sentkit encode "$texts" --precision fp32 -m "$model" -o "$vectors" -f -q "$@"
}

scores() ( # FIELDS MODEL [FLOW]: the score on the test pairs, as a row with these fields of JSON
    vectors scores "$2" "$pairs" ${3:+--readout mean-last2}
    if [ -n "${3:-}" ]; then
        sentkit whiten apply "$vectors" -t "$3" -o "$work/rows/flowed.safetensors" -f -q
        vectors=$work/rows/flowed.safetensors
    fi
    sentkit score "$vectors" --gold score -q >"$work/rows/scores.jsonl"
    sed "s/^{/{$1,/" "$work/rows/scores.jsonl"
)

seed_scores() ( # FIELDS NAME: the same for each seed of a run
    checkpoints "$2" | while read -r made; do scores "$1" "$made"; done
)

flow() ( # NAME ROWS [MODEL]: the flow of these rows, rows/NAME.safetensors, for the mean of the last two layers
    vectors "$1-rows" "${3:-$base}" "$2" --readout mean-last2
    sentkit whiten fit "$vectors" --kind flow -o "$work/rows/$1.safetensors" -f -q
)

tests() ( # the folder of test sets; with --quick a copy with 200 rows of each
    [ -n "$quick" ] || { echo "$data" && exit; }
    for path in "$data"/sts/*.jsonl* "$data"/clustering/*.jsonl*; do
        [ -e "$path" ] || continue
        copy=$work/rows/tests/${path#"$data/"} && copy=${copy%.gz}
        mkdir -p "${copy%/*}"
        make "$copy" some "$path" 200
    done
    echo "$work/rows/tests"
)

report() ( # TABLE FLAGS AND ROWS...: a table of the paper with these rows, in tables/ and on stdout
    # A row without = is a run. Runs that were not made are left out.
    table=$1 && shift
    for row; do
        shift
        case $row in
        -* | *=*) ;;
        *) row=$row=$work/runs/$row ;;
        esac
        case $row in
        *="$work"/runs/*) made=${row#*=} && [ -d "${made%%#*}" ] || continue ;;
        esac
        set -- "$@" "$row"
    done
    sentkit report "$@" --data "$(tests)" --paper "$paper" --table "$table" --results "$work/results" \
        --precision fp32 --format "$format" -q -o "$work/tables/table-$table.$format" -f
    cat "$work/tables/table-$table.$format"
)

published() { # TABLE: as the paper prints it
    sentkit report --paper "$paper" --table "$1" --format text
}

figure() ( # NAME KIND ARGUMENTS...: a picture, or its numbers; KIND is one of sentkit plot, or of a paper: sg_bert/domains
    name=$1 kind=$2 form=${FIGURES:-svg} && shift 2
    rm -f "$work/figures/$name.$form"
    [ "$form" = json ] || set -- "$@" -o "$work/figures/$name.$form"
    case $kind in
    */*) set -- python3 -m "sentkit.papers.${kind%/*}.figures" "${kind#*/}" "$@" ;;
    *) set -- sentkit plot "$kind" "$@" ;;
    esac
    if [ "$form" = json ]; then "$@" >"$work/figures/$name.json"; else "$@"; fi
)

dev=$(needed sts/stsb.dev)
test=$(needed sts/stsb.test)
choose=$work/rows/dev.jsonl pairs=$work/rows/test.jsonl
make "$choose" some "$dev" 100
make "$pairs" some "$test" 200
averages=yes
in_sts sts12 sts13 sts14 sts15 sts16 sickr || {
    averages='' && missing 'averages of STS, and tables of them' "$data/sts has not all of sts12 to sts16 and sickr"
}
