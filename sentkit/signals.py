"""Signals that request a stop after the current step of a training, or block of a vector folder.

A second Ctrl-C exits at once. `process.py` has the signals that end other commands.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sentkit.errors import SentkitError
from sentkit.process import INTERRUPTED, heeded

RESUME = "the same command with --resume continues"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Stopped(SentkitError):
    """Stopped by a signal, after saving."""

    exit_code = 75


class Aborted(SentkitError):
    """Interrupted by a second Ctrl-C, without saving."""

    exit_code = INTERRUPTED


class Interrupted(BaseException):
    """A requested stop in a loop without a state to save.

    It is not an Exception, because error handlers must not catch it.
    """


@dataclass(slots=True)
class Stop:
    requested: bool = False
    grace: float | None = None  # seconds from the request to the interruption; None: no interruption
    interrupting: bool = False  # raise in the signal handler, because a blocked read does not poll
    interrupts: int = 0  # number of Ctrl-C signals

    def poll(self) -> None:
        if self.requested:
            raise Interrupted

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A signal inside this context stops the command at once, because there is no state to save yet."""
        try:
            self.poll()
            self.interrupting = True
            yield
        except Interrupted as error:
            advice = "to start again, run the same command with --resume"
            raise Stopped("stopped before the first step", advice=advice) from error
        finally:
            self.interrupting = False

    def request(self, number: int, notice: Callable[[], None]) -> None:
        """Process a signal."""
        self.requested = True
        if number == signal.SIGINT:
            self.interrupts += 1
            if self.interrupts > 1:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # a third one kills the process
                raise KeyboardInterrupt
        if self.interrupting or number == signal.SIGALRM:
            raise Interrupted
        if self.grace is not None:
            signal.setitimer(signal.ITIMER_REAL, self.grace)
        if number == signal.SIGINT:
            notice()


@contextmanager
def handle_signals(notice: Callable[[], None] = lambda: None, grace: float | None = None) -> Iterator[Stop]:
    """Signals inside this context request a stop. `notice` reports the first Ctrl-C.

    If the context does not end within `grace` seconds, it is interrupted.

    Signals that the parent process ignores stay ignored, as `nohup` and background jobs require.
    """
    stop = Stop(grace=grace)

    def handler(number: int, frame: object) -> None:
        stop.request(number, notice)

    signals = SIGNALS if grace is None else (*SIGNALS, signal.SIGALRM)
    handled = [number for number in signals if heeded(number)]
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield stop
    finally:
        if grace is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, previous in before.items():
            signal.signal(number, previous)
