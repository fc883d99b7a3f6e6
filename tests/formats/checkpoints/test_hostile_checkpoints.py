"""Checkpoints with damaged files: the result is a vector or an error that names the file."""

import base64
import json
import shutil
import warnings
from contextlib import suppress

import numpy as np
import orjson
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from hostile import BAD_DATA, ODD, few_examples, is_read_or_bad_data, mutated, places, replaced
from sentkit.errors import DataError, NoInputError, UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint, weight_files
from sentkit.formats.files import check_input
from sentkit.model import find_encoder
from sentkit.model.encoding import encode_texts
from sentkit.model.reading import ReadingOptions
from sentkit.model.text.growth import check_growth
from sentkit.model.text.tokenizer import Tokenizer
from support import declare_modules, make_bert

SIZES = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 14}
SIZES |= {"output_hidden_states": True}
TOKENIZER = {"tokenizer_class": "BertTokenizer"}
FILES = {
    "config.json": {
        "model_type": "bert",
        "num_hidden_layers": 3,
        "max_position_embeddings": 32,
        **SIZES,
    },
    "modules.json": [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.WeightedLayerPooling", "path": "0_Layers"},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        {"type": "sentence_transformers.models.Dense", "path": "2_Dense"},
        {"type": "sentence_transformers.models.Normalize", "path": "3_Normalize"},
    ],
    "sentkit.json": {
        "readout": "pooler",
        "steps": ["2_Dense", "normalise"],
        "max_length": 16,
        "lowercase": True,
        "prompt": "a ",
        "template": "[X] [MASK]",
        "full_stop": "none",
        "pooler": {"activation": "gelu", "readout": "pooler", "lands_in": "a1b2c3d4e5f6"},
    },
    "0_Layers/config.json": {"layer_start": 1},
    "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "include_prompt": True},
    "2_Dense/config.json": {
        "in_features": 8,
        "out_features": 4,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
        "module_input_name": "sentence_embedding",
        "use_residual": False,
    },
    "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": True},
    "config_sentence_transformers.json": {"prompts": {"q": "query : "}, "default_prompt_name": "q"},
    "tokenizer_config.json": {"do_lower_case": True, "model_max_length": 20} | TOKENIZER,
}
LAYERS = "0_Layers/model.safetensors"
NUMBERS = st.sampled_from([None, True, -5, 0, 1, 1.5, 10**9, 2**63, "", "x" * 5000, [], {}, [[1]]])


def encode_with(folder):
    encoder = find_encoder(str(folder), ReadingOptions(), device="cpu", precision="fp32")
    tokenizer = Tokenizer(read_checkpoint(str(folder)), max_length=8)
    tokens = tokenizer(["the cat sat .", "", "\u00e9 \U0001f600"])
    encode_texts(tokens, encoder.encoder(), 4096)


@pytest.fixture
def running(base, tmp_path):
    """A checkpoint that can run, with other bytes in one of its files; `other` is a model for
    transformers.

    `lineage`: with a sentkit.json.
    """

    def make(name="", content=b"", *, other=False, lineage=True):
        folder = tmp_path / "running"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder)
        for path, value in FILES.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(orjson.dumps(value))
        if other:
            shutil.copytree(other_model(base.parent / "other"), folder, dirs_exist_ok=True)
        if not lineage:
            (folder / "sentkit.json").unlink()
        safetensors.numpy.save_file({"layer_weights": np.ones(2, np.float32)}, folder / LAYERS)
        dense = {
            "linear.weight": np.ones((4, 8), np.float32),
            "linear.bias": np.ones(4, np.float32),
        }
        safetensors.numpy.save_file(dense, folder / "2_Dense/model.safetensors")
        if name:
            (folder / name).write_bytes(content)
        return folder

    return make


def other_model(folder):
    """A random BERT, made once, with an activation for which it runs through transformers."""
    if not folder.exists():
        from transformers import BertConfig, BertModel

        config = {
            "hidden_act": "quick_gelu",
            "num_hidden_layers": 2,
            "max_position_embeddings": 34,
            **SIZES,
        }
        BertModel(BertConfig(**config)).save_pretrained(folder)
    return folder


def test_the_unchanged_checkpoints_run(running):
    encode_with(running())
    encode_with(running(lineage=False))
    encode_with(running(other=True, lineage=False))


@few_examples
@given(data=st.data())
@pytest.mark.parametrize("name", [*FILES, "tokenizer.json", "config.json of another"])
def test_any_value_at_any_depth(running, base, name, data):
    name, _, other = name.partition(" ")
    source = other_model(base.parent / "other") if other else base
    value = json.loads((source / name).read_text()) if other or name not in FILES else FILES[name]
    path = data.draw(st.sampled_from(places(value)))
    changed = replaced(value, path, data.draw(ODD | NUMBERS))
    lineage = name == "sentkit.json" or (not other and data.draw(st.booleans()))
    folder = running(name, json.dumps(changed).encode(), other=bool(other), lineage=lineage)

    is_read_or_bad_data(lambda: encode_with(folder))


