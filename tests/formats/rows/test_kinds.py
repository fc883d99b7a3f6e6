"""Kinds of rows, and the names of their vectors."""

from collections.abc import Callable

import orjson
import pytest

from sentkit.errors import DataError, UsageError
from sentkit.formats.rows.kinds import TextParser, class_of
from sentkit.formats.rows.rows import Inputs, Row, parse_fields

Write = Callable[[str, bytes], str]


def texts_of(write: Write, *lines: str, fields: dict[str, str] | None = None) -> list[tuple[str, ...]]:
    path = write("a.jsonl", "\n".join(lines).encode())
    return [texts for _, texts in Inputs([path]).read(TextParser(fields or {}))]


@pytest.mark.parametrize(
    ("line", "texts", "vectors"),
    [
        ('{"text":"x"}', "x", ["embedding"]),
        ('{"text_b":"y","text_a":"x","text":"z"}', "xy", ["embedding_a", "embedding_b"]),
        ('{"anchor":"x","positive":"y"}', "xy", ["embedding_anchor", "embedding_positive"]),
        (
            '{"anchor":"x","positive":"y","negative":"z"}',
            "xyz",
            ["embedding_anchor", "embedding_positive", "embedding_negative"],
        ),
    ],
)
def test_the_first_row_decides_the_kind(write: Write, line: str, texts: str, vectors: list[str]) -> None:
    parser = TextParser({})
    assert parser.vectors == ("embedding",)

    ((_, found),) = Inputs([write("a.jsonl", line.encode())]).read(parser)

    assert found == tuple(texts)
    assert parser.vectors == tuple(vectors)


NO_KIND = 'no "text", no "text_a" and "text_b", no "anchor" and "positive"; this row has '


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (['{"text":"x"}', '{"text_a":"x","text_b":"y"}'], '2: "text" is missing'),
        (['{"text_a":"x","text_b":"y"}', '{"text":"x"}'], '2: "text_a" is missing'),
        (
            ['{"anchor":"x","positive":"y","negative":"z"}', '{"anchor":"x","positive":"y"}'],
            '2: "negative" is missing',
        ),
        (['{"text":12}'], '1: "text" is a number, expected a string'),
        (['{"text":{}}'], '1: "text" is an object, expected a string'),
        (['{"text":"x","text":"y"}'], '1: duplicate field "text"'),
        (['{"text":"x","te\\u0078t":"y"}'], '1: duplicate field "text"'),
        (["{}"], f"1: {NO_KIND}nothing"),
        (['{"title":"x","id":1}'], f'1: {NO_KIND}"title", "id"'),
    ],
)
def test_a_row_of_another_kind_is_refused(write: Write, lines: list[str], problem: str) -> None:
    with pytest.raises(DataError) as caught:
        texts_of(write, *lines)

    assert str(caught.value).rpartition("/")[2] == f"a.jsonl:{problem}"


def test_a_name_that_is_also_a_value_is_not_a_duplicate(write: Write) -> None:
    assert texts_of(write, '{"text":"text","tags":["text"],"in":{"text":1}}') == [("text",)]


def test_fields_can_be_mapped(write: Write) -> None:
    fields = parse_fields(["text_a=left", "text_b=a=b"], ("text_a", "text_b"))

    assert texts_of(write, '{"left":"x","a=b":"y"}', fields=fields) == [("x", "y")]


@pytest.mark.parametrize(
    ("pair", "problem"),
    [
        *((pair, "expected name=theirs, for example text=title") for pair in ("text", "text=")),
        *((f"{name}=title", f'unknown field "{name}"') for name in ("", "texts", "label")),
    ],
)
def test_an_invalid_field_flag_is_a_usage_error(pair: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_fields([pair], ("text",))

    assert str(caught.value) == f'--field "{pair}": {problem}'
    with pytest.raises(UsageError, match='--field "text=b": "text" is given twice'):
        parse_fields(["text=a", "text=b"], ("text",))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("1", "1"), ("1.0", "1"), ('"1"', "1"), ("1e20", "100000000000000000000")),
        *((n, n) for n in ("18446744073709551615", "100000000000000000001", "-100000000000000000002")),
    ],
)
def test_a_class_is_the_exact_whole_number(value: str, expected: str) -> None:
    line = f'{{"a": [1], "label": {value}}}'.encode()

    assert class_of(Row(line, orjson.loads(line), "a.jsonl", 1), "label") == expected
