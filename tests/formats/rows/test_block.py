"""Checks that mark bad rows of a block."""

from sentkit.formats.rows.block import Row, block_of
from sentkit.formats.rows.kinds import string_in


def test_texts_belong_to_their_rows_and_earlier_errors_stay():
    values = [{"t": "x"}, {"t": 1}, {"t": "y"}, {"t": "z"}]
    rows = block_of(Row(b"{}", each, "a", number) for number, each in enumerate(values, 1))
    rows.refuse(2, "no")
    rows.parse(lambda row: string_in(row, "t") * 2)

    assert [rows.texts[place] for place in (0, 3)] == [("xx",), ("zz",)]
    problems = {place: str(error) for place, error in rows.bad.items()}
    assert problems == {1: 'a:2: "t" is a number, expected a string', 2: "a:3: no"}
