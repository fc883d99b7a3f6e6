"""Shell completion of commands, flags and their values in bash, zsh and fish.

The shell calls the program at each Tab, with the words of the line as arguments. Completion imports neither a
model nor numpy. If it offers nothing, the shell completes file names.
"""

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

VARIABLE = "_SENTKIT_COMPLETE"  # its value is the name of the calling shell
SHELLS = ("bash", "zsh", "fish")
HELP = ("help", "Show the help of a command.")
DEVICES = ("auto", "cpu", "cuda")

# completion.bash, completion.zsh and completion.fish call this program.
SCRIPTS = {shell: Path(__file__).with_suffix(f".{shell}") for shell in SHELLS}

Item = tuple[str, str]  # a word and its description


def answer(shell: str, program: Any, words: Sequence[str]) -> str:
    """The completions of the last word, in the format that the shell's script reads."""
    words = joined(words) if shell == "bash" else words
    *before, last = words[1:] or [""]
    items = Line(program, before).offers(last)
    if shell == "bash":  # bash replaces only the part after a colon
        start = last.rpartition(":")[0]
        return "".join(f"{word[len(start) + 1 if start else 0 :]}\n" for word, _ in items)
    if shell == "zsh":
        escaped = [(word.replace(":", r"\:"), meaning) for word, meaning in items]
        return "".join(f"{word}:{meaning}\n" if meaning else f"{word}\n" for word, meaning in escaped)
    return "".join(f"{word}\t{meaning}\n" for word, meaning in items)


def joined(words: Sequence[str]) -> list[str]:
    """Join the words of bash, which also splits at colons: `pooler`, `:`, `cls` become one word."""
    words_joined: list[str] = []
    for word in words:
        if words_joined and (word == ":" or words_joined[-1].endswith(":")):
            words_joined[-1] += word
        else:
            words_joined.append(word)
    return words_joined


class Line:
    """A command line up to the completed word."""

    def __init__(self, program: Any, words: Sequence[str]) -> None:
        self.command = self.program = program
        self.option: Any = None  # the flag that expects a value
        self.arguments: list[str] = []
        self.ended = False  # true after `--`: no flags follow
        for word in words:
            self._take(word)

    def _take(self, word: str) -> None:
        if self.option is not None:
            if word != "=":  # bash splits at "="
                self.option = None
        elif self.ended:
            self.arguments.append(word)
        elif word == "--":
            self.ended = True
        elif word.startswith("-"):
            option = self._named(word)
            self.option = None if option is None or option.is_flag else option
        elif word in self._commands:
            self.command = self._commands[word]
        elif (self.command, word) != (self.program, HELP[0]):
            self.arguments.append(word)

    @property
    def _commands(self) -> dict[str, Any]:
        return getattr(self.command, "commands", {})

    def _names(self) -> tuple[list[str], list[str]]:
        """The settings and presets of the method or command on the command line."""
        from sentkit.commands import cluster, translate
        from sentkit.training.catalogue import METHODS, names_of

        own = {"cluster": cluster.AlgorithmSettings, "translate": translate.SearchSettings}
        if self.command.name in own:
            return [each.name for each in fields(own[self.command.name])], []
        method = self.arguments[0] if self.arguments else ""
        return names_of(method) if method in METHODS else ([], [])

    def _named(self, name: str) -> Any:
        return next((each for each in self.command.params if name in each.opts), None)

    def offers(self, start: str) -> list[Item]:
        """The possible words at this place that begin with `start`."""
        start = "" if start == "=" else start
        return [item for item in self._items(start) if item[0].startswith(start)]

    def _items(self, start: str) -> Iterator[Item]:
        if self.option is not None:
            yield from self._values(self.option)
        elif start.startswith("-") and not self.ended:
            name, equals, _ = start.partition("=")
            option = self._named(name) if equals else None
            if option is not None:
                yield from ((f"{name}={value}", meaning) for value, meaning in self._values(option))
            else:
                yield from self._flags()
        elif self._commands:
            yield from ((name, first_line(command.help)) for name, command in self._commands.items())
            yield from [HELP] if self.command is self.program else []
        elif not self.arguments:
            yield from self._values(
                next((each for each in self.command.params if each.name == "method"), None)
            )

    def _flags(self) -> Iterator[Item]:
        for each in self.command.params:
            if each.opts[0].startswith("-"):
                yield from ((name, first_line(each.help)) for name in each.opts)
        yield from (("--help", "Show this message and exit."), ("-h", "Show this message and exit."))

    def _values(self, parameter: Any) -> Iterator[Item]:
        name = getattr(parameter, "name", None)
        if choices := getattr(getattr(parameter, "type", None), "choices", ()):
            yield from ((str(choice), "") for choice in choices)
        elif name == "readout":
            from sentkit.formats.checkpoints.readout import NAMED

            yield from ((readout, "") for readout in NAMED)
        elif name == "method":
            from sentkit.training.catalogue import METHODS

            yield from ((method, listing.summary) for method, listing in METHODS.items())
        elif name == "preset":
            yield from ((preset, "") for preset in self._names()[1])
        elif name == "set_":
            yield from ((f"{setting}=", "") for setting in self._names()[0])
        elif name == "template":
            from sentkit.formats.checkpoints.templates import TEMPLATES

            yield from ((template, "") for template in TEMPLATES)
        elif name == "device":
            yield from ((device, "") for device in DEVICES)


def first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def install(shell: str) -> list[Path]:
    """Install the script of a shell; return the files that were written or extended."""
    home = Path.home()
    if shell == "fish":
        settings = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        return [written(settings / "fish/completions/sentkit.fish", SCRIPTS[shell].read_text())]
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
    script = written(data / f"sentkit/completion.{shell}", SCRIPTS[shell].read_text())
    start = home / ".bashrc" if shell == "bash" else Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    line = f"source {shlex.quote(str(script))}"
    before = start.read_text() if start.exists() else ""
    if line not in before.splitlines():
        with start.open("a") as file:
            file.write(("" if before.endswith("\n") or not before else "\n") + line + "\n")
    return [script, start]


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
