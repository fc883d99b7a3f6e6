"""A trained checkpoint loads everywhere with the trained weights and keeps the other tensors of its
base.
"""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.model.checkpoint.export import declare_encoder, merged, write_folder, write_weights
from sentkit.model.checkpoint.heads import fresh_head, head_tensors
from sentkit.model.checkpoint_reading import plan_reading
from sentkit.model.encoding import encode_texts
from sentkit.model.reading import ReadingOptions
from sentkit.model.transformer.architecture import read_architecture, tensor_shapes
from sentkit.model.transformer.encoder import TransformerEncoder
from sentkit.model.transformer.weights import canonical, read_tensors
from support import FAMILIES, TOKENIZER_FILES, copy_tokenizer

WORDS = {
    "bert": "embeddings.word_embeddings.weight",
    "modernbert": "embeddings.tok_embeddings.weight",
}
PREFIXES = {family: f"{family}." for family in FAMILIES} | {"modernbert": "model."}
PREFIXES |= {"xlm-roberta": "roberta.", "camembert": "roberta."}
DECODERS = {
    "bert": "cls.predictions.decoder",
    "roberta": "lm_head.decoder",
    "distilbert": "vocab_projector",
    "electra": "generator_lm_head",
}
TEXTS = [
    "a cat",
    "a much longer sentence, of many words, about nothing in particular",
    "Düsseldorf 東京",
]


class Base:
    """The tensors of a folder, and trained tensors: every tensor of the encoder has changed."""

    def __init__(self, folder):
        self.checkpoint = read_checkpoint(str(folder))
        self.architecture = read_architecture(self.checkpoint.config, "config.json")
        self.stored = read_tensors(self.checkpoint.weight_paths())
        self.trained = self.perturbed(canonical(self.stored, self.architecture))

    def perturbed(self, tensors):
        random = torch.Generator().manual_seed(5)
        return {
            name: value + 0.1 * torch.randn(value.shape, generator=random)
            for name, value in tensors.items()
        }

    def pooler(self):
        shapes = tensor_shapes(self.architecture, pooler=True).items()
        return self.perturbed(
            {name: torch.zeros(shape) for name, shape in shapes if "pooler" in name}
        )

    def write(self, folder, **more):
        """A folder of transformers: the weights and the base's config in float32."""
        folder.mkdir()
        (folder / "config.json").write_text(
            json.dumps({**self.checkpoint.config, "dtype": "float32"})
        )
        tensors = merged(self.stored, self.trained | more, self.architecture)
        write_weights(folder / "model.safetensors", tensors)
        return tensors


@pytest.fixture
def base(make, tmp_path):
    """A base that transformers saves in half precision, with its language model head."""

    def build(family, head="ForMaskedLM", **settings):
        make(family, head, **settings).half().save_pretrained(tmp_path / "base")
        return Base(tmp_path / "base")

    return build


@pytest.fixture
def rewrite(tmp_path):
    """A function that changes the tensors of the base."""

    def run(change):
        path = tmp_path / "base/model.safetensors"
        save_file(change(load_file(path)), path, {"format": "pt"})
        return Base(tmp_path / "base")

    return run


def loaded(folder, kind="AutoModel"):
    import transformers

    model, report = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    return model.eval(), {name for name in report["missing_keys"] if not name.startswith("pooler.")}


def differing(model, expected):
    """The names of the expected tensors that differ in a model of transformers."""
    state = model.state_dict()
    return [name for name, value in expected.items() if not torch.equal(state[name], value)]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_is_kept_or_trained_and_its_decoder_is_tied_to_the_new_words(
    base, tmp_path, family
):
    """Names of a trained head have no prefix."""
    checkpoint = base(family)
    prefix = PREFIXES[family]
    stored_head = {
        name: tensor.float()
        for name, tensor in checkpoint.stored.items()
        if not name.startswith(prefix)
    }
    head = fresh_head(checkpoint.architecture, torch.Generator().manual_seed(1))
    fresh = head_tensors(head, checkpoint.architecture)

    # ModernBERT has no biases before the decoder.
    assert len(stored_head) == (3 if family == "modernbert" else 5)
    for name, head, more in (("kept", stored_head, {}), ("trained", fresh, fresh)):
        checkpoint.write(tmp_path / name, **more)
        model, missing = loaded(tmp_path / name, "AutoModelForMaskedLM")
        assert not missing
        assert differing(model, head) == []
        assert differing(model.base_model, checkpoint.trained) == []
        words = checkpoint.trained[WORDS.get(family, WORDS["bert"])]
        assert torch.equal(model.get_output_embeddings().weight, words)


