"""Standard error: notes, warnings and errors of a command, and the line of a progress bar."""

import contextlib
import os
import sys
from dataclasses import dataclass

from sentkit.escaping import escape, without_secrets

ERASE = "\r\033[K"

_open_line = False  # true if the last line on the terminal is a progress bar


@dataclass(slots=True)
class Console:
    command: str
    quiet: bool = False
    verbose: bool = False

    def error(self, message: str, advice: str | None = None) -> None:
        self.say(message)
        if advice:
            write_line(f"  {advice}")

    def warn(self, *messages: str) -> None:
        for message in messages if not self.quiet else ():
            self.say(f"warning: {message}")

    def note(self, message: str) -> None:
        """Print with -v, or on a terminal."""
        if self.verbose or (not self.quiet and on_terminal()):
            self.say(message)

    def report(self, message: str) -> None:
        """Print, except with -q."""
        if not self.quiet:
            self.say(message)

    def say(self, message: str) -> None:
        write_line(f"sentkit {self.command}: {message}" if self.command else f"sentkit: {message}")


def write_line(text: str) -> None:
    """Write a line of text; erase a progress bar first."""
    close_bar()
    _write(f"{escape(without_secrets(text))}\n")


def write_bar(text: str, width: int) -> None:
    """Replace the progress bar. The text is truncated to the width of the terminal."""
    global _open_line
    _write(f"{ERASE}{escape(text)[: width - 1]}")
    _open_line = True


def close_bar() -> None:
    """Erase the progress bar, if one is shown."""
    global _open_line
    if _open_line:
        _write(ERASE)
        _open_line = False


def on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _write(text: str) -> None:
    """Write, and ignore a failure: it must not change an output or an exit code."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()
