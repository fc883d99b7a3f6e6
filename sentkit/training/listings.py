"""The entries of methods and papers in the catalogue, and their classes by name. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from sentkit.training.recipe import Recipe

if TYPE_CHECKING:
    from sentkit.training.method import Method


@dataclass(frozen=True, slots=True)
class Listing:
    """A method in the catalogue."""

    summary: str
    class_path: str  # module:class
    cite: str = ""
    note: str = ""  # a difference from the paper, for the manual
    settings: type[Recipe] = Recipe

    def load(self) -> "type[Method]":
        """Return the class of the method. This imports torch."""
        module_name, _, class_name = self.class_path.partition(":")
        method_class: type[Method] = getattr(import_module(module_name), class_name)
        return method_class


@dataclass(frozen=True, slots=True)
class Paper:
    key: str  # name of the paper in --paper
    name: str
    folder: str  # in papers/
    methods: Mapping[str, Listing]

    def figures(self) -> bytes:
        """Return the published figures, one JSON object per line."""
        papers = Path(__file__).parents[1] / "papers"
        return (papers / self.folder / "published.jsonl").read_bytes()
