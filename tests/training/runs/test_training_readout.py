"""Which readout a run trains: as set, else as the base declares, else the paper's."""

import re
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.modules import StoredDeclaration
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import apply_readouts
from sentkit.training.base import open_named
from sentkit.training.catalogue import METHODS
from sentkit.training.method import dev_vectors
from sentkit.training.runs.readout import settle
from sentkit.training.settings import build, described
from training.small import make_base

PAPERS = {  # how each paper reads its encoder
    name: readout
    for readout, names in {
        "cls": "simcse esimcse sg-bert defsent tsdae rank-encoder",
        "mean": "pairsupcon sbert mlm ct clear distill cosent angle contrast",
        "pooler": "simcse-sup",
        "mean-last2": "consert",
        "mean,cls,prompt": "defsent-plus",
    }.items()
    for name in names.split()
}
# No readout of a paper: the common choice.
UNPUBLISHED = ("mlm", "cosent", "angle", "contrast", "distill")
# Without a setting, with only this readout.
WITHOUT = {"promptbert": "prompt", "sncse": "prompt", "classify": "cls", "is-bert": "conv"}
every_method = pytest.mark.parametrize("name", PAPERS)


def declaring(base, readout):
    """The base, with a declaration."""
    declared = StoredDeclaration(source="sentkit.json", readout=parse_readout(readout))
    return replace(base, checkpoint=replace(base.checkpoint, declaration=declared))


def settled(name, base, *assignments, preset=None):
    kind = METHODS[name].load()
    settings = build(kind.Settings, kind.presets, preset, assignments)
    return settle(name, kind, settings, base)


def test_every_method_is_listed():
    assert {*PAPERS, *WITHOUT} == METHODS.keys()


@pytest.mark.parametrize("name", WITHOUT)
def test_a_method_of_one_readout_ignores_the_base(name, base):
    settings, line = settled(name, declaring(base, "mean"))

    assert METHODS[name].load().readouts(settings)[0] == WITHOUT[name]
    assert line == f"readout {WITHOUT[name]}: {name} always uses it"
    with pytest.raises(UsageError, match='unknown setting "readout"'):
        settled(name, base, "readout=cls")


@every_method
@pytest.mark.parametrize(
    ("declared", "assignments", "readout", "why"),
    [
        (None, (), None, "{} declares none; "),
        ("cls", (), "cls", "{} declares it$"),
        ("max", (), "max", "{} declares it$"),
        ("mean", ("readout=cls",), "cls", "as set; {} declares mean$"),
    ],
)
def test_a_readout_is_as_set_or_declared_or_of_the_paper(
    name, base, declared, assignments, readout, why
):
    settings, line = settled(name, declaring(base, declared) if declared else base, *assignments)

    assert settings.readout == (readout or PAPERS[name])
    assert re.match(
        f"readout {settings.readout}: {why.format(re.escape(base.checkpoint.name))}", line
    )


@every_method
def test_a_preset_fixes_the_readout_of_its_paper(name, base):
    """Of DefSent each preset names its own."""
    kind = METHODS[name].load()
    shown = dict(described(kind.Settings, kind.presets))
    for preset in kind.presets:
        settings, _ = settled(name, declaring(base, "max"), preset=preset)
        of_paper = preset.rpartition("-")[2] if name == "defsent" else PAPERS[name]

        assert settings.readout == ("max" if name in UNPUBLISHED else of_paper)
        assert name in UNPUBLISHED or f"readout={of_paper}" in shown[f"--preset {preset}"]


@pytest.mark.parametrize(
    "case",
    ["simcse prompt", "simcse pooler", "sbert pooler:mean", "defsent mean-last2", "sbert wk"],
)
def test_a_declared_readout_that_cannot_be_trained_is_refused(case, base):
    """Training through another readout without a message would lower the quality."""
    name, declared = case.split()
    problem = f"declares the readout {declared}, which {name} cannot train"
    with pytest.raises(UsageError, match=problem) as caught:
        settled(name, declaring(base, declared))

    assert caught.value.advice == f"use --set readout={PAPERS[name]}, or another"
    assert (
        settled(name, declaring(base, declared), f"readout={PAPERS[name]}")[0].readout
        == PAPERS[name]
    )


REFUSED = (
    "simcse prompt",
    "sg-bert pooler",
    "defsent mean-last2",
    "sbert L9:cls",
    "sbert x",
    "simcse wk",
)


@pytest.mark.parametrize("case", [*REFUSED, "mlm wk-clip"])
def test_a_readout_that_cannot_be_trained_is_refused(case, base):
    name, readout = case.split()
    with pytest.raises(UsageError, match=readout):
        settled(name, base, f"readout={readout}")


