"""The fields of run.json and of the record of a block: the kind and the range of each.

A reader checks them all, so that a changed value is an error with a place, also where it is not used.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from sentkit.errors import DataError
from sentkit.formats.rows.rows import LINES, SUFFIXES
from sentkit.formats.vectors.fingerprint import INT8_LOSS, emb_problem
from sentkit.formats.vectors.storage import STORES

DIGEST = re.compile("[0-9a-f]{64}")
LARGEST = 10**15 - 1  # the name of a block has at most fifteen digits
ROW_FORMATS = ("", "tsv", "csv", "parquet")  # formats without blocks of bytes


@dataclass(frozen=True, slots=True)
class Kind:
    words: str  # the permitted values
    fits: Callable[[Any], bool]


def shown(value: object) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def number(least: int, most: int = LARGEST) -> Kind:
    return Kind(
        f"a whole number from {least} to {most}",
        lambda value: type(value) is int and least <= value <= most,
    )


def choice(*values: str) -> Kind:
    return Kind(", ".join(map(shown, values)), lambda value: isinstance(value, str) and value in values)


def or_null(kind: Kind) -> Kind:
    return Kind(f"{kind.words}, or null", lambda value: value is None or kind.fits(value))


def is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def is_encoder(value: Any) -> bool:
    if not isinstance(value, dict) or not value.get("_emb") or emb_problem(value["_emb"]):
        return False
    loss = value.get(INT8_LOSS, {})
    return isinstance(loss, dict) and all(type(each) is float and -1 <= each <= 1 for each in loss.values())


COUNT, SIZE = number(0), number(1, sys.maxsize)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
TEXT = Kind("a string", lambda value: isinstance(value, str))
PATH = Kind("a path", lambda value: isinstance(value, str) and value > "" and "\0" not in value)
SHA_256 = Kind("a SHA-256", lambda value: isinstance(value, str) and DIGEST.fullmatch(value) is not None)

RUN = {
    "format": TEXT,
    "version": COUNT,
    "block_bytes": SIZE,
    "batch_tokens": SIZE,
    "inputs": Kind("a list of inputs", lambda value: isinstance(value, list) and value != []),
    "store": choice(*STORES),
    "encoder": Kind("the record of an encoder", is_encoder),
    "fields": Kind("an object of strings", is_texts),
    "on_truncate": choice("warn", "error", "window", "late"),
    "on_error": choice("fail", "skip"),
    "max_line": SIZE,
    "quoting": choice("by format", "none", "csv"),
    "replace": FLAG,
    "verbose": FLAG,
}
WINDOWS = {"window": SIZE, "stride": SIZE, "chunks": FLAG}  # only with windows
INPUT = {
    "name": TEXT,
    "path": or_null(PATH),
    "grid": choice("bytes", "rows"),
    "rows": or_null(COUNT),
    "size": or_null(COUNT),
    "head": or_null(SHA_256),
    "tail": or_null(SHA_256),
    "format": choice(*dict.fromkeys([*LINES, *SUFFIXES.values()])),
}
BLOCK = {
    **dict.fromkeys(("input", "start", "stop", "rows", "truncated", "skipped"), COUNT),
    "last": FLAG,
    "source": SHA_256,  # digest of the bytes that were read
}
EMPTY_RECORD = dict.fromkeys(BLOCK, 10**18) | {"last": False, "source": "0" * 64}  # the widest values


def check_fields(
    values: Any, kinds: Mapping[str, Kind], source: str, what: str = "", optional: Sequence[str] = ()
) -> None:
    """Raise a DataError unless `values` is an object with these fields and no others."""
    if not isinstance(values, dict):
        raise DataError(f"{what or 'this'} is {shown(values)}, expected an object", source=source)
    before = f"{what}: " if what else ""
    for name, kind in kinds.items():
        if name not in values and name not in optional:
            raise DataError(f'{before}"{name}" is missing', source=source)
        if name in values and not kind.fits(values[name]):
            problem = f'{before}"{name}" is {shown(values[name])}, expected {kind.words}'
            raise DataError(problem, source=source)
    if unknown := values.keys() - kinds.keys():
        raise DataError(f"{before}unknown field {shown(min(unknown))}", source=source)


def check_input(record: Any, source: str, place: int) -> None:
    """Raise a DataError for an invalid record of an input. Its fields must also agree."""
    what = f"input {place}"
    check_fields(record, INPUT, source, what)
    sized = [record[name] is not None for name in ("size", "head", "tail")]
    wrong = any(sized) != all(sized)
    if record["grid"] == "bytes":
        wrong = wrong or record["path"] is None or not all(sized) or record["format"] in ROW_FORMATS
    if wrong or (record["rows"] is not None and record["format"] != "parquet"):
        raise DataError(f"{what}: its fields do not agree", source=source)
