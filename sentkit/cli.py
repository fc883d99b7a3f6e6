"""The `sentkit` program: its list of commands, and the conversion of errors to messages and exit codes."""

import contextlib
import functools
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NoReturn, ParamSpec

import typer
from typer.core import TyperCommand, TyperGroup

from sentkit import __version__, completion
from sentkit.commands import (
    augment,
    build_entries,
    cat,
    cluster,
    encode,
    export,
    inspect,
    probe,
    score,
    search,
    train,
    translate,
    whiten,
)
from sentkit.commands.whiten import apply, fit, merge
from sentkit.console import Console
from sentkit.errors import NoInputError, SentkitError
from sentkit.flags import expand_flags
from sentkit.pages import page_of
from sentkit.process import INTERRUPTED, leave, unwind_on_signals

P = ParamSpec("P")

COMMANDS = (
    encode.encode,
    score.score,
    search.search,
    cluster.cluster,
    probe.probe,
    train.train,
    translate.translate,
    build_entries.build_entries,
    augment.augment,
    cat.cat,
    inspect.inspect,
    export.export,
)

GROUPS = {whiten: (fit.fit, apply.apply, merge.merge)}  # groups: folders of commands

BUG, IO_FAILED = 70, 74


def word(command: Callable[..., None] | ModuleType) -> str:
    """The word on the command line: `build-entries` for a command, `whiten` for a folder."""
    return command.__name__.rpartition(".")[2].replace("_", "-")


def every_command() -> dict[str, Callable[..., None]]:
    """Every command by its words on the command line: `encode`, `whiten fit`."""
    found: dict[str, Callable[..., None]] = {word(command): command for command in COMMANDS}
    for group, commands in GROUPS.items():
        found |= {f"{word(group)} {word(command)}": command for command in commands}
    return found


def ended(command: Callable[P, None], name: str) -> Callable[P, None]:
    """Wrap a command: an error becomes a message on standard error and an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from sentkit.formats.outputs.outputs import published_together

        console = Console(name)
        try:
            unwind_on_signals()
            check_working_folder()
            with published_together():
                command(*args, **kwargs)
                if sys.stdout is not None:
                    sys.stdout.flush()
        except BaseException as error:
            code = exit_code(error, console)
            if code is None:
                raise
            raise typer.Exit(code) from error

    return run


def check_working_folder() -> None:
    """Refuse a deleted working folder. Without this check torch ends the process with an unclear message."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        advice = "change to a folder that exists"
        raise NoInputError("the working folder does not exist any more", advice=advice) from error


def exit_code(error: BaseException, console: Console) -> int | None:
    """Print the error and return its exit code; return None for the exits of typer."""
    if isinstance(error, SentkitError):
        first = os.environ.get("RANK", "0") == "0"  # of the processes of torchrun, only the first prints
        if first and not error.silent:
            console.error(str(error), error.advice)
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        return 0  # `sentkit encode ... | head -3` is correct use
    if isinstance(error, KeyboardInterrupt):
        console.error("interrupted")
        return INTERRUPTED
    if isinstance(error, OSError | MemoryError):
        console.error(_trouble(error))
        return IO_FAILED
    if isinstance(error, Exception) and not isinstance(error, typer.Exit | typer.Abort):
        return _report_bug(error, console)
    return None


