"""Variants set into rows, against Python's own parser; every other byte as it came."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.errors import DataError, UsageError
from sentkit.formats.rows.kinds import VariantRows
from sentkit.formats.rows.rows import Row

RUN = {"seed": 1, "view": 0, "ops": [{"op": "lower"}]}
NAMES = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\,:}te'), max_size=6)
TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\,:}'), max_size=6)
VALUES = TEXTS | st.integers() | st.none()


def row(line: str) -> Row:
    return Row(line.encode(), json.loads(line), "rows.jsonl", 7)


def varied(line: str, variant: str, *, name: str = "text", replace: bool = False) -> str:
    rows = VariantRows(name, replace=replace)
    return rows.line(rows.read(row(line)), variant, RUN).decode()


def record(member: str) -> str:
    return f'{{"member":"{member}","seed":1,"view":0,"ops":[{{"op":"lower"}}]}}'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"text":"A"}', '{"text_a":"A","text_b":"x\\"y","augment":[R]}'),
        ('{"id":1.10,"text" : "A" , "z":[]}',
         '{"id":1.10,"text_a" : "A","text_b":"x\\"y" , "z":[],"augment":[R]}'),
        ('{"text":"\\u0041","id":12345678901234567890}',
         '{"text_a":"\\u0041","text_b":"x\\"y","id":12345678901234567890,"augment":[R]}'),
        ('{"t\\u0065xt":"A"}', '{"text_a":"A","text_b":"x\\"y","augment":[R]}'),
        ('{"x":"text","text":"A"}', '{"x":"text","text_a":"A","text_b":"x\\"y","augment":[R]}'),
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
    expected: list[tuple[str, Any]] = []
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


@pytest.mark.parametrize(
    ("line", "replace", "problem"),
    [
        ('{"body":"A"}', False, '"text" is missing'),
        ('{"text":null}', False, '"text" is null, expected a string'),
        ('{"text":"A","text":"B"}', False, 'duplicate field "text"'),
        ('{"text":"A","text_a":"B"}', False, 'field "text_a" already exists'),
        ('{"text":"A","text_b":1}', False, 'field "text_b" already exists'),
        ('{"text":"A","augment":7}', True, '"augment" is not a record of sentkit augment'),
        ('{"text":"A","augment":[{"view":0}]}', True, '"augment" is not a record of sentkit augment'),
    ],
)
def test_invalid_rows_are_refused_with_their_line(line, replace, problem):
    with pytest.raises(DataError) as error:
        VariantRows("text", replace=replace).read(row(line))

    assert str(error.value) == f"rows.jsonl:7: {problem}"


def test_the_record_cannot_be_the_sentence():
    problem = '--field "text=augment": the field "augment" is reserved for the record of sentkit augment'
    with pytest.raises(UsageError, match=f"^{problem}$"):
        VariantRows("augment", replace=True)
