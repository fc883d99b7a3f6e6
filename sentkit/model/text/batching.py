"""Windows of rows and batches of texts. Both depend only on the input, not on time or threads.

Each window is deduplicated and split into batches of texts of similar length. The first windows are small,
so that output starts early; later windows are large, so that they batch efficiently.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

FIRST_WINDOW, LAST_WINDOW = 32, 8192  # rows
WIDE_WINDOW = 128  # rows, for vectors with tens of thousands of numbers
MAX_WINDOW_CHARACTERS = 8_000_000  # limits memory if rows are very long
BUDGETS = {"cpu": 2048, "cuda": 65536}  # tokens in a batch


def windows(
    rows: Iterable[tuple[T, tuple[str, ...]]], largest: int = LAST_WINDOW
) -> Iterator[list[tuple[T, tuple[str, ...]]]]:
    """Group rows into lists of 32, 128, 512, 2048, 8192, 8192 ... rows, or fewer if the texts are long."""
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
    """Return batches of indexes, longest first, of at most `budget` tokens; a longer text is one batch."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])  # the sort is stable
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
    """Return batches like `batches`, for padded texts: the budget includes the padding."""
    found: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if not found or (len(found[-1]) + 1) * lengths[found[-1][0]] > budget:
            found.append([])
        found[-1].append(place)
    return found


def default_budget(device: str) -> int:
    """Return the default number of tokens in a batch: it fits the caches of a CPU or fills a GPU."""
    return BUDGETS["cuda" if device.startswith("cuda") else "cpu"]
