"""Draws: the random numbers of one operation on one text, from nothing but what names the two."""

from collections.abc import Iterator
from hashlib import blake2b
from struct import Struct

NUMBERS = Struct("<16I")  # in a digest of 64 bytes


def numbers(key: bytes) -> Iterator[int]:
    """Numbers of 32 bits without end: a digest of the key, a digest of that one, and so on."""
    digest = blake2b(key).digest()
    while True:
        yield from NUMBERS.unpack(digest)
        digest = blake2b(digest).digest()


class Draw:
    """Equal for equal keys, on any machine and any Python: whole numbers alone, and no generator that takes
    longer to seed than a sentence takes to vary."""

    __slots__ = ("_next",)

    def __init__(self, key: bytes) -> None:
        self._next = numbers(key).__next__

    def below(self, n: int) -> int:
        """One of 0 .. n - 1."""
        return self._next() * n >> 32

    def some(self, n: int, k: int) -> list[int]:
        """Different ones of 0 .. n - 1 in random order: the first k steps of a Fisher-Yates shuffle."""
        return self._parted(n, k)[0]

    def sorted(self, n: int, k: int) -> list[int]:
        """As many, in ascending order; where these are most, the few that are left out are drawn."""
        if 2 * k > n:
            return sorted(self._parted(n, n - k)[1])
        return sorted(self._parted(n, k)[0])

    def _parted(self, n: int, k: int) -> tuple[list[int], list[int]]:
        """Those drawn, and the others."""
        places, drawn, number = list(range(n)), [], self._next
        for left in range(n, n - k, -1):
            place = number() * left >> 32
            drawn.append(places[place])
            places[place] = places[left - 1]
        return drawn, places[: n - k]

    def spans(self, n: int, k: int, length: int) -> list[int]:
        """Where k disjoint spans begin in n places, each arrangement as likely as any other: spans of one
        place in a row that is shorter by what the spans are longer."""
        slots = self.sorted(n - k * (length - 1), k)
        return [slot + i * (length - 1) for i, slot in enumerate(slots)]
