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


class Interrupted(Exception):
    """The stop that was asked for, on its way out of a loop that has nothing to save."""


@dataclass(slots=True)
class Stop:
    asked: bool = False

    def poll(self) -> None:
        if self.asked:
            raise Interrupted


@contextmanager
def listening() -> Iterator[Stop]:
    """While this lasts, the signals only leave a word."""
    stop = Stop()

    def ask(number: int, frame: object) -> None:
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
