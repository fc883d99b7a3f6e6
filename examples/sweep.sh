#!/bin/sh
# Train with several values of some settings, each with several seeds, and print a table with tabs: a line for each
# combination, with the kept step of each seed and the mean and standard deviation (of a sample) over the seeds.
# Some ablations of the papers:
#   sg-bert objective=base,opt1,opt2,opt3    sg-bert temperature=0.1,0.01,0.001 drift_weight=0,0.1,1
#   sg-bert head=gelu,none                   consert view_a=none,shuffle view_b=none,token-cutoff
#   simcse batch=64,128,256 lr=1e-5,3e-5     pairsupcon beta=0.5,1,2,4 (the values of the paper's sweep are lost)
#   consert batch=16,48,96,192,288           consert rows=10,100,1000,10000 (table 4 and figure 6)
# The name rows is not a setting: it is the size of a random sample of the rows, of which a smaller one is a part.
# `python3 -m sentkit.papers.consert.figures scale TABLE.tsv --x batch --value test --log` draws a table.
# Usage: ROWS=texts.txt DEV=dev.jsonl sh examples/sweep.sh METHOD NAME=VALUE,VALUE... [NAME=VALUE,VALUE...]...
# Variables: MODE=grid, every combination of the values, or MODE=one, one setting at a time with the others at their
# defaults (-), after a line with all defaults; TEST=test.jsonl, pairs with a score, for the test columns, or a folder as
# for `sentkit report --data`, for the average of the seven STS sets;
# BASE=bert-base-uncased; SEEDS=0..4; SETTINGS='--epochs 1', for all runs; OUT=FOLDER keeps the checkpoints: a
# second call trains only the missing runs. FIELDS and ENCODE: see recipe.sh.
set -eu
rows=$ROWS dev=$DEV test=${TEST:-} base=${BASE:-nano}
mode=${MODE:-grid}
case $mode in grid | one) ;; *) echo "sweep.sh: MODE: $mode: not grid or one" >&2 && exit 2 ;; esac
. "$(dirname "$0")/recipe.sh"
dev=$(pairs "$dev" dev)
if [ -n "$test" ] && [ ! -d "$test" ]; then
    test=$(pairs "$test" test)
    sentkit cat "$test" --head 1 >"$work/test.row" # is it there?
fi
method=$1
shift

grid() ( # CHOSEN CHOICE...: a line of the table for every combination
    chosen=$1
    shift
    if [ $# -eq 0 ]; then
        run "$chosen"
        exit
    fi
    name=${1%%=*} values=${1#*=}
    shift
    IFS=,
    for value in $values; do grid "$chosen${chosen:+,}$name=$value" "$@"; done
)

one() ( # CHOICE...: a line with all defaults, and one for each value
    run ''
    for choice; do
        IFS=,
        for value in ${choice#*=}; do run "${choice%%=*}=$value"; done
    done
)

cells() ( # NAME=VALUE,NAME=VALUE...: the value of each setting of the table, or - for its default
    for name in $names; do
        case ,$1, in
        *",$name="*) rest=,$1, rest=${rest#*",$name="} && printf '%s\t' "${rest%%,*}" ;;
        *) printf -- '-\t' ;;
        esac
    done
)

run() { # NAME=VALUE,NAME=VALUE...: train, encode, score, and print a line
    out=$work/$method${1:+,$1}
    chosen=$1 used=$rows
    unset IFS
    line=$(cells "$chosen")
    set --
    IFS=,
    for choice in $chosen; do
        case $choice in
        rows=*) used=$work/rows-${choice#*=}.jsonl && sample "${choice#*=}" ;;
        *) set -- "$@" --set "$choice" ;;
        esac
    done
    unset IFS
    # shellcheck disable=SC2086 # settings are several words
    sentkit train "$method" "$used" -m "$base" -o "$out" --seed "$seeds" --dev "$dev" --resume $settings "$@" \
        >"$out.dev"
    line=$line$(steps <"$out.dev")$tab$(spread dev <"$out.dev")
    if [ -d "$test" ]; then
        set --
        sed -n 's/^{"checkpoint":"\(.*\)","seed":.*/\1/p' "$out.dev" >"$out.made"
        while read -r made; do set -- "$@" "run=$made"; done <"$out.made"
        sentkit report "$@" --data "$test" --suites sts --precision fp32 --format json -q >"$out.test"
        line=$line$tab$(average <"$out.test")
    elif [ -n "$test" ]; then
        set --
        sed -n 's/^{"checkpoint":"\(.*\)","seed":.*/\1/p' "$out.dev" >"$out.made"
        while read -r made; do
            vectors "$test" "$made" "$made.safetensors"
            set -- "$@" "$made.safetensors"
        done <"$out.made"
        sentkit score "$@" --gold score >"$out.test"
        line=$line$tab$(spread spearman <"$out.test")
    fi
    printf '%s\n' "$line"
}

sample() { # COUNT: write so many rows to the file $used
    sentkit cat "$rows" >"$work/rows.jsonl"
    python3 -c 'import random, sys
rows = sys.stdin.buffer.readlines()
if len(rows) < int(sys.argv[1]):
    print(f"sweep.sh: rows={sys.argv[1]}: {sys.argv[2]} has {len(rows)} rows", file=sys.stderr)
    sys.exit(65)
random.Random(0).shuffle(rows)
sys.stdout.buffer.writelines(rows[:int(sys.argv[1])])' "$1" "$rows" <"$work/rows.jsonl" >"$used"
}

steps() { # the kept step of each seed
    sed -n 's/^{"checkpoint".*"step":\([0-9]*\).*/\1/p' | paste -s -d , -
}

spread() { # FIELD: its mean and standard deviation over the seeds, or - where a seed lacks it
    python3 -c 'import json, statistics, sys
found = [row[sys.argv[1]] for row in map(json.loads, sys.stdin) if "seeds" not in row]
count = 0 if None in found else len(found)
mean = f"{statistics.fmean(found):.2f}" if count else "-"
print(mean, f"{statistics.stdev(found):.2f}" if count > 1 else "-", sep="\t")' "$1"
}

average() { # the mean and standard deviation over the seeds of the average of all sets
    python3 -c 'import json, sys
found = [row for row in map(json.loads, sys.stdin) if row["task"] == "avg"]
if not found: sys.exit("sweep.sh: TEST has not all of the seven STS sets")
print(*("-" if found[0][name] is None else format(found[0][name], ".2f") for name in ("value", "sd")), sep="\t")'
}

tab=$(printf '\t')
names=''
for choice; do
    case $choice in
    ?*=?*) names="$names ${choice%%=*}" ;;
    *) echo "sweep.sh: $choice: not NAME=VALUE,VALUE" >&2 && exit 2 ;;
    esac
done
[ -n "$names" ] || { echo 'sweep.sh: no setting: expected NAME=VALUE,VALUE...' >&2 && exit 2; }
for name in $names; do printf '%s\t' "$name"; done
printf 'step\tdev\tdev_sd%s\n' "${test:+${tab}test${tab}test_sd}"
if [ "$mode" = grid ]; then grid '' "$@"; else one "$@"; fi
