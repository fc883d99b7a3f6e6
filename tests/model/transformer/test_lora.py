"""LoRA adapters beside base weights: W + alpha / r B A, or a refusal that names the option."""

import json
import math
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from sentkit.cli import run_command_line
from sentkit.errors import DataError, NoInputError
from sentkit.formats.checkpoints.folders import find_model
from sentkit.model import find_encoder
from sentkit.model.reading import ReadingOptions
from sentkit.model.transformer.transformers_model import load_transformers_model
from sentkit.model.transformer.weights import read_weights

RANK = 3
CONFIG = {
    "peft_type": "LORA",
    "r": RANK,
    "lora_alpha": 8,
    "lora_dropout": 0.1,
    "bias": "none",
    "fan_in_fan_out": False,
    "init_lora_weights": True,
    "target_modules": ["query", "value"],
    "task_type": "FEATURE_EXTRACTION",
    "base_model_name_or_path": "org/base",
    "rank_pattern": {},
    "modules_to_save": None,
    "use_dora": False,
}
BERT = "encoder.layer.1.attention.self.query"


@pytest.fixture
def folder(make, tmp_path):
    make("bert").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def put_adapter(folder, module, prefix="base_model.model.", tensors=None, size=32, **config):
    """Write an adapter of one module; return the change before the scale."""
    random = torch.Generator().manual_seed(1)
    halves = {
        "A": torch.randn(RANK, size, generator=random),
        "B": torch.randn(size, RANK, generator=random),
    }
    named = {f"{prefix}{module}.lora_{half}.weight": tensor for half, tensor in halves.items()}
    save_file(named | (tensors or {}), folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    return halves["B"] @ halves["A"]


def check_one_changed(before, tensors, name, change):
    expected = before | {name: before[name] + change}

    assert all(
        torch.allclose(tensors[tensor_name], tensor, atol=1e-6)
        for tensor_name, tensor in expected.items()
    )


@pytest.mark.parametrize(
    ("head", "prefix", "rslora", "transposed"),
    [
        ("Model", "", False, False),
        ("Model", "", False, True),
        ("Model", "bert.", False, False),
        ("Model", "", True, False),
        ("ForMaskedLM", "", False, False),
    ],
)
def test_only_the_adapted_weights_change(make, tmp_path, head, prefix, rslora, transposed):
    """The scale is alpha divided by the rank, or by the root of the rank (rsLoRA).

    A file with a head has names with `bert.encoder`, and an adapter of the encoder has `encoder`.
    """
    make("bert", head).save_pretrained(tmp_path)
    before = load_file(tmp_path / "model.safetensors")
    options = {"use_rslora": rslora, "fan_in_fan_out": transposed}
    added = put_adapter(tmp_path, BERT, f"base_model.model.{prefix}", **options)

    change = 8 / (math.sqrt(RANK) if rslora else RANK) * added
    name = f"bert.{BERT}.weight" if head == "ForMaskedLM" else f"{BERT}.weight"
    check_one_changed(before, read_weights(tmp_path, "model"), name, change)


@pytest.mark.parametrize("declared", [True, False])
def test_the_weight_of_a_conv1d_is_transposed(tmp_path, declared):
    """In a model of transformers. As in peft, the layers decide, and not the option."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=2, n_positions=40)
    transformers.GPT2Model(config).save_pretrained(tmp_path)
    before = load_transformers_model(tmp_path).tensors()["h.1.attn.c_proj.weight"]
    added = put_adapter(tmp_path, "h.1.attn.c_proj", fan_in_fan_out=declared)

    merged = load_transformers_model(tmp_path).tensors()["h.1.attn.c_proj.weight"]

    assert torch.allclose(merged, before + 8 / RANK * added.T, atol=1e-6)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"use_dora": True}, "an adapter with use_dora is not supported"),
        ({"modules_to_save": ["pooler"]}, "an adapter with modules_to_save is not supported"),
        ({"bias": "all"}, "an adapter with bias is not supported"),
        ({"rank_pattern": {"query": 4}}, "an adapter with rank_pattern is not supported"),
        ({"some_new_option": 1}, "an adapter with some_new_option is not supported"),
        ({"peft_type": "IA3"}, "an adapter of type IA3 is not supported"),
        ({"peft_type": None}, "an adapter of type None is not supported"),
        ({"lora_alpha": "8"}, '"lora_alpha" is'),
        ({"lora_alpha": True}, '"lora_alpha" is'),
    ],
)
def test_unsupported_options_are_errors_that_name_them(folder, config, problem):
    put_adapter(folder, BERT, **config)

    with pytest.raises(DataError, match=problem):
        read_weights(folder, "m")


KEY = "encoder.layer.0.attention.self.key"
NOT_LINEAR = '": only LoRA adapters of linear layers are supported'
NO_WEIGHTS = "which has no weights"
NOT_EQUAL = f'lora_A and lora_B of "{KEY}" do not match'


@pytest.mark.parametrize(
    ("module", "shapes", "problem"),
    [
        ("embeddings", {"embedding_A": (RANK, 97)}, "embeddings.lora_embedding_A" + NOT_LINEAR),
        (KEY, {"magnitude_vector.weight": (32, 1)}, "lora_magnitude_vector.weight" + NOT_LINEAR),
        (KEY, {"A.weight": (RANK,), "B.weight": (32, RANK)}, "lora_A.weight" + NOT_LINEAR),
        (KEY, {"A.weight": (RANK, 32)}, NOT_EQUAL),
        (KEY, {"A.weight": (RANK, 32), "B.weight": (32, RANK + 1)}, NOT_EQUAL),
        (
            KEY,
            {"A.weight": (1, 10**6), "B.weight": (10**6, 1)},
            f'"{KEY}" is 1000000 x 1000000, and the weight is 32 x 32',
        ),
        *(
            (
                name,
                {"A.weight": (2, 32), "B.weight": (32, 2)},
                f'the adapter changes "{name}", {NO_WEIGHTS}',
            )
            for name in ("x", "attention.self.key")  # each layer has a key
        ),
    ],
)
def test_tensors_that_do_not_fit_are_errors(folder, module, shapes, problem):
    """Before the product, which would need 4 TB in one case."""
    extra = {
        f"base_model.model.{module}.lora_{name}": torch.ones(shape)
        for name, shape in shapes.items()
    }
    put_adapter(folder, BERT, tensors=extra)

    with pytest.raises(DataError, match=f"{re.escape(problem)}$"):
        read_weights(folder, "m")


@pytest.mark.parametrize("config", [False, True])
def test_the_error_for_an_adapter_without_a_model_names_its_base(folder, config):
    put_adapter(folder, BERT)
    (folder / "model.safetensors").unlink()
    if not config:
        (folder / "config.json").unlink()

    problem = r"contains only an adapter; config\.json and the weights"
    with pytest.raises(NoInputError, match=problem) as error:
        read_weights(find_model(str(folder)), "m")
    assert "the folder of org/base" in error.value.advice


def space_of(folder):
    return find_encoder(str(folder), ReadingOptions()).encoder().spaces[0].hash


def test_the_adapter_is_part_of_the_fingerprint_of_an_export_and_of_a_trained_folder(tmp_path):
    """These folders have the sum and no adapter."""
    base = tmp_path / "base"
    module = "encoder.layer.0.attention.self.query"
    assert run_command_line(["export", "-m", "nano", "-o", str(base)]) == 0
    plain = space_of(base)
    before = load_file(base / "model.safetensors")
    width = json.loads((base / "config.json").read_text())["hidden_size"]
    added = put_adapter(base, module, size=width) * 8 / RANK
    (tmp_path / "texts.txt").write_text("a cat\na dog\na man\n")
    run = [
        "train",
        "simcse",
        str(tmp_path / "texts.txt"),
        "-m",
        str(base),
        "--epochs",
        "1",
        "--lr",
        "1e-9",
    ]

    assert run_command_line([*run, "-o", str(tmp_path / "trained")]) == 0
    assert run_command_line(["export", "-m", str(base), "-o", str(tmp_path / "out")]) == 0
    assert space_of(tmp_path / "out") == space_of(base) != plain
    name = next(name for name in before if name.endswith(f"{module}.weight"))
    trained = load_file(tmp_path / "trained/model.safetensors")
    assert torch.allclose(trained[name], before[name].float() + added, atol=1e-5)
    assert not list((tmp_path / "trained").glob("adapter*"))
