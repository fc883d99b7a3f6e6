"""The process: its standard streams, signals, threads and end. Imports only what Python has loaded."""

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
# The variables of OpenMP (torch, scikit-learn), of the BLAS of numpy and torch, and of the tokenizers.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")

_received = signal.SIGTERM  # the signal that SIGALRM repeats
_raised: signal.Signals | None = None  # the signal that raised an exception in this command


class LossyStderr(io.FileIO):
    """Standard error that never fails: text for a full disk or a closed pipe is discarded."""

    def write(self, data: object) -> int:
        with contextlib.suppress(OSError):
            return super().write(data) or 0  # type: ignore[arg-type]
        return memoryview(data).nbytes  # type: ignore[arg-type]


def prepare() -> None:
    """Prepare signals and streams. Call this before slow imports and before any file is opened."""
    if heeded(signal.SIGINT):
        signal.signal(signal.SIGINT, leave_at_once)
    fill_closed_streams()
    stream = io.BufferedWriter(LossyStderr(STDERR, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(stream, errors="backslashreplace", line_buffering=True)


def fill_closed_streams() -> None:
    """Open a substitute on each closed standard stream.

    Otherwise the next opened file gets the number of the closed stream, and messages are written into it.
    Python has already set `sys.stdin` or `sys.stdout` to None, so a command still detects the closed stream.
    A socket without a peer cannot be read, written or reopened as /dev/stdout.
    """
    for number in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            if number == STDERR:
                os.open(os.devnull, os.O_WRONLY)  # os.open uses the lowest free number, which is this one
            else:
                import socket

                socket.socket(socket.AF_UNIX).detach()
            os.set_inheritable(number, True)


def heeded(number: int) -> bool:
    """True unless the parent process ignores the signal, as `nohup` and background jobs of a shell do."""
    return signal.getsignal(number) is not signal.SIG_IGN


def leave_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Exit without cleanup: no command runs yet."""
    with contextlib.suppress(OSError):
        os.write(STDERR, b"sentkit: stopped by Ctrl-C\n")
    os._exit(128 + number)


def unwind_on_signals() -> None:
    """Let signals raise exceptions from now on, so that temporary files are removed."""
    global _raised
    _raised = None
    for number in UNWINDING:
        if heeded(number):
            signal.signal(number, unwind)
    signal.signal(signal.SIGALRM, unwind)


def unwind(number: int, frame: FrameType | None) -> None:
    """Raise, except within an import: an import may then half succeed, so try again later."""
    global _received, _raised
    if number != signal.SIGALRM:
        _received = signal.Signals(number)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        frame = frame.f_back
    _raised = _received
    if _received == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + _received)


def raised_signal() -> signal.Signals | None:
    """The signal that raised an exception. A library in C can replace this exception by another one."""
    return _raised


def is_first_process() -> bool:
    """Of the processes of torchrun, only the first one writes and prints."""
    return os.environ.get("RANK", "0") == "0"


def limit_threads(threads: int | None) -> None:
    """Set the number of threads. Call this before importing numpy, torch or tokenizers: they read it once."""
    if threads is not None:
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))


def leave(code: int) -> NoReturn:
    """Exit immediately: a thread may still wait for input."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # flushing may block: a second Ctrl-C then ends the process
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe is not an error
            if stream is not None:
                stream.flush()
    os._exit(code)
