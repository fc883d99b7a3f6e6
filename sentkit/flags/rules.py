"""Rules between the flags of a command, as notes on the flags, and the one function that checks them.

    group: Annotated[str | None, typer.Option(help=...), Needs("--gold")] = None

A note on a record of flags is a rule for each of its flags. A rule about flags that a command does not have
is ignored, because several commands share flags. The name of an argument is its metavar, such as TEXT.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typer.models import ArgumentInfo, OptionInfo

from sentkit.errors import UsageError

MAY_BE_EMPTY = "may be empty"  # a note: an empty text is a value of the flag


@dataclass(frozen=True)
class Needs:
    """The flag is used only together with `other`: a flag, or a flag and its values, as "--kind ica|flow"."""

    other: str


@dataclass(frozen=True)
class Excludes:
    """The flag is not used together with `other`."""

    other: str
    because: str = ""  # the end of the message


def excludes(*others: str, because: str = "") -> tuple[Excludes, ...]:
    return tuple(Excludes(other, because) for other in others)


class Flags:
    """The flags of a command by name, with their values."""

    def __init__(self, parameters: Sequence[inspect.Parameter], values: Mapping[str, Any]) -> None:
        self.values = values
        self.by_name = {name: each for each in parameters if (name := name_of(each)) is not None}

    def given(self, name: str) -> bool:
        parameter = self.by_name[name]
        value = self.values[parameter.name]
        return value != parameter.default and value is not None and value is not False and value != []

    def holds(self, condition: str) -> bool | None:
        """Whether a flag is given, or has one of some values; None if the command does not have it.

        "--describe or --centroids" is true if one of them is given.
        """
        if " or " in condition:
            return any(self.holds(each) for each in condition.split(" or "))
        name, _, wanted = condition.partition(" ")
        if name not in self.by_name:
            return None
        return str(self.values[self.by_name[name].name]) in wanted.split("|") if wanted else self.given(name)

    def check(self) -> None:
        """Raise a UsageError for the first given flag that breaks one of its rules, or has an empty value."""
        for name, parameter in self.by_name.items():
            if self.given(name):
                for problem in self.problems(name, parameter):
                    raise UsageError(problem)

    def problems(self, name: str, parameter: inspect.Parameter) -> Iterator[str]:
        value = self.values[parameter.name]
        empty = "" in (value if isinstance(value, list) else [value])
        if empty and MAY_BE_EMPTY not in notes_of(parameter):
            yield f'{name} "": the value is empty'
        for rule in rules_of(parameter):
            holds = self.holds(rule.other)
            if isinstance(rule, Needs) and holds is False:
                yield f"{name} needs {rule.other.replace('|', ' or ')}"
            elif isinstance(rule, Excludes) and holds:
                yield f"{name} cannot be used with {rule.other.replace('|', ' or ')}{rule.because}"


def notes_of(parameter: inspect.Parameter) -> Sequence[Any]:
    """The notes of a flag; a tuple is several notes."""
    notes = getattr(parameter.annotation, "__metadata__", ())
    return [each for note in notes for each in (note if isinstance(note, tuple) else (note,))]


def rules_of(parameter: inspect.Parameter) -> list[Needs | Excludes]:
    return [note for note in notes_of(parameter) if isinstance(note, Needs | Excludes)]


def name_of(parameter: inspect.Parameter) -> str | None:
    """The long name of a flag, as the user types it, or the metavar of an argument; None if it is neither."""
    info = next((note for note in notes_of(parameter) if isinstance(note, OptionInfo | ArgumentInfo)), None)
    if info is None:
        return None
    if isinstance(info, ArgumentInfo):
        return str(info.metavar).strip("[].")
    words = [info.default, *(info.param_decls or ())]  # typer has the first name as default
    names = [word for word in words if isinstance(word, str) and word.startswith("-")]
    names = names or [f"--{parameter.name.replace('_', '-')}"]
    return next((name for name in names if name.startswith("--")), names[0])
