"""Converts a `config.json` to an `Architecture` that the packed encoder computes exactly; names its
tensors.

Every value that is not listed raises `UnsupportedArchitecture`, and transformers runs the model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import (
    CONFIG_ACTIVATIONS,
    DEEPEST,
    LARGEST,
    Checkpoint,
    invalid_value,
    read_activation,
    read_fraction,
    read_size,
)
from sentkit.model.transformer.families import FAMILIES, FULL, KEYS, SLIDING, Family

SIZES = (
    "vocabulary",
    "width",
    "heads",
    "inner",
    "positions",
    "types",
    "embedding_width",
    "buckets",
)
BUCKETS = 32  # rows of a table of relative positions; transformers uses no other number
EXTRAS = (
    "is_decoder",
    "add_cross_attention",
    "is_encoder_decoder",
    "pruned_heads",
    "quantization_config",
    "norm_bias",
    "attention_bias",
    "mlp_bias",
    "rope_scaling",
    "partial_rotary_factor",
)


class UnsupportedArchitecture(Exception):
    """The packed encoder does not support this architecture; the caller uses the adapter
    instead.
    """


@dataclass(frozen=True, slots=True)
class Architecture:
    family: str
    vocabulary: int
    width: int
    depth: int  # transformer blocks
    heads: int
    inner: int
    activation: str  # see `read_activation`
    norm_epsilon: float
    # rows of the position table, or with rotary positions, the largest number of tokens
    positions: int
    position_offset: int  # row of the first token of a sentence
    types: int  # rows of the token type table, 0 without a table
    embedding_width: int  # if it differs from width, the model has a projection
    padding_id: int
    dropout: float
    attention_dropout: float
    key_heads: int  # of keys and values; each is that of as many queries
    head_size: int
    # rows of the table of relative positions, which all blocks add to their scores
    buckets: int = 0
    # of each block: tokens on each side that a token attends to; 0: all
    attention_windows: tuple[int, ...] = ()
    rotary_bases: tuple[float, ...] = ()  # of the rotary positions of each block
    causal: bool = False  # a token attends to itself and the tokens before it
    head_bias: bool = True  # of the dense layer of its heads
    pooling: str = "cls"  # the readout of its classification head
    pooler_activation: str = "tanh"  # set by sentkit.json; config.json has no key for it

    @property
    def max_tokens(self) -> int:
        return self.positions - self.position_offset

    @property
    def hashed_values(self) -> list[str | int | float]:
        """The values that change the vectors for equal weights."""
        values: list[str | int | float] = [
            self.heads,
            self.activation,
            self.norm_epsilon,
            self.position_offset,
            *self.attention_windows,
            *self.rotary_bases,
        ]
        if self.causal:
            values.append("causal")
        return values

    @property
    def family_traits(self) -> Family:
        return FAMILIES[self.family]

    @property
    def dropouts(self) -> list[float]:
        """The rates after attention, before and after the second dense layer."""
        return [getattr(self, name) if name else 0.0 for name in self.family_traits.dropouts]

    @property
    def joined_matrices(self) -> dict[str, dict[str, int]]:
        """The matrices, with their rows, that modules of a block join and a checkpoint may have
        apart.
        """
        query_rows = self.heads * self.head_size
        key_rows = self.key_heads * self.head_size
        up = {"active": self.inner}
        if self.family_traits.gated:
            up["gates"] = self.inner
        return {"qkv": {"query": query_rows, "key": key_rows, "value": key_rows}, "up": up}

    def matrices(self, module: str) -> list[int]:
        """The rows of the matrices in a module that low-rank updates and rounding treat one
        by one.
        """
        if module == "qkv" or (module == "up" and "gates" in self.family_traits.block):
            return [*self.joined_matrices[module].values()]
        return [self.weight_shapes[module][0]]

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the weights of all modules that a block can have."""
        shapes: dict[str, tuple[int, ...]] = {
            "input_norm": (self.width,),
            "mix_norm": (self.width,),
            "inner_norm": (self.width,),
            "norm": (self.width,),
            "query_norm": (self.head_size,),
            "key_norm": (self.head_size,),
            "mix": (self.width, self.joined_matrices["qkv"]["query"]),
            "down": (self.width, self.inner),
        }
        for joined_module, rows_of_modules in self.joined_matrices.items():
            shapes[joined_module] = (sum(rows_of_modules.values()), self.width)
            for module, rows in rows_of_modules.items():
                shapes[module] = (rows, self.width)
        return shapes

    def modules_of_block(self, block: int) -> dict[str, str]:
        """Return the names in a file of the modules of a block, by their names in `Bert`."""
        absent: set[str] = set()
        if block == 0:
            absent |= set(self.family_traits.not_first)
        if block < self.depth - 1:
            absent |= set(self.family_traits.only_last)
        return {
            module: stored_name.format(block)
            for module, stored_name in self.family_traits.block.items()
            if module not in absent
        }


