"""A chain of operations: each operation receives the words that the previous one returns."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sentkit.augment.draw import Draw
from sentkit.augment.operations import AppliedOperation, Note


class Chain:
    """Turns sentences into variants; counts the texts that each operation leaves unchanged."""

    def __init__(self, steps: Sequence[AppliedOperation], seed: int) -> None:
        self.steps, self.seed = steps, seed
        self.texts = 0
        self.left = [0] * len(steps)

    def vary(
        self, text: str, views: tuple[int, ...] = (0,), before: int = 0, others: Sequence[str] = ()
    ) -> tuple[str, list[Note]]:
        """Return the variant, and one note per operation.

        Draws depend only on the seed, the text, the numbers of its views (several if the text was varied
        before) and the number of the operation. `before` is the number of earlier operations. `others` are
        the candidate texts of a step that replaces the text.
        """
        raw = text.encode()
        words: Sequence[str] = text.split()
        variant, notes = text, []
        for number, step in enumerate(self.steps):
            draw = Draw(key_of(self.seed, views, before + number) + raw)
            previous = variant
            if step.work is None:
                variant, note = another(variant, draw, others)
                words = variant.split()
            else:
                changed, note = step.work(words, draw)
                if changed != words:
                    words, variant = changed, " ".join(changed)
            self.left[number] += variant == previous
            notes.append({"op": step.name, **step.note, **note})
        self.texts += 1
        return variant, notes


@lru_cache
def key_of(seed: int, views: tuple[int, ...], number: int) -> bytes:
    """The prefix of the key of a draw."""
    return f"{seed}/{'.'.join(map(str, views))}/{number}:".encode()


class Others(Sequence[str]):
    """All texts of a group except the one at a place."""

    def __init__(self, texts: Sequence[str], place: int) -> None:
        self.texts, self.place = texts, place

    def __len__(self) -> int:
        return len(self.texts) - 1

    def __getitem__(self, number: Any) -> Any:
        return self.texts[number + (number >= self.place)]


def another(text: str, draw: Draw, others: Sequence[str]) -> tuple[str, Note]:
    """One of the others, or the text itself if there are none."""
    if not others:
        return text, {"number": None, "of": 0}
    number = draw.below(len(others)) if len(others) > 1 else 0
    return others[number], {"number": number, "of": len(others)}
