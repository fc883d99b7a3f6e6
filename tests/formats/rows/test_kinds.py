"""Kinds of rows, the names of their vectors, and rows with another text or with a variant of it."""

import itertools
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.formats.rows.block import (
    Row,
    append_fields,
    block_of_rows,
    drop_fields,
    drop_fields_of_plain,
    field_spans,
    is_plain,
    put_fields,
    rename_fields,
)
from sentkit.formats.rows.kinds import TextParser, advice_on_missing, class_value, string_value
from sentkit.formats.rows.rewriting import OneText, VariantRows
from sentkit.formats.rows.rows import Inputs, parse_fields


def row(line):
    return Row(line.encode(), json.loads(line), "a.jsonl", 3)


def test_fields_can_be_mapped(write):
    fields = parse_fields(["text_a=left", "text_b=a=b"], ("text_a", "text_b"))

    [texts] = Inputs([write("a.jsonl", b'{"left":"x","a=b":"y"}')]).read(TextParser(fields))
    assert texts == ("x", "y")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("1", "1"), ("1.0", "1"), ('"1"', "1"), ("1e20", "100000000000000000000")),
        *(
            (n, n)
            for n in ("18446744073709551615", "100000000000000000001", "-100000000000000000002")
        ),
    ],
)
def test_a_class_is_the_exact_whole_number(value, expected):
    line = f'{{"a": [1], "label": {value}}}'.encode()

    assert class_value(Row(line, orjson.loads(line), "a.jsonl", 1), "label") == expected


@pytest.mark.parametrize(
    "line",
    [
        '{"text":T}',
        '{"id":123456789012345678901, "text" : T,"x":1.10}',
        '{"n":{"text":"deep"},"text":T}',
    ],
)
def test_the_text_is_replaced_in_place(line):
    given_row = row(line.replace("T", '"a\\u00e9"'))
    replaced = OneText({}).put(given_row, 'b "c" é\n').decode()

    assert replaced == line.replace("T", '"b \\"c\\" é\\n"')


@pytest.mark.parametrize(
    ("texts", "line", "text", "expected"),
    [
        (OneText({"text": "title é"}), '{"text":1,"title é":"a"}', "b", '{"text":1,"title é":"b"}'),
        (
            OneText({}, "old"),
            r'{"text":"\u00e9\/","x":1}',
            "b",
            r'{"text":"b","x":1,"old":"\u00e9\/"}',
        ),
        (
            OneText({}, "x", replace=True),
            r'{"text":"\u00e9\/","x":1}',
            "b",
            r'{"text":"b","x":"\u00e9\/"}',
        ),
        (OneText({}), r'{"text": "\u0020" , "x":1}', None, r'{"text": "\u0020" , "x":1}'),
        (OneText({}, "old"), r'{"text":"\u0020"}', None, r'{"text":"\u0020","old":"\u0020"}'),
    ],
)
def test_a_text_of_another_field_and_the_old_text_are_kept_byte_for_byte(
    texts, line, text, expected
):
    assert texts.put(row(line), text).decode() == expected


RUN = {"seed": 1, "view": 0, "ops": [{"op": "lower"}]}


def varied(line, variant, *, name="text", replace=False):
    rows = VariantRows(name, replace=replace)
    parsed_row = rows.read(row(line))
    return rows.line(parsed_row, variant, RUN).decode()


def record(member):
    return f'{{"member":"{member}","seed":1,"view":0,"ops":[{{"op":"lower"}}]}}'


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        (
            "text",
            '{"id":1.10,"text" : "A" , "z":[]}',
            '{"id":1.10,"text_a" : "A","text_b":"x\\"y" , "z":[],"augment":[R]}',
        ),
        (
            "text",
            '{"text":"\\u0041","id":12345678901234567890}',
            '{"text_a":"\\u0041","text_b":"x\\"y","id":12345678901234567890,"augment":[R]}',
        ),
        ("text", '{"t\\u0065xt":"A"}', '{"text_a":"A","text_b":"x\\"y","augment":[R]}'),
        (
            "título,",
            '{"text":1, "título,":"A" }',
            '{"text":1, "text_a":"A","text_b":"x\\"y" ,"augment":[R]}',
        ),
        (
            "text_a",
            '{"text_a":"A","n":1e400}',
            '{"text_a":"A","text_b":"x\\"y","n":1e400,"augment":[R]}',
        ),
        (
            "text",
            '{"x":{"text":"B"},"text":"A"}',
            '{"x":{"text":"B"},"text_a":"A","text_b":"x\\"y","augment":[R]}',
        ),
        ("text", '{"augment":[],"text":"A"}', '{"augment":[R],"text_a":"A","text_b":"x\\"y"}'),
        (
            "text",
            '{"text":"A","augment":[ {"view":3,"ops":[]} ],"b":0}',
            '{"text_a":"A","text_b":"x\\"y","augment":[ {"view":3,"ops":[]},R],"b":0}',
        ),
    ],
)
def test_a_sentence_becomes_a_pair(name, line, expected):
    assert varied(line, 'x"y', name=name) == expected.replace("R", record("text_b")) + "\n"


