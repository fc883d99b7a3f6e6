"""One text of a row: read, and replaced where it stands, every other byte as it came."""

import json

import orjson
import pytest

from sentkit.errors import DataError, UsageError
from sentkit.formats.rows.kinds import OneText
from sentkit.formats.rows.rows import Row


def row(line: str) -> Row:
    return Row(line.encode(), orjson.loads(line), "a.jsonl", 3)


@pytest.mark.parametrize(
    "line",
    ['{"text":T}', '{"id":123456789012345678901, "text" : T,"x":1.10}', '{"n":{"text":"deep"},"text":T}'],
)
def test_the_text_is_replaced_in_place(line: str) -> None:
    found = OneText({}).put(row(line.replace("T", '"a\\u00e9"')), 'b "c" é\n').decode()

    assert found == line.replace("T", '"b \\"c\\" é\\n"')


def test_another_field_can_be_the_text() -> None:
    """By --field; the member called text is then one of the rest."""
    texts = OneText({"text": "title é"})
    given = row('{"text":1,"title é":"a"}')

    assert texts(given)[1] == ("a",)
    assert texts.put(given, "b").decode() == '{"text":1,"title é":"b"}'


def test_the_old_text_is_kept_byte_for_byte() -> None:
    """With its escapes, at the end of the row or in place of an existing field."""
    given = row('{"text":"\\u00e9\\/","x":1}')

    assert OneText({}, "old").put(given, "b").decode() == '{"text":"b","x":1,"old":"\\u00e9\\/"}'
    assert OneText({}, "x", replace=True).put(given, "b").decode() == '{"text":"b","x":"\\u00e9\\/"}'


def test_an_unchanged_text_keeps_its_bytes() -> None:
    given = row('{"text": "\\u0020" , "x":1}')

    assert OneText({}).put(given, None) == given.line
    assert json.loads(OneText({}, "old").put(given, None)) == {"text": " ", "x": 1, "old": " "}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"body":"a"}', '"text" is missing'),
        ('{"text":7}', '"text" is a number, expected a string'),
        ('{"text":null}', '"text" is null, expected a string'),
        ('{"text":"a","text":"b"}', 'duplicate field "text"'),
        ('{"text":"a","old":"b"}', 'field "old" already exists'),
    ],
)
def test_an_invalid_row_is_reported_with_its_line(line: str, problem: str) -> None:
    with pytest.raises(DataError, match=f"^a.jsonl:3: {problem}$"):
        OneText({}, "old")(row(line))


def test_the_old_text_needs_another_field() -> None:
    with pytest.raises(UsageError, match="--keep title: this field gets the new text"):
        OneText({"text": "title"}, "title")
