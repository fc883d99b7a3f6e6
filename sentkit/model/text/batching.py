"""Which texts are computed together. The plan depends on the input alone, never on time or threads.

A window of rows is read, its equal texts are taken once, and the rest are cut into batches of like length.
Windows grow, so that the first rows come out at once and the last ones in good company.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

FIRST_WINDOW, LAST_WINDOW = 32, 8192  # rows
WIDE_WINDOW = 128  # where vectors have tens of thousands of numbers
MAX_WINDOW_CHARACTERS = 8_000_000  # so that rows of a million words do not pile up
BUDGETS = {"cpu": 2048, "cuda": 65536}  # tokens in a batch


def windows(
    rows: Iterable[tuple[T, tuple[str, ...]]], largest: int = LAST_WINDOW
) -> Iterator[list[tuple[T, tuple[str, ...]]]]:
    """Rows with their texts in lists of 32, 128, 512, 2048, 8192, 8192 ..., fewer where texts are long."""
    size = FIRST_WINDOW
    window: list[tuple[T, tuple[str, ...]]] = []
    characters = 0
    for item in rows:
        window.append(item)
        characters += sum(map(len, item[1]))
        if len(window) >= size or characters >= MAX_WINDOW_CHARACTERS:
            yield window
            window, characters, size = [], 0, min(4 * size, largest)
    if window:
        yield window


def batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """All places, longest first, in batches of at most `budget` tokens; a longer one goes alone."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])  # equal ones keep their order
    found: list[list[int]] = []
    room = 0
    for place in order:
        if not found or lengths[place] > room:
            found.append([])
            room = budget
        found[-1].append(place)
        room -= lengths[place]
    return found


def padded_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """The same where all of a batch are filled up to its longest, and the filling counts."""
    found: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if not found or (len(found[-1]) + 1) * lengths[found[-1][0]] > budget:
            found.append([])
        found[-1].append(place)
    return found


def default_budget(device: str) -> int:
    """Tokens in a batch: what keeps a CPU's caches warm, or a GPU busy."""
    return BUDGETS["cuda" if device.startswith("cuda") else "cpu"]
