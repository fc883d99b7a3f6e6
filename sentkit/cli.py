"""The `sentkit` program: its list of commands, and the conversion of errors to messages and exit codes."""

import errno
import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from sentkit import __version__, completion, manual
from sentkit.console import Console, close_bar, erase_bar_before_output
from sentkit.errors import NoInputError, NoVectorError, OtherSpaceError, SentkitError
from sentkit.escaping import without_secrets
from sentkit.flags import expand_flags
from sentkit.flags.removed import advice_of_removed
from sentkit.process import (
    is_first_process,
    leave,
    limit_threads,
    raised_signal,
    unwind_on_signals,
    version_of,
    without_signals,
)

COMMANDS = {  # heading of the help -> commands: a file in commands/
    "Texts": ("encode", "translate", "augment", "build-entries"),
    "Vectors": (
        *("score", "diff", "search", "mine", "duplicates", "cluster", "probe", "predict", "whiten", "plot"),
    ),
    "Models": ("train", "report", "distill-static", "export"),
    "Files": ("cat", "inspect", "check"),
}
NAMES = tuple(chain.from_iterable(COMMANDS.values()))
WITH_PAGES = {page.stem for page in manual.PAGES.iterdir()}

BUG, IO_FAILED = 70, 74
OUT_OF_MEMORY = re.compile(  # in errors of torch, oneDNN, the dynamic loader and Python's threads
    "could not create a (primitive|memory)|DefaultCPUAllocator|can(no|')t allocate memory"
    "|failed to map segment|can't start new thread",
    re.IGNORECASE,
)


def module_of(name: str) -> ModuleType:
    return import_module(f"sentkit.commands.{name.replace('-', '_')}")


def subcommands(name: str) -> dict[str, Callable[..., None]]:
    """The functions of a group that have a page, in their order in the file; empty for a command."""
    return {word: each for word, each in vars(module_of(name)).items() if f"{name}-{word}" in WITH_PAGES}


def groups(names: Sequence[str] = NAMES) -> dict[str, ModuleType]:
    """The modules of the commands that are groups."""
    return {name: module_of(name) for name in names if subcommands(name)}


def every_command(names: Sequence[str] = NAMES) -> dict[str, Callable[..., None]]:
    """Every command by its words on the command line: `encode`, `whiten fit`."""
    commands: dict[str, Callable[..., None]] = {}
    for name in names:
        inner = {f"{name} {word}": each for word, each in subcommands(name).items()}
        commands |= inner or {name: getattr(module_of(name), name.replace("-", "_"))}
    return commands


def handle_errors(command: Callable[..., None], name: str) -> Callable[..., None]:
    """Wrap a command: an error becomes a message on standard error and an exit code."""

    @functools.wraps(command)
    def run(*, quiet: bool, verbose: bool, **values: Any) -> None:
        from sentkit.formats.outputs.outputs import published_together

        console = Console(name, quiet, verbose)
        try:
            unwind_on_signals()
            check_working_folder()
            limit_threads()
            erase_bar_before_output()
            with published_together():
                command(console=console, **values)
                if sys.stdout is not None:
                    sys.stdout.flush()
            close_bar()
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
        advice = "go to another folder with cd"
        raise NoInputError("the current folder does not exist", advice=advice) from error


def exit_code(error: BaseException, console: Console) -> int | None:
    """Print the error and return its exit code; return None for the exits of typer."""
    cause = error if isinstance(error, OSError) else error.__cause__
    many = isinstance(cause, OSError) and cause.errno == errno.EMFILE
    advice = "raise the limit of open files, for example: ulimit -n 4096" if many else None
    if isinstance(error, SentkitError):
        if isinstance(error, NoVectorError | OtherSpaceError):
            from sentkit.flags.encode_first import advice_on_vectors

            error.advice = advice_on_vectors(error, sys.argv[1:])
        if is_first_process():
            console.error(str(error), error.advice or advice)
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        return 0  # `sentkit encode ... | head -3` is correct use
    if isinstance(error, OSError | MemoryError) or (
        isinstance(error, RuntimeError | ImportError) and OUT_OF_MEMORY.search(str(error))
    ):
        problem, name = "out of memory", None
        if isinstance(error, OSError):
            problem, name = (error.strerror or str(error)).lower(), error.filename
        console.error(f"{name}: {problem}" if name else problem, advice)
        return IO_FAILED
    if isinstance(error, typer.Exit | typer.Abort):
        return None
    # An error of a library can replace the exception of a signal.
    stopped = signal.SIGINT if isinstance(error, KeyboardInterrupt) else raised_signal()
    if stopped is not None:
        word = "Ctrl-C" if stopped == signal.SIGINT else stopped.name
        console.error(f"stopped by {word}", next(iter(getattr(error, "__notes__", ())), None))
        return 128 + stopped
    return report_bug(error, console) if isinstance(error, Exception) else None


def report_bug(error: Exception, console: Console) -> int:
    import traceback

    advice = "run it again with -v, and report the traceback"
    if console.verbose:
        sys.stderr.write(without_secrets("".join(traceback.format_exception(error))))
        advice = "please report it with the traceback"
    console.error(f"a bug in sentkit: {type(error).__name__}: {error}".partition("\n")[0], advice)
    return BUG


