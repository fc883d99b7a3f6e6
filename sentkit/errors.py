"""Errors that the user can mend: each ends as one line on stderr and an exit code (see `cli.py`)."""

from collections.abc import Iterator
from contextlib import contextmanager


class SentkitError(Exception):
    """What was found and where; `advice` is what would mend it, printed on a line of its own."""

    exit_code = 70

    def __init__(self, problem: str, *, advice: str | None = None) -> None:
        super().__init__(problem)
        self.advice = advice
        self.silent = False  # standard input was empty: the command before it has said why


class UsageError(SentkitError):
    """Flags that are wrong or that do not go together."""

    exit_code = 2


class DataError(SentkitError):
    """Bad data at one place: `pairs.jsonl:17: "text" is missing`."""

    exit_code = 65

    def __init__(
        self, problem: str, *, source: str, line: int | None = None, advice: str | None = None
    ) -> None:
        place = source if line is None else f"{source}:{line}"
        super().__init__(f"{place}: {problem}", advice=advice)
        self.problem = problem


@contextmanager
def declared_in(source: str, *, unless: bool = False) -> Iterator[None]:
    """Report a value that no flag can have as bad data when it comes from this file, and not from a flag."""
    try:
        yield
    except UsageError as error:
        if unless:
            raise
        raise DataError(str(error), source=source, advice=error.advice) from error


class NoInputError(SentkitError):
    """A file or a model that does not exist or cannot be read."""

    exit_code = 66


class UnavailableError(SentkitError):
    """A device, a hub or an optional library that is not there."""

    exit_code = 69


class CannotCreateError(SentkitError):
    """An output that cannot be made, or that exists already."""

    exit_code = 73


class AnswerIsNo(SentkitError):
    """`--fail-under` and other checks that a script asks for."""

    exit_code = 1
