#!/bin/sh
# The tables and figures of PairSupCon (arXiv 2109.05424). Usage and variables: see common.sh in this folder.
#   sh examples/papers/pairsupcon.sh bert-base-uncased data
# Tables 3, 4, 5 and 8; 1 with clustering/; 6 and 7 with senteval/. Figure 1, the scores of STS and the vectors of
# StackOverflow. For the rows of other sizes, BASE is distilbert-base-uncased or bert-large-uncased.
# Further data: nli/train, pairs with a label (the paper: SNLI and MNLI), required; nli/triplets for SimCSE; sts12 to
# sts16 and sickr.test in sts/, for the averages; the eight sets of clustering/.
# The recipe of the paper: 551,202 pairs in batches of 1,024, 3 epochs of 539 steps; one seed. For a network
# of the size of BERT-base, 32 pairs took 4.6 CPU seconds (one thread, fp32, the mean of 2 steps): 1,617 steps of 1,024
# pairs take 66 CPU hours, and the 9 runs of PairSupCon 600; not measured on a GPU. SETTINGS='--set chunk=64' trains the
# batch in less memory.
here=$(dirname "$0") seeds=0
# shellcheck source=examples/papers/common.sh
. "$here/common.sh"
nli=$(needed nli/train)
triplets=$(found nli/triplets)
rows=$work/rows/nli.jsonl
make "$rows" some "$nli" 96

train pairsupcon pairsupcon "$rows" --dev "$choose" --set final=last
train stsb-dev pairsupcon "$rows" --dev "$choose" --set final=best # table 8
presets='cls id id-plain plain' betas='0.5 2 4' # the values of beta in the paper are lost
[ -z "$quick" ] || presets=cls betas=2
for preset in $presets; do train "$preset" pairsupcon "$rows" --preset "$preset"; done
for beta in $betas; do train "beta$beta" pairsupcon "$rows" --set "beta=$beta"; done
train sbert sbert "$rows"
if [ -n "$triplets" ]; then
    make "$work/rows/triplets.jsonl" some "$triplets" 64
    train simcse-sup simcse-sup "$work/rows/triplets.jsonl"
else
    missing 'the rows of SimCSE' "no $data/nli/triplets.jsonl"
fi
set -- "no-tuning=$base#mean" sbert simcse-sup pairsupcon

missing 'figure 3' 'its content was not available'

# Figure 1, and tables 6 and 7.
(format=json && report 3 "$@" >/dev/null)
sed 's/"value":/"spearman":/; s/"sd":/"spearman_sd":/' "$work/tables/table-3.json" >"$work/tables/figure.jsonl"
figure scores sg_bert/domains "$work/tables/figure.jsonl" --name row --domain task
if senteval 'tables 6 and 7'; then report 6 "$@" && report 7 "$@"; fi
if [ -n "$(found clustering/stackoverflow)" ]; then
    questions=$(data=$(tests) && found clustering/stackoverflow)
    for name in base sbert pairsupcon; do
        [ "$name" = base ] && model=$base || model=$(first "$name")
        vectors "so-$name" "$model" "$questions"
    done
    figure space space "$work/rows/so-base.safetensors" "$work/rows/so-sbert.safetensors" \
        "$work/rows/so-pairsupcon.safetensors" --label label
else
    missing 'the vectors of figure 1' "no $data/clustering/stackoverflow.jsonl"
fi

# Tables 1, 3, 4, 5 and 8.
if [ -d "$data/clustering" ]; then report 1 "$@"; else missing 'table 1' "no $data/clustering"; fi
report 3 --baseline=pairsupcon "$@"
if [ -n "$averages" ]; then
    report 4 cls id beta0.5 pairsupcon beta2 beta4
    report 5 id-plain id plain pairsupcon
fi
report 8 --baseline=pairsupcon stsb-dev pairsupcon
