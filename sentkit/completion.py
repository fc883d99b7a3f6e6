"""Shell completion of commands, flags and their values in bash, zsh and fish.

The shell calls the program at each Tab, with the words of the line as arguments. The words are found by the
shell support of click, which typer contains. It imports neither a model nor numpy. If it offers nothing, the
shell completes file names.
"""

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

VARIABLE = "_SENTKIT_COMPLETE"  # its value is the name of the calling shell
SHELLS = ("bash", "zsh", "fish")

# completion.bash, completion.zsh and completion.fish call this program.
SCRIPTS = {shell: Path(__file__).with_suffix(f".{shell}") for shell in SHELLS}


def readouts() -> Iterable[str]:
    from sentkit.formats.checkpoints.readout import NAMED

    return NAMED


def templates() -> Iterable[str]:
    from sentkit.formats.checkpoints.readout import TEMPLATES

    return TEMPLATES


def methods() -> Iterable[tuple[str, str]]:
    from sentkit.training.catalogue import METHODS

    return [(method, listing.summary) for method, listing in METHODS.items()]


def settings_and_presets(context: Any) -> tuple[list[str], list[str]]:
    """Those of the method or of the command on the line."""
    from sentkit.commands import cluster, translate
    from sentkit.training.catalogue import METHODS, names_of

    own = {"cluster": cluster.AlgorithmSettings, "translate": translate.SearchSettings}
    if context.command.name in own:
        return [each.name for each in fields(own[context.command.name])], []
    method = context.params.get("method")
    return names_of(method) if method in METHODS else ([], [])


def settings(ctx: Any) -> Iterable[str]:
    return [f"{name}=" for name in settings_and_presets(ctx)[0]]


def presets(ctx: Any) -> Iterable[str]:
    return settings_and_presets(ctx)[1]


VALUES: dict[str, Callable[..., Any]] = {  # name of a parameter -> its values
    "readout": readouts,
    "template": templates,
    "method": methods,
    "set_": settings,
    "preset": presets,
    "device": lambda: ("auto", "cpu", "cuda"),
}


def answer(shell: str, program: Any, words: Sequence[str]) -> str:
    """The completions of the last word, in the format that the shell's script reads."""
    from typer._click.shell_completion import _resolve_context, _resolve_incomplete

    words = joined(words) if shell == "bash" else words
    *before, last = words[1:] or [""]
    ours = before[:1] == ["help"]
    whole = before[:-1] if before[-1:] and before[-1].startswith("-") else before  # without a flag alone
    context = _resolve_context(program, {}, "sentkit", whole[1:] if ours else whole)
    place, start = _resolve_incomplete(context, before, last)
    items = [
        (each.value, (each.help or "").strip().partition("\n")[0])
        for each in place.shell_complete(context, start)
    ]
    if place is program and not ours and "help".startswith(start):
        items.append(("help", "Show the help of a command."))
    if last.startswith("-") and last != start:  # --flag=start
        items = [(f"{last[: -len(start) or None]}{word}", meaning) for word, meaning in items]
    if shell == "bash":  # bash replaces only the part after a colon
        start = last.rpartition(":")[0]
        return "".join(f"{word[len(start) + 1 if start else 0 :]}\n" for word, _ in items)
    if shell == "zsh":
        escaped = [(word.replace(":", r"\:"), meaning) for word, meaning in items]
        return "".join(f"{word}:{meaning}\n" if meaning else f"{word}\n" for word, meaning in escaped)
    return "".join(f"{word}\t{meaning}\n" for word, meaning in items)


def joined(words: Sequence[str]) -> list[str]:
    """The words of bash, which also splits at colons and "=": `pooler`, `:`, `cls` become one word."""
    words_joined: list[str] = []
    for word in words:
        if words_joined and (word == ":" or words_joined[-1].endswith(":")):
            words_joined[-1] += word
        elif word != "=":
            words_joined.append(word)
    return words_joined if words[-1] != "=" else [*words_joined, ""]


def install(shell: str) -> list[Path]:
    """Install the script of a shell; return the files that were written or extended."""
    home, variables = Path.home(), os.environ
    if shell == "fish":
        script = Path(variables.get("XDG_CONFIG_HOME") or home / ".config", "fish/completions/sentkit.fish")
    else:
        data = variables.get("XDG_DATA_HOME") or home / ".local/share"
        script = Path(data, f"sentkit/completion.{shell}")
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(SCRIPTS[shell].read_text())
    if shell == "fish":
        return [script]
    start = home / ".bashrc" if shell == "bash" else Path(variables.get("ZDOTDIR") or home, ".zshrc")
    line = f"source {shlex.quote(str(script))}"
    before = start.read_text() if start.exists() else ""
    if line not in before.splitlines():
        with start.open("a") as file:
            file.write(("" if before.endswith("\n") or not before else "\n") + line + "\n")
    return [script, start]