def print_short_help(context: typer.Context, parameter: Any, given: bool) -> None:
    if given and not context.resilient_parsing:
        typer.echo(manual.short_help(context.command_path, context.command))
        context.exit()


class Helpful:
    """A command with two help texts."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Add `-h`."""
        flag = TyperOption(
            param_decls=["-h"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=print_short_help,
            help="Show the most used flags and exit.",
        )
        return [*super().get_params(ctx), flag]  # type: ignore[misc]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the text of `--help`."""
        listed = [parameter for parameter in manual.parameters_of(self) if not parameter.hidden]
        formatter.write(manual.long_help(ctx.command_path, self, listed) + "\n")


class Command(Helpful, TyperCommand):
    """A command with the flags that say how much it reports."""

    message_flags = (
        TyperOption(
            param_decls=["-q", "--quiet"],
            is_flag=True,
            help="Hide warnings and progress (without a terminal, a line per minute).",
        ),
        TyperOption(
            param_decls=["-v", "--verbose"],
            is_flag=True,
            help="Report automatic choices, and progress more often.",
        ),
    )

    def get_params(self, ctx: Any) -> list[Any]:
        """Add `-q` and `-v`."""
        return [*self.message_flags, *super().get_params(ctx)]


class Group(Helpful, TyperGroup):
    @property
    def headings(self) -> Mapping[str, Sequence[str]]:
        """The headings of the list of commands, with the commands below each."""
        return COMMANDS if self.commands.keys() == {*NAMES} else {"Commands": tuple(self.commands)}


Shell = Literal["bash", "zsh", "fish"] | None


def sentkit(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show versions and exit.")] = False,
    install: Annotated[
        Shell, typer.Option("--install-completion", help="Install completion for this shell and exit.")
    ] = None,
    show: Annotated[
        Shell, typer.Option("--show-completion", help="Show the completion script and exit.")
    ] = None,
) -> None:
    """Sentence embeddings as small commands that read and write rows."""
    from typer.completion import get_completion_script
    from typer.completion import install as install_script

    if version:  # from the metadata of the packages: importing torch takes a second
        typer.echo(f"sentkit {__version__}")
        typer.echo(" ".join(f"{name} {version_of(name)}" for name in ("torch", "transformers", "tokenizers")))
    elif show is not None:
        names = {"prog_name": "sentkit", "complete_var": completion.VARIABLE}
        typer.echo(get_completion_script(shell=show, **names))
    elif install is not None:
        typer.echo(f"written: {install_script(install, 'sentkit', completion.VARIABLE)[1]}")
        typer.echo(f"completion works in the next {install} that you start")
    else:
        help_alone(context)
        return
    raise typer.Exit


def help_alone(context: typer.Context) -> None:
    """Without a subcommand, print the help and exit with 2."""
    if context.invoked_subcommand is None:
        typer.echo(manual.short_help(context.command_path, context.command), err=True)
        raise typer.Exit(2)


@functools.cache
def program(only: str | None = None) -> Any:
    """The program with all its commands, or with only one of them, which starts faster."""
    names = NAMES if only is None else (only,)
    app = typer.Typer(
        cls=Group,
        no_args_is_help=False,
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help"]},
    )
    app.callback()(sentkit)
    parents = {"": app}
    for name, module in groups(names).items():
        parents[name] = typer.Typer(cls=Group, rich_markup_mode=None, help=module.__doc__)
        parents[name].callback(invoke_without_command=True)(help_alone)
        app.add_typer(parents[name], name=name)
    for words, command in every_command(names).items():
        group, _, name = words.rpartition(" ")
        flags = expand_flags(command, completion.VALUES)
        parents[group].command(name, cls=Command)(handle_errors(flags, words))
    return typer.main.get_command(app)


def main() -> NoReturn:
    if completion.VARIABLE in os.environ:
        from typer.completion import completion_init

        os.environ["COLUMNS"] = "999"  # the shell reads a line for each word, so no line is wrapped
        completion_init()
    arguments = sys.argv[1:]
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    try:
        code = status(arguments)
    finally:
        with without_signals():
            from sentkit.formats.outputs.temporary import remove_all

            remove_all()
    leave(code)


def status(arguments: list[str]) -> int:
    """Run a command line and return its exit code; also for wrong usage."""
    only = next((name for name in arguments[:1] if name in NAMES), None)
    try:
        code = program(only)(arguments, prog_name="sentkit", standalone_mode=False)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            return 0  # `sentkit encode --help | head -3`: typer turns this into exit code 1
        code = error.code if isinstance(error.code, int) else 1
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's errors about the command line
            message, context = error.format_message(), getattr(error, "ctx", None)
            command = context.command_path.partition(" ")[2] if context is not None else ""
            advice = f"see: {' '.join(['sentkit', *command.split(), '--help'])}"
            removed = advice_of_removed(command, arguments)
            if removed is not None:
                message, advice = f"{removed[0]} was removed", removed[1]
            Console(command).error(f"{message[:1].lower()}{message[1:].rstrip('.')}", advice)
            return int(getattr(error, "exit_code", 2))
        if isinstance(error, typer.Abort):
            return 128 + signal.SIGINT
        return exit_code(error, Console("")) or BUG
    return code if isinstance(code, int) else 0
