"""Parsers of flag values for which typer has no type."""

import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches

from sentkit.errors import UsageError

RANGE = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?")
MOST = 1000  # the longest range
SIZE = re.compile(r"([0-9]{1,18})([KMG]?)", re.IGNORECASE)
CLOSE = 0.5  # minimum similarity of a suggested name: `temp` has half of `temperature`
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def numbers(flag: str, text: str) -> list[int]:
    """Parse `7`, `1,2,3` or `0..9`; duplicates are removed."""
    found: list[int] = []
    for part in text.split(","):
        match = RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + MOST:
            raise UsageError(
                f'{flag} "{text}"', advice=f"expected 7, or 1,2,3, or 0..9 (of up to {MOST} numbers)"
            )
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


def size(flag: str, text: str) -> int:
    """Parse a number of bytes: `1000`, or `64K`, `64M` and `2G` in powers of 1024."""
    match = SIZE.fullmatch(text.strip())
    if match is None or not 0 < (found := int(match[1]) * UNITS[match[2].upper()]) < sys.maxsize:
        raise UsageError(f'{flag} "{text}"', advice="expected a number of bytes, for example 500K, 64M or 2G")
    return found


def assignment(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE of --set. A dash in the name is an underscore."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f'--set "{text}": expected name=value')
    return name.strip().replace("-", "_"), value.strip()


def suggestion(name: str, known: Iterable[str]) -> str:
    """Advice for an unknown name: the most similar known name, or all of them."""
    close = get_close_matches(name, known := list(known), n=1, cutoff=CLOSE)
    return f'did you mean "{close[0]}"?' if close else f"available: {', '.join(known)}"
