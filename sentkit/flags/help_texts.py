"""The texts of the commands: `-h` with the most used flags, and `--help` with all flags."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WIDTH = 80  # columns of a line
NAME_COLUMN = 26  # columns of the names of flags
# heading -> flags of several commands below it; a flag in no list belongs to "Options"
HEADINGS = {
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
PAGES = Path(__file__).parent.parent / "pages"


@dataclass(frozen=True, slots=True)
class Help:
    """The text of a command."""

    summary: str
    examples: list[str] = field(default_factory=list)
    most_used: list[str] = field(default_factory=list)  # names of flags and arguments
    paragraphs: list[str] = field(default_factory=list)  # without line breaks, except lists
    sections: dict[str, list[str]] = field(default_factory=dict)  # only of the man page, by title


def help_of(name: str, docstring: str) -> Help:
    """The text of a command, such as "sentkit whiten fit".

    The first paragraph of the docstring is its summary. The file of its page has the rest; without
    this file, the docstring has it. In it, "Examples:" and "Most used:" begin paragraphs for `-h`,
    an indented paragraph keeps its lines, and "# TITLE" begins a section.
    """
    summary, _, rest = docstring.strip().partition("\n\n")
    file = PAGES / f"{name.replace(' ', '-').removeprefix('sentkit-')}.txt"
    if file.exists():
        rest = file.read_text()
    text = Help(summary)
    paragraphs = text.paragraphs  # that the next paragraph joins; a section has its own
    for paragraph in rest.strip("\n").split("\n\n"):
        lines = textwrap.dedent(paragraph).split("\n")
        if paragraph.startswith("# "):
            # The paragraphs after it belong to this section.
            title = paragraph.removeprefix("# ")
            text.sections[title] = []
            paragraphs = text.sections[title]
        elif lines[0] == "Examples:":
            text.examples.extend(line.strip() for line in lines[1:])
        elif lines[0].startswith(MOST_USED):
            text.most_used.extend(" ".join(lines).removeprefix(MOST_USED).split())
        elif paragraph.startswith("  "):
            paragraphs.append("\n".join(lines))
        else:
            paragraphs.append(" ".join(lines))
    return text


def summary_of(command: Any) -> str:
    """The first paragraph of the docstring of a command or group."""
    summary, _, _ = command.help.partition("\n\n")
    return str(summary)


def parameters_of(command: Any) -> list[Any]:
    """The arguments and flags of a command, and at the end the flags that every command has."""
    return [*command.params, *getattr(command, "message_flags", ())]


def is_flag(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


def names_of(parameter: Any) -> list[str]:
    return (
        [*parameter.opts, *parameter.secondary_opts] if is_flag(parameter) else [parameter.metavar]
    )


def value_of(parameter: Any) -> str:
    """The name of the value of a flag, or its choices; empty for a switch and an argument."""
    if not is_flag(parameter) or parameter.type.name == "boolean":
        return ""
    if parameter.metavar:
        return str(parameter.metavar)
    return "|".join(getattr(parameter.type, "choices", ()))


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
    lines = opening(path, command, text)
    if hasattr(command, "commands"):
        usage_and_summary = lines[:3]
        example = f"Example: {text.examples[0]}"
        return "\n".join([*usage_and_summary, *list_of_commands(command, blank=[]), example, more])
    by_name = {
        name: parameter for parameter in parameters_of(command) for name in names_of(parameter)
    }
    most_used = [by_name[name] for name in text.most_used]
    return "\n".join([*lines, "", MOST_USED, *list_of_flags(most_used), "", more])


def long_help(path: str, command: Any, options: Sequence[Any]) -> str:
    """The text of `--help`: short prose, and all flags below headings."""
    text = help_of(path, command.help)
    lines = opening(path, command, text)
    for paragraph in text.paragraphs:
        lines.append("")
        if "\n" in paragraph:
            lines += paragraph.split("\n")
        else:
            lines += textwrap.wrap(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)
    if hasattr(command, "commands"):
        lines += list_of_commands(command, blank=[""])

    by_heading: dict[str, list[Any]] = {heading: [] for heading in HEADINGS}
    for option in options:
        heading = HEADING_OF.get(option.opts[-1], "Options") if is_flag(option) else "Input"
        by_heading[heading].append(option)
    for heading, flags in by_heading.items():
        if flags:
            lines += ["", f"{heading}:", *list_of_flags(flags)]
    return "\n".join([*lines, "", f"Full manual: man {path.replace(' ', '-')}"])


def opening(path: str, command: Any, text: Help) -> list[str]:
    """The first lines of both texts."""
    arguments = ["COMMAND"] if hasattr(command, "commands") else []
    arguments += [parameter.metavar for parameter in command.params if not is_flag(parameter)]
    usage = " ".join(["Usage:", path, "[OPTIONS]", *arguments])
    examples = [f"  {line}" for line in text.examples]
    return [usage, "", text.summary, "", "Examples:", *examples]


def list_of_flags(parameters: Iterable[Any]) -> Iterator[str]:
    """The names and the meaning of each flag in two columns."""
    indent = " " * NAME_COLUMN
    for parameter in parameters:
        names = "  " + ", ".join(names_of(parameter))
        value = value_of(parameter)
        if value:
            names += f" {value}"
        if len(names) + 2 > NAME_COLUMN:  # the meaning begins below the names
            yield names.ljust(NAME_COLUMN)
            names = ""
        yield from textwrap.wrap(
            meaning_of(parameter),
            WIDTH,
            initial_indent=names.ljust(NAME_COLUMN),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )


def list_of_commands(group: Any, blank: list[str]) -> Iterator[str]:
    """The commands of a group below their headings; `blank` are the lines before each heading."""
    longest = max(map(len, group.commands))
    for heading, names in group.headings.items():
        yield from blank
        yield f"{heading}:"
        for name in names:
            yield f"  {name.ljust(longest)}  {summary_of(group.commands[name])}"
