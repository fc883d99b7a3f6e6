"""Converts a `config.json` to an `Architecture` that the packed encoder computes exactly; names its tensors.

Only listed values are accepted. Every other value raises `UnsupportedArchitecture`, and the caller runs the
model through transformers instead.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import Checkpoint

ROBERTA = ("roberta", "xlm-roberta", "camembert")

CONFIG_ACTIVATIONS = {  # value in config.json -> name in sentkit
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

Key = tuple[str, Any]  # in config.json, and the default; "": the value has no key
KEYS: dict[str, Key] = {
    "vocabulary": ("vocab_size", None),
    "width": ("hidden_size", None),
    "depth": ("num_hidden_layers", None),
    "heads": ("num_attention_heads", None),
    "inner": ("intermediate_size", None),
    "activation": ("hidden_act", "gelu"),
    "norm_epsilon": ("layer_norm_eps", 1e-12),
    "positions": ("max_position_embeddings", None),
    "types": ("type_vocab_size", 2),
    "embedding_width": ("hidden_size", None),
    "padding_id": ("pad_token_id", 0),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
}
DISTILBERT_KEYS: dict[str, Key] = {
    "width": ("dim", None),
    "depth": ("n_layers", None),
    "heads": ("n_heads", None),
    "inner": ("hidden_dim", None),
    "activation": ("activation", "gelu"),
    "norm_epsilon": ("", 1e-12),
    "types": ("", 0),
    "embedding_width": ("dim", None),
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.1),
}
MODULES = {  # in a file; {} is the number of a block
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "projection": "embeddings_project",
}
LAYER = "encoder.layer.{}"
BLOCK = {  # the modules of a block
    "query": f"{LAYER}.attention.self.query",
    "key": f"{LAYER}.attention.self.key",
    "value": f"{LAYER}.attention.self.value",
    "mix": f"{LAYER}.attention.output.dense",
    "mix_norm": f"{LAYER}.attention.output.LayerNorm",
    "up": f"{LAYER}.intermediate.dense",
    "down": f"{LAYER}.output.dense",
    "norm": f"{LAYER}.output.LayerNorm",
}
DISTILBERT_BLOCK = {
    "query": "transformer.layer.{}.attention.q_lin",
    "key": "transformer.layer.{}.attention.k_lin",
    "value": "transformer.layer.{}.attention.v_lin",
    "mix": "transformer.layer.{}.attention.out_lin",
    "mix_norm": "transformer.layer.{}.sa_layer_norm",
    "up": "transformer.layer.{}.ffn.lin1",
    "down": "transformer.layer.{}.ffn.lin2",
    "norm": "transformer.layer.{}.output_layer_norm",
}
MPNET_BLOCK = {
    "query": f"{LAYER}.attention.attn.q",
    "key": f"{LAYER}.attention.attn.k",
    "value": f"{LAYER}.attention.attn.v",
    "mix": f"{LAYER}.attention.attn.o",
    "mix_norm": f"{LAYER}.attention.LayerNorm",
}


@dataclass(frozen=True, slots=True)
class Family:
    keys: Mapping[str, Key] = field(default_factory=dict)  # those that differ from KEYS
    modules: Mapping[str, str] = field(default_factory=lambda: MODULES)
    block: Mapping[str, str] = field(default_factory=lambda: BLOCK)
    first_position: int | None = 0  # row of the first token of a sentence; None: padding_id + 1
    has_pooler: bool = True


FROM_PADDING = Family({"padding_id": ("pad_token_id", 1)}, first_position=None)
FAMILIES = {
    "bert": Family(),
    **dict.fromkeys(ROBERTA, FROM_PADDING),
    "distilbert": Family(DISTILBERT_KEYS, block=DISTILBERT_BLOCK, has_pooler=False),
    "electra": Family({"embedding_width": ("embedding_size", 128)}, has_pooler=False),
    "mpnet": Family(
        {
            "types": ("", 0),
            "padding_id": ("pad_token_id", 1),
            "buckets": ("relative_attention_num_buckets", 32),
        },
        MODULES | {"relative": "encoder.relative_attention_bias"},
        BLOCK | MPNET_BLOCK,
        first_position=2,
    ),
}
WITH_POOLER = tuple(name for name, family in FAMILIES.items() if family.has_pooler)
# Of a table of relative positions. transformers uses no other numbers.
BUCKETS = 32
FARTHEST = 128  # tokens; all tokens at this distance or farther have the same row

EXTRAS = ("is_decoder", "add_cross_attention", "is_encoder_decoder", "pruned_heads", "quantization_config")

LARGEST = 1 << 24  # limit for sizes; larger values would fill memory before the comparison with the weights
DEEPEST = 1 << 10


class UnsupportedArchitecture(Exception):
    """The packed encoder does not support this architecture; the caller uses the adapter instead."""


@dataclass(frozen=True, slots=True)
class Architecture:
    family: str
    vocabulary: int
    width: int
    depth: int  # transformer blocks
    heads: int
    inner: int
    activation: str  # a value of CONFIG_ACTIVATIONS
    norm_epsilon: float
    positions: int  # rows of the position table
    position_offset: int  # row of the first token of a sentence
    types: int  # rows of the token type table, 0 without a table
    embedding_width: int  # if it differs from width, the model has a projection
    padding_id: int
    dropout: float
    attention_dropout: float
    buckets: int = 0  # rows of the table of relative positions, which all blocks add to their scores
    pooler_activation: str = "tanh"  # set by sentkit.json; config.json has no key for it

    @property
    def max_tokens(self) -> int:
        return self.positions - self.position_offset

    @property
    def rules(self) -> list[str | int | float]:
        """The values that change the vectors for equal weights."""
        return [self.heads, self.activation, self.norm_epsilon, self.position_offset]


def read_architecture(config: Mapping[str, object], source: str) -> Architecture:
    """Return the architecture of a parsed `config.json`.

    `source` is the path of the file, for errors.
    """
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise UnsupportedArchitecture(f'model type "{name}"')
    refuse_extras(config)
    family = FAMILIES[name]
    keys = {**KEYS, **family.keys}

    def size(ours: str, least: int = 1, most: int = LARGEST) -> int:
        key, default = keys.get(ours, ("", 0))
        return (
            read_size(config, source, key, default=default, least=least, most=most) if key else int(default)
        )

    def fraction(ours: str) -> float:
        key, default = keys[ours]
        return read_fraction(config, source, key, default) if key else float(default)

    padding_id = size("padding_id", least=0)
    architecture = Architecture(
        family=name,
        vocabulary=size("vocabulary"),
        width=size("width"),
        depth=size("depth", most=DEEPEST),
        heads=size("heads"),
        inner=size("inner"),
        activation=activation(config, *keys["activation"]),
        norm_epsilon=fraction("norm_epsilon"),
        positions=size("positions"),
        position_offset=padding_id + 1 if family.first_position is None else family.first_position,
        types=size("types"),
        embedding_width=size("embedding_width"),
        padding_id=padding_id,
        dropout=fraction("dropout"),
        attention_dropout=fraction("attention_dropout"),
        buckets=size("buckets"),
    )
    if architecture.width % architecture.heads:
        raise UnsupportedArchitecture(f"{architecture.heads} heads do not divide {architecture.width}")
    if architecture.buckets not in (0, BUCKETS):
        raise UnsupportedArchitecture(f"{architecture.buckets} buckets of relative positions")
    if architecture.max_tokens < 1:
        raise invalid_value(keys["positions"][0], architecture.positions, source)
    return architecture


def architecture_of(checkpoint: Checkpoint) -> Architecture:
    """Return the architecture of a checkpoint, with the declared activation of its pooler."""
    architecture = read_architecture(checkpoint.config, checkpoint.config_file)
    pooler_activation = checkpoint.declared.pooler.activation
    if pooler_activation not in (*CONFIG_ACTIVATIONS.values(), "tanh"):
        problem = f'a pooler with activation "{pooler_activation}" is not supported'
        raise DataError(problem, source=str(checkpoint.folder))
    return replace(architecture, pooler_activation=pooler_activation)


def refuse_extras(config: Mapping[str, object]) -> None:
    """Raise UnsupportedArchitecture for settings that change the computation of a block."""
    positions = config.get("position_embedding_type") or "absolute"
    if positions != "absolute":
        raise UnsupportedArchitecture(f'positions "{positions}"')
    for key in EXTRAS:
        if config.get(key):
            raise UnsupportedArchitecture(f'"{key}" is set')
    # A custom class can have the model type "bert". The adapter reports it to the user.
    if config.get("auto_map"):
        raise UnsupportedArchitecture("it has its own code")


def activation(config: Mapping[str, object], key: str, usual: str) -> str:
    name = config.get(key, usual)
    if not isinstance(name, str) or name not in CONFIG_ACTIVATIONS:
        raise UnsupportedArchitecture(f'activation "{name}"')
    return CONFIG_ACTIVATIONS[name]


def read_size(
    config: Mapping[str, object],
    source: str,
    key: str,
    *,
    default: int | None = None,
    least: int = 1,
    most: int = LARGEST,
) -> int:
    """Return an integer of the config. A null value counts as missing; a missing value needs a default."""
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise DataError(f'"{key}" is missing', source=source)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise invalid_value(key, value, source)
    return value


def read_fraction(config: Mapping[str, object], source: str, key: str, default: float) -> float:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise invalid_value(key, value, source)
    return float(value)


def invalid_value(key: str, value: object, source: str) -> DataError:
    return DataError(f'"{key}" cannot be {value!r:.40}', source=source)


# Prefixes of encoder names in files of models with a head and of wrappers.
PREFIXES = (
    *("", "bert.", "roberta.", "camembert.", "xlm_roberta.", "distilbert.", "electra.", "mpnet."),
    "0.auto_model.",
)
OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
POOLER = "pooler.dense"


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A module with weights. Queries, keys and values are separate modules, as in checkpoints."""

    ours: str  # blocks.3.up
    theirs: str  # encoder.layer.3.intermediate.dense
    shape: tuple[int, ...]  # of the weight; a bias has the length of the first axis
    bias: bool = True

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by its checkpoint name."""
        weight = {f"{self.theirs}.weight": self.shape}
        return weight | {f"{self.theirs}.bias": self.shape[:1]} if self.bias else weight


def stored_layers(architecture: Architecture, *, pooler: bool = False) -> list[StoredLayer]:
    narrow, width, inner = architecture.embedding_width, architecture.width, architecture.inner
    family, blocks = FAMILIES[architecture.family], range(architecture.depth)
    shapes: dict[str, tuple[int, ...]] = {  # of the modules before the blocks; without rows, there is none
        "words": (architecture.vocabulary, narrow),
        "positions": (architecture.positions, narrow),
        "norm": (narrow,),
        "types": (architecture.types, narrow),
        "projection": (width if narrow != width else 0, narrow),
        "relative": (architecture.buckets, architecture.heads),
    }
    layers = [
        StoredLayer(ours, family.modules[ours], shape, bias=ours in ("norm", "projection"))
        for ours, shape in shapes.items()
        if shape[0]
    ]
    shapes = dict.fromkeys(family.block, (width, width))
    shapes |= {"mix_norm": (width,), "up": (inner, width), "down": (width, inner), "norm": (width,)}
    for block, (ours, theirs) in product(blocks, family.block.items()):
        layers.append(StoredLayer(f"blocks.{block}.{ours}", theirs.format(block), shapes[ours]))
    return [*layers, StoredLayer("pooler", POOLER, (width, width))] if pooler else layers


def words_name(architecture: Architecture) -> str:
    """Return the name of the word table in a file without prefixes."""
    return FAMILIES[architecture.family].modules["words"] + ".weight"


def encoder_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all required encoder tensors by name."""
    layers = stored_layers(architecture)
    return {name: shape for layer in layers for name, shape in layer.shapes().items()}


