"""The words of a command line that give the values of a record of flags."""

from collections.abc import Collection
from dataclasses import fields
from typing import Any, get_type_hints

from typer.models import OptionInfo


def words_of(flags: Any, but: Collection[str] = ()) -> list[str]:
    """The options that differ from their defaults, in the order of the fields, except the fields `but`."""
    hints, words = get_type_hints(type(flags), include_extras=True), list[str]()
    for each in fields(flags):
        value = getattr(flags, each.name)
        if each.name in but or value == each.default:
            continue
        [option] = (note for note in hints[each.name].__metadata__ if isinstance(note, OptionInfo))
        names = option.param_decls or (f"--{each.name.strip('_').replace('_', '-')}",)
        name = next(name for name in names if name.startswith("--"))
        if value is True:
            words.append(name)
            continue
        for one in value if isinstance(value, list) else [value]:
            words += [f"{name}={one}"] if str(one).startswith("-") else [name, str(one)]
    return words
