"""Expansion of dataclasses of flags into parameters that typer understands."""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

from sentkit.flags.rules import Flags


def expand_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter that is a dataclass of flags by one parameter per flag.

    typer reads only the signature. When the command is called, the rules between its flags are checked, and
    the dataclasses are built again.
    """
    parameters: list[inspect.Parameter] = []
    records: dict[str, tuple[type, list[str]]] = {}
    for parameter in inspect.signature(command).parameters.values():
        record, *notes = parameter.annotation, *()
        if get_origin(record) is Annotated:
            record, *notes = get_args(record)
        if not is_dataclass(record):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        flags = list(_parameters_of(cast(type, record), notes))
        records[parameter.name] = cast(type, record), [flag.name for flag in flags]
        parameters += flags

    @functools.wraps(command)
    def run(**values: Any) -> None:
        Flags(parameters, values).check()
        for name, (record, flags) in records.items():
            values[name] = record(**{flag: values.pop(flag) for flag in flags})
        command(**values)

    del run.__wrapped__  # otherwise typer reads the parameters of the wrapped command
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _parameters_of(record: type, notes: list[Any]) -> Iterator[inspect.Parameter]:
    """The parameters of the fields of a record, each with the notes of the record."""
    hints = get_type_hints(record, include_extras=True)
    for each in fields(record):
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        annotation = Annotated[(hints[each.name], *notes)] if notes else hints[each.name]
        yield inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
