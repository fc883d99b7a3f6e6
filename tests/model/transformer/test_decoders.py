"""Decoders as encoders: states of transformers, the end token, and vectors of
sentence-transformers.

sentkit runs most of them itself. `test_bert.py` and others there compare their states, too.
"""

import json

import numpy as np
import pytest
import torch

from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.formats.files import write_json
from sentkit.model import find_encoder
from sentkit.model.encoding import encode_texts
from sentkit.model.reading import ReadingOptions
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import apply_readouts
from sentkit.model.transformer.transformers_model import load_transformers_model
from support import declare_modules

SHAPE = {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
LAYERS = [f"{kind}_attention" for kind in ("sliding", "full", "sliding")]
WINDOWS = {"sliding_window": 6, "layer_types": LAYERS}
FAMILIES = {
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {"sliding_window": 6}),
    "bidirectional qwen3": ("qwen3", {"is_causal": False}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "llama": ("llama", {}),
    "gemma": ("gemma", {}),
    "gemma3": ("gemma3_text", WINDOWS),
    "embeddinggemma": ("gemma3_text", WINDOWS | {"use_bidirectional_attention": True}),
}
OWN = [*FAMILIES][:5]  # that sentkit runs itself
WORDS = ["<pad>", "<s>", "</s>", "<unk>", "a", "the", "cat", "dog", "sat", ".", ":", "query", "mat"]
TEXTS = ["the cat sat .", "a dog", "query : the dog sat . the cat sat . a mat", "the zebra"]


@pytest.fixture
def make(config_of, tmp_path):
    """A folder with a decoder of random weights."""

    def made(family, head="AutoModel", **settings):
        import transformers

        kind, family_settings = FAMILIES[family]
        torch.manual_seed(0)
        config = config_of(kind, **SHAPE, **family_settings, **settings)
        getattr(transformers, head).from_config(config).save_pretrained(tmp_path / "decoder")
        return tmp_path / "decoder"

    return made


def add_tokenizer(folder, *, start=False, end=False, **config):
    """Words, with <s> before or </s> after a text."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, processors

    numbers = {word: number for number, word in enumerate(WORDS)}
    backend = Backend(models.WordLevel(numbers, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(WORDS[:4])
    if start or end:
        special = [("<s>", 1), ("</s>", 2)]
        prefix = "<s> " * start
        suffix = " </s>" * end
        backend.post_processor = processors.TemplateProcessing(
            single=f"{prefix}$A{suffix}",
            pair=f"{prefix}$A{suffix} {prefix}$B{suffix}",
            special_tokens=special,
        )
    backend.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    names["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_json(folder / "tokenizer_config.json", names | config)
    return folder


def with_modules(folder, mode="lasttoken", **prompts):
    """The files of sentence-transformers as Qwen3-Embedding has them, with unit length."""
    return declare_modules(folder, mode, 32, config_sentence_transformers=prompts)


def vectors_of(folder, texts=TEXTS, **options):
    model = find_encoder(str(folder), ReadingOptions(**options), device="cpu", precision="fp32")
    (vectors,) = encode_texts(model.tokenizer(texts), model.encoder(), 4096)
    return vectors


def space_of(folder, **options):
    return find_encoder(str(folder), ReadingOptions(**options)).encoder().spaces[0].hash


def library_vectors(folder, texts=TEXTS, side="right", **options):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    model.tokenizer.padding_side = side
    return model.encode(texts, **options)


def words_of(folder, *texts):
    tokenizer = Tokenizer(read_checkpoint(str(folder)), max_length=5)
    return [[WORDS[number] for number in tokens.ids] for tokens in tokenizer(texts)]


@pytest.fixture
def encoder_of(load):
    return lambda folder, family: (load if family in OWN else load_transformers_model)(folder)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_last_state_equals_that_of_transformers_with_padding_on_both_sides(
    family, make, sentences, encoder_of
):
    from transformers import AutoModel

    folder = make(family)
    batch = sentences([15, 1, 12, 5])
    model = AutoModel.from_pretrained(folder).eval()
    (vectors,) = apply_readouts(encoder_of(folder, family), pack(batch), [parse_readout("last")])

    for side in ("left", "right"):
        space = [(15 - len(ids), 0) if side == "left" else (0, 15 - len(ids)) for ids in batch]
        ids = torch.from_numpy(
            np.stack([np.pad(text_ids, pad) for text_ids, pad in zip(batch, space, strict=True)])
        )
        mask = (ids > 0).long()
        states = model(ids, attention_mask=mask).last_hidden_state
        ends = [14 - pad[1] for pad in space]
        assert (vectors - states[range(4), ends]).abs().max() < 5e-6


@torch.no_grad()
def test_blocks_of_mistral_have_the_layer_types_of_its_config(make, sentences, load, oracle):
    """As transformers reads them: it loads such a folder as Ministral."""
    from transformers import AutoModel

    folder = make("mistral")
    config = json.loads((folder / "config.json").read_text())
    types = ["full_attention", "sliding_attention", "full_attention"]
    write_json(folder / "config.json", config | {"layer_types": types})
    batch = sentences([15, 3, 12])
    model = AutoModel.from_pretrained(folder).eval()
    layers = load(folder).states(pack(batch))

    assert type(model).__name__ == "MinistralModel"
    for states, expected in zip(layers, oracle(model, batch), strict=True):
        assert (states - expected).abs().max() < 1e-5


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("mode", ["lasttoken", "weightedmean_tokens", "mean_tokens"])
@pytest.mark.parametrize("family", ["qwen3", "gemma"])
def test_declared_pooling_equals_sentence_transformers(make, mode, side, family):
    folder = with_modules(add_tokenizer(make(family), end=True), mode)

    assert np.allclose(vectors_of(folder), library_vectors(folder, side=side), atol=2e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_text_with_a_prompt_has_its_vector_in_each_precision(make, precision):
    """Prompts by name, as Qwen3-Embedding declares them."""
    folder = add_tokenizer(make("qwen3"), end=True, padding_side="left")
    with_modules(folder, prompts={"query": "query : ", "document": ""})
    model = find_encoder(
        str(folder), ReadingOptions(prompt_name="query"), device="cpu", precision=precision
    )
    encoder = model.encoder()
    (vectors,) = encode_texts(model.tokenizer(TEXTS), encoder, 4096)

    assert isinstance(encoder.body, Bert)
    expected = library_vectors(folder, prompt_name="query")
    assert np.abs(vectors - expected).max() < {"fp32": 2e-6, "bf16": 0.02, "int8": 0.1}[precision]


@pytest.mark.parametrize("family", ["qwen3", "embeddinggemma"])
def test_an_exported_decoder_is_read_by_both_libraries(make, tmp_path, family):
    from sentkit.cli import run_command_line

    folder = add_tokenizer(make(family), end=True)
    out = tmp_path / "out"
    command = [
        "export",
        "-m",
        str(folder),
        "--readout",
        "last",
        "--prompt",
        "query : ",
        "-o",
        str(out),
    ]

    assert run_command_line(command) == 0
    expected = vectors_of(folder, readout="last", prompt="query : ")
    assert np.allclose(vectors_of(out), expected, atol=2e-6)
    assert np.allclose(library_vectors(out, side="left"), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("settings", "name"),
    [({}, "last"), ({"is_causal": True}, "last"), ({"is_causal": False}, "mean")],
)
def test_a_causal_language_model_without_a_declaration_uses_the_last_token(make, settings, name):
    folder = add_tokenizer(make("qwen3", "AutoModelForCausalLM", **settings), end=True)
    model = find_encoder(str(folder), ReadingOptions())

    assert model.readouts == [name]
    assert model.notes == [
        f"{folder} declares no readout: using {name} (--readout selects another)"
    ]
    assert model.summary()["declared_by"] == f"nothing: {name} is used"
    assert np.allclose(vectors_of(folder), library_vectors(folder, side="left"), atol=2e-6)


def test_a_trained_decoder_uses_the_last_token(make, tmp_path, capsys):
    """The first loss is that of the vectors of sentence-transformers. Both libraries read the
    result.
    """
    from sentkit.cli import run_command_line

    folder = add_tokenizer(make("qwen3", "AutoModelForCausalLM"), end=True)
    out = tmp_path / "out"
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"text_a": "{text}", "text_b": "{text} cat"}}\n' for text in TEXTS))
    command = ["train", "contrast", str(rows), "-m", str(folder), "-o", str(out)]
    anchors = library_vectors(folder, TEXTS, normalize_embeddings=True).astype(float)
    positives = library_vectors(
        folder, [f"{text} cat" for text in TEXTS], normalize_embeddings=True
    ).astype(float)

    assert (
        run_command_line(
            [*command, "--batch", "4", "--epochs", "3", "--lr", "0.01", "--set", "max_length=32"]
        )
        == 0
    )
    logits = anchors @ positives.T / 0.05
    losses = [np.log(np.exp(row).sum()) - row[index] for index, row in enumerate(logits)]
    steps = [
        line
        for line in map(json.loads, (out / "steps.jsonl").read_text().splitlines())
        if "loss" in line
    ]
    assert abs(steps[0]["loss"] - np.mean(losses)) < 1e-5
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.1
    assert "it is a causal language model" in capsys.readouterr().err
    assert np.allclose(vectors_of(out), library_vectors(out, side="left"), atol=2e-6)
    assert np.abs(vectors_of(out) - vectors_of(folder)).max() > 0.01


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        ("mlm", "mlm needs a language model head"),
        ("tsdae", "tsdae needs a decoder with its weights"),
        ("classify", "classify needs a classification head of a known family"),
        ("simcse mlm_weight=0.1", "mlm_weight needs a language model head"),
    ],
)
def test_what_needs_a_head_is_refused(make, tmp_path, capsys, method, problem):
    """Decoders have no head for masked words, and transformers runs their classifiers."""
    from sentkit.cli import run_command_line

    folder = add_tokenizer(make("qwen3", "AutoModelForCausalLM"), end=True)
    rows = tmp_path / "rows.txt"
    rows.write_text("".join(f"{text}\n" for text in TEXTS))
    name, *settings = method.split()
    command = ["train", name, str(rows), "-m", str(folder), "-o", str(tmp_path / "out"), "-q"]
    settings = [word for setting in (*settings, "max_length=32") for word in ("--set", setting)]

    assert run_command_line([*command, *settings]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert 'because "qwen3" is a decoder' in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen3", {"rms_norm_eps": 1e-3}),
        ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        ("qwen3", {"is_causal": False}),
        ("mistral", {"sliding_window": 3}),
        ("gemma3", {"use_bidirectional_attention": True}),
    ],
)
def test_the_space_depends_on_the_config(make, family, settings):
    """The tensors are the same."""
    folder = add_tokenizer(make(family), end=True)
    before = space_of(folder, readout="last")
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | settings)

    assert before != space_of(folder, readout="last")


LLAMA = {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True}


@pytest.mark.parametrize(
    ("special_tokens", "config", "ends"),
    [
        ({"end": True}, {}, True),  # as Qwen3-Embedding: `add_eos_token` changes nothing
        *(
            ({"start": start}, {"eos_token": token}, True)
            for start in (False, True)
            for token in ("</s>", {"content": "</s>", "lstrip": False}, None)
        ),
        ({"start": True}, {"add_eos_token": False}, False),
        ({"start": True}, {"tokenizer_class": "PreTrainedTokenizerFast"}, False),
    ],
)
def test_a_declared_end_token_is_added_once_and_survives_truncation(
    make, special_tokens, config, ends
):
    """As e5-mistral declares it: tokenizer.json adds only <s>, or has no post-processor.

    transformers 4 uses add_eos_token only for the classes of Llama and Gemma. None is for a token
    of special_tokens_map.json.
    """
    folder = add_tokenizer(make("mistral"), **special_tokens, **(LLAMA | config))
    if config.get("eos_token", "") is None:
        write_json(folder / "special_tokens_map.json", {"eos_token": "</s>"})
        declared = json.loads((folder / "tokenizer_config.json").read_text())
        del declared["eos_token"]
        write_json(folder / "tokenizer_config.json", declared)

    before = ["<s>"] * special_tokens.get("start", False)
    end = ["</s>"] * ends
    cut = ["a", "cat", "sat", ".", "a"][: 5 - len(before) - len(end)]
    assert words_of(folder, "a cat", "a cat sat . a dog") == [
        [*before, "a", "cat", *end],
        [*before, *cut, *end],
    ]
    backend = Tokenizer(read_checkpoint(str(folder)), max_length=9).backend
    assert backend.encode("a", "dog").tokens == [*before, "a", *end, *before, "dog", *end]


def test_the_end_token_is_added_after_other_post_processors(make):
    """A byte-level tokenizer, alone and in a sequence."""
    folder = add_tokenizer(make("mistral"), **LLAMA)
    rules = json.loads((folder / "tokenizer.json").read_text())
    bytes_only = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
    for processor in (bytes_only, {"type": "Sequence", "processors": [bytes_only]}):
        write_json(folder / "tokenizer.json", rules | {"post_processor": processor})

        assert words_of(folder, "a cat") == [["a", "cat", "</s>"]]


def test_an_end_token_that_the_tokenizer_does_not_have_is_refused(make):
    folder = add_tokenizer(make("mistral"), start=True, **LLAMA, eos_token="<end>")

    problem = r'tokenizer_config\.json: "add_eos_token" is true, but the tokenizer'
    with pytest.raises(DataError, match=problem):
        words_of(folder, "a cat")


def test_an_exported_folder_has_the_end_token_in_tokenizer_json(make, tmp_path):
    """sentence-transformers with transformers 5 ignores the declaration of the base."""
    from sentkit.cli import run_command_line

    folder = with_modules(add_tokenizer(make("mistral"), start=True, **LLAMA))
    out = tmp_path / "out"

    assert run_command_line(["export", "-m", str(folder), "-o", str(out)]) == 0
    assert np.allclose(vectors_of(out), vectors_of(folder), atol=2e-6)
    assert np.allclose(library_vectors(out), vectors_of(folder), atol=2e-6)
    assert space_of(out) == space_of(folder)
