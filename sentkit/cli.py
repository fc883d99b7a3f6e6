"""The `sentkit` program: its list of commands, and the conversion of errors to messages and exit
codes.
"""

import errno
import functools
import inspect
import os
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

from sentkit import __version__, completion
from sentkit.console import Console, close_bar, erase_bar_before_output
from sentkit.errors import (
    NoInputError,
    NoVectorError,
    OtherProcessError,
    OtherSpaceError,
    SentkitError,
    UsageError,
    is_out_of_memory,
)
from sentkit.escaping import without_secrets
from sentkit.flags import help_texts
from sentkit.flags.removed import advice_of_cat, advice_of_removed
from sentkit.flags.rules import check_values
from sentkit.process import (
    Stopped,
    exit_immediately,
    is_first_process,
    is_stopped_within,
    limit_threads,
    raised_signal,
    unwind_on_signals,
    version_of,
    without_signals,
)

COMMANDS = {  # heading of the help -> commands: a file in commands/
    "Texts": ("encode", "translate", "augment", "build-entries"),
    "Vectors": (
        "score",
        "diff",
        "search",
        "mine",
        "duplicates",
        "cluster",
        "probe",
        "predict",
        "whiten",
        "plot",
    ),
    "Models": ("train", "report", "distill-static", "export"),
    "Files": ("cat", "inspect", "check"),
}
NAMES = tuple(chain.from_iterable(COMMANDS.values()))

TIME_OF_FIRST_PROCESS = 10.0  # seconds, in which it prints an error that all processes have
BUG = 70  # exit codes
IO_FAILED = 74


def module_of(name: str) -> ModuleType:
    return import_module(f"sentkit.commands.{name.replace('-', '_')}")


def subcommands(name: str) -> dict[str, Callable[..., None]]:
    """The commands of a group, in their order in the file; empty for a file with one command.

    A file with one command has a function of its name. All functions of a group that only take
    keywords, one of them the console, are commands.
    """
    module = module_of(name)
    if hasattr(module, name.replace("-", "_")):
        return {}
    commands: dict[str, Callable[..., None]] = {}
    for word, function in vars(module).items():
        if not inspect.isfunction(function) or function.__module__ != module.__name__:
            continue
        parameters = inspect.signature(function).parameters
        only_keywords = all(
            parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.values()
        )
        if only_keywords and "console" in parameters:
            commands[word.replace("_", "-")] = function
    return commands


def groups(names: Sequence[str] = NAMES) -> dict[str, ModuleType]:
    """The modules of the commands that are groups."""
    return {name: module_of(name) for name in names if subcommands(name)}


def every_command(names: Sequence[str] = NAMES) -> dict[str, Callable[..., None]]:
    """Every command by its words on the command line: `encode`, `whiten fit`."""
    commands: dict[str, Callable[..., None]] = {}
    for name in names:
        functions = subcommands(name)
        if functions:
            commands |= {f"{name} {word}": function for word, function in functions.items()}
        else:
            commands[name] = getattr(module_of(name), name.replace("-", "_"))
    return commands


def handle_errors(command: Callable[..., None], name: str) -> Callable[..., None]:
    """Wrap a command: an error becomes a message on standard error and an exit code."""

    @functools.wraps(command)
    def run(*, context: typer.Context, quiet: bool, verbose: bool, **values: Any) -> None:
        from sentkit.formats.outputs.outputs import published_together

        console = Console(name, quiet, verbose)
        try:
            unwind_on_signals()
            check_working_folder()
            check_values(context.command.params, values)
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

    # The signature that typer reads: the context in place of the console.
    signature = inspect.signature(command)
    flags = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.annotation is not Console
    ]
    context_parameter = inspect.Parameter(
        "context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
    )
    run.__signature__ = signature.replace(parameters=[context_parameter, *flags])  # type: ignore[attr-defined]
    return run


