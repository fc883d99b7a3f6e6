#!/bin/sh
# The tables and figures of ConSERT (arXiv 2105.11741). Usage and variables: see common.sh in this folder.
#   sh examples/papers/consert.sh bert-base-uncased data
# Tables 1, 2, 3 and 4. Figure 1; figure 4, without frequent tokens; figure 5, pairs of views; figure 6, few texts;
# figure 7, temperatures; the scores by batch; the word vectors by frequency.
# Further data: sts12 to sts16 and sickr in sts/, for the training texts and the averages and table 4; nli/train, pairs
# with a label (table 3 and the rows of SBERT, IS-BERT and CLEAR).
# Variables: SIZE=large, the recipe of bert-large-uncased; GLOVE=vectors.npy, for the rows of GloVe.
# The recipe of the paper: the 89,192 texts of all STS sets in batches of 96, at most 10 epochs of 930 steps, stopped
# on the dev score; one seed. For a network of the size of BERT-base, a step took 14 CPU seconds (one thread, fp32,
# the mean of 2 steps): an epoch of one system takes 3.6 CPU hours, ten epochs 36; not measured on a GPU. The sweeps
# are 40 systems.
here=$(dirname "$0") seeds=1
# shellcheck source=examples/papers/common.sh
. "$here/common.sh"
size=${SIZE:-base}
nli=$(found nli/train)
rows=$work/rows/sts.jsonl
set --
for path in "$data"/sts/sts1[2-6].* "$data"/sts/stsb.* "$data"/sts/sickr.*; do
    [ ! -e "$path" ] || set -- "$@" "$path"
done
make "$rows" texts "$@"

# Tables 1 to 3, with the baselines that sentkit can train.
example unsup consert.sh unsup "$rows" "$choose" "$pairs" "$base"
train ct ct "$rows" --dev "$choose"
flow flow "$rows"
if [ -n "$nli" ]; then
    NLI=$work/rows/nli.jsonl && export NLI
    make "$NLI" some "$nli" 64
    make "$work/rows/premises.jsonl" texts "$nli"
    make "$work/rows/deleted.jsonl" sentkit augment "$work/rows/premises.jsonl" --op delete --mark '[MASK]' -q
    make "$work/rows/variants.jsonl" sentkit augment "$work/rows/deleted.jsonl" --op span-delete --mark '[MASK]' \
        --replace --field text=text_a -q
    train is-bert is-bert "$work/rows/premises.jsonl" --dev "$choose"
    train clear clear "$work/rows/variants.jsonl" --set head=fresh --dev "$choose"
    train sbert sbert "$NLI" --dev "$choose"
    flow flow-nli "$rows" "$(first sbert)" # the row has an encoder that is trained on NLI
    train ct-nli ct "$rows" -m "$(first sbert)" --dev "$choose"
    example joint consert.sh joint "$NLI" "$choose" "$pairs" "$base"
    example sup-unsup consert.sh sup-unsup "$rows" "$choose" "$pairs" "$base"
    example joint-unsup consert.sh joint-unsup "$rows" "$choose" "$pairs" "$base"
else
    missing 'table 3 and the rows of SBERT, IS-BERT and CLEAR' "no $data/nli/train.jsonl"
fi
report 1 ${GLOVE:+"glove=$GLOVE"} "no-tuning=$base#cls" "no-tuning=$base#mean" sbert
report 2 --baseline=consert ${GLOVE:+"glove=$GLOVE"} "no-tuning=$base#mean-last2" clear is-bert ct \
    "flow=$base#mean-last2@$work/rows/flow.safetensors" "consert=$work/runs/unsup/run"
[ -z "$nli" ] || report 3 --baseline=consert-joint sbert ct-nli \
    "flow-nli=$(first sbert)#mean-last2@$work/rows/flow-nli.safetensors" "consert-joint=$work/runs/joint/run" \
    "consert-sup-unsup=$work/runs/sup-unsup/run" "consert-joint-unsup=$work/runs/joint-unsup/run"

# Table 4, and the figures of batch, temperature, views and numbers of texts. The tables have the step that dev chose.
if [ -n "$quick" ]; then
    batches=16,32 temperatures=0.1 views=shuffle numbers=32
else
    batches=16,48,96,192,288 temperatures=0.05,0.08,0.1,0.12,0.15 numbers=10,100,1000,10000
    views=none,shuffle,token-cutoff,feature-cutoff,dropout
    missing 'figure 6, the point of 1 text' 'a batch of one text has no negatives'
fi
sweep batch consert "--preset unsup-$size" "batch=$batches"
sweep temperature consert "--preset unsup-$size" "temperature=$temperatures"
sweep texts consert "--preset unsup-$size --set warmup=0" "rows=$numbers"
sweep views consert "--preset unsup-$size" "view_a=$views" "view_b=$views"
figure batch consert/scale "$work/tables/batch.tsv" --x batch --value test --log
figure views consert/views "$work/tables/views.tsv"
figure temperature consert/scale "$work/tables/temperature.tsv" --x temperature --value test
figure texts consert/scale "$work/tables/texts.tsv" --x rows --value test --log
set --
for made in "$work/runs/batch/consert,batch="*/; do
    made=${made%/} && set -- "$@" "batch${made##*=}=$made"
done
[ -z "$averages" ] || report 4 "$@"

# Figure 1: similarities over gold scores, before and after training. Figure 4: without the most frequent tokens.
trained=$(first unsup/run)
vectors base "$base" "$pairs" --readout mean-last2
vectors unsup "$trained" "$pairs"
figure pairs pairs "$work/rows/base.safetensors" "$work/rows/unsup.safetensors" --gold score
figure words consert/words "$rows" --model "$base"
frequency() { # FOLDER
    OUT=$1 COUNTS="${quick:+5 20}" sh "$here/../word-frequency.sh" "$pairs" "$base" "$trained"
}
if [ "${FIGURES:-}" = json ]; then frequency '' >"$work/figures/masking.json"; else
    frequency "$work/frequency" >"$work/tables/frequency.jsonl"
    figure masking consert/masking "$work/frequency/scores.jsonl"
fi
