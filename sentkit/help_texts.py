"""The texts of the commands: `-h` with the most used flags, and `--help` with all flags."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WIDTH, NAMES = 80, 26  # columns of a line, and of the names of flags
HEADINGS = {  # heading -> flags of several commands below it; a flag in no list belongs to "Options"
    "Input": "field rejects from quoting columns queries",
    "Options": "",
    "Model": (
        "model readout template full-stop max-length prompt prompt-name normalize transform dim "
        "on-truncate window"
    ),
    "Output": "output force json replace vectors store width shard resume block-bytes reuse",
    "Run": "precision device threads batch-tokens dry-run deterministic quiet verbose",
}
HEADING_OF = {f"--{flag}": heading for heading, flags in HEADINGS.items() for flag in flags.split()}
MOST_USED = "Most used:"
PAGES = Path(__file__).parent / "pages"


@dataclass(frozen=True, slots=True)
class Help:
    """The text of a command."""

    summary: str
    examples: list[str] = field(default_factory=list)
    most_used: list[str] = field(default_factory=list)  # names of flags and arguments
    paragraphs: list[str] = field(default_factory=list)  # without line breaks, except lists
    sections: dict[str, list[str]] = field(default_factory=dict)  # only of the man page, by title


def help_of(name: str, summary: str) -> Help:
    """The docstring of a command, such as "sentkit whiten fit", and the file of its page.

    In the file, an indented paragraph keeps its lines, and "# TITLE" begins a section.
    """
    found, file = Help(summary.strip()), PAGES / f"{name.replace(' ', '-').removeprefix('sentkit-')}.txt"
    target = found.paragraphs
    for part in file.read_text().strip("\n").split("\n\n"):
        lines = textwrap.dedent(part).split("\n")
        if part.startswith("# "):
            target = found.sections[part[2:]] = []
        elif lines[0] == "Examples:":
            found.examples.extend(line.strip() for line in lines[1:])
        elif lines[0].startswith(MOST_USED):
            found.most_used.extend(" ".join(lines).removeprefix(MOST_USED).split())
        else:
            target.append(("\n" if part.startswith("  ") else " ").join(lines))
    return found


def parameters_of(command: Any) -> list[Any]:
    """The arguments and flags of a command, and at the end the flags that every command has."""
    return [*command.params, *getattr(command, "message_flags", ())]


def is_flag(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


def names_of(parameter: Any) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts] if is_flag(parameter) else [parameter.metavar]


def value_of(parameter: Any) -> str:
    """The name of the value of a flag, or its choices; empty for a switch and an argument."""
    if not is_flag(parameter) or parameter.type.name == "boolean":
        return ""
    return str(parameter.metavar or "|".join(map(str, getattr(parameter.type, "choices", ()))))


def meaning_of(parameter: Any) -> str:
    """The help text with the default of the flag."""
    default = parameter.default
    if parameter.required and is_flag(parameter):
        return f"{parameter.help} [required]"
    if default in (None, "") or isinstance(default, bool) or "[default:" in parameter.help:
        return str(parameter.help)
    return f"{parameter.help} [default: {default}]"


def short_help(path: str, command: Any) -> str:
    """The text of `-h`: a sentence, examples, the most used flags, and how to see more."""
    text = help_of(path, command.help)
    more = f"More: {path} --help, man {path.replace(' ', '-')}"
    if hasattr(command, "commands"):
        lines = [*opening(path, command, text)[:3], *list_of_commands(command, blank=[])]
        return "\n".join([*lines, f"Example: {text.examples[0]}", more])
    by_name = {name: each for each in parameters_of(command) for name in names_of(each)}
    flags = list_of_flags(map(by_name.__getitem__, text.most_used))
    lines = [*opening(path, command, text), "", MOST_USED, *flags]
    return "\n".join([*lines, "", more])


def long_help(path: str, command: Any, options: Sequence[Any]) -> str:
    """The text of `--help`: short prose, and all flags below headings."""
    text = help_of(path, command.help)
    lines = opening(path, command, text)
    for paragraph in text.paragraphs:
        filled = textwrap.wrap(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)
        lines += ["", *(paragraph.split("\n") if "\n" in paragraph else filled)]
    lines += list_of_commands(command, blank=[""]) if hasattr(command, "commands") else []
    by_heading: dict[str, list[Any]] = {heading: [] for heading in HEADINGS}
    for each in options:
        by_heading["Input" if not is_flag(each) else HEADING_OF.get(each.opts[-1], "Options")].append(each)
    for heading, flags in by_heading.items():
        lines += ["", f"{heading}:", *list_of_flags(flags)] if flags else []
    return "\n".join([*lines, "", f"Full manual: man {path.replace(' ', '-')}"])


def opening(path: str, command: Any, text: Help) -> list[str]:
    """The first lines of both texts."""
    arguments = "COMMAND" if hasattr(command, "commands") else ""
    arguments += " ".join(each.metavar for each in command.params if not is_flag(each))
    usage = f"Usage: {path} [OPTIONS] {arguments}".rstrip()
    return [usage, "", text.summary, "", "Examples:", *(f"  {line}" for line in text.examples)]


def list_of_flags(parameters: Iterable[Any]) -> Iterator[str]:
    """The names and the meaning of each flag in two columns."""
    words: Any = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": " " * NAMES}
    for each in parameters:
        names = " ".join(filter(None, ("  " + ", ".join(names_of(each)), value_of(each))))
        if len(names) + 2 > NAMES:
            yield names.ljust(NAMES)
            names = ""
        yield from textwrap.wrap(meaning_of(each), WIDTH, initial_indent=names.ljust(NAMES), **words)


def list_of_commands(group: Any, blank: list[str]) -> Iterator[str]:
    longest = max(map(len, group.commands))
    for heading, names in group.headings.items():
        yield from (*blank, f"{heading}:")
        for name in names:
            yield f"  {name.ljust(longest)}  {group.commands[name].help}"
