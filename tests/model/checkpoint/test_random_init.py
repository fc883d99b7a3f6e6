"""A checkpoint with random weights loads everywhere, and depends only on its seed."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers

from sentkit.errors import DataError, UsageError
from sentkit.model.checkpoint.heads import fresh_head, head_tensors
from sentkit.model.checkpoint.save_weights import write_fresh
from sentkit.model.transformer.architecture import read_architecture
from support import FAMILIES, NANO, TOKENIZER_FILES

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat")


@pytest.fixture
def config(config_of, tmp_path):
    """A function that writes the config.json of a family."""

    def write(family, **settings):
        values = config_of(family, **settings).to_dict() | {"torch_dtype": "float16"}
        (tmp_path / "config.json").write_text(json.dumps(values))
        return tmp_path / "config.json"

    return write


@pytest.fixture
def tokenizer(tmp_path):
    """A tokenizer.json of seven words without other files."""
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "words").mkdir()
    made.save(str(tmp_path / "words/tokenizer.json"))
    return tmp_path / "words/tokenizer.json"


@pytest.fixture
def fresh(tmp_path, tokenizer):
    """A function that writes a checkpoint and returns its folder."""

    def run(config, tokenizer=tokenizer, seed=1, name="fresh", **more):
        (tmp_path / name).mkdir()
        write_fresh(tmp_path / name, config, tokenizer, seed, **more)
        return tmp_path / name

    return run


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_finds_every_weight(config, fresh, family):
    """Weights of the encoder and its language model head, in float32 for any config."""
    from transformers import AutoModel, AutoModelForMaskedLM

    file = config(family)
    architecture = read_architecture(json.loads(file.read_text()), "config.json")
    head = head_tensors(fresh_head(architecture, torch.Generator().manual_seed(1)), architecture)
    folder = fresh(file, head=head)
    body, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    whole, whole_report = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)

    assert {name for name in report["missing_keys"] if not name.startswith("pooler.")} == set()
    assert (whole_report["missing_keys"], whole_report["unexpected_keys"]) == (set(), set())
    assert body.dtype == whole.dtype == torch.float32
    assert all(torch.equal(whole.state_dict()[name], value) for name, value in head.items())


def test_weights_have_the_distribution_of_transformers(config, fresh):
    """N(0, initializer_range) for tables and matrices; norms 1 and 0, biases 0, padding row 0."""
    tensors = load_file(fresh(config("roberta", initializer_range=0.5)) / "model.safetensors")
    table = tensors["roberta.embeddings.word_embeddings.weight"]
    matrix = tensors["roberta.encoder.layer.0.intermediate.dense.weight"]
    norm, bias = (tensors[f"roberta.encoder.layer.2.output.LayerNorm.{kind}"] for kind in ("weight", "bias"))

    assert abs(table.std() - 0.5) < 0.02
    assert abs(matrix.std() - 0.5) < 0.03
    assert abs(matrix.mean()) < 0.03
    assert torch.equal(norm, torch.ones(32))
    assert torch.equal(bias, torch.zeros(32))
    assert [i for i, row in enumerate(table) if not row.any()] == [1]


def test_a_tokenizer_file_of_any_name_gets_a_config(config, fresh, tokenizer, tmp_path):
    """transformers needs the special tokens and the maximum length."""
    from transformers import AutoTokenizer

    shutil.move(tokenizer, tmp_path / "seven.json")
    folder = fresh(config("bert"), tmp_path / "seven.json")
    loaded = AutoTokenizer.from_pretrained(folder)
    padded = loaded(["a", "a cat"], padding=True)

    assert (loaded.mask_token_id, loaded.pad_token_id, loaded.cls_token_id) == (4, 0, 2)
    assert loaded.model_max_length == 64
    assert padded["input_ids"] == [[5, 0], [5, 6]]
    assert padded["attention_mask"] == [[1, 0], [1, 1]]
    assert (folder / "tokenizer.json").read_bytes() == (tmp_path / "seven.json").read_bytes()
    (tmp_path / "seven.json").write_text("{")
    with pytest.raises(DataError, match=r"seven.json: not JSON"):
        fresh(config("bert"), tmp_path / "seven.json", name="bad")


@pytest.mark.parametrize("given", ["", "tokenizer.json"], ids=["folder", "file"])
def test_the_files_of_the_tokenizer_are_copied(config, fresh, given):
    """Files of the model in the same folder are not copied."""
    folder = fresh(config("bert", vocab_size=16384), NANO / given)

    assert all((folder / name).read_bytes() == (NANO / name).read_bytes() for name in TOKENIZER_FILES)
    assert {path.name for path in folder.iterdir()} == {*TOKENIZER_FILES, "config.json", "model.safetensors"}


@pytest.mark.parametrize(
    ("family", "change", "error", "problem"),
    [
        ("bert", {"is_decoder": True}, UsageError, '.*"is_decoder" is set: not supported'),
        ("distilbert", {"sinusoidal_pos_embds": True}, UsageError, ".*--init does not support sinusoidal"),
        ("bert", {"hidden_size": "32"}, DataError, '"hidden_size" cannot be'),
        ("bert", {"pad_token_id": 97}, DataError, '"pad_token_id" cannot be'),
        ("bert", {"initializer_range": -1}, DataError, '"initializer_range" cannot be'),
    ],
)
def test_other_architectures_and_wrong_values_are_errors(config, fresh, family, change, error, problem):
    file = config(family)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(error, match=f"config.json: {problem}"):
        fresh(file)
