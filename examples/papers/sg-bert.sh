#!/bin/sh
# The tables and figures of SG-BERT (arXiv 2106.07345). Usage and variables: see common.sh in this folder.
#   sh examples/papers/sg-bert.sh bert-base-uncased data
# Tables 1, 5 and 7, and 2 and 3 for the languages in sts/; 4 with senteval/; 6; 10 with glue/. Figures 1, 4, 5 and 6.
# Table 11 is table 1 for a RoBERTa base; for the rows of SBERT, BASE is a run of `sentkit train sbert`.
# Further data: sts12 to sts16 and sickr.test in sts/, for the averages; sts/sts14_es (table 2); nli/train, pairs
# (figure 4, table 4); senteval/; glue/TASK.{train,dev,test} for the tasks qnli, sst2, cola, mrpc and rte, from
# examples/glue_rows.py. Variables: PARAPHRASES=pairs.jsonl, the texts of STS-B with back-translations, from two
# `sentkit translate` in a pipe (rows BT, table 7); GLOVE=vectors.npy; WK=L0+L1+L2+L3+L4:wk for a base of four layers.
# The recipe of the paper: 8 seeds of 11 systems, one epoch of 17,256 texts in batches of 16, which is 1,079 steps.
# The flow has one seed. For a network of the size of BERT-base, a step took 2.9 CPU seconds (one thread, fp32, the mean
# of 6 steps), so a run takes 0.9 CPU hours and the 88 runs 77; not measured on a GPU.
here=$(dirname "$0") seeds=1,2,3,4,1234,2345,3456,7890
# shellcheck source=examples/papers/common.sh
. "$here/common.sh"
learn=$(needed sts/stsb.train)
nli=$(found nli/train)
rows=$work/rows/stsb.jsonl
make "$rows" texts "$learn" "$dev" "$test"
sg() { # NAME FLAGS...
    run=$1 && shift
    train "$run" sg-bert "$rows" --dev "$choose" --set readout=cls "$@"
}

# Tables 1, 5 and 7, and tables 2 and 3 for the languages in data/sts.
settings='sg:objective=base opt1:objective=opt1 opt2:objective=opt2 tau0.1:temperature=0.1 tau0.001:temperature=0.001
    lambda0:drift_weight=0 lambda1:drift_weight=1 no-head:head=none'
[ -z "$quick" ] || settings='sg:objective=base opt1:objective=opt1'
sg sg-opt
for each in $settings; do sg "${each%%:*}" --set "${each#*:}"; done
flow flow "$rows"
set -- "no-tuning=$base#cls" "no-tuning=$base#mean"
wk=${WK:-wk}
code=0
sentkit encode "$pairs" -m "$base" --readout "$wk" -o "$work/rows/wk.safetensors" -f -q || code=$?
case $code in
0) set -- "$@" "no-tuning=$base#$wk" ;;
2) wk='' && missing 'the rows of WK' 'the base has too few layers; see WK in this script' ;;
*) exit "$code" ;;
esac
if [ -n "${PARAPHRASES:-}" ]; then
    paraphrases=$work/rows/paraphrases.jsonl
    make "$paraphrases" some "$PARAPHRASES" 64
    train bt sg-bert "$paraphrases" --dev "$choose" --preset bt
    train bt+sg-opt sg-bert "$paraphrases" --dev "$choose" --preset bt-sg-opt
else
    missing 'table 7 and the rows of BT' 'PARAPHRASES is not set'
fi
case $base in
*roberta*) main=11 ;;
*) main=1 ;;
esac
report $main --baseline=sg-opt ${GLOVE:+"glove=$GLOVE"} "$@" "flow=$base#mean-last2@$work/rows/flow.safetensors" bt sg sg-opt
! in_sts sts14_es || report 2 "$@" bt sg sg-opt
! in_sts sts17_track3_eses || report 3 "$@" bt sg sg-opt
[ -z "$averages" ] || report 5 --baseline=sg-opt sg-opt opt1 sg tau0.1 tau0.001 lambda0 lambda1 no-head
[ -z "${PARAPHRASES:-}" ] || report 7 --baseline=sg-opt bt sg-opt bt+sg-opt

# Table 6: seconds of training, and of encoding the sentences of STS-B. SG-OPT is trained once more.
seconds() {
    [ -n "$quick" ] && timed=$pairs || timed=$learn
    python3 "$here/../efficiency.py" "$base" "$rows" "$timed" --readout mean ${wk:+--readout "$wk"} --transform flow \
        --train sg-bert --settings "-q --set readout=cls $few ${SETTINGS:-}" ${quick:+--rounds 1}
}
make "$work/tables/efficiency.md" seconds
published 6
cat "$work/tables/efficiency.md"

