"""Names for completion that are expensive to import from the code that defines them. A test compares them.

Each value is a list of words, separated by blanks.
"""

PRESETS = {
    "mlm": "bert",
    "sg-bert": "paper released released-opt2 bt bt-sg-opt senteval",
    "simcse": "bert-base bert-large roberta-base roberta-large",
    "esimcse": "bert-base bert-large roberta-base roberta-large",
    "consert": (
        "unsup-base unsup-large unsup-base-tuned sup-base sup-large joint-base joint-large "
        "joint-base-paper joint-large-paper sup-unsup-base sup-unsup-large joint-unsup-base "
        "joint-unsup-large"
    ),
    "simcse-sup": "bert-base bert-large roberta-base roberta-large",
    "pairsupcon": "paper cls id id-plain plain",
    "defsent": (
        "bert-base-cls bert-base-mean bert-base-max bert-large-cls bert-large-mean bert-large-max "
        "roberta-base-cls roberta-base-mean roberta-base-max roberta-large-cls roberta-large-mean "
        "roberta-large-max"
    ),
    "defsent-plus": (
        "bert-base bert-base-step2 bert-base-step3 bert-large bert-large-step2 bert-large-step3 "
        "roberta-base roberta-base-step2 roberta-base-step3 roberta-large roberta-large-step2 "
        "roberta-large-step3 simcse-bert-base simcse-bert-large simcse-roberta-base "
        "simcse-roberta-large simcse-roberta-large-step2 sncse-bert-base sncse-bert-large "
        "sncse-roberta-base sncse-roberta-large sncse-roberta-large-step2"
    ),
    "contrast": "gte gist nv-retriever",
    "distill": "static",
    "sbert": "nli stsb sections",
    "classify": "sg-bert-glue sg-bert-glue-cola stsb",
    "promptbert": "bert-base roberta-base sup-bert-base sup-roberta-base",
    "sncse": "bert-base bert-large roberta-base roberta-large",
}
COMMON_SETTINGS = (
    "epochs batch lr optimizer beta1 beta2 weight_decay schedule warmup clip max_length chunk dropout "
    "lora lora_alpha lora_layers precision dedup eval_every patience early_stop final"
)
OWN_SETTINGS = {
    "mlm": "mask_rate mask_share random_share head readout",
    "sg-bert": (
        "objective temperature drift_weight head head_width guide guide_pool guide_layers layer_sampler "
        "guide_dropout compat_opt2_slice second_text freeze_embeddings readout"
    ),
    "simcse": "temperature mlm_weight mlm_rate readout",
    "esimcse": "temperature mlm_weight mlm_rate readout repeat_rate repeat_range queue_size momentum",
    "consert": (
        "mode view_a view_b token_cutoff_rate feature_cutoff_rate view_dropout_rate span_cutoff_rate "
        "adv_eps adv_form temperature "
        "loss_scale alpha pair_features readout"
    ),
    "simcse-sup": "temperature mlm_weight mlm_rate readout dims hard_negative_weight",
    "pairsupcon": (
        "objective beta temperature hard_negatives hard_negative_form detach_alpha id_average "
        "head_width head_lr_factor readout"
    ),
    "defsent": "readout part",
    "defsent-plus": "readout pooling pooler projection_from template",
    "contrast": "temperature form equal_texts guide margin margin_kind readout dims",
    "sbert": "dims objective scale margin readout",
    "ct": "negatives readout",
    "promptbert": "template template_b objective denoise head freeze_denoise temperature",
    "sncse": "template template_b margin margin_high margin_weight temperature",
    "is-bert": "channels",
    "tsdae": "deletion head readout",
    "clear": "temperature mlm_weight mlm_rate head readout",
    "rank-encoder": ("temperature mlm_weight mlm_rate readout rank_corpus rank_weight rank_low rank_high"),
    "distill": "loss map relational temperature readout",
    "cosent": "dims temperature readout",
    "classify": "objective metric",
    "angle": "dims temperature readout cosine_weight contrast_weight angle_weight positive_score",
}
TEMPLATES = (
    "defsent-plus defsent-plus-paper promptbert promptbert-1 promptroberta promptroberta-1 sncse sncse-1"
)
