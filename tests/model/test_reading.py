"""Reading options: flags have priority over the declaration, and the declaration over defaults."""

import json
import shutil

import pytest

from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import find_model, read_checkpoint
from sentkit.model.checkpoint_reading import LONGEST, depth_of, most_tokens, plan_reading
from sentkit.model.reading import ReadingOptions
from support import SMALL

BERT = {"model_type": "bert"} | SMALL | {"num_hidden_layers": 4, "max_position_embeddings": 64}


@pytest.fixture
def read(tmp_path):
    """A checkpoint with nano's tokenizer and this sentkit.json, read as `options` say."""

    def reading(declared=None, config=None, modules=None, **options):
        shutil.copyfile(find_model("nano") / "tokenizer.json", tmp_path / "tokenizer.json")
        (tmp_path / "config.json").write_text(json.dumps(BERT if config is None else config))
        if declared is not None:
            (tmp_path / "sentkit.json").write_text(json.dumps(declared))
        for name, value in (modules or {}).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(json.dumps(value))
        return plan_reading(read_checkpoint(str(tmp_path)), ReadingOptions(**options))

    return reading


def names(reading):
    return [readout.name for readout in reading.readouts]


def test_the_declaration_is_used_and_else_the_mean(read):
    plain = read()
    reading = read({"readout": "mean-last2", "steps": ["normalise", "2_Dense"]})

    assert (names(plain), plain.readout_is_declared) == (["mean"], False)
    assert (names(reading), reading.readout_is_declared) == (["mean-last2"], True)
    assert reading.declared_steps == ("normalise", "2_Dense")


def test_another_readout_drops_the_declared_steps(read):
    """They were made for the vectors of the other."""
    declared = {"readout": "mean", "steps": ["normalise"]}

    assert read(declared, readout="mean").declared_steps == ("normalise",)
    # "L4" is the last of four, by another name.
    assert read(declared, readout="L4:mean").declared_steps == ("normalise",)
    assert read(declared, readout="cls").declared_steps == ()
    assert read(declared, readout="mean,cls").declared_steps == ()
    assert read(declared, readout="cls").readout_is_declared


def test_another_readout_drops_the_declared_width_with_a_note(read):
    """A width of the flags stays."""
    declared = {"readout": "mean", "steps": ["normalise"], "dim": 8}
    [note] = read(declared, readout="cls").notes("MODEL")
    [note_with_dim] = read(declared, readout="cls", dim=4).notes("MODEL")

    assert read(declared).notes("MODEL") == []
    assert note.endswith("another readout: normalise, the first 8 numbers")
    assert note_with_dim.endswith("another readout: normalise")
    assert read({"readout": "mean", "dim": 8}, readout="cls").notes("MODEL")


@pytest.mark.parametrize(
    ("declared", "config", "wish", "length"),
    [
        (None, None, None, 64),
        ({"readout": "cls", "max_length": 32}, None, None, 32),
        ({"readout": "cls", "max_length": 512}, None, None, 64),
        ({"readout": "cls", "max_length": 32}, None, 48, 48),
        (None, None, 64, 64),
        (None, {"model_type": "t5", "num_layers": 2}, None, LONGEST),
        (None, {"model_type": "t5", "num_layers": 2}, 2000, 2000),
    ],
)
def test_the_length_is_that_of_the_flag_or_declared_within_the_positions(
    read, declared, config, wish, length
):
    """If the number of positions is unknown, there is a default."""
    assert read(declared, config, max_length=wish).tokenizer.max_length == length


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (BERT, 64),
        (BERT | {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        (BERT | {"model_type": "mpnet", "max_position_embeddings": 514}, 512),
        ({"model_type": "albert", "max_position_embeddings": 512}, 512),
        ({"model_type": "t5", "n_positions": 512}, None),
        ({"model_type": "gpt2", "n_embd": 8, "n_positions": 1024}, 1024),
        ({"model_type": "x", "max_position_embeddings": "512"}, None),
        ({"model_type": "x", "max_position_embeddings": 0}, None),
        ({"model_type": "x", "max_position_embeddings": True}, None),
        ({"model_type": "gpt2", "n_embd": 8, "n_positions": True}, None),
    ],
)
def test_the_number_of_positions_comes_from_the_config(config, positions):
    assert most_tokens(config, "config.json") == positions


def test_a_wrong_config_is_an_error_that_names_its_folder(read, tmp_path):
    incomplete = {name: value for name, value in BERT.items() if name != "hidden_size"}
    with pytest.raises(DataError, match=f'^{tmp_path}/config.json: "hidden_size" is missing$'):
        read(config=incomplete)
    with pytest.raises(
        DataError, match=f'^{tmp_path}/config.json: "hidden_dropout_prob" cannot be 2$'
    ):
        read(config=BERT | {"hidden_dropout_prob": 2})


@pytest.mark.parametrize(
    ("config", "depth"),
    [
        ({"n_layers": 6}, 6),
        ({"n_layer": 2}, 2),
        ({}, 0),
        ({"num_hidden_layers": "12"}, 0),
        # Every layer of these would fill memory before any is read.
        ({"num_hidden_layers": 10**18}, 0),
    ],
)
def test_the_depth_has_several_names(config, depth):
    assert depth_of(config) == depth


