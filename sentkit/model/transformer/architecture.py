"""Converts a `config.json` to an `Architecture` that the packed encoder computes exactly; names its tensors.

Only listed values are accepted. Every other value raises `UnsupportedArchitecture`, and the caller runs the
model through transformers instead.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import Checkpoint

ROBERTA = ("roberta", "xlm-roberta", "camembert")  # positions count from padding_id + 1
FAMILIES = ("bert", *ROBERTA, "distilbert", "electra")
WITH_POOLER = ("bert", *ROBERTA)

CONFIG_ACTIVATIONS = {  # value in config.json -> name in sentkit
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

KEYS = {  # in config.json: of BERT and the others, and of DistilBERT
    "width": ("hidden_size", "dim"),
    "depth": ("num_hidden_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_heads"),
    "inner": ("intermediate_size", "hidden_dim"),
    "activation": ("hidden_act", "activation"),
    "dropout": ("hidden_dropout_prob", "dropout"),
    "attention_dropout": ("attention_probs_dropout_prob", "attention_dropout"),
}

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
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise UnsupportedArchitecture(f'model type "{family}"')
    refuse_extras(config)
    keys = {ours: theirs[family == "distilbert"] for ours, theirs in KEYS.items()}
    size, fraction = partial(read_size, config, source), partial(read_fraction, config, source)
    width, heads, positions = size(keys["width"]), size(keys["heads"]), size("max_position_embeddings")
    padding_id = size("pad_token_id", default=1 if family in ROBERTA else 0, least=0)
    architecture = Architecture(
        family=family,
        vocabulary=size("vocab_size"),
        width=width,
        depth=size(keys["depth"], most=DEEPEST),
        heads=heads,
        inner=size(keys["inner"]),
        activation=activation(config, keys["activation"]),
        # DistilBERT has no key for this value; its code uses 1e-12.
        norm_epsilon=1e-12 if family == "distilbert" else fraction("layer_norm_eps", 1e-12),
        positions=positions,
        position_offset=padding_id + 1 if family in ROBERTA else 0,
        types=0 if family == "distilbert" else size("type_vocab_size", default=2),
        embedding_width=size("embedding_size", default=128) if family == "electra" else width,
        padding_id=padding_id,
        dropout=fraction(keys["dropout"], 0.1),
        attention_dropout=fraction(keys["attention_dropout"], 0.1),
    )
    if width % heads:
        raise UnsupportedArchitecture(f"{heads} heads do not divide {width}")
    if architecture.max_tokens < 1:
        raise invalid_value("max_position_embeddings", positions, source)
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


def activation(config: Mapping[str, object], key: str) -> str:
    name = config.get(key, "gelu")
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
PREFIXES = ("", "bert.", "roberta.", "camembert.", "xlm_roberta.", "distilbert.", "electra.", "0.auto_model.")
OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
EMBEDDINGS = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "projection": "embeddings_project",
}
POOLER = "pooler.dense"
BLOCK = {  # the modules of a block: of BERT and the others, and of DistilBERT
    "query": ("encoder.layer.{}.attention.self.query", "transformer.layer.{}.attention.q_lin"),
    "key": ("encoder.layer.{}.attention.self.key", "transformer.layer.{}.attention.k_lin"),
    "value": ("encoder.layer.{}.attention.self.value", "transformer.layer.{}.attention.v_lin"),
    "mix": ("encoder.layer.{}.attention.output.dense", "transformer.layer.{}.attention.out_lin"),
    "mix_norm": ("encoder.layer.{}.attention.output.LayerNorm", "transformer.layer.{}.sa_layer_norm"),
    "up": ("encoder.layer.{}.intermediate.dense", "transformer.layer.{}.ffn.lin1"),
    "down": ("encoder.layer.{}.output.dense", "transformer.layer.{}.ffn.lin2"),
    "norm": ("encoder.layer.{}.output.LayerNorm", "transformer.layer.{}.output_layer_norm"),
}


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
    layers = [
        StoredLayer("words", EMBEDDINGS["words"], (architecture.vocabulary, narrow), bias=False),
        StoredLayer("positions", EMBEDDINGS["positions"], (architecture.positions, narrow), bias=False),
        StoredLayer("norm", EMBEDDINGS["norm"], (narrow,)),
    ]
    if architecture.types:
        layers.append(StoredLayer("types", EMBEDDINGS["types"], (architecture.types, narrow), bias=False))
    if narrow != width:
        layers.append(StoredLayer("projection", EMBEDDINGS["projection"], (width, narrow)))
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(BLOCK, (width, width))
    shapes |= {"mix_norm": (width,), "up": (inner, width), "down": (width, inner), "norm": (width,)}
    for block in range(architecture.depth):
        for ours, theirs in BLOCK.items():
            name = theirs[architecture.family == "distilbert"].format(block)
            layers.append(StoredLayer(f"blocks.{block}.{ours}", name, shapes[ours]))
    return [*layers, StoredLayer("pooler", POOLER, (width, width))] if pooler else layers


def encoder_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all required encoder tensors by name."""
    layers = stored_layers(architecture)
    return {name: shape for layer in layers for name, shape in layer.shapes().items()}


def pooler_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the optional pooler tensors by name; empty for a family without a pooler."""
    if architecture.family not in WITH_POOLER:
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
    words = EMBEDDINGS["words"] + ".weight"
    prefix = next((prefix for prefix in PREFIXES if prefix + words in names), "")
    plain = {modern(name.removeprefix(prefix)): name for name in names if name.startswith(prefix)}
    return {name: plain[name] for name in wanted if name in plain}


def modern(name: str) -> str:
    """Rename gamma to weight and beta to bias; checkpoints converted from TensorFlow use the old names."""
    for old, new in OLD_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