@pytest.mark.parametrize("family", DECODERS)
def test_tied_copies_are_removed(base, rewrite, tmp_path, family):
    """Old files have a copy of the tied decoder; those of BERT and RoBERTa also of its bias."""
    base(family)
    decoder = DECODERS[family]
    bias = {"bert": "cls.predictions.bias", "roberta": "lm_head.bias"}.get(
        family, f"{decoder}.bias"
    )

    def with_copies(tensors):
        words = tensors[PREFIXES[family] + WORDS.get(family, WORDS["bert"])]
        return tensors | {
            f"{decoder}.weight": words.clone(),
            f"{decoder}.bias": tensors[bias].clone(),
        }

    checkpoint = rewrite(with_copies)
    written = checkpoint.write(tmp_path / "new")
    model, missing = loaded(tmp_path / "new", "AutoModelForMaskedLM")

    assert not missing
    assert f"{decoder}.weight" not in written
    assert torch.equal(model.get_output_embeddings().weight, model.get_input_embeddings().weight)
    assert torch.equal(model.get_output_embeddings().bias, checkpoint.stored[bias].float())


def test_an_untied_decoder_is_kept_and_buffers_are_not_written(base, rewrite, tmp_path):
    base("bert")
    decoder = torch.ones(97, 32).half()
    ids = torch.arange(64)[None]
    more = {"cls.predictions.decoder.weight": decoder, "bert.embeddings.position_ids": ids}
    written = rewrite(lambda tensors: tensors | more).write(tmp_path / "new")

    assert torch.equal(written["cls.predictions.decoder.weight"], decoder.float())
    assert "bert.embeddings.position_ids" not in written


def test_a_bias_under_its_alias_is_replaced(base, rewrite, tmp_path):
    base("bert")
    checkpoint = rewrite(
        lambda t: t | {"cls.predictions.decoder.bias": t.pop("cls.predictions.bias")}
    )
    unchanged = checkpoint.write(tmp_path / "kept")
    replaced = checkpoint.write(tmp_path / "replaced", **{"cls.predictions.bias": torch.ones(97)})

    assert torch.equal(
        unchanged["cls.predictions.bias"], checkpoint.stored["cls.predictions.decoder.bias"].float()
    )
    assert torch.equal(replaced["cls.predictions.bias"], torch.ones(97))
    assert not {"cls.predictions.decoder.bias"} & (unchanged.keys() | replaced.keys())


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize(
    ("head", "old"), [("Model", True), ("Model", False), ("ForMaskedLM", False)]
)
def test_a_trained_pooler_is_added_or_replaces_the_old_pooler(base, tmp_path, family, head, old):
    """Its name has the prefix of the other names."""
    checkpoint = base(family, head)
    if not old:
        checkpoint.stored = {
            name: tensor
            for name, tensor in checkpoint.stored.items()
            if not name.startswith("pooler.")
        }
    prefix = PREFIXES[family] if head == "ForMaskedLM" else ""
    written = checkpoint.write(tmp_path / "new", **checkpoint.pooler())
    model, missing = loaded(tmp_path / "new")

    assert not missing
    assert differing(model, checkpoint.trained | checkpoint.pooler()) == []
    assert f"{prefix}pooler.dense.weight" in written


def old_norms(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"
    )


@pytest.mark.parametrize(
    ("family", "head", "renamed"),
    [
        ("roberta", "Model", "0.auto_model.{}".format),
        ("roberta", "Model", "bert.{}".format),
        ("bert", "ForMaskedLM", old_norms),
    ],
)
def test_old_names_and_prefixes_of_wrappers_are_replaced(
    base, rewrite, tmp_path, family, head, renamed
):
    """transformers does not know all of them. The head has norms, too."""
    base(family, head)
    checkpoint = rewrite(
        lambda tensors: {renamed(name): tensor for name, tensor in tensors.items()}
    )
    written = checkpoint.write(tmp_path / "new")
    model, missing = loaded(tmp_path / "new", f"Auto{head}".replace("AutoFor", "AutoModelFor"))

    assert not missing
    assert differing(model.base_model, checkpoint.trained) == []
    assert not [name for name in written if name.endswith((".gamma", ".beta"))]
    if head == "ForMaskedLM":
        norm = checkpoint.stored["cls.predictions.transform.LayerNorm.gamma"].float()
        assert torch.equal(written["cls.predictions.transform.LayerNorm.weight"], norm)