@pytest.mark.parametrize(
    ("line", "name", "expected"),
    [
        ('{"text":"A","n":1e400}', "text", '{"text":"x","n":1e400,"augment":[R]}'),
        ('{"text_a": "A","text_b":"B"}', "text_a", '{"text_a": "x","text_b":"B","augment":[R]}'),
        (
            '{"augment":[{"view":0,"ops":[1]}],"t":"A"}',
            "t",
            '{"augment":[{"view":0,"ops":[1]},R],"t":"x"}',
        ),
    ],
)
def test_a_variant_can_replace_the_sentence(line, name, expected):
    assert varied(line, "x", name=name, replace=True) == expected.replace("R", record(name)) + "\n"


def test_earlier_runs_are_read():
    line = '{"text":"A","augment":[{"view":2,"ops":[1,2]},{"view":0,"ops":[3]}]}'
    sentence = VariantRows("text", replace=True).read(row(line))

    assert (sentence.views, sentence.operations) == ((2, 0), 3)


def test_texts_belong_to_their_rows_and_earlier_errors_stay():
    values = [{"t": "x"}, {"t": 1}, {"t": "y"}, {"t": "z"}]
    rows = block_of_rows(Row(b"{}", value, "a", number) for number, value in enumerate(values, 1))
    rows.refuse(2, "no")
    rows.parse(lambda row: string_value(row, "t") * 2)

    assert [rows.parsed[index] for index in (0, 3)] == ["xx", "zz"]
    problems = {index: str(error) for index, error in rows.error_of_row.items()}
    assert problems == {1: 'a:2: "t" is a number, expected a string', 2: "a:3: no"}


# Fields that are added, replaced and removed, compared with Python's parser


NUMBERS = ("0", "-0", "1.10", "123456789012345678901234567890", "1e400", "-1E-400", "1e5", "0.1")
BLANKS = st.sampled_from(["", "", " ", "\t", " \t  "])
STRINGS = st.builds(
    lambda text, ascii: json.dumps(text, ensure_ascii=ascii),
    st.text(st.characters(codec="utf-8") | st.sampled_from('"\\{}[],:\u2028')),
    st.booleans(),
)
SCALARS = st.sampled_from([*NUMBERS, "true", "false", "null"]) | STRINGS


def listed(items, blank):
    separator = f",{blank}"
    return f"[{blank}{separator.join(items)}{blank}]"


def named(members, blank):
    separator = f"{blank},"
    pairs = [f"{name}{blank}:{value}" for name, value in members]
    return f"{{{blank}{separator.join(pairs)}{blank}}}"


INNER = st.recursive(
    SCALARS,
    lambda inner: (
        st.builds(listed, st.lists(inner, max_size=4), BLANKS)
        | st.builds(named, st.lists(st.tuples(STRINGS, inner), max_size=4), BLANKS)
    ),
    max_leaves=8,
)
FIELDS = st.lists(
    st.tuples(STRINGS, INNER), max_size=6, unique_by=lambda field: json.loads(field[0])
)
OURS = ("embedding", "_emb", "similarity")


@st.composite
def objects(draw):
    """An object in pieces: before a name, the name, up to its value, the value, after it."""
    members = draw(FIELDS)
    for name in draw(st.sets(st.sampled_from(OURS))):
        if name not in [json.loads(raw) for raw, _ in members]:
            index = draw(st.integers(0, len(members)))
            members.insert(index, (f'"{name}"', draw(INNER)))
    colon = st.tuples(BLANKS, BLANKS).map(":".join)
    return [[draw(BLANKS), raw, draw(colon), value, draw(BLANKS)] for raw, value in members]


def joined(pieces):
    return ("{" + ",".join("".join(piece) for piece in pieces) + "}").encode()


def parsed(line):
    """Names and values in order, numbers as the digits they were written in."""
    return json.loads(line, object_pairs_hook=lambda pairs: pairs, parse_float=str, parse_int=str)


@given(objects())
def test_spans_agree_with_the_parser(pieces):
    line = joined(pieces)

    values = {
        name: json.loads(line[span.value : span.end]) for name, span in field_spans(line).items()
    }

    assert values == json.loads(line)
    assert list(values) == list(json.loads(line))


