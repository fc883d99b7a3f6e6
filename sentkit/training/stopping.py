"""SIGTERM and SIGUSR1 ask for a stop: what is at hand is finished and saved."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sentkit.errors import SentkitError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Stopped(SentkitError):
    """Stopped by a signal, after saving."""

    exit_code = 75


class Interrupted(BaseException):
    """The stop that was asked for, on its way out of a loop that has nothing to save.

    No Exception, so that nobody on the way takes it for a mistake of their own.
    """


@dataclass(slots=True)
class Stop:
    asked: bool = False
    at_once: bool = False  # raise where the signal comes: a read that waits for rows never polls

    def poll(self) -> None:
        if self.asked:
            raise Interrupted

    @contextmanager
    def impatient(self) -> Iterator[None]:
        """While this lasts, a stop ends what is at hand in its midst."""
        self.poll()
        self.at_once = True
        try:
            yield
        finally:
            self.at_once = False


@contextmanager
def listening() -> Iterator[Stop]:
    """While this lasts, the signals only leave a word, or raise where that is wanted."""
    stop = Stop()

    def ask(number: int, frame: object) -> None:
        stop.asked = True
        if stop.at_once:
            raise Interrupted

    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