def check_working_folder() -> None:
    """Refuse a deleted working folder. Without this check torch ends the process with an unclear
    message.
    """
    try:
        Path.cwd()
    except FileNotFoundError as error:
        advice = "go to another folder with cd"
        raise NoInputError("the current folder does not exist", advice=advice) from error


def exit_code(error: BaseException, console: Console) -> int | None:
    """Print the error and return its exit code; return None for the exits of typer."""
    if isinstance(error, SentkitError):
        return expected_error(error, console)
    if isinstance(error, BrokenPipeError):
        return 0  # `sentkit encode ... | head -3` is correct use
    if isinstance(error, OSError) or is_out_of_memory(error):
        return system_error(error, console)
    if isinstance(error, typer.Exit | typer.Abort):
        return None
    # An error of a library can replace the exception of a signal.
    stopped = signal.SIGINT if isinstance(error, KeyboardInterrupt) else raised_signal()
    if stopped is not None:
        name = "Ctrl-C" if stopped == signal.SIGINT else stopped.name
        notes = getattr(error, "__notes__", [])
        console.error(f"stopped by {name}", notes[0] if notes else None)
        return 128 + stopped
    return report_bug(error, console) if isinstance(error, Exception) else None


def expected_error(error: SentkitError, console: Console) -> int:
    if isinstance(error, NoVectorError | OtherSpaceError):
        from sentkit.flags.encode_first import advice_on_vectors

        error.advice = advice_on_vectors(error, sys.argv[1:])
    message = str(error)
    if console.command == "train" and not is_first_process():
        # All processes of a training stop together.
        if isinstance(error, Stopped | OtherProcessError):
            return error.exit_code
        # An error before they connect is usually one of the flags and files, which are equal: the
        # first process prints it, and torchrun ends the others. An earlier end of this process
        # would end the first one before its message.
        if not error.after_connection:
            is_stopped = is_stopped_within(TIME_OF_FIRST_PROCESS)
            if is_stopped or isinstance(error, UsageError):
                return error.exit_code
        message = f"rank {os.environ['RANK']}: {message}"
    console.error(message, error.advice or advice_on_files(error.__cause__))
    return error.exit_code


def system_error(error: BaseException, console: Console) -> int:
    problem = "out of memory"
    cause = error.__cause__
    if isinstance(error, OSError):
        cause = error
        problem = (error.strerror or str(error)).lower()
        if error.filename:
            problem = f"{error.filename}: {problem}"
    console.error(problem, advice_on_files(cause))
    return IO_FAILED


def advice_on_files(cause: BaseException | None) -> str | None:
    if isinstance(cause, OSError) and cause.errno == errno.EMFILE:
        return "raise the limit of open files, for example: ulimit -n 4096"
    return None


def report_bug(error: Exception, console: Console) -> int:
    import traceback

    advice = "run it again with -v, and report the traceback"
    if console.verbose:
        sys.stderr.write(without_secrets("".join(traceback.format_exception(error))))
        advice = "please report it with the traceback"
    problem = f"{type(error).__name__}: {error}"
    first_line, _, _ = problem.partition("\n")
    console.error(f"a bug in sentkit: {first_line}", advice)
    return BUG


def print_short_help(context: typer.Context, parameter: Any, given: bool) -> None:
    if given and not context.resilient_parsing:
        typer.echo(help_texts.short_help(context.command_path, context.command))
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
        listed = [parameter for parameter in help_texts.parameters_of(self) if not parameter.hidden]
        formatter.write(help_texts.long_help(ctx.command_path, self, listed) + "\n")


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
        if self.commands.keys() == {*NAMES}:
            return COMMANDS
        return {"Commands": tuple(self.commands)}


Shell = Literal["bash", "zsh", "fish"] | None


