"""Errors that the user can fix. Each ends as a message on stderr and an exit code (see
`cli.py`).
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

OUT_OF_MEMORY = re.compile(  # in errors of torch, oneDNN, the dynamic loader and Python's threads
    "could not create a (primitive|memory)|DefaultCPUAllocator|can(no|')t allocate memory"
    "|failed to map segment|can't start new thread",
    re.IGNORECASE,
)


class SentkitError(Exception):
    """A problem and its place; `advice` is the fix, printed on a separate line."""

    exit_code = 70
    after_connection = False  # whether the processes of a training had connected before the error

    def __init__(self, problem: str, *, advice: str | None = None) -> None:
        super().__init__(problem)
        self.advice = advice


class UsageError(SentkitError):
    """Flags with wrong values, or flags that exclude each other."""

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
        self.source = source
        self.line = line


class NoVectorError(DataError):
    """A row without a vector. `field` has its text, if no flag names the field and its name is not
    known. `has_hits`: the row seems to be an output of `search`.
    """

    def __init__(
        self,
        problem: str,
        *,
        source: str,
        line: int,
        field: str | None = None,
        has_hits: bool = False,
    ) -> None:
        super().__init__(problem, source=source, line=line)
        self.field = field
        self.has_hits = has_hits


class OtherSpaceError(DataError):
    """Vectors of another space than those that they are compared with.

    `wanted` is the `_emb` of the others, and `wanted_path` their file, if it is known.
    """

    def __init__(
        self,
        problem: str,
        *,
        source: str,
        line: int | None,
        advice: str | None,
        wanted: str | None,
        wanted_path: str | None = None,
    ) -> None:
        super().__init__(problem, source=source, line=line, advice=advice)
        self.wanted = wanted
        self.wanted_path = wanted_path


class NoRowsError(DataError):
    """An input without rows, or without valid rows. It is an error because most commands
    need rows.
    """

    def __init__(self, paths: Sequence[str], bad: int = 0) -> None:
        """`bad` is the number of bad rows that were left out."""
        first = "standard input" if paths[0] == "-" else paths[0]
        more = f" and {len(paths) - 1} more files" if len(paths) > 1 else ""
        super().__init__("", source="")
        problem = f"no rows in {first}{more}"
        if bad:
            problem = f"no valid rows in {first}{more}; bad rows: {bad}"
        self.args = (problem,)


@contextmanager
def declared_in(source: str, *, unless: bool = False) -> Iterator[None]:
    """Turn a UsageError into a DataError of the file `source`.

    `unless` is true if the value comes from a flag: the UsageError then passes unchanged.
    """
    try:
        yield
    except UsageError as error:
        if unless:
            raise
        raise DataError(str(error), source=source, advice=error.advice) from error


class DivergedRunsError(DataError):
    """Some of several runs diverged; at least one other is complete."""


class DivergedError(DataError):
    """A training with values that are not finite."""


class NoInputError(SentkitError):
    """A file or a model that does not exist or cannot be read."""

    exit_code = 66


class UnavailableError(SentkitError):
    """A device, a hub or an optional library that is not available."""

    exit_code = 69


class OtherProcessError(UnavailableError):
    """The end of another process that trains the same model; its message has the reason."""


class CannotCreateError(SentkitError):
    """An output that cannot be created, or that already exists."""

    exit_code = 73


class AnswerIsNo(SentkitError):
    """A failed check that the user requested, such as `--fail-under`."""

    exit_code = 1


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    return (
        isinstance(error, RuntimeError | ImportError)
        and OUT_OF_MEMORY.search(str(error)) is not None
    )
