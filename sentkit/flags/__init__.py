"""Takes the values of a command line and returns records of flags; checks the rules between flags.

The docstring of a record of flags, that of a command below "Flags:", or SHARED lists the names of each flag,
the name of its value and its help. The field has the type, the default and the rules:

    --group NAME: With --gold: the field that names the group of a row.

    group: Annotated[str | None, Needs("--gold")] = None

A rule about flags that a command does not have is ignored, because several commands share flags. The name of
an argument is its metavar, such as TEXT.
`expand_flags` makes parameters of records of flags.
"""

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

from typer import Argument, Option

from sentkit.console import Console
from sentkit.errors import UsageError

Values = Mapping[str, Callable[..., Any]]
SHARED = """\
-o, --output PATH: Output path; '-' is stdout.
-f, --force: Overwrite an existing output.
--replace: Overwrite fields that a row already has.
--json: Print JSON even on a terminal.
--store: Numbers in a vector file; see sentkit-rows(5). [default: float32]
-m, --model MODEL: A folder, a hub name, NAME@REVISION, pkg:NAME, nano or static.
--readout READOUT: Vector of a text: cls, mean, max, L6:mean, ...; sentkit-encode(1) lists all. [default: as
    the checkpoint declares]
--max-length N: Truncate texts to N tokens, including special tokens.
--on-truncate: For too long texts: truncate and count them, or fail.
--normalize: Scale vectors to unit length.
--precision: auto: bf16 on a GPU that supports it well, else fp32.
--device auto|cpu|cuda[:N]: Device that runs the model. cuda was tested on one H200 with torch 2.11.
--threads N: CPU threads. [default: SENTKIT_THREADS, else all CPUs]
--metric: Similarity. The two distances are negated: larger is more similar.
--threshold X: Only pairs or hits with a similarity of at least X; without --top, all of them.
--seed N: Random seed.
"""  # flags of several commands
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


@dataclass(frozen=True)
class Named:
    """The name of the flag or argument in the docstring; without this note, it is that of the field."""

    name: str


@dataclass(frozen=True)
class Range:
    """The least and the largest number that a flag accepts."""

    min: float | None = None
    max: float | None = None


@dataclass(frozen=True)
class Variable:
    """The variable of the environment that replaces the default."""

    envvar: str


def excludes(*others: str, because: str = "") -> tuple[Excludes, ...]:
    return tuple(Excludes(other, because) for other in others)


class Flags:
    """The flags of a command by name, with their values."""

    def __init__(self, parameters: Sequence[inspect.Parameter], values: Mapping[str, Any]) -> None:
        self.values = values
        self.by_name = {name_of(each): each for each in parameters}

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
        """Raise a UsageError for a flag that breaks one of its rules, is empty, NaN or infinite."""
        for name in filter(self.given, self.by_name):
            parameter = self.by_name[name]
            value = self.values[parameter.name]
            values = value if isinstance(value, list) else [value]
            if "" in values and MAY_BE_EMPTY not in notes_of(parameter):
                raise UsageError(f'{name} "": the value is empty')
            if not all(math.isfinite(each) for each in values if isinstance(each, float)):
                raise UsageError(f"{name} {value}: expected a finite number")
            for rule in rules_of(parameter):
                holds, other = self.holds(rule.other), rule.other.replace("|", " or ")
                if isinstance(rule, Needs) and holds is False:
                    raise UsageError(f"{name} needs {other}")
                if isinstance(rule, Excludes) and holds:
                    raise UsageError(f"{name} cannot be used with {other}{rule.because}")


def notes_of(parameter: inspect.Parameter) -> Sequence[Any]:
    """The notes of a flag; a tuple is several notes."""
    notes = getattr(parameter.annotation, "__metadata__", ())
    return [each for note in notes for each in (note if isinstance(note, tuple) else (note,))]


def rules_of(parameter: inspect.Parameter) -> list[Needs | Excludes]:
    return [note for note in notes_of(parameter) if isinstance(note, Needs | Excludes)]


def name_of(parameter: inspect.Parameter) -> str:
    """The long name of a flag, as the user types it, or the metavar of an argument."""
    return next(each.name.strip("[].") for each in notes_of(parameter) if isinstance(each, Named))


def expand_flags(command: Callable[..., None], values: Values | None = None) -> Callable[..., None]:
    """Replace each parameter that is a dataclass of flags by one parameter per flag.

    `values` are the functions that list the values of a parameter for the completion, by its name.

    typer reads only the signature. When the command is called, the rules between its flags are checked, and
    the dataclasses are built again.
    """
    text, _, listed = inspect.cleandoc(command.__doc__ or "").partition("\nFlags:\n")
    parameters: list[inspect.Parameter] = []
    records: dict[str, tuple[Any, list[str]]] = {}
    for parameter in inspect.signature(command).parameters.values():
        if parameter.annotation is Console:  # the caller passes it
            continue
        if is_dataclass(record := parameter.annotation):
            flags = list(_parameters_of(record, values or {}))
            records[parameter.name] = record, [flag.name for flag in flags]
            parameters += flags
        else:
            parameters.append(_with_option(parameter, listed, values or {}))

    @functools.wraps(command)
    def run(console: Console, **values: Any) -> None:
        Flags(parameters, values).check()
        for name, (record, flags) in records.items():
            values[name] = record(**{flag: values.pop(flag) for flag in flags})
        command(console=console, **values)

    run.__doc__ = text.strip()
    del run.__wrapped__  # otherwise typer reads the parameters of the wrapped command
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _parameters_of(record: Any, values: Values) -> Iterator[inspect.Parameter]:
    """The parameters of the fields of a record."""
    hints = get_type_hints(record, include_extras=True)
    listed = "\n".join(inspect.cleandoc(each.__doc__ or "") for each in record.__mro__)
    for each in fields(record):
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        kind, hint = inspect.Parameter.KEYWORD_ONLY, hints[each.name]
        parameter = inspect.Parameter(each.name, kind, default=default, annotation=hint)
        yield _with_option(parameter, listed, values)


ENTRY = re.compile(r"^( *)((?:-\w, )?(\S+?))(?: (\S+))?: (.+(?:\n\1 +\S.*)*)", re.MULTILINE)


@functools.cache
def entries(listed: str) -> dict[str, re.Match[str]]:
    """The first entry of each flag in docstrings, with its further lines, by the name of the flag."""
    return {entry[3]: entry for entry in reversed([*ENTRY.finditer(listed)])}


def _with_option(parameter: inspect.Parameter, listed: str, values: Values) -> inspect.Parameter:
    """The parameter with its names and its help as a note: from `listed`, or else of a shared flag."""
    notes, name = notes_of(parameter), parameter.name.strip("_").replace("_", "-")
    name = f"--{name}" if name[1:] else f"-{name}"
    name = next((note.name for note in notes if isinstance(note, Named)), name)
    entry = (entries(SHARED) | entries(listed)).get(name)
    assert entry is not None, f"no docstring lists {name}"
    words: dict[str, Any] = {"metavar": entry[4], "help": " ".join(entry[5].split())}
    words["autocompletion"] = values.get(parameter.name)
    for note in notes:
        words |= vars(note) if isinstance(note, Range | Variable) else {}
    argument = not name.startswith("-")
    option = Argument(**words | {"metavar": name}) if argument else Option(*entry[2].split(", "), **words)
    parameter = parameter.replace(annotation=Annotated[parameter.annotation, Named(name), option])
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
