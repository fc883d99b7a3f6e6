"""Strategies and checks for files with damaged content."""

import json
from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st

from sentkit.errors import DataError, NoInputError, UnavailableError, UsageError

SENTKIT = (DataError, NoInputError, UsageError)
BAD_DATA = (DataError, NoInputError, UnavailableError)  # no flag is wrong: exit codes 65, 66 and 69
some = settings(max_examples=30)
few_examples = settings(some, max_examples=5)

ODD_VALUES = [
    None,
    True,
    -1,
    0,
    1.5,
    2**63,
    1e300,
    "",
    "x",
    "../x",
    "/",
    "a\0b",
    "x" * 5000,
    "L9:cls",
]
ODD_VALUES += [[], [None], {}, {"a": 1}]
ODD = st.sampled_from(ODD_VALUES)


@st.composite
def mutated(draw, samples):
    """A valid file with bytes changed, removed, doubled or inserted."""
    content = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 8)))
        middle = draw(st.binary(max_size=8) | st.just(bytes(content[start:end]) * 2))
        content[start:end] = middle
    return bytes(content)


def survives(read):
    """Returns normally, or raises an error of sentkit."""
    with suppress(*SENTKIT):
        read()


def is_read_or_bad_data(read):
    """Returns normally, or raises an error that blames the files."""
    with suppress(*BAD_DATA):
        read()


def places(value, path=()):
    """The path to each value in a JSON value, at any depth."""
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [
        path_of_value
        for key, inner in pairs
        for path_of_value in ((*path, key), *places(inner, (*path, key)))
    ]


def replaced(value, path, new):
    """The same JSON value with another one at this path."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return copy