@few_examples
@given(data=st.data())
@pytest.mark.parametrize("name", [*FILES, LAYERS, "tokenizer.json"])
def test_any_bytes(running, name, data):
    valid = orjson.dumps(FILES.get(name, {}))
    content = data.draw(st.binary(max_size=60) | mutated([valid]))

    is_read_or_bad_data(lambda: encode_with(running(name, content, lineage=name == "sentkit.json")))


def kinds_of_tensor(shape):
    """Tensors that a pickle may hold in the place of a plain one of this shape."""
    import torch

    plain = torch.ones(shape)
    with warnings.catch_warnings(action="ignore"):  # quantised tensors are deprecated
        quantised = torch.quantize_per_tensor(plain, 1.0, 0, torch.qint8)
    return {
        "sparse": plain.to_sparse(),
        "meta": plain.to("meta"),
        "quantised": quantised,
        "repeated": torch.ones(1).expand(10**6, 10**6),
        "whole": plain.long(),
        "complex": plain.to(torch.complex64),
        "boolean": plain.bool(),
        "empty": torch.ones(0),
        "number": torch.ones(()),
        "axes": plain[None],
        "wider": torch.ones(*shape[:-1], shape[-1] + 1),
        "half": plain.half(),
        "parameter": torch.nn.Parameter(plain),
        "nothing": None,
        "text": "x",
        "list": [1.0],
    }


READABLE = ("half", "parameter")


@pytest.mark.parametrize("kind", kinds_of_tensor((1,)))
@pytest.mark.parametrize("name", ["embeddings.word_embeddings.weight", "pooler.dense.bias"])
@pytest.mark.parametrize("other", [False, True])
def test_tensors_of_any_kind(running, other, name, kind):
    """Of a `pytorch_model.bin`: the vectors, or an error that blames the file."""
    import torch
    from safetensors.torch import load_file

    folder = running(other=other, lineage=not other)
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = kinds_of_tensor(tuple(tensors[name].shape))[kind]
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()

    if kind in READABLE:
        encode_with(folder)
    else:
        with suppress(*BAD_DATA):
            encode_with(folder)
            assert other  # transformers converts some kinds, and has no use for the pooler


def test_many_steps_are_refused(running):
    steps = {"readout": "mean", "steps": ["normalise"] * 100_000}

    with pytest.raises(DataError, match=r"sentkit\.json: 100,000 steps, expected at most 64$"):
        encode_with(running("sentkit.json", orjson.dumps(steps)))


@pytest.mark.parametrize("length", [-5, 0, 2])
def test_a_too_small_declared_length_is_bad_data(running, length):
    folder = running("sentkit.json", orjson.dumps({"readout": "mean", "max_length": length}))
    with pytest.raises(DataError, match=r"sentkit\.json: "):
        encode_with(folder)
    with pytest.raises(UsageError):
        find_encoder(str(running()), ReadingOptions(max_length=length))


WRONG_LENGTHS = [-5, 0, True, False, 1.5, "8", [], {}, float("nan")]


@pytest.mark.parametrize("value", WRONG_LENGTHS, ids=repr)
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("sentence_bert_config.json", "max_seq_length"),
        ("sentence_roberta_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
        ("config_sentence_transformers.json", "truncate_dim"),
        ("config.json", "max_position_embeddings"),
    ],
)
def test_wrong_numbers_are_bad_data_of_their_file(running, name, key, value):
    """NaN is a number in the JSON of Python, and no JSON: then the file is named."""
    folder = running(lineage=False)
    (folder / "sentence_bert_config.json").unlink()
    (folder / name).write_text(json.dumps(FILES.get(name, {}) | {key: value}))
    named = name if value != value else f'{name}: "{key}"'
    with pytest.raises(DataError, match=named):
        encode_with(folder)


@pytest.mark.parametrize("value", [1e30, 10**30, None])
def test_no_limit_is_a_length(running, value):
    """As transformers and sentence-transformers write it: the limit is that of the encoder, 32
    positions.
    """
    folder = running(lineage=False)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": value}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(TOKENIZER | {"model_max_length": value})
    )

    assert find_encoder(str(folder), ReadingOptions()).tokenizer.max_length == 32


