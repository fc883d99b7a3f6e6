"""Heads have the predictions of transformers; a checkpoint with random weights depends only on its seed."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers

from sentkit.errors import DataError, UsageError
from sentkit.model.checkpoint.heads import HEADS, fresh_head, head_tensors, read_head
from sentkit.model.checkpoint.untrained import write_fresh
from sentkit.model.transformer.architecture import read_architecture
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.weights import read_tensors
from support import FAMILIES, NANO, TOKENIZER_FILES

CASES = [
    *((family, {}) for family in FAMILIES),
    ("bert", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "vocab_size": 131}),
    ("roberta", {"hidden_act": "relu", "layer_norm_eps": 1e-3}),
    ("xlm-roberta", {"hidden_act": "silu", "hidden_size": 20}),
    ("camembert", {"hidden_act": "gelu_pytorch_tanh"}),
    ("distilbert", {"activation": "relu", "dim": 20}),
    ("electra", {"hidden_act": "silu", "layer_norm_eps": 1e-3, "embedding_size": 32}),
    ("modernbert", {"classifier_bias": True, "norm_eps": 1e-3}),
]
every_family = pytest.mark.parametrize("family", FAMILIES)


def architecture_of(model):
    return read_architecture(json.loads(model.config.to_json_string(use_diff=False)), "config.json")


def saved(model, folder):
    """The tensors as `save_pretrained` stores them, and the architecture."""
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    return read_tensors([folder / "model.safetensors"]), read_architecture(config, "config.json")


@pytest.mark.parametrize(("family", "settings"), CASES)
@torch.no_grad()
def test_logits_equal_those_of_transformers(family, settings, make, tmp_path, load, sentences):
    """At given positions, from a saved folder, with the states of our encoder."""
    model = make(family, "ForMaskedLM", **settings)
    head = read_head(*saved(model, tmp_path), source="here")
    encoder = load(tmp_path)
    (ids,) = sentences([19])
    places = torch.tensor([0, 7, 18])

    *_, states = encoder.states(pack([ids]))
    logits = head(states[places], encoder.words.weight)

    assert (logits - model(torch.from_numpy(ids)[None]).logits[0, places]).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("family", "head", "found"),
    [
        *((family, "Model", False) for family in FAMILIES),
        ("electra", "ForPreTraining", False),  # its discriminator is not a language model head
        ("bert", "ForPreTraining", True),
    ],
)
def test_only_a_language_model_head_is_read(family, head, found, make, tmp_path):
    assert (read_head(*saved(make(family, head), tmp_path), source="here") is not None) == found


@every_family
def test_a_decoder_in_the_file_is_tied_to_the_words_or_an_error(family, make):
    """A complete state_dict also has the decoder weight and the alias of its bias. Words may be absent."""
    model, decoder = make(family, "ForMaskedLM"), HEADS[family].decoder + ".weight"
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    changed = tensors[decoder].clone()
    changed[3, 4] += 1
    untied = f'^model.bin: .* not tied to the word embeddings: "{decoder}" differs'
    wordless = {name: value for name, value in tensors.items() if "_embeddings" not in name}

    assert read_head(tensors, architecture_of(model), source="here") is not None
    for wrong, problem in ((tensors | {decoder: changed}, untied), (wordless, "not tied")):
        with pytest.raises(DataError, match=problem):
            read_head(wrong, architecture_of(model), source="model.bin")


@every_family
@pytest.mark.parametrize("part", ["dense", "norm"])
def test_an_incomplete_head_is_an_error(family, part, make, tmp_path):
    tensors, architecture = saved(make(family, "ForMaskedLM"), tmp_path)
    lost = getattr(HEADS[family], part) + ".weight"
    del tensors[lost]

    problem = "weights of the language model head and config.json do not match"
    with pytest.raises(DataError, match=f'^model.bin: {problem}: missing "{lost}"$'):
        read_head(tensors, architecture, source="model.bin")


@every_family
def test_a_fresh_head_has_the_distribution_of_transformers(family, make):
    """N(0, 0.02) for the dense layer, a neutral norm, zero biases; the generator makes all draws."""
    architecture = architecture_of(make(family))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    head, again = (fresh_head(architecture, torch.Generator().manual_seed(5)) for _ in range(2))
    state = head.state_dict()

    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(state[name], value) for name, value in again.state_dict().items())
    assert state["dense.weight"].std() == pytest.approx(0.02, rel=0.15)
    assert state["norm.weight"].unique().tolist() == [1]
    assert not any(state[name].any() for name in state if name.endswith("bias"))
    assert ("dense.bias" in state) == (family != "modernbert")


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