# Figure 4: trained on the texts of STS-B and on those of NLI, with the scores on STS-B test.
if [ -n "$nli" ]; then
    make "$work/rows/nli-texts.jsonl" texts "$nli"
    nli_texts() { spread 17256 <"$work/rows/nli-texts.jsonl"; } # as many as of STS-B; the paper states no number
    make "$work/rows/nli.jsonl" nli_texts
    rows=$work/rows/nli.jsonl
    sg sg-opt-nli
    flow flow-nli "$rows"
    {
        seed_scores '"system":"SG-OPT","texts":"STS-B"' sg-opt
        seed_scores '"system":"SG-OPT","texts":"NLI"' sg-opt-nli
        for name in flow flow-nli; do
            [ "$name" = flow ] && texts=STS-B || texts=NLI
            scores '"system":"flow","texts":"'$texts'"' "$base" "$work/rows/$name.safetensors"
        done
    } >"$work/tables/domains.jsonl"
    figure domains sg_bert/domains "$work/tables/domains.jsonl" --name system --domain texts
    sg senteval --preset senteval
else
    missing 'figure 4 and table 4' "no $data/nli/train.jsonl"
fi

# Table 4: the variant for transfer tasks. Table 10: GLUE, from the encoder of table 1; appendix A.4 names no other.
if [ -n "$nli" ] && senteval 'table 4'; then
    report 4 --head=senteval:50 "no-tuning=$base#mean" ${wk:+"no-tuning=$base#$wk"} "sg-opt=$work/runs/senteval"
fi
for task in qnli sst2 cola mrpc rte; do
    [ -n "$(found "glue/$task.train")" ] || { missing "$task in table 10" "no $data/glue/$task.train.jsonl" && continue; }
    for part in train dev test; do make "$work/rows/$task.$part.jsonl" some "$(needed "glue/$task.$part")" 64; done
    preset=sg-bert-glue
    [ "$task" != cola ] || preset=sg-bert-glue-cola
    for start in no-tuning sg-opt; do
        [ "$start" = no-tuning ] && model=$base || model=$(first sg-opt)
        train "$start-$task" classify "$work/rows/$task.train.jsonl" -m "$model" --preset "$preset" \
            --dev "$work/rows/$task.dev.jsonl" --test "$work/rows/$task.test.jsonl"
        sed "s/^{/{\"system\":\"$start\",\"task\":\"$task\",/" "$work/runs/$start-$task.jsonl"
    done
done >"$work/tables/glue.jsonl"
glue_table() { # the mean and the deviation over the seeds
    python3 -c 'import json, statistics, sys
runs = {}
for row in map(json.loads, sys.stdin):
    if "seed" in row:
        runs.setdefault((row["system"], row["task"]), []).append(row["test"])
metrics = "accuracy", "f1", "matthews"
print("| system | task | seeds |", " | ".join(metrics), "|")
print("|---" * 6 + "|")
for (system, task), tests in runs.items():
    print("|", system, "|", task, "|", len(tests), end=" |")
    for values in ([test[name] for test in tests] for name in metrics):
        mean = "undefined" if None in values else f"{statistics.fmean(values):.2f}"
        deviation = f" ({statistics.stdev(values):.2f})" if None not in values and len(values) > 1 else ""
        print(f" {mean}{deviation}", end=" |")
    print()'
}
if [ -s "$work/tables/glue.jsonl" ]; then
    published 10
    glue_table <"$work/tables/glue.jsonl" | tee "$work/tables/glue.md"
fi

# Figure 1: each layer and readout, with SG and SG-OPT. Figures 5 and 6: pairs of STS-B dev with the highest and lowest
# scores, before and after training.
sh "$here/../layers.sh" "$pairs" "$base" >"$work/tables/layers.jsonl"
model=$(sed -n '1s|.*"encoder":"\([^/]*\)/.*|\1|p' "$work/tables/layers.jsonl")
for name in sg sg-opt; do
    scores '"first_seed":true' "$(first $name)" >"$work/rows/first-seed.jsonl"
    sed "s|\"encoder\":\"[^:]*|\"encoder\":\"$model/$name|" "$work/rows/first-seed.jsonl"
done >>"$work/tables/layers.jsonl"
figure layers sweep "$work/tables/layers.jsonl"
vectors base "$base" "$choose"
vectors sg-opt "$(first sg-opt)" "$choose"
figure space space "$work/rows/base.safetensors" "$work/rows/sg-opt.safetensors" --gold score
