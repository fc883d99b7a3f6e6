"""What an operation is: words and a draw in, words and a note of what was drawn out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sentkit.augment.draw import Draw

Note = dict[str, Any]  # as JSON can hold it
Changed = tuple[Sequence[str], Note]
Operation = Callable[[Sequence[str], Draw], Changed]


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    work: Operation | None  # None: a text of its own stands in the place of the sentence
    note: Mapping[str, Any] = field(default_factory=dict)  # what is the same for every text
