"""The commands that papers.py runs, their errors, and signals."""

import signal
import subprocess
from pathlib import Path

from sentkit.errors import UnavailableError

EXAMPLES = Path(__file__).parent.parent
STOPPED = 75  # saved; the same call continues


class MissingError(Exception):
    """What a system, a table or a figure needs does not exist."""


class FailedError(Exception):
    """A command failed, or was stopped."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code


class Stop:
    """A signal ends the command that runs, which saves its state, and then this program."""

    requested = False
    command = None

    @classmethod
    def request(cls, number, frame):
        cls.requested = True
        if cls.command is not None and number != signal.SIGINT:  # a terminal sends this one to all
            cls.command.send_signal(number)


def run(words, stdout=subprocess.PIPE):
    """The output of a command, or None if it goes to another `stdout`."""
    if Stop.requested:
        raise FailedError(STOPPED)
    try:
        command = subprocess.Popen([*map(str, words)], stdout=stdout, text=True)
    except FileNotFoundError as error:
        advice = "activate the environment of sentkit, such as: . .venv/bin/activate"
        raise UnavailableError(f"{words[0]}: no such command", advice=advice) from error
    with command:
        Stop.command = command
        if Stop.requested:  # while the command started
            command.terminate()
        printed, _ = command.communicate()
        Stop.command = None
    code = command.returncode
    if Stop.requested and code <= 0:
        code = STOPPED
    if code:
        raise FailedError(code)
    return printed


def sentkit(words, stdout=subprocess.PIPE):
    return run(["sentkit", *words, "-q"], stdout=stdout)


def python(script, words):
    """Run a script of examples/."""
    return run(["python3", EXAMPLES / script, *words])
