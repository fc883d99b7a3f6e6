"""The operations by name, with the parser and the default of their values, and chains of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from sentkit.augment import operations
from sentkit.augment.operations import (
    Changed,
    Draw,
    Note,
    Operation,
    Synonyms,
    parse_share,
    parse_spans,
)
from sentkit.errors import UsageError
from sentkit.flag_values import suggestion


@dataclass(frozen=True, slots=True)
class Kind:
    change: Callable[..., Changed] | None  # gets words, a draw, and an amount; None: another text
    parse: Callable[[str], Any] | None = None  # raises ValueError; None: no value allowed
    default: str | None = None
    marks: bool = False  # inserts --mark
    takes_all: bool = False  # needs all rows, and a value


# The default shares are those of the papers: CLEAR (arXiv:2012.15466), and ESimCSE
# (arXiv:2109.04380) for repeat.
OPERATIONS: Mapping[str, Kind] = {
    "delete": Kind(operations.delete, parse_share, "0.7", marks=True),
    "span-delete": Kind(operations.span_delete, parse_spans, "5x0.05", marks=True),
    "reorder": Kind(operations.reorder, parse_spans, "5x0.05"),
    "swap": Kind(operations.swap, parse_share),
    "synonym": Kind(operations.synonym, parse_share, "0.3"),
    "repeat": Kind(operations.repeat, parse_share, "0.32"),
    "negate": Kind(operations.negate, str),
    "lower": Kind(operations.lower),
    "no-punctuation": Kind(operations.no_punctuation),
    "paraphrase": Kind(None),
    "same-label": Kind(None, str, takes_all=True),
}
FLAGS = {  # a flag -> its operations
    "--synonyms": ("synonym",),
    "--paraphrases": ("paraphrase",),
    "--key": ("paraphrase",),
    "--mark": ("delete", "span-delete"),
}
REQUIRED = ("--synonyms", "--paraphrases")
FIXED = {"negate", "lower", "no-punctuation"}  # without random choices


@dataclass(frozen=True, slots=True)
class RequestedOperation:
    name: str
    value: Any = None  # None: no value

    @property
    def kind(self) -> Kind:
        return OPERATIONS[self.name]

    @property
    def field_name(self) -> str | None:
        """The field of the row that contains the replacement text, if the value names one."""
        if isinstance(self.value, str):
            return self.value
        return None

    def bind(self, mark: str | None, synonyms: Synonyms) -> tuple[Operation | None, Note]:
        """The change of a text, or None if another text replaces the sentence; and the note that is
        equal for all texts.
        """
        if self.field_name is not None:
            return None, {"from": self.field_name}
        note: Note = {}
        arguments: dict[str, Any] = {}
        if self.value is not None:
            note = self.value.note
            arguments["amount"] = self.value
        if self.kind.change is None:
            return None, note
        if self.name == "synonym":
            arguments["synonyms"] = synonyms
        if self.kind.marks and mark is not None:
            arguments["mark"] = mark
            note["mark"] = mark
        return partial(self.kind.change, **arguments), note


def parse_operations(written: Sequence[str]) -> list[RequestedOperation]:
    """Parse operations such as `delete=0.3`, in the order of their execution."""
    if not written:
        raise UsageError("--op is missing", advice=suggestion("", OPERATIONS))
    operations = [parse_operation(text) for text in written]
    for operation in operations[1:]:
        if operation.kind.change is None or operation.field_name is not None:
            problem = (
                f"--op {operation.name} replaces the whole sentence, so it has to be the first --op"
            )
            raise UsageError(problem)
    return operations


def parse_operation(written: str) -> RequestedOperation:
    name, equals, text = written.partition("=")
    kind = OPERATIONS.get(name)
    if kind is None:
        raise UsageError(
            f'--op "{written}": unknown operation "{name}"', advice=suggestion(name, OPERATIONS)
        )
    if kind.takes_all and not text:
        raise UsageError(f'--op "{written}": {name} needs a field, for example {name}=label')
    if not equals and kind.default is None:
        return RequestedOperation(name)
    if kind.parse is None:
        raise UsageError(f'--op "{written}": {name} accepts no value', advice=f"use --op {name}")
    value = kind.default
    if equals:
        value = text
    if not value:
        raise UsageError(f'--op "{written}": the value after = is missing')
    try:
        return RequestedOperation(name, kind.parse(value))
    except ValueError as error:
        example = f"{name}={kind.default or '0.1'}"
        raise UsageError(f'--op "{written}": {error}, for example {example}') from error


def check_flags(
    operations: Sequence[RequestedOperation], flags: Mapping[str, object], views: int
) -> None:
    """Refuse a missing flag that an operation requires, and a flag that no operation uses."""
    names = {operation.name for operation in operations}
    for flag, users in FLAGS.items():
        used = not names.isdisjoint(users)
        if used and flag in REQUIRED and flags[flag] is None:
            raise UsageError(f"--op {users[0]} needs {flag} FILE")
        if not used and flags[flag] is not None:
            raise UsageError(f"{flag} can be used only with --op {' or --op '.join(users)}")
    if views > 1 and names <= FIXED:
        problem = (
            f"--views {views}: no random choices in {' and '.join(sorted(names))}, so all "
            f"variants are equal"
        )
        raise UsageError(problem, advice="use --views 1")
    mark = flags["--mark"]
    if mark is not None and str(mark).split() != [mark]:
        raise UsageError(f'--mark "{mark}": expected a word without spaces')


class Chain:
    """Turns sentences into variants; counts the texts that each operation leaves unchanged."""

    def __init__(
        self,
        operations: Sequence[RequestedOperation],
        seed: int,
        mark: str | None,
        synonyms: Synonyms,
    ) -> None:
        self.steps = [(operation.name, *operation.bind(mark, synonyms)) for operation in operations]
        self.seed = seed
        self.texts = 0
        self.unchanged = [0] * len(operations)  # texts that an operation has not changed

    def vary(
        self,
        text: str,
        views: tuple[int, ...] = (0,),
        before: int = 0,
        candidates: Sequence[str] = (),
        excluded: int | None = None,
    ) -> tuple[str, list[Note]]:
        """Return the variant, and one note per operation.

        Draws depend only on the seed, the text, the numbers of its views (several if the text was
        varied before) and the number of the operation. `before` is the number of earlier
        operations. A step that replaces the text draws one of the `candidates`, except for that
        with the index `excluded`.
        """
        raw = text.encode()
        words: Sequence[str] = text.split()
        variant = text
        notes = []
        for number, (name, change, fixed_note) in enumerate(self.steps):
            draw = Draw(key_of(self.seed, views, before + number) + raw)
            previous = variant
            if change is None:
                count = len(candidates) - (excluded is not None)
                note: Note = {"number": None, "of": count}
                if count:
                    chosen = draw.below(count)
                    note["number"] = chosen
                    if excluded is not None and chosen >= excluded:
                        chosen += 1
                    variant = candidates[chosen]
                words = variant.split()
            else:
                changed, note = change(words, draw)
                if changed != words:
                    words = changed
                    variant = " ".join(changed)
            if variant == previous:
                self.unchanged[number] += 1
            notes.append({"op": name, **fixed_note, **note})
        self.texts += 1
        return variant, notes


@lru_cache
def key_of(seed: int, views: tuple[int, ...], number: int) -> bytes:
    return f"{seed}/{'.'.join(map(str, views))}/{number}:".encode()
