"""The texts of the commands: `-h` with the most used flags, `--help` with all flags, and the man pages.

`python -m sentkit.manual man` writes man/man1.
"""

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentkit import __version__

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
ONLY_ON = {
    "1": ("sentkit", "sentkit score", "sentkit diff", "sentkit check", "sentkit report", "sentkit inspect"),
    "75": ("sentkit", "sentkit train", "sentkit encode"),
}  # code -> its pages


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
    text, title, words = help_of(name, command.help), escape(name.replace(" ", "-")), name.split()
    arguments = [each for each in command.params if not is_flag(each)]
    synopsis = " ".join(rf"\fI{escape(argument.metavar)}\fR" for argument in arguments)
    synopsis, listed = rf"[\fIOPTIONS\fR] {synopsis}".rstrip(), [".SH OPTIONS"]
    if hasattr(command, "commands"):
        synopsis, listed = r"\fICOMMAND\fR [\fIOPTIONS\fR]", [".SH COMMANDS"]
        for heading, inner in command.headings.items():
            listed += [f".SS {heading}"] if len(command.headings) > 1 else []
            for word in inner:
                listed += [".TP", rf"\fB{escape(f'{name} {word}')}\fR", escape(command.commands[word].help)]
    else:
        for each in [*arguments, *filter(is_flag, parameters_of(command))]:
            shown = ", ".join(rf"\fB{escape(name)}\fR" for name in names_of(each))
            value = f" \\fI{escape(value)}\\fR" if (value := value_of(each)) else ""
            listed += [".TP", shown + value, *wrapped(meaning_of(each))]
    paragraphs = [text.summary, *(each for each in text.paragraphs if "Exit codes" not in each)]
    paragraphs += text.sections.pop("MANUAL", [])
    examples = [*text.examples, *"\n".join(text.sections.pop("EXAMPLES", [])).splitlines()]
    lines = [f'.TH {title.upper()} 1 "" "sentkit {__version__}" "sentkit manual"', ".SH NAME"]
    lines += [rf"{title} \- {escape(text.summary[:1].lower() + text.summary[1:].rstrip('.'))}"]
    lines += [".SH SYNOPSIS", f".B {escape(name)}", synopsis, ".SH DESCRIPTION", *body(paragraphs), *listed]
    for heading, section in text.sections.items():
        lines += [f".SH {heading}", *body(section)]
    for heading, entries in help_of("all pages", "").sections.items():
        lines.append(f".SH {heading}")
        for key, _, meaning in (entry.partition(": ") for entry in entries):
            if name in ONLY_ON.get(key, (name,)):
                lines += [".TP", rf"\fB{escape(key)}\fR", *wrapped(meaning)]
    above = [" ".join(words[:count]) for count in range(len(words) - 1, 0, -1)]
    others = (*above, *(inner for inner, _ in below(name, command)))
    also = [f"{each.replace(' ', '-')}(1)" for each in others]
    if name in ("sentkit", "sentkit encode"):
        also.append("sentkit-encoder(3)")
    also += ["sentkit-rows(5)", *(["sentkit-methods(7)"] if name in ("sentkit", "sentkit train") else [])]
    lines += [".SH EXAMPLES", *unfilled(examples), ".SH SEE ALSO", *wrapped(", ".join(also))]
    return "\n".join(lines) + "\n"


def body(paragraphs: Sequence[str]) -> list[str]:
    """Paragraphs below a heading."""
    parts = (unfilled(each.split("\n")) if "\n" in each else wrapped(each) for each in paragraphs)
    return [line for part in parts for line in (".PP", *part)][1:]


def unfilled(lines: Iterable[str]) -> list[str]:
    """Lines as they are, indented by 2, so that 76 characters fit into 80 columns."""
    return [".in 2n", ".nf", *map(escape, lines), ".fi", ".in"]


def wrapped(text: str) -> list[str]:
    return [escape(line) for line in textwrap.wrap(text, 78, break_long_words=False, break_on_hyphens=False)]


def escape(text: str) -> str:
    """Escape backslashes, hyphens and a leading dot or quote for roff."""
    plain = text.replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + plain if plain.startswith((".", "'")) else plain


def main() -> None:
    from sentkit.cli import program

    for name, text in pages(program()).items():
        (Path(sys.argv[1]) / "man1" / name).write_text(text)


if __name__ == "__main__":
    main()
