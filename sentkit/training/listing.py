"""The entry of a method in the catalogue, and of a paper with its methods. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentkit.training.recipe import Recipe

if TYPE_CHECKING:
    from sentkit.training.method import Method

Presets = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Listing:
    summary: str
    place: str  # module:class
    cite: str = ""
    note: str = ""  # a difference from the paper, for the manual
    settings: type[Recipe] | None = None  # None: only the class declares them
    presets: Presets | None = None

    def load(self) -> "type[Method]":
        """Return the class of the method. This imports torch."""
        module, _, name = self.place.partition(":")
        kind: type[Method] = getattr(import_module(module), name)
        return kind


@dataclass(frozen=True, slots=True)
class Paper:
    key: str  # name of the paper in --paper
    name: str
    folder: str  # in papers/
    methods: Mapping[str, Listing]

    def figures(self) -> bytes:
        """Return the published figures, one JSON object per line."""
        return Path(__file__).parents[1].joinpath("papers", self.folder, "published.jsonl").read_bytes()