def sentkit(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show versions and exit.")] = False,
    install: Annotated[
        Shell,
        typer.Option("--install-completion", help="Install completion for this shell and exit."),
    ] = None,
    show: Annotated[
        Shell, typer.Option("--show-completion", help="Show the completion script and exit.")
    ] = None,
) -> None:
    """Sentence embeddings as small commands that read and write rows."""
    from typer.completion import get_completion_script
    from typer.completion import install as install_script

    if version:  # from the metadata of the packages: importing torch takes a second
        libraries = ("torch", "transformers", "tokenizers")
        typer.echo(f"sentkit {__version__}")
        typer.echo(" ".join(f"{name} {version_of(name)}" for name in libraries))
    elif show is not None:
        script = get_completion_script(
            prog_name="sentkit", complete_var=completion.VARIABLE, shell=show
        )
        typer.echo(script)
    elif install is not None:
        _, path = install_script(install, "sentkit", completion.VARIABLE)
        typer.echo(f"written: {path}")
        typer.echo(f"completion works in the next {install} that you start")
    else:
        help_alone(context)
        return
    raise typer.Exit


def help_alone(context: typer.Context) -> None:
    """Without a subcommand, print the help and exit with 2."""
    if context.invoked_subcommand is None:
        typer.echo(help_texts.short_help(context.command_path, context.command), err=True)
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

    # The groups of commands, such as `train`, and the commands of each. "" is the program.
    parents = {"": app}
    for name, module in groups(names).items():
        parents[name] = typer.Typer(cls=Group, rich_markup_mode=None, help=module.__doc__)
        parents[name].callback(invoke_without_command=True)(help_alone)
        app.add_typer(parents[name], name=name)
    for words, command in every_command(names).items():
        group, _, name = words.rpartition(" ")
        parents[group].command(name, cls=Command)(handle_errors(command, words))
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
        code = run_command_line(arguments)
    finally:
        with without_signals():
            from sentkit.formats.outputs.temporary import remove_all

            remove_all()
    exit_immediately(code)


def run_command_line(arguments: list[str]) -> int:
    """Run a command line and return its exit code; also for wrong usage."""
    only = None  # building one command is faster than building all
    if arguments and arguments[0] in NAMES:
        only = arguments[0]
    try:
        code = program(only)(arguments, prog_name="sentkit", standalone_mode=False)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            return 0  # `sentkit encode --help | head -3`: typer turns this into exit code 1
        code = error.code if isinstance(error.code, int) else 1
    except Exception as error:
        if hasattr(error, "format_message"):
            return usage_error(error, arguments)
        if isinstance(error, typer.Abort):
            return 128 + signal.SIGINT
        return exit_code(error, Console("")) or BUG
    return code if isinstance(code, int) else 0


def usage_error(error: Any, arguments: list[str]) -> int:
    """Print an error of typer about the command line, and return its exit code."""
    # What typer says, in the style of our messages.
    message = error.format_message()
    message = f"{message[:1].lower()}{message[1:].rstrip('.')}"
    context = getattr(error, "ctx", None)
    command = ""
    if context is not None:
        _, _, command = context.command_path.partition(" ")
    advice = f"see: {f'sentkit {command}'.rstrip()} --help"

    # Better advice for a flag that another command or `--set` has, or that is gone.
    removed = advice_of_removed(command, arguments)
    if removed is not None:
        flag, advice = removed
        message = f"{flag} was removed"
    elif context is not None and reads_rows(context.command):
        unknown_flag = getattr(error, "option_name", "")
        pipe = advice_of_cat(command, arguments, unknown_flag)
        setting = None
        if command == "train":
            from sentkit.commands.train import setting_of_flag

            setting = setting_of_flag(unknown_flag)
        if setting is not None:
            message = f"no such option: {unknown_flag}"
            advice = f"it is a setting: --set {setting}=VALUE; see: sentkit train METHOD --list"
        elif pipe is not None:
            message = f"no such option: {unknown_flag}"
            advice = f"sentkit cat has it: {pipe}"
    Console(command).error(message, advice)
    return int(getattr(error, "exit_code", 2))


def reads_rows(command: Any) -> bool:
    """Whether a command of typer has the flags of rows."""
    return any("--field" in parameter.opts for parameter in command.params)