def test_the_bytes_depend_only_on_names_and_values(base, tmp_path):
    """The order and the type of the tensors do not matter. The safetensors library reads
    the file.
    """
    tensors = {name: value.half().float() for name, value in base("bert").trained.items()}
    backwards = {name: tensors[name].half() for name in reversed(tensors)}
    write_weights(tmp_path / "a", tensors)
    write_weights(tmp_path / "b", backwards)
    tensors_read = load_file(tmp_path / "a")
    with safe_open(tmp_path / "a", "pt") as file:
        metadata = file.metadata()

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert metadata == {"format": "pt"}
    assert tensors_read.keys() == tensors.keys()
    assert all(torch.equal(tensors_read[name], tensors[name]) for name in tensors)
    assert {value.dtype for value in tensors_read.values()} == {torch.float32}


@pytest.mark.parametrize(
    "tensor", [torch.arange(6.0).view(2, 3).T, torch.tensor(2.5), torch.zeros(0, 3)]
)
def test_transposed_scalar_and_empty_tensors_are_written_and_integers_are_not(tmp_path, tensor):
    other_tensors = {"ids": torch.arange(4), "weight": torch.ones(2).bfloat16()}
    write_weights(tmp_path / "t", {"t": tensor.clone().requires_grad_(), **other_tensors})
    tensors_read = load_file(tmp_path / "t")

    assert tensors_read.keys() == {"t", "weight"}
    assert torch.equal(tensors_read["t"], tensor)


def open_reading(folder, **wishes):
    checkpoint = read_checkpoint(str(folder))
    reading = plan_reading(checkpoint, ReadingOptions(**wishes))
    return TransformerEncoder(checkpoint, reading, device="cpu", precision="fp32")


def vectors(encoder):
    return encode_texts(encoder.reading.tokenizer(TEXTS), encoder, budget=10_000)[0]


@pytest.fixture
def base_folder(make, tmp_path):
    """A base in half precision with a tokenizer, and with files that a trained model must
    not copy.
    """
    folder = tmp_path / "base"
    make("bert", vocab_size=16384, max_position_embeddings=128).half().save_pretrained(folder)
    copy_tokenizer(folder)
    for name in ("README.md", "LICENSE", "pytorch_model.bin.index.json", "pytorch_model.bin"):
        (folder / name).write_text(name)
    return folder


def train(encoder):
    """Change the weights, as training would."""
    random = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for weight in encoder.body.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=random))


def write_trained(encoder, folder):
    folder.mkdir()
    stored = read_tensors(encoder.checkpoint.weight_paths())
    tensors = merged(stored, encoder.body.tensors(), encoder.body.architecture)
    write_folder(folder, encoder.checkpoint, declare_encoder(encoder), {"method": "none"}, tensors)


@pytest.mark.parametrize(
    ("readout", "normalize"),
    [("cls", False), ("mean", True), ("mean-last2", False), ("pooler", True)],
)
def test_a_written_checkpoint_gives_the_same_vectors_everywhere(
    base_folder, tmp_path, readout, normalize
):
    """sentkit and sentence-transformers load it in float32."""
    from sentence_transformers import SentenceTransformer

    encoder = open_reading(base_folder, readout=readout, normalize=normalize)
    train(encoder)
    write_trained(encoder, tmp_path / "new")
    write_trained(encoder, tmp_path / "again")
    expected = vectors(encoder)

    assert np.array_equal(vectors(open_reading(tmp_path / "new")), expected)
    model = SentenceTransformer(str(tmp_path / "new"), device="cpu")
    assert np.abs(model.encode(TEXTS) - expected).max() < 1e-5
    config, metadata = (
        json.loads((tmp_path / "new" / f"{n}.json").read_text()) for n in ("config", "sentkit")
    )
    assert (config["dtype"], metadata["readout"], metadata["method"]) == (
        "float32",
        readout,
        "none",
    )
    assert (tmp_path / "new/config.json").read_bytes() == (
        tmp_path / "again/config.json"
    ).read_bytes()
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert {name for name in names if not name[0].isdigit()} == {  # numbered folders are modules
        *(
            "config.json",
            "model.safetensors",
            "LICENSE",
            *TOKENIZER_FILES,
            "sentkit.json",
            "modules.json",
        ),
        *("sentence_bert_config.json", "config_sentence_transformers.json"),
    }


def test_the_old_key_torch_dtype_is_removed(base_folder, tmp_path):
    """With float16 in this key, transformers would round the trained weights."""
    config = json.loads((base_folder / "config.json").read_text())
    config["torch_dtype"] = config.pop("dtype")
    (base_folder / "config.json").write_text(json.dumps(config))
    write_trained(open_reading(base_folder), tmp_path / "new")
    written = json.loads((tmp_path / "new/config.json").read_text())
    model, _ = loaded(tmp_path / "new")

    assert config["torch_dtype"] == "float16"
    assert "torch_dtype" not in written
    assert model.dtype == torch.float32
