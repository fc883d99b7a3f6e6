#!/bin/sh
# Check the scripts of this folder without Slurm: the syntax of each, and a corpus on the
# whole path from texts to hits. Stand-ins for sbatch, srun and scontrol run the tasks of an array
# here, one after the other, on a few titles with the included model `static`.
# Usage: sh examples/slurm/check.sh; `sentkit` must be on the PATH.
set -eu
scripts=$(cd "$(dirname "$0")" && pwd)
titles=$scripts/../data/titles.txt
pairs=$scripts/../data/pairs.jsonl
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

passed() {
    echo "ok: $1"
}

for script in "$scripts"/*.sbatch; do
    if command -v bash > /dev/null; then bash -n "$script"; else sh -n "$script"; fi
    grep -q '^#SBATCH --requeue$' "$script"
    passed "the syntax of ${script##*/}"
done

# The stand-ins. A task exits with 75 instead of running while the file `stop` has its number, and
# is killed as by a preemption that cancels if `cancel` has it. Each happens once.
mkdir bin
cat > bin/sbatch <<'END'
#!/bin/sh
array=
while [ $# -gt 0 ]; do
    case $1 in
        --array=*) array=${1#*=} ;;
        --*) ;;
        *) break ;;
    esac
    shift
done
[ -n "$array" ] || array=$(sed -n 's/^#SBATCH --array=//p' "$1")
array=${array%\%*}
first=${array%-*}
last=${array#*-}
export SLURM_CPUS_PER_TASK=1 SLURM_JOB_NODELIST=localhost
if [ -n "$array" ]; then
    export SLURM_ARRAY_TASK_MIN="$first" SLURM_ARRAY_TASK_MAX="$last"
    export SLURM_ARRAY_TASK_COUNT=$((last - first + 1))
fi
task=${first:-0}
while [ "$task" -le "${last:-0}" ]; do
    [ -z "$array" ] || export SLURM_ARRAY_TASK_ID="$task"
    export SLURM_JOB_ID=$((100 + task))
    rm -f requeued
    sh "$@" || [ -e requeued ] || echo "task $task failed" >> failed
    [ -e requeued ] || task=$((task + 1))
done
END
cat > bin/srun <<'END'
#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
for file in stop cancel; do
    if [ -e $file ] && [ "$(cat $file)" = "${SLURM_ARRAY_TASK_ID:-0}" ]; then
        rm $file
        [ $file = cancel ] || exit 75
        kill -9 $$
    fi
done
SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=1 exec "$@"
END
cat > bin/scontrol <<'END'
#!/bin/sh
case $1 in
    requeue) echo "$2" > requeued ;;
    show) echo localhost ;;
esac
END
chmod +x bin/*
PATH="$folder/bin:$PATH"

# A corpus: one task is stopped before its limit, and another is cancelled by a preemption.
encode() {
    sbatch --wait --array=0-2 "$scripts/encode.sbatch" "$titles" -q -m static -o vectors/ --block-bytes 100
}
echo 1 > stop
echo 2 > cancel
encode 2> log
[ "$(cat failed)" = 'task 2 failed' ]
passed 'a stopped task of encode.sbatch is put into the queue again'
if sentkit check vectors --shards 3 > state.json 2>> log; then
    echo 'check: the blocks of the cancelled task are not missing' >&2
    exit 1
fi
passed 'check finds the blocks that a cancelled task lacks'
encode
sentkit check vectors --shards 3 > state.json
sentkit encode "$titles" -q -m static -o whole/ --block-bytes 100
sentkit cat vectors -o corpus.safetensors
sentkit cat whole -o whole.safetensors
cmp corpus.safetensors whole.safetensors
passed 'the same array again completes the vectors: the bytes of one process'

# Hits of the parts, joined.
printf 'an animal that barks\nmusic\n' | sentkit encode -q -m static > queries.jsonl
sbatch --wait --array=0-1 "$scripts/search.sbatch" --queries queries.jsonl --corpus vectors/ --top 3
sentkit search --merge hits-0.jsonl hits-1.jsonl -o hits.jsonl
sentkit search --queries queries.jsonl --corpus corpus.safetensors --top 3 -o one.jsonl
[ "$(wc -l < hits.jsonl)" -eq 2 ]
cmp hits.jsonl one.jsonl
passed 'search.sbatch by parts has the hits of one search'

# Training: a job that is put into the queue again, and a sweep.
echo 0 > stop
sbatch "$scripts/train.sbatch" contrast "$pairs" -q -m static --batch 4 --set warmup=0 --device cpu -o run > report.jsonl 2>> log
[ -e run/config.json ] || [ -e run/model.safetensors ]
passed 'train.sbatch starts again and writes a checkpoint'
set -- contrast "$pairs" -q -m static --dev "$pairs" --set lr=1e-3,3e-3 --batch 4 --set warmup=0 --device cpu -o grid
sentkit train "$@" --list > runs.txt
sbatch --wait --array=1-"$(wc -l < runs.txt)"%20 "$scripts/sweep.sbatch" runs.txt > sweep.log 2>> log
sentkit train "$@" > table.jsonl 2>> log
[ "$(grep -c '"best"' table.jsonl)" -eq 2 ]
passed 'sweep.sbatch makes the runs of its table'
[ "$(cat failed)" = 'task 2 failed' ]
