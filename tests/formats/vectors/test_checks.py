"""Checks that mark bad rows of a block."""

import numpy as np

from sentkit.formats.rows.block import Row, block_of
from sentkit.formats.rows.kinds import string_in
from sentkit.formats.vectors.checks import one_vector, parse_rows
from sentkit.formats.vectors.vectors import VectorBlock


def block(*values, vectors=1):
    rows = block_of(Row(b"{}", each, "a", number) for number, each in enumerate(values, 1))
    return VectorBlock(rows, np.ones((len(values), vectors, 2), np.float32), ())


def test_texts_belong_to_their_rows_and_earlier_errors_stay():
    rows = block({"t": "x"}, {"t": 1}, {"t": "y"}, {"t": "z"}).rows
    rows.refuse(2, "no")
    parse_rows(rows, lambda row: string_in(row, "t") * 2)

    assert [rows.texts[place] for place in (0, 3)] == [("xx",), ("zz",)]
    problems = {place: str(error) for place, error in rows.bad.items()}
    assert problems == {1: 'a:2: "t" is a number, expected a string', 2: "a:3: no"}


def test_all_pairs_are_bad():
    assert not one_vector(block({}, {})).rows.bad
    assert [str(error) for error in one_vector(block({}, {}, vectors=2)).rows.bad.values()] == [
        "a:1: expected 1 vector, this row has 2",
        "a:2: expected 1 vector, this row has 2",
    ]