@given(objects(), st.dictionaries(st.sampled_from(OURS), INNER))
def test_put_keeps_all_other_bytes(pieces, new):
    line = joined(pieces)

    written = put_fields(
        line, [(name.encode(), value.encode()) for name, value in new.items()], field_spans(line)
    )

    names = [json.loads(piece[1]) for piece in pieces]
    for piece, name in zip(pieces, names, strict=True):
        piece[3] = new.get(name, piece[3])
    added = ",".join(f'"{name}":{value}' for name, value in new.items() if name not in names)
    body = joined(pieces)[:-1]
    assert written == body + (b"," if pieces and added else b"") + added.encode() + b"}"


@given(objects(), st.sets(st.sampled_from(OURS)))
def test_drop_removes_only_these_fields(pieces, names):
    line = joined(pieces)

    remaining = drop_fields(line, names, field_spans(line))

    assert parsed(remaining) == [(name, value) for name, value in parsed(line) if name not in names]
    remaining_pieces = [piece for piece in pieces if json.loads(piece[1]) not in names]
    assert all("".join(piece[1:4]).encode() in remaining for piece in remaining_pieces)


@given(objects(), st.sets(st.sampled_from(OURS)))
def test_rename_keeps_all_other_bytes(pieces, names):
    line = joined(pieces)

    renamed = rename_fields(line, {name: f"new {name}" for name in names}, field_spans(line))

    for piece in pieces:
        name = json.loads(piece[1])
        piece[1] = f'"new {name}"' if name in names else piece[1]
    assert renamed == joined(pieces)


@given(objects())
def test_a_duplicate_name_is_refused(pieces):
    twice = [*pieces, ["", '"twice"', ":", "1", ""], ["", '"tw\\u0069ce"', ":", "2", ""]]

    with pytest.raises(ValueError, match='duplicate field "twice"'):
        field_spans(joined(twice))


def test_an_escaped_name_equals_the_unescaped_name():
    line = rb'{"\u005femb":1}'

    assert put_fields(line, [(b"_emb", b"2")], field_spans(line)) == rb'{"\u005femb":2}'


@pytest.mark.parametrize("line", [b"{}", b"{ }", b"{\t \r }"])
def test_an_empty_object_gets_no_comma(line):
    assert json.loads(put_fields(line, [(b"a", b"1"), (b"b", b"2")], field_spans(line))) == {
        "a": 1,
        "b": 2,
    }
    assert json.loads(append_fields(line, [(b"a", b"1")], empty=True)) == {"a": 1}


def test_a_deeply_nested_value_needs_no_recursion():
    line = b'{"deep":' + b'[{"":' * 50_000 + b"1" + b"}]" * 50_000 + b',"a":1}'

    assert list(field_spans(line)) == ["deep", "a"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"x":1,"a":"1","b":"2","c":"3"}',
        b'{"a":"1","x": 1.10 ,"b":"2","c":[3,4]}',
        b'{"x": 1.10 ,"a":"1","b":[2],"c":"3"}',
        b'{"x":1 , "a" : "1", "b":"2" ,"c":"3" }',
        b'{"a":"1","b":"2","c":"3"}',
        b'{"a":"b","x":"c","b":"a","c":"3","y":null}',
    ],
)
def test_both_ways_to_drop_agree(line):
    assert is_plain(line, json.loads(line))
    for names in itertools.permutations(["a", "b", "c"]):
        assert drop_fields_of_plain(line, names) == drop_fields(line, names, field_spans(line))


@pytest.mark.parametrize("name", [",", " ,"])
def test_the_end_of_a_string_is_not_the_name_of_a_field(name):
    line = f'{{"x":"1,"{name}":":"2","{name}":"3"}}'.encode()
    assert drop_fields_of_plain(line, [name]) == f'{{"x":"1,"{name}":":"2"}}'.encode()


def test_the_end_of_a_name_with_a_number_is_not_the_name_of_a_field():
    line = b'{"x":"y","a,":1,":":"z",":1,":"b"}'
    assert is_plain(line, json.loads(line))
    assert drop_fields_of_plain(line, [":1,"]) == b'{"x":"y","a,":1,":":"z"}'


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (("text_a", "text_b"), "text_a"),
        (("text_b", "text_a"), "text_b"),
        (("label", "texts", "text_a"), "texts"),
    ],
)
def test_the_advice_names_the_first_of_equally_similar_fields(fields, named):
    advice = advice_on_missing("text", "text", fields)

    assert advice.startswith(f"did you mean --field text={named}? this row has ")
