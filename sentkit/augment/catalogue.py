"""The operations by name, with the parser and the default of their values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sentkit.augment import negation, operations
from sentkit.augment.operations import (
    AppliedOperation,
    Operation,
    Synonyms,
    parse_share,
    parse_spans,
    synonym,
)
from sentkit.errors import UsageError
from sentkit.flag_values import suggestion


@dataclass(frozen=True, slots=True)
class Materials:
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
    takes_all: bool = False  # needs all rows, and a value


SAME_LABEL = "same-label"
# The default shares are those of the papers: CLEAR (arXiv:2012.15466), and ESimCSE (arXiv:2109.04380) for
# repeat.
OPERATIONS: Mapping[str, Kind] = {
    "delete": Kind(
        lambda share, more: partial(operations.delete, share=share, mark=more.mark),
        parse_share,
        "0.7",
        marks=True,
    ),
    "span-delete": Kind(
        lambda spans, more: partial(operations.span_delete, spans=spans, mark=more.mark),
        parse_spans,
        "5x0.05",
        marks=True,
    ),
    "reorder": Kind(lambda spans, more: partial(operations.reorder, spans=spans), parse_spans, "5x0.05"),
    "swap": Kind(lambda share, more: partial(operations.swap, share=share), parse_share),
    "synonym": Kind(
        lambda share, more: partial(synonym, share=share, synonyms=more.synonyms),
        parse_share,
        "0.3",
        needs="--synonyms",
    ),
    "repeat": Kind(lambda share, more: partial(operations.repeat, share=share), parse_share, "0.32"),
    "negate": Kind(
        lambda field_name, more: negation.negate if field_name is None else None, str, draws=False
    ),
    "lower": Kind(lambda _, more: operations.lower, draws=False),
    "no-punctuation": Kind(lambda _, more: operations.no_punctuation, draws=False),
    "paraphrase": Kind(lambda _, more: None, needs="--paraphrases", brings=True),
    SAME_LABEL: Kind(lambda field_name, more: None, str, brings=True, takes_all=True),
}


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

    def bind(self, materials: Materials) -> AppliedOperation:
        mark = {"mark": materials.mark} if self.kind.marks and materials.mark is not None else {}
        return AppliedOperation(self.name, self.kind.make(self.value, materials), {**self.note, **mark})


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
