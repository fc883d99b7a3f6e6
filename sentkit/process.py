"""The process: its standard streams, its signals and its end. Imports only what Python has loaded anyway."""

import contextlib
import io
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
STDIN, STDOUT, STDERR = 0, 1, 2
AGAIN = 0.01  # seconds
UNWINDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_received = signal.SIGTERM  # the signal that SIGALRM repeats


class LossyStderr(io.FileIO):
    """Standard error that never fails: what a full disk or a closed pipe does not take is lost."""

    def write(self, data: object) -> int:
        with contextlib.suppress(OSError):
            return super().write(data) or 0  # type: ignore[arg-type]
        return memoryview(data).nbytes  # type: ignore[arg-type]


def prepare() -> None:
    """Before anything slow is imported or any file is opened."""
    if heeded(signal.SIGINT):
        signal.signal(signal.SIGINT, leave_at_once)
    fill_closed_streams()
    stream = io.BufferedWriter(LossyStderr(STDERR, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(stream, errors="backslashreplace", line_buffering=True)


def fill_closed_streams() -> None:
    """Open something on each closed standard stream, else the next file that is opened gets its number.

    Then messages would be written into that file. Python has set `sys.stdin` or `sys.stdout` to None by now,
    so a command still sees that the stream is closed. A socket without a peer can neither be read, nor
    written, nor opened again as /dev/stdout.
    """
    for number in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            if number == STDERR:
                os.open(os.devnull, os.O_WRONLY)  # the lowest free number is this one
            else:
                import socket

                socket.socket(socket.AF_UNIX).detach()
            os.set_inheritable(number, True)


def heeded(number: int) -> bool:
    """Not ignored by whoever started the process: `nohup`, or a shell that starts a job in the background."""
    return signal.getsignal(number) is not signal.SIG_IGN


def leave_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Before a command runs there is nothing to clean up."""
    with contextlib.suppress(OSError):
        os.write(STDERR, b"sentkit: interrupted\n")
    os._exit(128 + number)


def unwind_on_signals() -> None:
    """From here on the signals raise, so that temporary files are removed."""
    for number in UNWINDING:
        if heeded(number):
            signal.signal(number, unwind)
    signal.signal(signal.SIGALRM, unwind)


def unwind(number: int, frame: FrameType | None) -> None:
    """Raise, but not within an import, which may half succeed: ask again."""
    global _received
    if number != signal.SIGALRM:
        _received = signal.Signals(number)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        frame = frame.f_back
    if _received == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + _received)


def leave(code: int) -> NoReturn:
    """End at once: a thread may still be waiting for a row that never comes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the reader may be stuck: a second Ctrl-C ends the wait
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe is not a failure
            if stream is not None:
                stream.flush()
    os._exit(code)
