"""The settings that determine vectors, and the changes of them that other programs make."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sentkit.formats.checkpoints.readout import NAMED

LENGTHS = (16, 32, 64, 128, 256, 384, 512)
WEIGHTS = {
    "int8 by row": "weights in int8, a scale for each row",
    "int8": "weights in int8, a scale for each matrix",
    "int8 by block": "weights in int8, a scale for each 32 numbers",
    "int4 by block": "weights in 4 bits, a scale for each 32 numbers",
    "nf4 by block": "weights in 4 bits (nf4), a scale for each 64 numbers",
}
SPECIAL = {
    "unread": "special tokens left out of the readout",
    "absent": "no special tokens",
    "no end": "no end token",
    "no begin": "no begin token",
    "twice": "begin and end tokens twice",
    "begin twice": "the begin token twice",
    "end twice": "the end token twice",
}
PROMPTS = (
    "query: ",  # E5
    "passage: ",
    "search_query: ",  # Nomic
    "search_document: ",
    "Represent this sentence for searching relevant passages: ",  # BGE and mxbai
    # GTE and Qwen
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
    "task: search result | query: ",  # EmbeddingGemma
    "title: none | text: ",
)


@dataclass(frozen=True, slots=True)
class TextSettings:
    """What determines the tokens. None: as the checkpoint declares."""

    prompt: str | None = None
    max_length: int | None = None
    other_end: bool = False  # a long text loses the tokens at the other end
    lower: bool | None = None  # letters become lower case
    strip: bool | None = None  # accents are removed
    special: str = "read"  # a key of SPECIAL; `unread` does not change the tokens
    in_template: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """All that determines the vectors. None: as the checkpoint declares."""

    readout: str
    unit: bool  # vectors have unit length
    prompt: str | None = None
    max_length: int | None = None
    other_end: bool = False
    lower: bool | None = None
    strip: bool | None = None
    special: str = "read"
    shift: int = 0  # of the positions
    causal: bool | None = None  # a token attends to itself and the tokens before it
    last_norm: bool = True  # the norm at the end of the last block
    weights: str = "fp32"
    dense: bool = True  # the layers behind the readout
    dim: int | None = None  # first numbers to keep; 0: all numbers
    again: bool = True  # vectors with fewer numbers have unit length again

    @property
    def of_texts(self) -> TextSettings:
        return TextSettings(
            prompt=self.prompt,
            max_length=self.max_length,
            other_end=self.other_end,
            lower=self.lower,
            strip=self.strip,
            special="read" if self.special == "unread" else self.special,
            in_template=NAMED.get(self.readout) == NAMED["prompt"],
        )

    def changed_by(self, variants: "Iterable[Variant]") -> "Settings":
        settings = self
        for variant in variants:
            settings = replace(settings, **variant.changes)
        return settings

    @property
    def of_network(self) -> tuple[Any, ...]:
        """What determines the network."""
        return self.weights, self.causal, self.last_norm


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    changes: Mapping[str, Any]  # of `Settings`

    @property
    def setting(self) -> str:
        """The first setting that changes."""
        return next(iter(self.changes))

    def joins(self, other: "Variant") -> bool:
        """Whether both change different settings."""
        return self.changes.keys().isdisjoint(other.changes)


def shown(prompt: str) -> str:
    text = prompt if len(prompt) <= 40 else f"{prompt[:37]}..."
    return json.dumps(text, ensure_ascii=False)
