#!/bin/sh
# Every combination of some settings, each with several seeds: a table with tabs, one line for a combination,
# with the mean and the standard deviation (of a sample) over the seeds. Some ablations of the papers:
#   sg-bert objective=base,opt1,opt2,opt3    sg-bert temperature=0.1,0.01,0.001 drift_weight=0,0.1,1
#   sg-bert head=gelu,none                   consert view_a=none,shuffle view_b=none,token-cutoff
#   simcse batch=64,128,256 lr=1e-5,3e-5     pairsupcon beta=0.5,1,2,4
# Usage: ROWS=texts.txt DEV=dev.jsonl sh examples/sweep.sh METHOD NAME=VALUE,VALUE... [NAME=VALUE,VALUE...]...
# Variables: TEST=test.jsonl, pairs with a score, for the test columns; BASE=bert-base-uncased; SEEDS=0..4;
# SETTINGS='--epochs 1', for all runs; OUT=FOLDER keeps the checkpoints, and finished runs are not made again.
set -eu
rows=$ROWS dev=$DEV test=${TEST:-} base=${BASE:-nano}
seeds=${SEEDS:-0..2}
settings=${SETTINGS:-}
work=${OUT:-$(mktemp -d)}
[ -n "${OUT:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"
[ -z "$test" ] || sentkit cat "$test" --head 1 >"$work/test.row" # is it there?
method=$1
shift

every() ( # CHOSEN CHOICE...: a line of the table for every way to choose
    chosen=$1
    shift
    if [ $# -eq 0 ]; then
        run "$chosen"
        exit
    fi
    name=${1%%=*} values=${1#*=}
    shift
    IFS=,
    for value in $values; do every "$chosen${chosen:+,}$name=$value" "$@"; done
)

run() { # NAME=VALUE,NAME=VALUE...: train, encode, score, and print a line
    out=$work/$method,$1
    chosen=$1 line=''
    set --
    IFS=,
    for choice in $chosen; do
        line="$line${choice#*=}$tab"
        set -- "$@" --set "$choice"
    done
    unset IFS
    # shellcheck disable=SC2086 # settings are several words
    sentkit train "$method" "$rows" -m "$base" -o "$out" --seed "$seeds" --dev "$dev" --resume "$@" $settings >"$out.dev"
    line=$line$(spread dev <"$out.dev")
    if [ -n "$test" ]; then
        set --
        sed -n 's/^{"checkpoint":"\(.*\)","seed":.*/\1/p' "$out.dev" >"$out.made"
        while read -r made; do
            sentkit encode "$test" --precision fp32 -m "$made" -o "$made.safetensors" -f
            set -- "$@" "$made.safetensors"
        done <"$out.made"
        sentkit score "$@" --gold score >"$out.test"
        line=$line$tab$(spread spearman <"$out.test")
    fi
    printf '%s\n' "$line"
}

spread() { # MEMBER: its mean and standard deviation over the lines of seeds, where all have it
    python3 -c 'import json, statistics, sys
found = [row[sys.argv[1]] for row in map(json.loads, sys.stdin) if "seeds" not in row]
count = 0 if None in found else len(found)
mean = f"{statistics.fmean(found):.2f}" if count else "-"
print(mean, f"{statistics.stdev(found):.2f}" if count > 1 else "-", sep="\t")' "$1"
}

tab=$(printf '\t')
for choice; do printf '%s\t' "${choice%%=*}"; done
printf 'dev\tdev_sd%s\n' "${test:+${tab}test${tab}test_sd}"
every '' "$@"
