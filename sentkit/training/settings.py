"""Settings: the name, the default, the source of the default and the valid values. No torch."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from functools import partial
from itertools import product
from types import NoneType
from typing import Any, TypeVar, get_args

from sentkit.errors import UsageError
from sentkit.flag_values import assignment, suggestion

S = TypeVar("S")

WORDS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
KINDS = {int: "a whole number", float: "a number", bool: "on or off", str: "a word"}
AS_BASE = "base"  # value of the setting `readout`: use the base's readout


@dataclass(frozen=True, slots=True)
class Note:
    """Meaning and limits of a setting. The meaning is empty if a method only changes the default."""

    source: str
    meaning: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()

    def refusal(self, value: Any) -> str | None:
        """Return the reason why a value is out of range, or None."""
        if self.choices and value not in self.choices:
            return f"available: {', '.join(self.choices)}"
        if self.least is not None and not value >= self.least:
            return f"expected {self.least:g} or more"
        if self.above is not None and not value > self.above:
            return f"expected more than {self.above:g}"
        if self.most is not None and not value <= self.most:
            return f"expected {self.most:g} or less"
        return None


def declare(source: str, default: Any, meaning: str = "", **limits: Any) -> Any:
    """Declare a setting and the source of its default."""
    return field(default=default, metadata={"note": Note(source, meaning, **limits)})


paper = partial(declare, "paper")
released = partial(declare, "released code")  # for a value that the paper omits
ours = partial(declare, "our choice")  # for a value that neither the paper nor its code states


@dataclass(frozen=True, slots=True)
class Usual:
    """The readout for a base that declares none."""

    name: str
    of_paper: bool  # if true, a preset fixes it


def readout(usual: str, *, of_paper: bool = True, **limits: Any) -> Any:
    """Declare the setting `readout`. Its default is the readout of the base."""
    where = " as in the paper" if of_paper else ""
    meaning = f"how a text becomes a vector; base: as the base declares, else {usual}{where}"
    note = Note("our choice", meaning, **limits)
    return field(default=AS_BASE, metadata={"note": note, "usual": Usual(usual, of_paper)})


def with_readout_of_base(settings: S, declared: str | None) -> S:
    """Fill in the settings that follow the readout of the base, if it is one of their choices `of_base`."""
    values = {}
    for each in fields(settings):  # type: ignore[arg-type]
        choices = each.metadata.get("of_base")
        if choices and getattr(settings, each.name) == AS_BASE:
            values[each.name] = declared if declared in choices else choices[0]
    return replace(settings, **values)  # type: ignore[type-var]


def usual_readout(kind: type) -> Usual:
    usual: Usual = kind.__dataclass_fields__["readout"].metadata["usual"]  # type: ignore[attr-defined]
    return usual


def chosen_readout(settings: Any) -> str:
    """Return the setting `readout`. Replace `base` by the method's usual readout."""
    name: str = settings.readout
    return usual_readout(type(settings)).name if name == AS_BASE else name


