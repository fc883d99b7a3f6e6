"""Sequence-to-sequence checkpoints that cannot be used are errors in one line; the library prints nothing."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sentkit.errors import DataError, NoInputError, UnavailableError
from sentkit.formats.checkpoints.folders import Checkpoint, read_checkpoint
from sentkit.model.translation.translate import load_config, load_model, load_tokenizer


@pytest.fixture
def damaged(marian: Path, tmp_path: Path) -> Path:
    """A copy of the Marian model that a test damages."""
    return Path(shutil.copytree(marian, tmp_path / "damaged"))


def loaded(folder: Path) -> Any:
    checkpoint = read_checkpoint(str(folder))
    return load_model(checkpoint, load_config(checkpoint))


def change(folder: Path, **settings: Any) -> Checkpoint:
    """Write these into config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return read_checkpoint(str(folder))


@pytest.mark.parametrize("kind", ["bert", "gpt2", "whisper"])
def test_models_that_do_not_convert_text_to_text_are_errors(tmp_path: Path, kind: str) -> None:
    """An encoder, a decoder, and a model that reads sound."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))

    problem = f'^{tmp_path}: "{kind}" is not a sequence-to-sequence model$'
    with pytest.raises(DataError, match=problem) as error:
        load_config(read_checkpoint(str(tmp_path)))
    assert "such as Marian" in str(error.value.advice)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            {"auto_map": {"AutoModelForSeq2SeqLM": "own.Model"}},
            "needs its own Python code; sentkit does not run",
        ),
        ({"model_type": "no-such"}, r"^[^\n]*damaged: transformers cannot load the model: [^\n]+$"),
        ({"d_model": "x"}, r"^[^\n]*damaged: transformers cannot load the model: [^\n]+$"),
    ],
)
def test_a_config_that_cannot_be_used_is_an_error(damaged: Path, config: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        load_config(change(damaged, **config))


def test_a_folder_without_weights_is_a_missing_input(damaged: Path) -> None:
    (damaged / "model.safetensors").unlink()

    with pytest.raises(NoInputError, match=r"has no model\.safetensors"):
        loaded(damaged)


@pytest.mark.parametrize(
    ("nan", "problem"),
    [
        (
            False,
            r'missing "model\.decoder\.layers\.1\.fc1\.weight"$',
        ),  # transformers would use random weights
        (True, "its weights contain NaN or infinity"),  # the search would not fail
    ],
)
def test_missing_weights_and_nan_are_errors(damaged: Path, nan: bool, problem: str) -> None:
    tensors = load_file(damaged / "model.safetensors")
    weight = tensors.pop("model.decoder.layers.1.fc1.weight")
    weight[3, 4] = torch.nan
    more = {"model.decoder.layers.1.fc1.weight": weight} if nan else {}
    save_file(tensors | more, damaged / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(DataError, match=problem):
        loaded(damaged)


def test_a_folder_without_a_tokenizer_is_an_error(t5: Path, tmp_path: Path) -> None:
    """transformers would create a tokenizer without words."""
    own = shutil.copytree(t5, tmp_path / "own", ignore=shutil.ignore_patterns("tokenizer*"))

    with pytest.raises(DataError, match="this folder has no tokenizer"):
        load_tokenizer(read_checkpoint(str(own)))


@pytest.mark.parametrize(
    ("message", "package"),
    [
        ("MarianTokenizer requires the SentencePiece library", "sentencepiece"),
        ("You need to install sacremoses to use XLMTokenizer. See its page.", "sacremoses"),
    ],
)
def test_a_missing_package_of_a_tokenizer_is_named(
    damaged: Path, monkeypatch: Any, message: str, package: str
) -> None:
    """The tokenizers of Marian and FSMT need one."""
    import transformers

    def failing(*_: Any, **__: Any) -> None:
        raise ImportError(message)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", failing)

    with pytest.raises(UnavailableError, match=f"its tokenizer needs the package {package}$") as error:
        load_tokenizer(read_checkpoint(str(damaged)))
    assert error.value.advice == "pip install 'sentkit[translate]'"


def test_warnings_of_a_tokenizer_are_returned(damaged: Path, monkeypatch: Any, capfd: Any) -> None:
    """Without sacremoses, the tokenizer of Marian does not normalize punctuation and warns."""
    import warnings

    import transformers

    real = transformers.AutoTokenizer.from_pretrained

    def warning(*names: Any, **settings: Any) -> Any:
        warnings.warn("Recommended: pip install sacremoses.", stacklevel=2)
        warnings.warn("of no interest to anybody", FutureWarning, stacklevel=2)
        return real(*names, **settings)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", warning)
    _, notes = load_tokenizer(read_checkpoint(str(damaged)))

    assert notes == [f"{damaged}: Recommended: pip install sacremoses."]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["marian", "t5", "nllb"])
def test_loading_prints_nothing(kind: str, request: pytest.FixtureRequest, capfd: Any) -> None:
    folder = request.getfixturevalue(kind)
    capfd.readouterr()  # remove the output of its creation
    load_tokenizer(read_checkpoint(str(folder)))
    model = loaded(folder)

    assert capfd.readouterr() == ("", "")
    assert not model.training
    assert model.dtype == torch.float32


def test_the_tokenizer_of_fsmt_needs_sacremoses(fsmt: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(fsmt, tmp_path / "own"))
    (own / "tokenizer.json").unlink()
    vocabulary = {token: place for place, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "a</w>"])}
    for side in ("src", "tgt"):
        (own / f"vocab-{side}.json").write_text(json.dumps(vocabulary))
    (own / "merges.txt").write_text("")
    config = {"tokenizer_class": "FSMTTokenizer", "langs": ["en", "de"]}
    (own / "tokenizer_config.json").write_text(json.dumps(config))

    if find_spec("sacremoses") is None:
        with pytest.raises(UnavailableError, match="needs the package sacremoses"):
            load_tokenizer(read_checkpoint(str(own)))
    else:
        assert load_tokenizer(read_checkpoint(str(own)))[0]("a").input_ids == [4, 2]


LARGE = ("encoder_layers", "decoder_layers", "vocab_size", "max_position_embeddings")


@pytest.mark.parametrize(
    ("size", "value", "problem"),
    [
        ("decoder_ffn_dim", 23, "transformers cannot load the model: "),
        ("decoder_layers", 1000, "the model is larger than the stored weights"),
        *((name, 10**9, f'"{name}" cannot be {10**9}$') for name in LARGE),
    ],
)
def test_sizes_that_do_not_fit_the_weights_are_errors(
    damaged: Path, size: str, value: int, problem: str
) -> None:
    """The check happens before a model of a large size is built, which would not finish."""
    change(damaged, **{size: value})

    with pytest.raises(DataError, match=problem):
        loaded(damaged)
