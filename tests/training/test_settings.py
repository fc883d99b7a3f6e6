"""Values of settings that are refused, and the size of the interface of a method."""

from dataclasses import fields

import pytest
from torch import nn

from sentkit.errors import UsageError
from sentkit.model.transformer.device import PRECISIONS
from sentkit.training.catalogue import METHODS
from sentkit.training.method import Method
from sentkit.training.recipe import Recipe
from sentkit.training.settings import SYNONYMS, build, notes

VIEWS = "view_a=feature-cutoff and view_b=shuffle"
TUNED = "objective=base second_text=tuned"
CHUNKS = ("0", "-4", "x", "8,4", "8,3:4,2:5", "8,0:4", "8,3:0", "", "8,,", "4.5")
NUMBERS = ("inf", "-inf", "Infinity", "1e999", "nan")
REFUSED = [
    ("angle", "cosine_weight=0 contrast_weight=0 angle_weight=0", ".* are all 0"),
    (
        "angle",
        "contrast_weight=0 positive_score=3",
        "positive_score has no effect with contrast_weight=0",
    ),
    ("classify", "metric=pearson", "metric=pearson is not for objective=classification"),
    ("classify", "objective=regression metric=f1", "metric=f1 is not for objective=regression"),
    ("consert", "alpha=0.2", "alpha has no effect with mode=unsup"),
    ("consert", "pair_features=uvdm", "pair_features has no effect with mode=unsup"),
    ("consert", "mode=sup view_b=none", "view_b has no effect with mode=sup"),
    ("consert", "mode=sup temperature=0.2", "temperature has no effect with mode=sup"),
    ("consert", "mode=sup alpha=0.2", "alpha has no effect with mode=sup"),
    ("consert", "mode=sup loss_scale=1", "loss_scale has no effect with mode=sup"),
    ("consert", "mode=joint loss_scale=1", "loss_scale has no effect with mode=joint"),
    ("consert", "token_cutoff_rate=0.1", "token_cutoff_rate has no effect with " + VIEWS),
    (
        "consert",
        "view_a=none feature_cutoff_rate=0.1",
        "feature_cutoff_rate has no effect with view_a=none",
    ),
    (
        "consert",
        "mode=joint view_dropout_rate=0.1",
        "view_dropout_rate has no effect with " + VIEWS,
    ),
    (
        "consert",
        "mode=sup view_a=dropout feature_cutoff_rate=0.1",
        "feature_cutoff_rate has no effect with",
    ),
    ("consert", "view_b=adversarial", "view_b=adversarial needs mode=joint, not mode=unsup"),
    (
        "consert",
        "mode=joint view_b=adversarial view_a=span-cutoff",
        ".*view_a=span-cutoff cannot be used",
    ),
    *(
        (
            "consert",
            f"view_a=span-cutoff readout={name}",
            f"span-cutoff can leave out the token that readout={name} reads",
        )
        for name in ("cls", "pooler", "last", "L2:cls", "concat:mean:cls")
    ),
    ("consert", "view_a=adversarial", ".*expected none, shuffle"),
    ("consert", "mode=joint adv_eps=2", "adv_eps has no effect with " + VIEWS),
    ("consert", "span_cutoff_rate=0.2", "span_cutoff_rate has no effect"),
    ("contrast", "margin=0.1", "margin has no effect with guide=none"),
    ("contrast", "guide=copy", "guide=copy: this method has no such guide$"),
    ("contrast", "guide=self margin_kind=relative", "margin_kind has no effect with margin=0"),
    ("cosent", "dims=64,128", "dims=64,128: the widths do not decrease$"),
    ("cosent", "dims=128,128", "dims=128,128: the widths do not decrease$"),
    ("cosent", "dims=128,0", "dims=128,0: a width is 1 or more$"),
    ("cosent", "dims=128,x", 'dims: "128,x" is not a list of whole numbers$'),
    ("cosent", "dims=", 'dims: "" is not a list of whole numbers$'),
    ("cosent", "lora_alpha=2", "lora_alpha has no effect with lora=none"),
    ("cosent", "lora=0", "lora=0: expected 1 or more"),
    ("ct", "weight_decay=0.1", "optimizer=rmsprop has no weight decay"),
    ("ct", "beta1=0.5", "beta1 has no effect with optimizer=rmsprop"),
    ("ct", "warmup=0.1", "schedule=ct has no warmup"),
    ("simcse", "schedule=constant warmup=0.1", "schedule=constant has no warmup$"),
    ("ct", "negatives=0", "negatives=0: expected 1 or more"),
    (
        "defsent-plus",
        "readout=mean,cls template=promptbert",
        "template has no effect with readout=mean,cls",
    ),
    ("defsent-plus", "readout=mean,cola", '.*unknown readout "cola"'),
    ("defsent-plus", "readout=mean,", '.*unknown readout ""'),
    ("defsent-plus", "readout=L*:mean", r'.*unknown readout "L\*:mean"'),
    ("defsent-plus", "readout=mean,pooler", ".*the pooler cannot be the readout"),
    ("defsent-plus", "readout=pooler:mean", ".*the pooler cannot be the readout"),
    ("distill", "temperature=0.1", "temperature has no effect with relational=0"),
    ("esimcse", "queue_size=0 momentum=0.9", "momentum has no effect with queue_size=0"),
    (
        "esimcse",
        "repeat_rate=0 repeat_range=paper",
        "repeat_range has no effect with repeat_rate=0",
    ),
    ("pairsupcon", "objective=cls beta=2", "beta has no effect with objective=cls"),
    (
        "pairsupcon",
        "hard_negatives=off detach_alpha=on",
        "detach_alpha has no effect with hard_negatives=off",
    ),
    (
        "promptbert",
        "denoise=off freeze_denoise=on",
        "freeze_denoise has no effect with denoise=off",
    ),
    (
        "promptbert",
        "objective=triplets template_b=sncse",
        "template_b has no effect with objective=triplets",
    ),
    ("rank-encoder", "guide=none", "guide=none: this method has no such guide$"),
    ("rank-encoder", "guide=self", "guide=self: this method has no such guide$"),
    ("rank-encoder", "rank_high=0.2", "rank_high=0.2 is lower than rank_low=0.5"),
    ("sbert", "margin=5", "margin has no effect with objective=softmax"),
    ("sbert", "objective=triplet scale=1", "scale has no effect with objective=triplet"),
    ("sbert", "dims=4", "dims has no effect with objective=softmax"),
    ("sg-bert", "second_text=tuned", ".*can be used only with objective=base, not opt3"),
    ("sg-bert", f"{TUNED} guide_pool=mean", "guide_pool has no effect with second_text=tuned"),
    ("sg-bert", f"{TUNED} guide=self", "guide has no effect with second_text=tuned"),
    ("sg-bert", "head=none head_width=24", "head_width has no effect with head=none"),
    ("sg-bert", "compat_opt2_slice=on", "compat_opt2_slice has no effect with objective=opt3"),
    (
        "sg-bert",
        "objective=base compat_opt2_slice=on",
        "compat_opt2_slice has no effect with objective=base",
    ),
    ("sg-bert", "guide_layers=4..2", ".*the last layer is before the first"),
    ("sg-bert", "guide=self guide_dropout=on", "guide_dropout has no effect with guide=self"),
    ("sg-bert", "lora=8 freeze_embeddings=off", "freeze_embeddings has no effect with lora=8"),
    ("simcse", "early_stop=cumulative", "early_stop has no effect with patience=0$"),
    *(("simcse", f"lr={text}", f'lr: "{text}" is not a number$') for text in NUMBERS),
    ("simcse", "chunk=3 chunk_tokens=8", "chunk and chunk_tokens cannot be used together"),
    *(
        ("simcse", f"chunk_tokens={text}", ".*expected a number of tokens, or auto$")
        for text in CHUNKS
    ),
    ("sncse", "margin_weight=0 margin=0.2", "margin has no effect with margin_weight=0"),
    ("sncse", "margin_weight=0 margin_high=0.4", "margin_high has no effect with margin_weight=0"),
    ("sncse", "margin_high=0.05", "margin_high=0.05 is lower than margin=0.1"),
    ("tsdae", "deletion=1.5", "deletion=1.5: expected 0 or more, at most 1"),
]


