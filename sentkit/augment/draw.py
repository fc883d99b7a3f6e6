"""Random numbers for one operation on one text, from a key of both."""

from collections.abc import Iterator
from hashlib import blake2b
from struct import Struct

NUMBERS = Struct("<16I")  # in a digest of 64 bytes


def numbers(key: bytes) -> Iterator[int]:
    """Endless numbers of 32 bits: from the digest of the key, the digest of that digest, and so on."""
    digest = blake2b(key).digest()
    while True:
        yield from NUMBERS.unpack(digest)
        digest = blake2b(digest).digest()


class Draw:
    """Random choices. Equal keys give equal draws on every machine and Python version.

    Only integers are used, and no generator with slow seeding: each sentence needs a new seed.
    """

    __slots__ = ("_next",)

    def __init__(self, key: bytes) -> None:
        self._next = numbers(key).__next__

    def below(self, n: int) -> int:
        """One of 0 .. n - 1."""
        return self._next() * n >> 32

    def some(self, n: int, k: int) -> list[int]:
        """Draw k different numbers of 0 .. n - 1 in random order, by k steps of a Fisher-Yates shuffle."""
        return self._parted(n, k)[0]

    def sorted(self, n: int, k: int) -> list[int]:
        """Draw k different numbers of 0 .. n - 1 in ascending order; if 2 k > n, draw the excluded ones."""
        if 2 * k > n:
            return sorted(self._parted(n, n - k)[1])
        return sorted(self._parted(n, k)[0])

    def _parted(self, n: int, k: int) -> tuple[list[int], list[int]]:
        """The drawn numbers, and the others."""
        places, drawn, number = list(range(n)), [], self._next
        for left in range(n, n - k, -1):
            place = number() * left >> 32
            drawn.append(places[place])
            places[place] = places[left - 1]
        return drawn, places[: n - k]

    def spans(self, n: int, k: int, length: int) -> list[int]:
        """The starts of k disjoint spans in n places; all arrangements are equally likely.

        Each span is drawn as one place in a shorter row, and then expanded.
        """
        slots = self.sorted(n - k * (length - 1), k)
        return [slot + i * (length - 1) for i, slot in enumerate(slots)]
