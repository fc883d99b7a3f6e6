"""Read and write small JSON files of a checkpoint, and format report records as JSON lines."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from sentkit.digits import rounded
from sentkit.errors import DataError, NoInputError


def read_json(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise DataError(f"not JSON: {error.msg}", source=str(path), line=error.lineno) from error
    except (OSError, ValueError) as error:  # ValueError: NUL byte in the name
        raise NoInputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def read_object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError("expected a JSON object", source=str(path))
    return value


def read_object_if_there(path: Path) -> dict[str, Any]:
    return read_object(path) if is_there(path) else {}


# Unlike the methods of Path, these are false for a name that is too long or has a NUL byte.
is_there, is_folder, exists = os.path.isfile, os.path.isdir, os.path.exists


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON with a final newline. The order of the keys is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def json_line(record: Mapping[str, Any]) -> bytes:
    return orjson.dumps(rounded(record), option=orjson.OPT_APPEND_NEWLINE)
