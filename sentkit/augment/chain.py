"""Operations one after another: each sees the words that the one before it has left."""

from collections.abc import Sequence
from functools import lru_cache

from sentkit.augment.draw import Draw
from sentkit.augment.steps import Note, Step


class Chain:
    """Sentences -> variants, and how many of them each operation has left as they were."""

    def __init__(self, steps: Sequence[Step], seed: int = 0) -> None:
        self.steps, self.seed = steps, seed
        self.texts = 0
        self.left = [0] * len(steps)

    def vary(
        self, text: str, views: tuple[int, ...] = (0,), before: int = 0, others: Sequence[str] = ()
    ) -> tuple[str, list[Note]]:
        """The variant, and a note of each operation. What is drawn depends on the seed, the text, the number
        of its view (in a text that has been varied before, of its views), and the number of the operation,
        to which those `before` count. `others`: texts to choose from, for the step that wants one."""
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
    """What is set before the text."""
    return f"{seed}/{'.'.join(map(str, views))}/{number}:".encode()


def another(text: str, draw: Draw, others: Sequence[str]) -> tuple[str, Note]:
    """One of the others, or the text itself where there are none."""
    if not others:
        return text, {"number": None, "of": 0}
    number = draw.below(len(others)) if len(others) > 1 else 0
    return others[number], {"number": number, "of": len(others)}
