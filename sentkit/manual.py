"""The man pages of the program and its commands: `python -m sentkit.manual man` writes man/man1."""

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sentkit import __version__
from sentkit.cli import program
from sentkit.flags.help_texts import (
    help_of,
    is_flag,
    meaning_of,
    names_of,
    parameters_of,
    summary_of,
    value_of,
)
from sentkit.formats.checkpoints.reductions import PLAIN
from sentkit.formats.rows.rows import FORMATS

# Paragraphs of pages that become a list of all entries of the code.
READOUTS = "[list of readouts]"
FORMATS_OF_ROWS = "[list of input formats]"
UNFILLED = 76  # columns of lines that are printed as they are
# code -> its pages
ONLY_ON = {
    "1": (
        "sentkit",
        "sentkit score",
        "sentkit diff",
        "sentkit check",
        "sentkit report",
    ),
    "75": ("sentkit", "sentkit train", "sentkit encode"),
}


def pages(program: Any) -> dict[str, str]:
    """File name -> page, for the program, its commands and their subcommands."""
    commands = [("sentkit", program), *below("sentkit", program)]
    return {f"{name.replace(' ', '-')}.1": page(name, command) for name, command in commands}


def below(name: str, group: Any) -> Iterator[tuple[str, Any]]:
    """The commands below a group by their full names, such as `sentkit whiten fit`."""
    for word, command in getattr(group, "commands", {}).items():
        yield f"{name} {word}", command
        yield from below(f"{name} {word}", command)


def page(name: str, command: Any) -> str:
    """The man page of a command, in roff."""
    text = help_of(name, command.help)
    title = escape(name.replace(" ", "-"))
    is_group = hasattr(command, "commands")
    arguments = [parameter for parameter in command.params if not is_flag(parameter)]
    synopsis = r"\fICOMMAND\fR [\fIOPTIONS\fR]"
    if not is_group:
        names = [rf"\fI{escape(argument.metavar)}\fR" for argument in arguments]
        synopsis = " ".join([r"[\fIOPTIONS\fR]", *names])

    # Sections of the page text are taken from `text.sections` as they are used.
    paragraphs = [text.summary]
    paragraphs += [paragraph for paragraph in text.paragraphs if "Exit codes" not in paragraph]
    paragraphs += map(with_list, text.sections.pop("MANUAL", []))
    more_examples = "\n".join(text.sections.pop("EXAMPLES", [])).splitlines()
    lines = [f'.TH {title.upper()} 1 "" "sentkit {__version__}" "sentkit manual"', ".SH NAME"]
    lines.append(rf"{title} \- {escape(text.summary[:1].lower() + text.summary[1:].rstrip('.'))}")
    lines += [".SH SYNOPSIS", f".B {escape(name)}", synopsis, ".SH DESCRIPTION", *body(paragraphs)]
    lines += list_of_commands(name, command) if is_group else list_of_parameters(command)
    for heading, section in text.sections.items():
        lines += [f".SH {heading}", *body(section)]
    lines += sections_of_all_pages(name)
    lines += [".SH EXAMPLES", *unfilled([*text.examples, *more_examples])]
    lines += [".SH SEE ALSO", *wrapped(", ".join(related_pages(name, command)))]
    return "\n".join(lines) + "\n"


def with_list(paragraph: str) -> str:
    """The paragraph, or the list that it names, with the summary of each entry."""
    if paragraph == READOUTS:
        summaries = {name: plain.summary for name, plain in PLAIN.items()}
    elif paragraph == FORMATS_OF_ROWS:
        summaries = {name: entry.summary for name, entry in FORMATS.items()}
        for name, entry in FORMATS.items():
            if entry.suffixes:
                summaries[name] += f" ({', '.join(entry.suffixes)})"
    else:
        return paragraph
    indent = " " * (max(map(len, summaries)) + 2)
    lines: list[str] = []
    for name, summary in summaries.items():
        first_indent = name.ljust(len(indent))
        lines += textwrap.wrap(
            summary, UNFILLED, initial_indent=first_indent, subsequent_indent=indent
        )
    return "\n".join(lines)


def list_of_commands(name: str, group: Any) -> Iterator[str]:
    yield ".SH COMMANDS"
    for heading, words in group.headings.items():
        if len(group.headings) > 1:
            yield f".SS {heading}"
        for word in words:
            yield ".TP"
            yield rf"\fB{escape(f'{name} {word}')}\fR"
            yield escape(summary_of(group.commands[word]))


def list_of_parameters(command: Any) -> Iterator[str]:
    """The arguments, then the flags."""
    parameters = parameters_of(command)
    yield ".SH OPTIONS"
    for parameter in sorted(parameters, key=is_flag):  # stable: each kind keeps its order
        names = ", ".join(rf"\fB{escape(name)}\fR" for name in names_of(parameter))
        value = value_of(parameter)
        if value:
            names += rf" \fI{escape(value)}\fR"
        yield from (".TP", names, *wrapped(meaning_of(parameter)))


def sections_of_all_pages(name: str) -> Iterator[str]:
    """The sections that all pages have, without the entries of other commands."""
    for heading, entries in help_of("all pages", "").sections.items():
        yield f".SH {heading}"
        for entry in entries:
            key, _, meaning = entry.partition(": ")
            if name in ONLY_ON.get(key, (name,)):
                yield from (".TP", rf"\fB{escape(key)}\fR", *wrapped(meaning))


def related_pages(name: str, command: Any) -> list[str]:
    """The pages of the groups above a command, those of the commands below it, and others."""
    words = name.split()
    above = [" ".join(words[:count]) for count in range(len(words) - 1, 0, -1)]
    inner = [inner_name for inner_name, _ in below(name, command)]
    pages = [f"{other.replace(' ', '-')}(1)" for other in [*above, *inner]]
    if name in ("sentkit", "sentkit encode"):
        pages.append("sentkit-encoder(3)")
    pages.append("sentkit-rows(5)")
    if name in ("sentkit", "sentkit train"):
        pages.append("sentkit-methods(7)")
    return pages


def body(paragraphs: Sequence[str]) -> list[str]:
    """Paragraphs below a heading."""
    lines = list[str]()
    for index, paragraph in enumerate(paragraphs):
        if index > 0:
            lines.append(".PP")
        lines += unfilled(paragraph.split("\n")) if "\n" in paragraph else wrapped(paragraph)
    return lines


def unfilled(lines: Iterable[str]) -> list[str]:
    """Lines as they are, indented by 2, so that 76 characters fit into 80 columns."""
    return [".in 2n", ".nf", *map(escape, lines), ".fi", ".in"]


def wrapped(text: str) -> list[str]:
    lines = textwrap.wrap(text, 78, break_long_words=False, break_on_hyphens=False)
    return [escape(line) for line in lines]


def escape(text: str) -> str:
    """Escape backslashes, hyphens and a leading dot or quote for roff."""
    plain = text.replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + plain if plain.startswith((".", "'")) else plain


def main() -> None:
    for name, text in pages(program()).items():
        (Path(sys.argv[1]) / "man1" / name).write_text(text)


if __name__ == "__main__":
    main()