@pytest.mark.parametrize(
    ("declared", "pooling"), [("mean", "mean"), ("cls", "cls"), ("max", "cls"), (None, "cls")]
)
def test_the_pooler_of_defsent_plus_reads_as_the_base_declares(base, declared, pooling):
    declared_base = base if declared is None else declaring(base, declared)

    assert settled("defsent-plus", declared_base)[0].pooling == pooling
    assert settled("defsent-plus", declared_base, "pooling=mean")[0].pooling == "mean"


def packed_texts(base):
    return pack([tokens.ids for tokens in base.training_tokenizer(["a cat sleeps", "rain"])])


@pytest.mark.parametrize("readout", ["mean", "max", "mean-last2", "L1:cls"])
@pytest.mark.parametrize("name", ["simcse", "sg-bert", "pairsupcon", "sbert", "consert"])
def test_a_method_trains_the_vectors_that_are_read(name, base, readout):
    """Of ConSERT mean-last2 goes through the last layer alone, as in the paper."""
    kind = METHODS[name].load()
    settings = build(kind.Settings, kind.presets, None, [f"readout={readout}", "dropout=0"])
    method = kind.build(base, settings).eval()
    packed = packed_texts(base)
    trained = "mean" if (name, readout) == ("consert", "mean-last2") else readout
    [expected] = apply_readouts(method.body, packed, [parse_readout(trained)])

    assert kind.readouts(settings)[0] == readout
    assert torch.equal(dev_vectors(method, packed), expected)


def test_a_head_that_the_base_declares_is_trained_further(tmp_path):
    """The vectors before the first step are those of the base, through its own pooler."""
    import transformers

    folder = make_base(tmp_path / "base")
    transformers.BertModel.from_pretrained(folder).save_pretrained(folder)
    plain = open_named(str(folder), 32)
    kind = METHODS["simcse-sup"].load()
    base = declaring(plain, "pooler")
    packed = packed_texts(base)
    [expected] = apply_readouts(base.body(None).eval(), packed, [parse_readout("pooler")])
    further, anew = (
        kind.build(any_base, kind.Settings(dropout=0)).eval() for any_base in (base, plain)
    )

    assert torch.allclose(dev_vectors(further, packed), expected, atol=1e-6)
    assert not torch.allclose(dev_vectors(anew, packed), expected, atol=1e-2)


@pytest.mark.parametrize("name", ["simcse", "sg-bert", "contrast"])
def test_a_causal_base_of_any_class_trains_its_last_token(name, base):
    """Its first token attends only to itself. AutoModel saves it without a class of causal
    models.
    """
    causal = replace(base, architecture=replace(base.architecture, causal=True))
    settings, _ = settled(name, causal)
    assert settings.readout == "last"

    for base_or_flag in (causal, declaring(causal, "cls")):
        flags = ["readout=cls"] if base_or_flag is causal else []
        with pytest.raises(UsageError, match="the first token attends only to itself") as caught:
            settled(name, base_or_flag, *flags)
        assert caught.value.advice == "use --set readout=last"


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "GPT2Model"])
def test_a_causal_base_that_transformers_runs_trains_its_last_token(kind, tmp_path):
    """Whatever the name of its class is."""
    base = open_named(str(make_base(tmp_path / "base", kind=kind)), 32)
    settings, line = settled("simcse", base)

    assert base.architecture is None
    assert settings.readout == "last"
    assert line.endswith("; it is a causal language model")
    with pytest.raises(UsageError, match="the first token attends only to itself") as caught:
        settled("simcse", base, "readout=cls")
    assert caught.value.advice == "use --set readout=last"


def test_a_base_that_transformers_runs_is_not_causal_if_its_first_token_reads_the_text(albert):
    settings, line = settled("simcse", open_named(str(albert), 32))

    assert (settings.readout, "causal" in line) == ("cls", False)


def test_a_base_is_not_causal_if_its_first_tokens_have_equal_vectors(albert, tmp_path):
    """Such as those that a vocabulary reserves."""
    folder = tmp_path / "reserved"
    shutil.copytree(albert, folder)
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][:40] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    assert not open_named(str(folder), 32).is_causal


def test_a_causal_base_trains_the_mean_by_a_method_without_the_last_token(base):
    causal = replace(base, architecture=replace(base.architecture, causal=True))
    settings, line = settled("simcse-sup", causal)

    assert (settings.readout, "causal" in line) == ("mean", True)
