"""Names and shapes of the modules of `Bert` in a Hugging Face checkpoint."""

from collections.abc import Iterable
from dataclasses import dataclass

from sentkit.model.transformer.architecture import WITH_POOLER, Architecture

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
    shapes: dict[str, tuple[int, ...]] = {
        "query": (width, width),
        "key": (width, width),
        "value": (width, width),
        "mix": (width, width),
        "mix_norm": (width,),
        "up": (inner, width),
        "down": (width, inner),
        "norm": (width,),
    }
    names = DISTILBERT_BLOCK if architecture.family == "distilbert" else BLOCK
    for block in range(architecture.depth):
        layers += [
            StoredLayer(f"blocks.{block}.{ours}", theirs.format(block), shapes[ours])
            for ours, theirs in names.items()
        ]
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
