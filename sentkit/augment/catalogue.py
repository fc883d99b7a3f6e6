"""The operations by name, with the parser and the default of their values, and chains of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from sentkit.augment import operations
from sentkit.augment.operations import Changed, Draw, Note, Operation, Synonyms, parse_share, parse_spans
from sentkit.errors import UsageError
from sentkit.flag_values import suggestion


@dataclass(frozen=True, slots=True)
class Kind:
    work: Callable[..., Changed] | None  # gets words, a draw, and a share or spans; None: see `brings`
    parse: Callable[[str], Any] | None = None  # raises ValueError; None: no value allowed
    default: str | None = None
    needs: str | None = None  # a required flag
    marks: bool = False  # inserts --mark
    draws: bool = True  # different views may give different variants
    brings: bool = False  # replaces the text, instead of changing its words
    takes_all: bool = False  # needs all rows, and a value


SAME_LABEL = "same-label"
VALUES: Mapping[Any, str] = {parse_share: "share", parse_spans: "spans"}  # parser -> parameter of `work`
# The default shares are those of the papers: CLEAR (arXiv:2012.15466), and ESimCSE (arXiv:2109.04380) for
# repeat.
OPERATIONS: Mapping[str, Kind] = {
    "delete": Kind(operations.delete, parse_share, "0.7", marks=True),
    "span-delete": Kind(operations.span_delete, parse_spans, "5x0.05", marks=True),
    "reorder": Kind(operations.reorder, parse_spans, "5x0.05"),
    "swap": Kind(operations.swap, parse_share),
    "synonym": Kind(operations.synonym, parse_share, "0.3", needs="--synonyms"),
    "repeat": Kind(operations.repeat, parse_share, "0.32"),
    "negate": Kind(operations.negate, str, draws=False),
    "lower": Kind(operations.lower, draws=False),
    "no-punctuation": Kind(operations.no_punctuation, draws=False),
    "paraphrase": Kind(None, needs="--paraphrases", brings=True),
    SAME_LABEL: Kind(None, str, brings=True, takes_all=True),
}


@dataclass(frozen=True, slots=True)
class AppliedOperation:
    name: str
    work: Operation | None  # None: another text replaces the sentence
    note: Mapping[str, Any] = field(default_factory=dict)  # the fields that are equal for all texts


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
        return self.value if isinstance(self.value, str) else None

    @property
    def brings_text(self) -> bool:
        return self.kind.brings or self.field_name is not None

    @property
    def note(self) -> Mapping[str, Any]:
        if self.field_name is not None:
            return {"from": self.field_name}
        return {} if self.value is None else self.value.note

    def bind(self, mark: str | None, synonyms: Synonyms) -> AppliedOperation:
        kind, more = self.kind, dict[str, Any]()
        if kind.marks:
            more["mark"] = mark
        if kind.needs == "--synonyms":
            more["synonyms"] = synonyms
        if kind.parse in VALUES:
            more[VALUES[kind.parse]] = self.value
        work = None if kind.work is None or self.brings_text else partial(kind.work, **more)
        note = {"mark": mark} if kind.marks and mark is not None else {}
        return AppliedOperation(self.name, work, {**self.note, **note})


def parse_operations(written: Sequence[str]) -> list[RequestedOperation]:
    """Parse operations such as `delete=0.3`, in the order of their execution."""
    if not written:
        raise UsageError("--op is missing", advice=suggestion("", OPERATIONS))
    operations = [parse_operation(each) for each in written]
    for each in operations[1:]:
        if each.brings_text:
            raise UsageError(f"--op {each.name} replaces the whole sentence, so it has to be the first --op")
    return operations


def parse_operation(written: str) -> RequestedOperation:
    name, equals, text = written.partition("=")
    kind = OPERATIONS.get(name)
    if kind is None:
        raise UsageError(f'--op "{written}": unknown operation "{name}"', advice=suggestion(name, OPERATIONS))
    if kind.takes_all and not text:
        raise UsageError(f'--op "{written}": {name} needs a field, for example {name}=label')
    if not equals and kind.default is None:
        return RequestedOperation(name)
    if kind.parse is None:
        raise UsageError(f'--op "{written}": {name} accepts no value', advice=f"use --op {name}")
    value = text if equals else kind.default
    if not value:
        raise UsageError(f'--op "{written}": the value after = is missing')
    try:
        return RequestedOperation(name, kind.parse(value))
    except ValueError as error:
        example = f"{name}={kind.default or '0.1'}"
        raise UsageError(f'--op "{written}": {error}, for example {example}') from error


def check_flags(
    operations: Sequence[RequestedOperation], given: Mapping[str, object], views: int = 1
) -> None:
    """Refuse a missing flag that an operation requires, and a flag that no operation uses."""
    needed = {each.kind.needs for each in operations}
    for name, kind in OPERATIONS.items():
        if kind.needs is None:
            continue
        if kind.needs in needed and given[kind.needs] is None:
            raise UsageError(f"--op {name} needs {kind.needs} FILE")
        if kind.needs not in needed and given[kind.needs] is not None:
            raise UsageError(f"{kind.needs} can be used only with --op {name}")
    if given["--key"] is not None and "--paraphrases" not in needed:
        raise UsageError("--key can be used only with --op paraphrase")
    if views > 1 and not any(each.kind.draws for each in operations):
        names = " and ".join(dict.fromkeys(each.name for each in operations))
        problem = f"--views {views}: no random choices in {names}, so all variants are equal"
        raise UsageError(problem, advice="use --views 1")
    mark = given["--mark"]
    if mark is not None and not any(each.kind.marks for each in operations):
        raise UsageError("--mark can be used only with --op delete or --op span-delete")
    if mark is not None and not (str(mark).isprintable() and str(mark).split() == [mark]):
        raise UsageError(f'--mark "{mark}": expected a word without spaces')


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