def test_the_prompt_is_that_of_the_flag_or_the_declared_one(read):
    settings = {"readout": "cls", "prompt": "a ", "prompts": {"query": "query: ", "document": ""}}
    wishes = (
        {},
        {"prompt": "b "},
        {"prompt": ""},
        {"prompt_name": "query"},
        {"prompt_name": "document"},
    )

    assert [read(settings, **wish).tokenizer.prompt for wish in wishes] == [
        "a ",
        "b ",
        "",
        "query: ",
        "",
    ]
    assert read(settings | {"lowercase": True}).tokenizer.lowercase
    unknown = 'the model declares no prompt with the name "q"'
    for declared, wish, problem, advice in (
        (settings, {"prompt": ""}, "--prompt and --prompt-name cannot be used together", None),
        (settings, {}, unknown, "available: query, document"),
        ({"readout": "cls"}, {}, unknown, "give the text of a prompt"),
    ):
        with pytest.raises(UsageError) as error:
            read(declared, prompt_name="q", **wish)
        assert (str(error.value), error.value.advice) == (problem, advice)


def test_tokens_of_an_excluded_prompt_are_counted(read):
    modules = {
        "modules.json": [
            {"type": "sentence_transformers.models.Transformer", "path": ""},
            {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        ],
        "1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": False},
    }

    assert read(modules=modules).tokenizer.skip == 0
    assert read(modules=modules, prompt="a ").tokenizer.skip == 2  # [CLS] a
    for readout in ("pooler", "prompt"):
        with pytest.raises(UsageError, match="does not use the tokens of the prompt"):
            read(modules=modules, prompt="query : ", readout=readout)
    with pytest.raises(UsageError, match="is too small: the prompt uses all of it"):
        read(modules=modules, prompt="a ", max_length=3)


@pytest.mark.parametrize(
    ("options", "count", "around"),
    [
        ({"prompt": "a cat : "}, 5, "the prompt"),  # [CLS] a cat : [SEP]
        ({"prompt": "a=,b=a cat : ", "by_side": True}, 5, "the prompt"),
        # [CLS] a [MASK] [SEP]; the full stop belongs to the sentence
        (
            {"readout": "prompt", "template": "[X] a [MASK]", "full_stop": "sncse"},
            4,
            "the template",
        ),
        (
            {"readout": "prompt", "template": "[X] a [MASK]", "prompt": "a "},
            5,
            "the prompt and the template",
        ),
    ],
)
def test_a_maximum_length_without_room_for_a_text_is_refused(read, options, count, around):
    """Otherwise, all texts would be cut to nothing and have the same vector."""
    with pytest.raises(UsageError) as error:
        read(max_length=count, **options)

    problem = f"a maximum length of {count} tokens leaves no room for a text"
    assert str(error.value) == f"{problem}: {around} and the special tokens have {count}"
    assert error.value.advice == f"use a maximum length of {count + 1} or more, or shorten {around}"
    assert read(max_length=count + 1, **options).tokenizer.max_length == count + 1


def test_a_declared_prompt_without_room_is_a_fault_of_the_declaration(read):
    declared = {"readout": "mean", "max_length": 5, "prompt": "a cat : "}

    with pytest.raises(DataError, match=r"sentkit\.json: a maximum length of 5 tokens leaves"):
        read(declared)
    assert read(declared, max_length=6).tokenizer.prompt == "a cat : "
    assert read(declared, prompt="a ").tokenizer.max_length == 5


PROMPT = {"readout": "prompt", "template": "[X] is [MASK]", "full_stop": "sncse"}


def test_a_declared_template_has_its_declared_full_stop(read):
    """Other readouts have no template."""
    assert read(PROMPT, readout="cls").tokenizer.template is None
    assert read(PROMPT).tokenizer.template.around("a cat") == "a cat . is [MASK]"
    assert read(PROMPT, full_stop="none").tokenizer.template.around("a cat") == "a cat is [MASK]"


def test_a_named_template_has_the_full_stop_of_its_paper(read):
    """On a checkpoint that declares nothing, and on one that declares another template."""
    for declared in (None, PROMPT, {"readout": "mean", "full_stop": "none"}):
        template = read(declared, readout="prompt", template="promptbert").tokenizer.template
        assert template.around("a cat") == 'This sentence : "a cat." means [MASK] .'


ONLY_PROMPT = "a template and its full stops can be used only with the readout prompt"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"readout": "cls", "full_stop": "none"}, ONLY_PROMPT),
        ({"readout": ""}, 'unknown readout ""'),
        ({"template": ""}, ONLY_PROMPT),
        ({"readout": "prompt", "template": ""}, 'template "" needs [X] once and [MASK] once'),
    ],
)
def test_conflicting_options_are_refused(read, options, problem):
    with pytest.raises(UsageError) as caught:
        read(**options)

    assert str(caught.value) == problem
