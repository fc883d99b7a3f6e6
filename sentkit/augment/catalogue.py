"""The operations by name, with the parser and the default of their values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any

from sentkit.augment import case_and_punctuation, deletion, negation, order, repetition
from sentkit.augment.shares import parse_share, parse_spans
from sentkit.augment.steps import Operation, Step
from sentkit.augment.synonyms import Synonyms, synonym
from sentkit.errors import UsageError

CLOSE = 0.5


@dataclass(frozen=True, slots=True)
class Materials:
    """Inputs of operations besides the text."""

    mark: str | None = None
    synonyms: Synonyms = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kind:
    make: Callable[[Any, Materials], Operation | None]
    parse: Callable[[str], Any] | None = None  # raises ValueError; None: no value allowed
    default: str | None = None
    needs: str | None = None  # a required flag
    marks: bool = False  # inserts --mark
    draws: bool = True  # different views may give different variants
    brings: bool = False  # replaces the text, instead of changing its words


# The default shares are those of the papers: CLEAR (arXiv:2012.15466), and ESimCSE (arXiv:2109.04380) for
# repeat.
OPERATIONS: Mapping[str, Kind] = {
    "delete": Kind(
        lambda share, more: partial(deletion.delete, share=share, mark=more.mark),
        parse_share,
        "0.7",
        marks=True,
    ),
    "span-delete": Kind(
        lambda spans, more: partial(deletion.span_delete, spans=spans, mark=more.mark),
        parse_spans,
        "5x0.05",
        marks=True,
    ),
    "reorder": Kind(lambda spans, more: partial(order.reorder, spans=spans), parse_spans, "5x0.05"),
    "swap": Kind(lambda share, more: partial(order.swap, share=share), parse_share),
    "synonym": Kind(
        lambda share, more: partial(synonym, share=share, synonyms=more.synonyms),
        parse_share,
        "0.3",
        needs="--synonyms",
    ),
    "repeat": Kind(lambda share, more: partial(repetition.repeat, share=share), parse_share, "0.32"),
    "negate": Kind(lambda member, more: negation.negate if member is None else None, str, draws=False),
    "lower": Kind(lambda _, more: case_and_punctuation.lower, draws=False),
    "no-punctuation": Kind(lambda _, more: case_and_punctuation.no_punctuation, draws=False),
    "paraphrase": Kind(lambda _, more: None, needs="--paraphrases", brings=True),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """An operation with its value, from the command line."""

    name: str
    value: Any = None  # None: no value

    @property
    def kind(self) -> Kind:
        return OPERATIONS[self.name]

    @property
    def member(self) -> str | None:
        """The field of the row that contains the replacement text, if the value names one."""
        return self.value if isinstance(self.value, str) else None

    @property
    def brings_text(self) -> bool:
        return self.kind.brings or self.member is not None

    @property
    def note(self) -> Mapping[str, Any]:
        if self.member is not None:
            return {"from": self.member}
        return {} if self.value is None else self.value.note

    def step(self, materials: Materials) -> Step:
        mark = {"mark": materials.mark} if self.kind.marks and materials.mark is not None else {}
        return Step(self.name, self.kind.make(self.value, materials), {**self.note, **mark})


def parse_operations(written: Sequence[str]) -> list[Wanted]:
    """Parse operations such as `delete=0.3`, in the order of their execution."""
    if not written:
        raise UsageError("no --op says what is to be done", advice=f"there are: {', '.join(OPERATIONS)}")
    wanted = [parse_operation(each) for each in written]
    for each in wanted[1:]:
        if each.brings_text:
            raise UsageError(
                f"--op {each.name} puts another text in the place of the sentence: it can only come first"
            )
    return wanted


def parse_operation(written: str) -> Wanted:
    name, equals, text = written.partition("=")
    kind = OPERATIONS.get(name)
    if kind is None:
        raise UsageError(f'--op "{written}": no operation "{name}"', advice=nearest(name))
    if not equals and kind.default is None:
        return Wanted(name)
    if kind.parse is None:
        raise UsageError(f'--op "{written}": {name} takes no value')
    value = text if equals else kind.default
    try:
        if not value:
            raise ValueError("no value behind the =")
        return Wanted(name, kind.parse(value))
    except ValueError as error:
        example = f", for example {name}={kind.default or '0.1'}" if kind.parse is not str else ""
        raise UsageError(f'--op "{written}": {error}{example}') from error


def is_word(text: str) -> bool:
    return text.isprintable() and text.split() == [text]


def nearest(name: str) -> str:
    close = get_close_matches(name, OPERATIONS, n=1, cutoff=CLOSE)
    return f'did you mean "{close[0]}"?' if close else f"there are: {', '.join(OPERATIONS)}"


def check_flags(wanted: Sequence[Wanted], given: Mapping[str, object], views: int = 1) -> None:
    """Refuse a missing flag that an operation requires, and a flag that no operation uses."""
    needed = {each.kind.needs for each in wanted}
    for name, kind in OPERATIONS.items():
        if kind.needs is None:
            continue
        if kind.needs in needed and given[kind.needs] is None:
            raise UsageError(f"--op {name} needs {kind.needs} FILE")
        if kind.needs not in needed and given[kind.needs] is not None:
            raise UsageError(f"{kind.needs} belongs to --op {name}")
    if given["--key"] is not None and "--paraphrases" not in needed:
        raise UsageError("--key belongs to --op paraphrase")
    if views > 1 and not any(each.kind.draws for each in wanted):
        names = " and ".join(dict.fromkeys(each.name for each in wanted))
        raise UsageError(f"--views {views}: all would be alike, for {names} draws nothing")
    check_mark(wanted, given["--mark"])


def check_mark(wanted: Sequence[Wanted], mark: object) -> None:
    if mark is not None and not any(each.kind.marks for each in wanted):
        raise UsageError("--mark belongs to --op delete and --op span-delete")
    if mark is not None and not is_word(str(mark)):
        raise UsageError(f'--mark "{mark}": expected a word without blanks')
