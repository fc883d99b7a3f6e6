"""Signals request a stop: the current step is finished and saved. A second Ctrl-C exits at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sentkit.errors import SentkitError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Stopped(SentkitError):
    """Stopped by a signal, after saving."""

    exit_code = 75


class Aborted(SentkitError):
    """Interrupted by a second Ctrl-C, without saving."""

    exit_code = 130


class Interrupted(BaseException):
    """A requested stop, raised out of a loop that has nothing to save.

    Not an Exception, so that no handler on the way catches it as an error.
    """


@dataclass(slots=True)
class Stop:
    asked: bool = False
    at_once: bool = False  # raise in the signal handler: a read that waits for rows never polls
    interrupts: int = 0  # how often Ctrl-C was pressed

    def poll(self) -> None:
        if self.asked:
            raise Interrupted

    @contextmanager
    def impatient(self) -> Iterator[None]:
        """While this lasts, a signal interrupts the current operation."""
        self.poll()
        self.at_once = True
        try:
            yield
        finally:
            self.at_once = False

    def request(self, number: int, notice: Callable[[], None]) -> None:
        """Take a signal."""
        self.asked = True
        if number == signal.SIGINT:
            self.interrupts += 1
            if self.interrupts > 1:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # a third one ends the process itself
                raise KeyboardInterrupt
        if self.at_once:
            raise Interrupted
        if number == signal.SIGINT:
            notice()


@contextmanager
def listening(notice: Callable[[], None] = lambda: None) -> Iterator[Stop]:
    """While this lasts, signals request a stop; `notice` reports the first Ctrl-C.

    A signal that the parent process ignores stays ignored: `nohup` and background jobs depend on it.
    """
    stop = Stop()

    def handler(number: int, frame: object) -> None:
        stop.request(number, notice)

    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield stop
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