def replacing(count, content="a" * 50, pattern=None):
    return [{"type": "Replace", "pattern": pattern or {"String": "a"}, "content": content}] * count


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
COPY = {"Sequence": {"id": "A", "type_id": 0}}
TWICE = {"type": "TemplateProcessing", "single": [COPY] * 2, "pair": [COPY], "special_tokens": {}}
MULTIPLYING = {  # steps of a tokenizer.json, and the growth of one character
    "strings": ("normalizer", replacing(6), 50**6),
    "nested": (
        "normalizer",
        [{"type": "Sequence", "normalizers": replacing(2)}, *replacing(1)],
        50**3,
    ),
    "expressions": ("normalizer", replacing(3, "bcd bcd", {"Regex": "[a-d]"}), 7**3),
    "between characters": ("normalizer", replacing(4, "bcd", {"Regex": "(?=.)"}), 4**4),
    "an empty string": ("normalizer", replacing(4, "bcd", {"String": ""}), 4**4),
    "bytes": ("normalizer", [{"type": "ByteLevel"}] * 4, 4**4),
    "bytes of words": ("pre_tokenizer", [BYTES] * 4, 4**4),
    "copies": ("post_processor", [TWICE] * 7, 2**7),
}
INNER = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
}


@pytest.mark.parametrize("kind", MULTIPLYING)
@pytest.mark.parametrize("static", [False, True])
def test_a_tokenizer_that_multiplies_texts_is_refused(running, model2vec, kind, static):
    name, steps, growth = MULTIPLYING[kind]
    path = (model2vec() if static else running()) / "tokenizer.json"
    rules = json.loads(path.read_text()) | {name: {"type": "Sequence", INNER[name]: steps}}
    path.write_text(json.dumps(rules))

    problem = (
        rf'tokenizer\.json: the steps of "{name}" make up to {growth:,} characters of one, '
        rf"at most 64"
    )
    with pytest.raises(DataError, match=problem):
        find_encoder(str(path.parent), ReadingOptions())


def charsmap(replacement):
    """A charsmap of sentencepiece with an empty trie."""
    return base64.b64encode(bytes(4) + replacement.encode() + b"\0").decode()


def test_a_long_replacement_of_a_charsmap_is_refused(running):
    """18 characters are those of Unicode's longest one; 18 x 65 are too many."""
    path = running() / "tokenizer.json"
    rules = json.loads(path.read_text())
    for length, problem in (
        (18 * 64, None),
        (18 * 65, 'of "normalizer" make up to 65 characters of one'),
    ):
        steps = {"type": "Precompiled", "precompiled_charsmap": charsmap("a" * length)}
        if problem is None:
            check_growth({**rules, "normalizer": steps}, "x")
        else:
            with pytest.raises(DataError, match=problem):
                check_growth({**rules, "normalizer": steps}, "x")
    with pytest.raises(
        DataError, match='of "normalizer" add 2,000 characters to each text, at most 1,024'
    ):
        check_growth({**rules, "normalizer": {"type": "Prepend", "prepend": "a" * 2000}}, "x")


def test_the_steps_of_real_tokenizers_are_accepted():
    """Those of ALBERT, DeBERTa and XLM-RoBERTa (charsmaps of NFKC), Llama and CLIP."""
    quotes = [*replacing(1, '"', {"String": "``"}), *replacing(1, '"', {"String": "''"})]
    nfkc = {"type": "Precompiled", "precompiled_charsmap": charsmap("\ufdfa" * 18)}
    albert = [*quotes, {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, nfkc]
    spaces = replacing(1, "\u2581", {"Regex": " {2,}"})
    llama = [{"type": "Prepend", "prepend": "\u2581"}, *replacing(1, "\u2581", {"String": " "})]
    clip = [{"type": "NFC"}, *replacing(1, " ", {"Regex": r"\s+"}), {"type": "Lowercase"}]
    one = {
        "type": "TemplateProcessing",
        "single": [COPY],
        "pair": [COPY, COPY],
        "special_tokens": {},
    }
    for steps in ([*albert, *spaces], llama, clip, [nfkc, *spaces]):
        normalizer = {"type": "Sequence", "normalizers": steps}
        rules = {"normalizer": normalizer, "pre_tokenizer": BYTES, "post_processor": one}
        check_growth(rules, "x")


@pytest.mark.parametrize("read", [check_input, lambda name: find_encoder(name, ReadingOptions())])
def test_a_too_long_name_is_an_input_error(read):
    with pytest.raises(NoInputError):
        read("a" * 300)


def test_a_folder_of_a_module_is_not_proposed_as_a_checkpoint(tmp_path):
    """`1_Pooling` has a config.json, too."""
    folder = declare_modules(make_bert(tmp_path / "copy"), "mean_tokens", 32)
    (folder / "model.safetensors").unlink()

    with pytest.raises(NoInputError) as refused:
        weight_files(folder, "copy")
    assert (refused.value.advice, str(refused.value)) == (
        None,
        "copy: has no model.safetensors and no pytorch_model.bin",
    )