def changes_of(kind: type, preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a preset. Presets reproduce a paper, so they include the paper's readout."""
    usual = usual_readout(kind) if "readout" in kind.__dataclass_fields__ else None  # type: ignore[attr-defined]
    return {**({"readout": usual.name} if usual is not None and usual.of_paper else {}), **preset}


def notes(kind: type) -> dict[str, Note]:
    """Return the note of each setting.

    The source is that of the last class. The meaning and limits are from the last class with a meaning.
    """
    merged: dict[str, Note] = {}
    for each in filter(is_dataclass, reversed(kind.__mro__)):
        for one in fields(each):
            note = one.metadata["note"]
            rule = note if note.meaning else merged[one.name]
            merged[one.name] = replace(rule, source=note.source)
    return merged


def build(
    kind: type[S], presets: Mapping[str, Mapping[str, Any]], preset: str | None, assignments: Sequence[str]
) -> S:
    """Return the defaults, changed by the preset and then by each `name=value`. The last value wins."""
    if preset is not None and preset not in presets:
        raise UsageError(f'unknown preset "{preset}"', advice=f"available: {', '.join(presets) or 'none'}")
    changes = changes_of(kind, presets[preset]) if preset else {}
    return kind(**changes | parsed(kind, assignments))


def combinations(kind: type, assignments: Mapping[str, str]) -> list[dict[str, str]]:
    """Return each combination of values of the settings with a list; the last setting varies fastest.

    A comma separates numbers, `on` and `off`, words with choices, and readouts. In another text, and in a
    readout that is a list by default, it is part of the value.
    """
    rules, several = notes(kind), dict[str, list[str]]()
    known: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}
    for name, text in assignments.items():
        if "," not in text or name not in known:
            continue
        usual, of = known[name].metadata.get("usual"), known[name].type
        listed = rules[name].choices or (usual is not None and "," not in usual.name)
        if listed or str not in (get_args(of) or (of,)):
            words = dict[Any, str]()
            for word in map(str.strip, text.split(",")):
                words.setdefault(value_of(name, of, word), word)
            several[name] = [*words.values()]
    return [dict(zip(several, words, strict=True)) for words in product(*several.values())]


def parsed(kind: type, assignments: Iterable[str]) -> dict[str, Any]:
    known: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}
    rules, values = notes(kind), dict[str, Any]()
    for name, text in map(assignment, assignments):
        if name not in known:
            raise UsageError(f'unknown setting "{name}"', advice=suggestion(name, known))
        values[name] = value_of(name, known[name].type, text)
        refusal = None if values[name] is None else rules[name].refusal(values[name])
        if refusal:
            raise UsageError(f"{name}={text}: {refusal}")
    return values


def value_of(name: str, kind: Any, text: str) -> Any:
    """Convert a text to the type of the setting. `none` is valid for optional settings."""
    either = get_args(kind)
    if NoneType in either:
        if text.lower() == "none":
            return None
        kind = next(each for each in either if each is not NoneType)
    try:
        value = WORDS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError) as error:
        raise UsageError(f'{name}: "{text}" is not {KINDS[kind]}') from error
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f'{name}: "{text}" is not {KINDS[kind]}')
    return value


def refuse_idle(settings: Any, names: Collection[str], because: str) -> None:
    """Raise a UsageError if one of these settings is changed, because it has no effect here."""
    for each in fields(settings):
        if each.name in names and getattr(settings, each.name) != each.default:
            # A preset may have changed the setting. The user must then set it back to the default.
            advice = f"use the default {each.name}={format_value(each.default)}"
            raise UsageError(f"{each.name} has no effect with {because}", advice=advice)


def limits(note: Note) -> str:
    """Return the valid values of a setting as text."""
    words = [
        ", ".join(note.choices),
        "" if note.least is None else f"{note.least:g} or more",
        "" if note.above is None else f"over {note.above:g}",
        "" if note.most is None else f"at most {note.most:g}",
    ]
    return ", ".join(filter(None, words))


def format_value(value: Any) -> str:
    """Format a value in the syntax of `--set`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the fields that differ between two records, as `name (ours, was theirs)`."""
    names = dict.fromkeys([*theirs, *ours])
    return [
        f"{name} ({format_value(ours.get(name))}, was {format_value(theirs.get(name))})"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]


def described(kind: type, presets: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return each setting with default, meaning, limits and source, and then the presets."""
    rules, lines = notes(kind), []
    for each in fields(kind):
        words = "; ".join(filter(None, (rules[each.name].meaning, limits(rules[each.name]))))
        lines.append((f"{each.name}={format_value(each.default)}", f"{words} [{rules[each.name].source}]"))
    for name, preset in presets.items():
        changes = " ".join(f"{one}={format_value(value)}" for one, value in changes_of(kind, preset).items())
        lines.append((f"--preset {name}", changes or "the defaults"))
    return lines
