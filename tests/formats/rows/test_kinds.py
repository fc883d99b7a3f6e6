"""Kinds of rows, the names of their vectors, and rows with another text or with a variant of it."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.formats.rows.block import Row, block_of
from sentkit.formats.rows.kinds import OneText, TextParser, VariantRows, class_of, string_in
from sentkit.formats.rows.rows import Inputs, parse_fields


def row(line):
    return Row(line.encode(), json.loads(line), "a.jsonl", 3)


def test_fields_can_be_mapped(write):
    fields = parse_fields(["text_a=left", "text_b=a=b"], ("text_a", "text_b"))

    [(_, texts)] = Inputs([write("a.jsonl", b'{"left":"x","a=b":"y"}')]).read(TextParser(fields))
    assert texts == ("x", "y")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("1", "1"), ("1.0", "1"), ('"1"', "1"), ("1e20", "100000000000000000000")),
        *((n, n) for n in ("18446744073709551615", "100000000000000000001", "-100000000000000000002")),
    ],
)
def test_a_class_is_the_exact_whole_number(value, expected):
    line = f'{{"a": [1], "label": {value}}}'.encode()

    assert class_of(Row(line, orjson.loads(line), "a.jsonl", 1), "label") == expected


@pytest.mark.parametrize(
    "line",
    ['{"text":T}', '{"id":123456789012345678901, "text" : T,"x":1.10}', '{"n":{"text":"deep"},"text":T}'],
)
def test_the_text_is_replaced_in_place(line):
    found = OneText({}).put(row(line.replace("T", '"a\\u00e9"')), 'b "c" é\n').decode()

    assert found == line.replace("T", '"b \\"c\\" é\\n"')


@pytest.mark.parametrize(
    ("texts", "line", "text", "expected"),
    [
        (OneText({"text": "title é"}), '{"text":1,"title é":"a"}', "b", '{"text":1,"title é":"b"}'),
        (OneText({}, "old"), r'{"text":"\u00e9\/","x":1}', "b", r'{"text":"b","x":1,"old":"\u00e9\/"}'),
        (OneText({}, "x", replace=True), r'{"text":"\u00e9\/","x":1}', "b", r'{"text":"b","x":"\u00e9\/"}'),
        (OneText({}), r'{"text": "\u0020" , "x":1}', None, r'{"text": "\u0020" , "x":1}'),
        (OneText({}, "old"), r'{"text":"\u0020"}', None, r'{"text":"\u0020","old":"\u0020"}'),
    ],
)
def test_a_text_of_another_field_and_the_old_text_are_kept_byte_for_byte(texts, line, text, expected):
    """By --field and --keep; an unchanged text keeps its bytes."""
    assert texts.put(row(line), text).decode() == expected


RUN = {"seed": 1, "view": 0, "ops": [{"op": "lower"}]}
NAMES = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\,:}te'), max_size=6)
TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\,:}'), max_size=6)
VALUES = TEXTS | st.integers() | st.none()


def varied(line, variant, *, name="text", replace=False):
    rows = VariantRows(name, replace=replace)
    return rows.line(rows.read(row(line)), variant, RUN).decode()


def record(member):
    return f'{{"member":"{member}","seed":1,"view":0,"ops":[{{"op":"lower"}}]}}'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"id":1.10,"text" : "A" , "z":[]}',
         '{"id":1.10,"text_a" : "A","text_b":"x\\"y" , "z":[],"augment":[R]}'),
        ('{"text":"\\u0041","id":12345678901234567890}',
         '{"text_a":"\\u0041","text_b":"x\\"y","id":12345678901234567890,"augment":[R]}'),
        ('{"t\\u0065xt":"A"}', '{"text_a":"A","text_b":"x\\"y","augment":[R]}'),
        ('{"x":{"text":"B"},"text":"A"}', '{"x":{"text":"B"},"text_a":"A","text_b":"x\\"y","augment":[R]}'),
        ('{"augment":[],"text":"A"}', '{"augment":[R],"text_a":"A","text_b":"x\\"y"}'),
        ('{"text":"A","augment":[ {"view":3,"ops":[]} ],"b":0}',
         '{"text_a":"A","text_b":"x\\"y","augment":[ {"view":3,"ops":[]},R],"b":0}'),
    ],
)  # fmt: skip
def test_a_sentence_becomes_a_pair(line, expected):
    assert varied(line, 'x"y') == expected.replace("R", record("text_b")) + "\n"


@pytest.mark.parametrize(
    ("line", "name", "expected"),
    [
        ('{"text":"A","n":1e400}', "text", '{"text":"x","n":1e400,"augment":[R]}'),
        ('{"text_a": "A","text_b":"B"}', "text_a", '{"text_a": "x","text_b":"B","augment":[R]}'),
        ('{"augment":[{"view":0,"ops":[1]}],"t":"A"}', "t", '{"augment":[{"view":0,"ops":[1]},R],"t":"x"}'),
    ],
)
def test_a_variant_can_replace_the_sentence(line, name, expected):
    assert varied(line, "x", name=name, replace=True) == expected.replace("R", record(name)) + "\n"


@given(
    st.dictionaries(NAMES, VALUES, max_size=4),
    st.integers(0, 4),
    TEXTS,
    st.sampled_from(["text", "text_a", "text_b", "título", ",", "t"]),
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.booleans(),
)
def test_all_other_bytes_are_unchanged(others, place, variant, name, replace, separators, ascii):
    """As Python's parser reads it, members of any name and order."""
    members = [
        (key, value) for key, value in others.items() if key not in (name, "text_a", "text_b", "augment")
    ]
    members.insert(place, (name, "A"))
    line = json.dumps(dict(members), separators=separators, ensure_ascii=ascii)
    expected = []
    for key, value in members:
        new = [(name, variant)] if replace else [("text_a", "A"), ("text_b", variant)]
        expected += new if key == name else [(key, value)]
    member = name if replace else "text_b"
    made = json.loads(varied(line, variant, name=name, replace=replace), object_pairs_hook=list)

    assert [(key, value) for key, value in made[:-1]] == expected
    assert made[-1][0] == "augment"
    assert dict(made[-1][1][0])["member"] == member


def test_earlier_runs_are_read():
    line = '{"text":"A","augment":[{"view":2,"ops":[1,2]},{"view":0,"ops":[3]}]}'
    sentence = VariantRows("text", replace=True).read(row(line))

    assert (sentence.views, sentence.operations) == ((2, 0), 3)


def test_texts_belong_to_their_rows_and_earlier_errors_stay():
    values = [{"t": "x"}, {"t": 1}, {"t": "y"}, {"t": "z"}]
    rows = block_of(Row(b"{}", each, "a", number) for number, each in enumerate(values, 1))
    rows.refuse(2, "no")
    rows.parse(lambda row: string_in(row, "t") * 2)

    assert [rows.texts[place] for place in (0, 3)] == [("xx",), ("zz",)]
    problems = {place: str(error) for place, error in rows.bad.items()}
    assert problems == {1: 'a:2: "t" is a number, expected a string', 2: "a:3: no"}