@pytest.mark.parametrize(("name", "assignments", "problem"), REFUSED)
def test_settings_without_effect_or_out_of_range_are_refused(name, assignments, problem):
    kind = METHODS[name].load()
    with pytest.raises(UsageError, match=f"^{problem}") as caught:
        build(kind.Settings, kind.presets, None, assignments.split())
    if "constant" in assignments:
        assert caught.value.advice == "use schedule=warmup-constant, or warmup=0"


def test_the_choices_of_a_recipe_exist():
    """A recipe does not import torch, so it repeats these names. Others are tested in loop/."""
    assert set(notes(Recipe)["precision"].choices) == set(PRECISIONS)


MOST = 25


def test_the_interface_has_few_members():
    members = {name for name in vars(Method) if not name.startswith("_")} | {"body", "settings"}
    inherited = set(dir(nn.Module))

    assert len(members - inherited) <= MOST, sorted(members - inherited)


@pytest.mark.parametrize(
    ("method", "name", "meant"),
    [
        ("simcse", "learning_rate", "lr"),
        ("simcse", "lerning_rate", "lr"),
        ("simcse", "learningrate", "lr"),
        ("simcse", "batch_size", "batch"),
        ("simcse", "batchsize", "batch"),
        ("simcse", "per_device_train_batch_size", "batch"),
        ("simcse", "num_train_epochs", "epochs"),
        ("simcse", "n_epochs", "epochs"),
        ("simcse", "temprature", "temperature"),
        ("simcse", "temp", "temperature"),
        ("simcse", "tau", "temperature"),
        ("simcse", "max_seq_length", "max_length"),
        ("simcse", "mlm_probability", "mlm_rate"),
        ("simcse", "mlm_rat", "mlm_rate"),
        ("simcse", "warmup_ratio", "warmup"),
        ("simcse", "pooling", "readout"),
        ("defsent-plus", "poolin", "pooling"),
        ("simcse", "seeds", "--seed"),
        ("simcse", "max_seq", "max_length"),
        ("simcse", "dev", "--dev"),
    ],
)
def test_an_unknown_setting_has_the_name_that_is_meant(method, name, meant):
    """Also if it is the name of another library, with a typing error."""
    kind = METHODS[method].load()
    with pytest.raises(UsageError) as caught:
        build(kind.Settings, kind.presets, None, [f"{name}=1"])

    settings = ", ".join(field.name for field in fields(kind.Settings))
    assert (str(caught.value), caught.value.advice) == (
        f'unknown setting "{name}"',
        f'did you mean "{meant}"? available: {settings}',
    )


def test_no_synonym_is_a_setting_and_each_means_one():
    settings = {name for listing in METHODS.values() for name in notes(listing.settings)}

    # "pooling" is a setting of defsent-plus.
    assert not {name for name in SYNONYMS if name in settings} - {"pooling"}
    assert {name for name in SYNONYMS.values() if not name.startswith("--")} <= settings


@pytest.mark.parametrize("method", METHODS)
def test_no_method_suggests_a_setting_that_it_lacks(method):
    kind = METHODS[method].load()
    for synonym in SYNONYMS:
        if synonym in notes(kind.Settings):
            continue
        with pytest.raises(UsageError) as caught:
            build(kind.Settings, kind.presets, None, [f"{synonym}=1"])
        meant = caught.value.advice.partition('"')[2].rpartition('"')[0]

        assert meant in notes(kind.Settings) or meant.startswith("--") or not meant
