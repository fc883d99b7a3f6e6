"""Names and shapes of the modules of `Bert` in a Hugging Face checkpoint."""

from dataclasses import dataclass

from sentkit.model.transformer.architecture import WITH_POOLER, Architecture

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
class Place:
    ours: str  # blocks.3.up
    theirs: str  # encoder.layer.3.intermediate.dense
    shape: tuple[int, ...]  # of the weight; a bias has the length of the first axis
    bias: bool

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by its checkpoint name."""
        weight = {f"{self.theirs}.weight": self.shape}
        return weight | {f"{self.theirs}.bias": self.shape[:1]} if self.bias else weight


def places(architecture: Architecture, *, pooler: bool = False) -> list[Place]:
    """Return all modules with weights. Queries, keys and values are separate, as in checkpoints."""
    width = architecture.width
    found = embedding_places(architecture)
    for block in range(architecture.depth):
        found += block_places(architecture, block)
    if pooler:
        found.append(Place("pooler", POOLER, (width, width), True))
    return found


def embedding_places(architecture: Architecture) -> list[Place]:
    narrow, width = architecture.embedding_width, architecture.width
    shapes: dict[str, tuple[int, ...]] = {
        "words": (architecture.vocabulary, narrow),
        "positions": (architecture.positions, narrow),
        "norm": (narrow,),
    }
    if architecture.types:
        shapes["types"] = (architecture.types, narrow)
    if narrow != width:
        shapes["projection"] = (width, narrow)
    biased = ("norm", "projection")
    return [Place(name, EMBEDDINGS[name], shape, name in biased) for name, shape in shapes.items()]


def block_places(architecture: Architecture, block: int) -> list[Place]:
    width, inner = architecture.width, architecture.inner
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
    return [Place(f"blocks.{block}.{ours}", names[ours].format(block), shapes[ours], True) for ours in shapes]


def encoder_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all required encoder tensors by name."""
    return {name: shape for place in places(architecture) for name, shape in place.shapes().items()}


def pooler_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the optional pooler tensors by name; empty for a family without a pooler."""
    if architecture.family not in WITH_POOLER:
        return {}
    return Place("pooler", POOLER, (architecture.width, architecture.width), True).shapes()
