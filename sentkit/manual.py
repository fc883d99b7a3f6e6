"""The man pages of the program and its commands: `python -m sentkit.manual man` writes man/man1."""

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sentkit import __version__
from sentkit.cli import program
from sentkit.help_texts import help_of, is_flag, meaning_of, names_of, parameters_of, value_of

ONLY_ON = {
    "1": ("sentkit", "sentkit score", "sentkit diff", "sentkit check", "sentkit report", "sentkit inspect"),
    "75": ("sentkit", "sentkit train", "sentkit encode"),
}  # code -> its pages


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
    for name, text in pages(program()).items():
        (Path(sys.argv[1]) / "man1" / name).write_text(text)


if __name__ == "__main__":
    main()
