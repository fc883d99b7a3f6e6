"""A list of tokens that readouts leave out, such as the most frequent ones."""

from collections.abc import Callable
from pathlib import Path

from sentkit.errors import DataError, UsageError
from sentkit.formats.rows.kinds import wrong_field
from sentkit.formats.rows.rows import Inputs, Row


def read_left_out(path: str | None, token_to_id: Callable[[str], int | None]) -> tuple[int, ...]:
    """Return the ids of the tokens in the file of --leave-out, in ascending order; none without the flag.

    The file has one token per line, or rows with "token", as `sentkit plot words` writes them.
    """
    if path is None:
        return ()
    if path == "-":
        raise UsageError("--leave-out needs a file; standard input has the rows")
    if path.isdecimal() and not Path(path).exists():
        advice = f"sentkit plot words TEXTS --json | head -{path} lists the {path} most frequent ones"
        raise UsageError(f"--leave-out {path}: expected a file of tokens", advice=advice)

    def token_id(row: Row) -> int:
        name = "token" if "token" in row.values else "text"
        token = row.values.get(name)
        if not isinstance(token, str):
            raise wrong_field(row, "token", "a string")
        number = token_to_id(token)
        if number is None:
            raise row.error(f'"{token}" is not a token of the model')
        return number

    ids = tuple(sorted(set(Inputs([path]).read(token_id))))
    if not ids:
        raise DataError("no tokens", source=path)
    return ids
