"""The families that the packed encoder computes: their keys in `config.json` and the names of their
tensors.

`architecture.py` reads a configuration by these.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sentkit.formats.checkpoints.folders import read_size

ROBERTA = ("roberta", "xlm-roberta", "camembert")

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
MPNET_KEYS: dict[str, Key] = {
    "types": ("", 0),
    "padding_id": ("pad_token_id", 1),
    "buckets": ("relative_attention_num_buckets", 32),
}
MODERNBERT_KEYS: dict[str, Key] = {
    "activation": ("hidden_activation", "gelu"),
    "norm_epsilon": ("norm_eps", 1e-5),
    "types": ("", 0),
    "padding_id": ("pad_token_id", 50283),
    "dropout": ("mlp_dropout", 0.0),
    "attention_dropout": ("attention_dropout", 0.0),
}
DECODER_KEYS: dict[str, Key] = {
    "activation": ("hidden_act", "silu"),
    "norm_epsilon": ("rms_norm_eps", 1e-6),
    "types": ("", 0),
    "key_heads": ("num_key_value_heads", None),
    "head_size": ("head_dim", None),
    "padding_id": ("", 0),
    "dropout": ("", 0.0),
    "attention_dropout": ("attention_dropout", 0.0),
}
TABLES = {  # the names in a file of the modules before the blocks
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "projection": "embeddings_project",
}


# The names in a file of the modules of a block; {} is its number. A checkpoint has `qkv`, or the
# three that it joins.
BLOCK = {
    "query": "encoder.layer.{}.attention.self.query",
    "key": "encoder.layer.{}.attention.self.key",
    "value": "encoder.layer.{}.attention.self.value",
    "mix": "encoder.layer.{}.attention.output.dense",
    "mix_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "up": "encoder.layer.{}.intermediate.dense",
    "down": "encoder.layer.{}.output.dense",
    "norm": "encoder.layer.{}.output.LayerNorm",
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
    **BLOCK,
    "query": "encoder.layer.{}.attention.attn.q",
    "key": "encoder.layer.{}.attention.attn.k",
    "value": "encoder.layer.{}.attention.attn.v",
    "mix": "encoder.layer.{}.attention.attn.o",
    "mix_norm": "encoder.layer.{}.attention.LayerNorm",
}
MODERNBERT_BLOCK = {
    "input_norm": "layers.{}.attn_norm",
    "qkv": "layers.{}.attn.Wqkv",
    "mix": "layers.{}.attn.Wo",
    "inner_norm": "layers.{}.mlp_norm",
    "up": "layers.{}.mlp.Wi",
    "down": "layers.{}.mlp.Wo",
    "norm": "final_norm",
}
DECODER_BLOCK = {
    "query": "layers.{}.self_attn.q_proj",
    "key": "layers.{}.self_attn.k_proj",
    "value": "layers.{}.self_attn.v_proj",
    "mix": "layers.{}.self_attn.o_proj",
    "input_norm": "layers.{}.input_layernorm",
    "inner_norm": "layers.{}.post_attention_layernorm",
    "active": "layers.{}.mlp.gate_proj",
    "gates": "layers.{}.mlp.up_proj",
    "down": "layers.{}.mlp.down_proj",
    "norm": "norm",
}
QKV = ("query", "key", "value")
# The attention of a block with rotary positions, as config.json names it.
FULL = "full_attention"
SLIDING = "sliding_attention"


# FULL or SLIDING for each block, and how many tokens away the tokens are that a token of a sliding
# block attends to. The first is Any, because config.json can contain another value.
BlockTypes = tuple[Any, int]


def llama_blocks(config: Mapping[str, Any], depth: int, source: str) -> BlockTypes:
    return [FULL] * depth, 0


def modernbert_blocks(config: Mapping[str, Any], depth: int, source: str) -> BlockTypes:
    full_every = read_size(config, source, "global_attn_every_n_layers", default=3)
    tokens = read_size(config, source, "local_attention", default=128)  # of both sides
    types = config.get("layer_types")
    if not types:
        types = [SLIDING if block % full_every else FULL for block in range(depth)]
    return types, tokens // 2


def sliding_blocks(config: Mapping[str, Any], depth: int, source: str) -> BlockTypes:
    if config.get("sliding_window", 4096) is None:
        return llama_blocks(config, depth, source)
    return [SLIDING] * depth, read_size(config, source, "sliding_window", default=4096) - 1


def mistral_blocks(config: Mapping[str, Any], depth: int, source: str) -> BlockTypes:
    types, window = sliding_blocks(config, depth, source)
    # With this key, transformers runs it as Ministral.
    if config.get("layer_types") is not None:
        types = config["layer_types"]
    return types, window


def qwen_blocks(config: Mapping[str, Any], depth: int, source: str) -> BlockTypes:
    blocks = sliding_blocks if config.get("use_sliding_window") else llama_blocks
    [type_of_last], window = blocks(config, 1, source)
    # the first ones
    full_blocks = read_size(config, source, "max_window_layers", default=28, least=0)
    types = config.get("layer_types")
    if not types:
        types = [FULL if block < full_blocks else type_of_last for block in range(depth)]
    return types, window


@dataclass(frozen=True, slots=True)
class Family:
    keys: Mapping[str, Key] = field(default_factory=dict)  # those that differ from KEYS
    # module before the blocks -> its name in a file; also the norm and the projection
    tables: Mapping[str, str] = field(default_factory=lambda: TABLES)
    # module of a block -> its name in a file
    block: Mapping[str, str] = field(default_factory=lambda: BLOCK)
    first_position: int | None = 0  # row of the first token of a sentence; None: padding_id + 1
    # A padding token within a text has the row before the first one, and is not counted.
    skips_padding: bool = False
    has_pooler: bool = True
    # FULL and SLIDING -> key of the base of their rotary positions, and default
    bases: Mapping[str, Key] = field(default_factory=dict)
    attention_types_and_window: Callable[[Mapping[str, Any], int, str], BlockTypes] = llama_blocks
    biases: Collection[str] | None = None  # modules with a bias; None: all
    dropouts: tuple[str, ...] = ("dropout", "", "dropout")  # see `Architecture.dropouts`
    gated: bool = False
    # norms divide by the root of the mean square, and do not subtract the mean
    squares: bool = False
    decoder: bool = False  # a token attends to those before it, unless the config says otherwise
    not_first: tuple[str, ...] = ()  # modules that the first block lacks
    only_last: tuple[str, ...] = ()  # modules that only the last block has

    def has_bias(self, module: str) -> bool:
        return self.biases is None or module in self.biases


FROM_PADDING = Family({"padding_id": ("pad_token_id", 1)}, first_position=None, skips_padding=True)
LLAMA = Family(
    DECODER_KEYS,
    {"words": "embed_tokens"},
    DECODER_BLOCK,
    has_pooler=False,
    bases=dict.fromkeys((FULL, SLIDING), ("rope_theta", 10_000.0)),
    biases=(),
    gated=True,
    squares=True,
    decoder=True,
    only_last=("norm",),
)
FAMILIES = {
    "bert": Family(),
    **dict.fromkeys(ROBERTA, FROM_PADDING),
    "distilbert": Family(DISTILBERT_KEYS, block=DISTILBERT_BLOCK, has_pooler=False),
    "electra": Family({"embedding_width": ("embedding_size", 128)}, has_pooler=False),
    "mpnet": Family(
        MPNET_KEYS,
        {**TABLES, "relative": "encoder.relative_attention_bias"},
        MPNET_BLOCK,
        first_position=2,
        skips_padding=True,
    ),
    "modernbert": Family(
        MODERNBERT_KEYS,
        {"words": "embeddings.tok_embeddings", "norm": "embeddings.norm"},
        MODERNBERT_BLOCK,
        has_pooler=False,
        bases={FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)},
        attention_types_and_window=modernbert_blocks,
        biases=(),
        dropouts=("attention_dropout", "dropout", ""),
        gated=True,
        not_first=("input_norm",),
        only_last=("norm",),
    ),
    "llama": LLAMA,
    "mistral": replace(
        LLAMA,
        keys=DECODER_KEYS | {"key_heads": ("num_key_value_heads", 8)},
        attention_types_and_window=mistral_blocks,
    ),
    "qwen2": replace(LLAMA, attention_types_and_window=qwen_blocks, biases=("qkv", *QKV)),
    "qwen3": replace(
        LLAMA,
        keys=DECODER_KEYS | {"head_size": ("head_dim", 128)},
        block={
            **DECODER_BLOCK,
            "query_norm": "layers.{}.self_attn.q_norm",
            "key_norm": "layers.{}.self_attn.k_norm",
        },
        attention_types_and_window=qwen_blocks,
    ),
}
WITH_POOLER = tuple(name for name, family in FAMILIES.items() if family.has_pooler)