def read_architecture(config: Mapping[str, object], source: str) -> Architecture:
    """Return the architecture of a parsed `config.json`; `source` is its path, for errors."""
    # The family, with the key in config.json and the default of each field.
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise UnsupportedArchitecture(f'model type "{name}"')
    refuse_extras(config)
    family = FAMILIES[name]
    keys = {**KEYS, **family.keys}

    def size(field: str, fallback: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """The value of a field; `fallback` if the family has no key or no default for it."""
        key, default = keys.get(field, ("", fallback or 0))
        if not key:
            return int(default)
        if default is None:
            default = fallback
        return read_size(config, source, key, default=default, least=least, most=most)

    def fraction(field: str) -> float:
        key, default = keys[field]
        if not key:
            return float(default)
        return read_fraction(config, source, key, default)

    # The numbers of config.json.
    padding_id = size("padding_id", least=0)
    numbers: dict[str, Any] = {name: size(name) for name in SIZES}
    heads = numbers["heads"]
    width = numbers["width"]
    numbers["key_heads"] = size("key_heads", heads)
    numbers["head_size"] = size("head_size", width // heads or 1)
    for name_of_fraction in ("norm_epsilon", "dropout", "attention_dropout"):
        numbers[name_of_fraction] = fraction(name_of_fraction)
    # RoBERTa numbers its positions after the id of the padding.
    first_position = family.first_position
    if first_position is None:
        first_position = padding_id + 1
    activation = read_activation(config, *keys["activation"])
    if activation is None:
        raise UnsupportedArchitecture(f'activation "{config.get(keys["activation"][0])}"')
    architecture = Architecture(
        family=name,
        depth=size("depth", most=DEEPEST),
        activation=activation,
        position_offset=first_position,
        padding_id=padding_id,
        **numbers,
    )
    if family.bases:
        architecture = with_rotary(architecture, config, source)

    # Numbers that do not fit together, or that the encoder does not compute.
    if width % heads and "head_size" not in keys:
        raise UnsupportedArchitecture(f"{heads} heads do not divide {width}")
    if heads % architecture.key_heads:
        raise UnsupportedArchitecture(
            f"{architecture.key_heads} heads of keys do not divide {heads}"
        )
    if architecture.buckets not in (0, BUCKETS):
        raise UnsupportedArchitecture(f"{architecture.buckets} buckets of relative positions")
    if architecture.max_tokens < 1:
        raise invalid_value(keys["positions"][0], architecture.positions, source)
    return architecture


def with_rotary(architecture: Architecture, config: Mapping[str, Any], source: str) -> Architecture:
    """Add windows and bases of the blocks, and settings of the heads, by keys of transformers 4 or
    5.
    """
    family = architecture.family_traits
    # One dropout serves the embeddings and the blocks.
    if read_fraction(config, source, "embedding_dropout", 0.0) != architecture.dropout:
        raise UnsupportedArchitecture("embedding_dropout differs from mlp_dropout")
    types, window_distance = family.attention_types_and_window(config, architecture.depth, source)
    are_supported = isinstance(types, list) and all(
        block_type in (FULL, SLIDING) for block_type in types
    )
    if not are_supported or len(types) != architecture.depth:
        raise UnsupportedArchitecture('"layer_types"')
    if architecture.head_size % 2 or (SLIDING in types and window_distance < 1):
        raise UnsupportedArchitecture("heads of odd size, or windows of one token")
    bases = bases_of(family, config)
    is_causal: Any = family.decoder and config.get("is_causal", True)
    if not isinstance(is_causal, bool) or (family.decoder and SLIDING in types and not is_causal):
        raise UnsupportedArchitecture('"is_causal"')

    # Settings of the heads.
    if CONFIG_ACTIVATIONS.get(str(config.get("classifier_activation", "gelu"))) != "gelu":
        raise UnsupportedArchitecture("the activation of its heads")
    pooling = config.get("classifier_pooling", "cls")
    head_bias = config.get("classifier_bias", False)
    if pooling not in ("cls", "mean") or not isinstance(head_bias, bool):
        raise UnsupportedArchitecture('"classifier_pooling" or "classifier_bias"')
    return replace(
        architecture,
        attention_windows=tuple(
            window_distance if block_type == SLIDING else 0 for block_type in types
        ),
        rotary_bases=tuple(bases[block_type] for block_type in types),
        causal=is_causal,
        head_bias=head_bias,
        pooling=pooling,
    )


def bases_of(family: Family, config: Mapping[str, Any]) -> dict[str, float]:
    """Return the base of the rotary positions of FULL and SLIDING blocks.

    `family.bases` has, for each type of block, its key in a config.json of transformers 4, and the
    default. A config.json of transformers 5 has "rope_parameters" instead.
    """
    # "rope_parameters" by type of block. A family with one base for all types has them once.
    parameters = config.get("rope_parameters") or {}
    if len({*family.bases.values()}) == 1:
        parameters = dict.fromkeys(family.bases, parameters)
    if not isinstance(parameters, dict) or parameters.keys() - family.bases.keys():
        raise UnsupportedArchitecture('"rope_parameters"')

    # The base of each type. Any other setting, such as a scaling, is not supported.
    bases: dict[str, float] = {}
    for block_type, (key, default) in family.bases.items():
        settings = parameters.get(block_type) or {}
        is_plain = isinstance(settings, dict) and settings.get("rope_type", "default") == "default"
        if not is_plain or settings.keys() - {"rope_type", "rope_theta"}:
            raise UnsupportedArchitecture(f'"rope_parameters" of "{block_type}"')
        base = settings.get("rope_theta", config.get(key, default))
        if not isinstance(base, int | float) or not base > 0:
            raise UnsupportedArchitecture(f"rotary positions with base {base!r:.40}")
        bases[block_type] = float(base)
    return bases


def architecture_of(checkpoint: Checkpoint) -> Architecture:
    """Return the architecture of a checkpoint, with the declared activation of its pooler."""
    architecture = read_architecture(checkpoint.config, checkpoint.config_file)
    pooler_activation = checkpoint.declaration.pooler.activation
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


# Prefixes of encoder names in files of models with a head and of wrappers.
PREFIXES = (
    "",
    "bert.",
    "roberta.",
    "camembert.",
    "xlm_roberta.",
    "distilbert.",
    "electra.",
    "mpnet.",
    "model.",
    "0.auto_model.",
)
OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
POOLER = "pooler.dense"


def stored_tensors(
    architecture: Architecture, *, pooler: bool = False
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the name in a checkpoint and the shape of each tensor, by its name in `Bert`.

    "blocks.3.up.weight" is "encoder.layer.3.intermediate.dense.weight" there. Queries, keys and
    values are the modules that checkpoints of the family have: three, or one "qkv".
    """
    family = architecture.family_traits
    width = architecture.width
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}

    def add(module: str, stored_name: str, shape: tuple[int, ...], *, has_bias: bool) -> None:
        tensors[f"{module}.weight"] = f"{stored_name}.weight", shape
        if has_bias:
            tensors[f"{module}.bias"] = f"{stored_name}.bias", shape[:1]

    # The modules before the blocks. The tables have no bias. The width of the tables of
    # ELECTRA can differ from that of the blocks.
    table_width = architecture.embedding_width
    vocabulary = architecture.vocabulary
    shapes_before_blocks: dict[str, tuple[int, ...]] = {"words": (vocabulary, table_width)}
    if not family.bases:
        shapes_before_blocks["positions"] = (architecture.positions, table_width)
    if "norm" in family.tables:
        shapes_before_blocks["norm"] = (table_width,)
    if architecture.types:
        shapes_before_blocks["types"] = (architecture.types, table_width)
    if table_width != width:
        shapes_before_blocks["projection"] = (width, table_width)
    if architecture.buckets:
        shapes_before_blocks["relative"] = (architecture.buckets, architecture.heads)
    stored_names = family.tables  # module before the blocks -> its name in a file
    for module, shape in shapes_before_blocks.items():
        has_bias = module in ("norm", "projection") and family.has_bias(module)
        add(module, stored_names[module], shape, has_bias=has_bias)

    # The blocks, and the pooler.
    shapes = architecture.weight_shapes
    for block in range(architecture.depth):
        for module, stored_name in architecture.modules_of_block(block).items():
            name = f"blocks.{block}.{module}"
            add(name, stored_name, shapes[module], has_bias=family.has_bias(module))
    if pooler:
        add("pooler", POOLER, (width, width), has_bias=True)
    return tensors


def words_name(architecture: Architecture) -> str:
    """Return the name of the word table in a file without prefixes."""
    return architecture.family_traits.tables["words"] + ".weight"


def tensor_shapes(
    architecture: Architecture, *, pooler: bool = False
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the encoder's tensors by name, and of its pooler, if the family
    has one.
    """
    return dict(
        stored_tensors(
            architecture, pooler=pooler and architecture.family_traits.has_pooler
        ).values()
    )


def has_pooler(names: Iterable[str]) -> bool:
    """Return true if the canonical names contain those of a pooler."""
    return any(name.startswith(POOLER) for name in names)


def canonical_names(stored: Iterable[str], architecture: Architecture) -> dict[str, str]:
    """Return the names in a file of the encoder's tensors, by their plain names of the family."""
    names = list(stored)
    words = words_name(architecture)
    prefix = next((prefix for prefix in PREFIXES if prefix + words in names), "")
    stored_names = {
        modern(name.removeprefix(prefix)): name for name in names if name.startswith(prefix)
    }
    plain_names = tensor_shapes(architecture, pooler=True)
    return {name: stored_names[name] for name in plain_names if name in stored_names}


def modern(name: str) -> str:
    """Rename gamma to weight and beta to bias; checkpoints converted from TensorFlow use the old
    names.
    """
    for old, new in OLD_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