def pooler_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the optional pooler tensors by name; empty for a family without a pooler."""
    if not FAMILIES[architecture.family].has_pooler:
        return {}
    return StoredLayer("pooler", POOLER, (architecture.width, architecture.width)).shapes()


def wanted_shapes(architecture: Architecture, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes by name of the encoder, and of its pooler if the names contain one."""
    pooler = pooler_shapes(architecture)
    return encoder_shapes(architecture) | ({} if pooler.keys().isdisjoint(names) else pooler)


def canonical_names(stored: Iterable[str], architecture: Architecture) -> dict[str, str]:
    """Return the names in a file of the encoder's tensors, by their plain names of the family."""
    names = list(stored)
    wanted = encoder_shapes(architecture) | pooler_shapes(architecture)
    words = words_name(architecture)
    prefix = next((prefix for prefix in PREFIXES if prefix + words in names), "")
    plain = {modern(name.removeprefix(prefix)): name for name in names if name.startswith(prefix)}
    return {name: plain[name] for name in wanted if name in plain}


def modern(name: str) -> str:
    """Rename gamma to weight and beta to bias; checkpoints converted from TensorFlow use the old names."""
    for old, new in OLD_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def buckets_of(longest: int) -> NDArray[np.int64]:
    """Return the row of each query and key, (t, t), in a table of relative positions.

    Half of the rows are for keys behind the query. In each half, half of the rows are for one distance each,
    and the others for logarithms of distances.
    """
    half = BUCKETS // 2
    exact = half // 2
    behind = np.arange(longest) - np.arange(longest)[:, None]
    far = np.abs(behind)
    logarithm = np.log2(np.maximum(far, exact) / exact) / np.log2(FARTHEST / exact)
    rows = np.minimum(exact + (logarithm * (half - exact)).astype(np.int64), half - 1)
    return np.where(far < exact, far, rows) + half * (behind > 0)
