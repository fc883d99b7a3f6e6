"""Converts a `config.json` to an `Architecture` that the packed encoder computes exactly.

Only listed values are accepted. Every other value raises `NotPacked`, and the caller uses the adapter over
transformers instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import Checkpoint

ROBERTA = ("roberta", "xlm-roberta", "camembert")  # positions count from padding_id + 1
FAMILIES = ("bert", *ROBERTA, "distilbert", "electra")
WITH_POOLER = ("bert", *ROBERTA)

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

KEYS = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "positions": "max_position_embeddings",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
DISTILBERT_KEYS = {
    "vocabulary": "vocab_size",
    "width": "dim",
    "depth": "n_layers",
    "heads": "n_heads",
    "inner": "hidden_dim",
    "positions": "max_position_embeddings",
    "activation": "activation",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
}

EXTRAS = ("is_decoder", "add_cross_attention", "is_encoder_decoder", "pruned_heads", "quantization_config")

LARGEST = 1 << 24  # limit for sizes; larger values would fill memory before the comparison with the weights
DEEPEST = 1 << 10


class NotPacked(Exception):
    """The packed encoder does not support this architecture; the caller uses the adapter instead."""


@dataclass(frozen=True, slots=True)
class Architecture:
    family: str
    vocabulary: int
    width: int
    depth: int  # transformer blocks
    heads: int
    inner: int
    activation: str  # a value of ACTIVATIONS
    norm_epsilon: float
    positions: int  # rows of the position table
    position_offset: int  # row of the first token of a sentence
    types: int  # rows of the token type table, 0 without a table
    embedding_width: int  # if it differs from width, the model has a projection
    padding_id: int
    dropout: float
    attention_dropout: float
    pooler_activation: str = "tanh"  # set by sentkit.json; config.json has no key for it

    @property
    def max_tokens(self) -> int:
        return self.positions - self.position_offset


def read_architecture(config: Mapping[str, object]) -> Architecture:
    """Return the architecture of a parsed `config.json`; raise NotPacked if it is not supported."""
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise NotPacked(f'model type "{family}"')
    refuse_extras(config)
    keys = DISTILBERT_KEYS if family == "distilbert" else KEYS
    width = size(config, keys["width"])
    padding_id = size(config, "pad_token_id", default=1 if family in ROBERTA else 0, least=0)
    return possible(
        Architecture(
            family=family,
            vocabulary=size(config, keys["vocabulary"]),
            width=width,
            depth=size(config, keys["depth"], most=DEEPEST),
            heads=size(config, keys["heads"]),
            inner=size(config, keys["inner"]),
            activation=activation(config, keys["activation"]),
            # DistilBERT has no key for this value; its code uses 1e-12.
            norm_epsilon=1e-12 if family == "distilbert" else fraction(config, "layer_norm_eps", 1e-12),
            positions=size(config, keys["positions"]),
            position_offset=padding_id + 1 if family in ROBERTA else 0,
            types=0 if family == "distilbert" else size(config, "type_vocab_size", default=2),
            embedding_width=size(config, "embedding_size", default=128) if family == "electra" else width,
            padding_id=padding_id,
            dropout=fraction(config, keys["dropout"], 0.1),
            attention_dropout=fraction(config, keys["attention_dropout"], 0.1),
        )
    )


def architecture_of(checkpoint: Checkpoint) -> Architecture:
    """Return the architecture of a checkpoint, with the declared activation of its pooler."""
    found, stated = read_architecture(checkpoint.config), checkpoint.declared.pooler.activation
    if stated not in (*ACTIVATIONS.values(), "tanh"):
        raise DataError(
            f'a pooler through "{stated}", which sentkit cannot run', source=str(checkpoint.folder)
        )
    return replace(found, pooler_activation=stated)


def refuse_extras(config: Mapping[str, object]) -> None:
    """Raise NotPacked for settings that change the computation of a block."""
    positions = config.get("position_embedding_type") or "absolute"
    if positions != "absolute":
        raise NotPacked(f'positions "{positions}"')
    for key in EXTRAS:
        if config.get(key):
            raise NotPacked(f'"{key}" is set')
    # A custom class can have the model type "bert". The adapter reports it to the user.
    if config.get("auto_map"):
        raise NotPacked("it brings code of its own")


def possible(architecture: Architecture) -> Architecture:
    """Return the architecture; raise an error if its sizes are inconsistent."""
    if architecture.width % architecture.heads:
        raise NotPacked(f"{architecture.heads} heads do not divide {architecture.width}")
    if architecture.max_tokens < 1:
        raise nonsense("max_position_embeddings", architecture.positions)
    return architecture


def activation(config: Mapping[str, object], key: str) -> str:
    name = config.get(key, "gelu")
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise NotPacked(f'activation "{name}"')
    return ACTIVATIONS[name]


def size(
    config: Mapping[str, object], key: str, *, default: int | None = None, least: int = 1, most: int = LARGEST
) -> int:
    """Return an integer of the config. A null value counts as missing; a missing value needs a default."""
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise DataError(f'"{key}" is missing', source="config.json")
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise nonsense(key, value)
    return value


def fraction(config: Mapping[str, object], key: str, default: float) -> float:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise nonsense(key, value)
    return float(value)


def nonsense(key: str, value: object, source: str = "config.json") -> DataError:
    return DataError(f'"{key}" cannot be {value!r:.40}', source=source)