def _trouble(error: OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    trouble = (error.strerror or str(error)).lower()
    return f"{error.filename}: {trouble}" if error.filename else trouble


def _report_bug(error: Exception, console: Console) -> int:
    advice = "the traceback cannot be written to a temporary file"
    with contextlib.suppress(OSError):
        with tempfile.NamedTemporaryFile("w", prefix="sentkit-", suffix=".log", delete=False) as file:
            file.write("".join(traceback.format_exception(error)))
        advice = f"please report it with the traceback in {Path(file.name)}"
    console.error(f"a bug in sentkit: {type(error).__name__}: {error}".partition("\n")[0], advice)
    return BUG


def show_version(wanted: bool) -> None:
    """Read the versions from the metadata of the packages: importing torch takes a second."""
    if wanted:
        from importlib.metadata import version

        typer.echo(f"sentkit {__version__}")
        typer.echo(" ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "tokenizers")))
        raise typer.Exit


def show_completion(shell: str | None) -> None:
    if shell is not None:
        typer.echo(completion.SCRIPTS[shell], nl=False)
        raise typer.Exit


def install_completion(shell: str | None) -> None:
    if shell is not None:
        for path in completion.install(shell):
            typer.echo(f"written: {path}")
        typer.echo(f"completion works in the next {shell} that you start")
        raise typer.Exit


def write_page(context: Any, formatter: Any) -> None:
    """Add the path of the man page to a help text."""
    page = page_of(context.command_path)
    if page is not None:
        formatter.write(f"\nFull manual: man {shlex.quote(str(page))}\n")


class Command(TyperCommand):
    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_page(ctx, formatter)


class Group(TyperGroup):
    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_page(ctx, formatter)


app = typer.Typer(
    cls=Group,
    no_args_is_help=False,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)


@app.callback()
def sentkit(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show versions and exit.")
    ] = False,
    install: Annotated[
        Literal["bash", "zsh", "fish"] | None,
        typer.Option(
            "--install-completion",
            callback=install_completion,
            is_eager=True,
            help="Install completion for this shell and exit.",
        ),
    ] = None,
    show: Annotated[
        Literal["bash", "zsh", "fish"] | None,
        typer.Option(
            "--show-completion",
            callback=show_completion,
            is_eager=True,
            help="Show the completion script and exit.",
        ),
    ] = None,
) -> None:
    """Sentence embeddings as small commands that read and write rows.

    \b
    Examples:
      printf 'a cat\\na dog\\n' | sentkit encode | sentkit score
      sentkit encode pairs.jsonl -m CHECKPOINT | sentkit score --gold score
      sentkit encode titles.txt -o titles.safetensors && sentkit inspect titles.safetensors

    \b
    Exit codes: 0 success, 1 score below --fail-under, 2 wrong usage, 65 bad data
    or vectors of different spaces, 66 input or model not found, 69 device or hub
    not available, 70 bug in sentkit, 73 cannot create, 74 cannot read or write,
    75 stopped and saved, 129, 130 and 143 stopped by a signal.
    """
    help_alone(context)


def help_alone(context: typer.Context) -> None:
    """Without a subcommand, print the help and exit with 2."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


rooms = {"": app}
for group in GROUPS:
    rooms[word(group)] = typer.Typer(cls=Group, rich_markup_mode=None, help=group.__doc__)
    rooms[word(group)].callback(invoke_without_command=True)(help_alone)
    app.add_typer(rooms[word(group)], name=word(group))
for name, command in every_command().items():
    before, _, last = name.rpartition(" ")
    rooms[before].command(last, cls=Command)(ended(expand_flags(command), name))


def main() -> NoReturn:
    shell = os.environ.get(completion.VARIABLE)
    if shell in completion.SHELLS:
        sys.stdout.write(completion.answer(shell, typer.main.get_command(app), sys.argv[1:]))
        leave(0)
    arguments = sys.argv[1:]
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    leave(status(arguments))


def status(arguments: list[str]) -> int:
    """Run a command line and return its exit code; also for wrong usage."""
    try:
        code = app(arguments, prog_name="sentkit", standalone_mode=False)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            return 0  # `sentkit encode --help | head -3`: typer turns this into exit code 1
        code = error.code if isinstance(error.code, int) else 1
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's errors about the command line
            return _wrong_usage(error)
        if isinstance(error, typer.Abort):
            return INTERRUPTED
        return exit_code(error, Console("")) or BUG
    return code if isinstance(code, int) else 0


def _wrong_usage(error: Any) -> int:
    message = error.format_message()
    command = error.ctx.command_path.partition(" ")[2] if error.ctx is not None else ""
    advice = f"see: sentkit {command} --help" if command else "see: sentkit --help"
    Console(command).error(f"{message[:1].lower()}{message[1:].rstrip('.')}", advice)
    return int(error.exit_code)
