"""Rows -> what a method learns from: texts, and with some a label or a score."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sentkit.formats.rows.kinds import ENTRY, PAIR, Kind, filled, scored, wrong_member
from sentkit.formats.rows.rows import Row


class Target(Protocol):
    """What is to be told of a row's texts, as a number."""

    @property
    def why(self) -> str:
        """For what a row is left out."""
        ...

    def __call__(self, row: Row, name: str) -> float | None:
        """Of the member of that name; None for a row to be left out."""
        ...


@dataclass(frozen=True, slots=True)
class Labels:
    """The member "label", a word; a word with no number is known, and its row is left out."""

    numbers: Mapping[str, int | None]
    why: str = "for their label"

    def __call__(self, row: Row, name: str) -> float | None:
        value = row.values.get(name)
        if not isinstance(value, str):
            raise wrong_member(row, name, "a string")
        if value not in self.numbers:
            known = ", ".join(f'"{word}"' for word in self.numbers)
            raise row.error(f'"{name}" is "{value[:40]}"', advice=f"there are: {known}")
        number = self.numbers[value]
        return None if number is None else float(number)


@dataclass(frozen=True, slots=True)
class Scores:
    """The member "score", a number, of which the setting `scale` may be the greatest size."""

    limit: float | None = None
    why: str = "for having no score"

    def __call__(self, row: Row, name: str) -> float | None:
        value = scored(row, name)
        if value is not None and self.limit is not None and abs(value) > self.limit:
            problem = f'"{name}" is {value:g}, over the scale of {self.limit:g}'
            raise row.error(f"{problem}: --set scale={abs(value):g}")
        return None if value is None else float(value)


@dataclass(frozen=True, slots=True)
class Places:
    """The member "entry", a name that stands among these."""

    places: Mapping[str, int]
    source: str
    why: str = ""  # none is

    def __call__(self, row: Row, name: str) -> float | None:
        word = filled(row, name)
        if word not in self.places:
            problem = f'the entry "{word:.80}" is not in {self.source}'
            raise row.error(problem, advice="build it from these rows, or use --on-error skip")
        return float(self.places[word])


@dataclass(slots=True)
class Words:
    """The member "entry", a word that is one token, told by its number; other rows are left out."""

    number_of: Callable[[str], int | None]
    held_out: Callable[[str], bool]
    unknown: int = 0  # rows, so far
    kept_back: int = 0

    @property
    def why(self) -> str:
        return f"for their entry: {self.unknown} for not being one token, {self.kept_back} for being held out"

    def __call__(self, row: Row, name: str) -> float | None:
        word = filled(row, name)
        number = self.number_of(word)
        self.unknown += number is None
        held_out = number is not None and self.held_out(word)
        self.kept_back += held_out
        return None if number is None or held_out else float(number)


SAID_OF_PAIRS = ("label", "score")  # members that tell how its two texts go together
NLI = {"contradiction": 0, "entailment": 1, "neutral": 2}


@dataclass(frozen=True, slots=True)
class Reads:
    """The kinds of rows a method takes, and the member that it learns to tell."""

    kinds: tuple[Kind, ...]
    member: str | None = None
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Example:
    row: Row
    texts: tuple[str, ...]
    target: float | None


class ExampleParser:
    """Rows -> examples. The first row says which of the kinds it is; None for a row to be left out."""

    def __init__(self, method: str, reads: Reads, fields: Mapping[str, str]) -> None:
        self.method, self.reads, self.fields = method, reads, fields
        self.kind: Kind | None = None
        self.unread: tuple[str, ...] = ()  # what the first row says of its pair, and is not learned

    def __call__(self, row: Row) -> Example | None:
        if self.kind is None:
            self.kind = self._kind_of(row)
            self.unread = self._unread_of(row)
        row.check_names()
        texts = tuple(self._text(row, self._theirs(name)) for name in self.kind.texts)
        if self.reads.target is None or self.reads.member is None:
            return Example(row, texts, None)
        target = self.reads.target(row, self._theirs(self.reads.member))
        return None if target is None else Example(row, texts, target)

    def _theirs(self, name: str) -> str:
        return self.fields.get(name, name)

    def _kind_of(self, row: Row) -> Kind:
        # A kind that a --field speaks of is the one that is meant.
        meant = sorted(self.reads.kinds, key=lambda kind: not self.fields.keys() & set(kind.texts))
        for kind in meant:
            if all(self._theirs(name) in row.values for name in kind.texts):
                return kind
        wants = ", or ".join(self._quoted_texts(kind) for kind in meant)
        has = quoted(list(row.values)[:8], "nothing")
        raise row.error(
            f"{self.method} needs {wants}; this row has {has}",
            advice="say which member is meant, for example --field text=title",
        )

    def _quoted_texts(self, kind: Kind) -> str:
        """`"anchor" (here "query") and "positive"`."""
        names = [f'"{name}"' for name in kind.texts]
        for place, name in enumerate(kind.texts):
            if self._theirs(name) != name:
                names[place] += f' (here "{self._theirs(name)}")'
        return listed(names)

    def _unread_of(self, row: Row) -> tuple[str, ...]:
        if self.kind is not PAIR or self.reads.member is not None:
            return ()
        return tuple(name for name in map(self._theirs, SAID_OF_PAIRS) if name in row.values)

    def _text(self, row: Row, name: str) -> str:
        if self.kind is ENTRY:
            return filled(row, name)
        value = row.values.get(name)
        if not isinstance(value, str):
            raise wrong_member(row, name, "a string")
        return value


def quoted(names: list[str], none: str = "") -> str:
    """`"text_a" and "text_b"`."""
    return listed([f'"{name}"' for name in names]) or none


def listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
