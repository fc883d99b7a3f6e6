"""Fields that are added to a JSON object, replaced and removed, compared with Python's parser."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.formats.rows.block import (
    DuplicateName,
    append_fields,
    drop_fields,
    drop_fields_of_plain,
    is_plain,
    put_fields,
    rename_fields,
    spans_of,
)

NUMBERS = ("0", "-0", "1.10", "123456789012345678901234567890", "1e400", "-1E-400", "1e5", "0.1")
BLANKS = st.sampled_from(["", "", " ", "\t", " \t  "])
STRINGS = st.builds(
    lambda text, ascii: json.dumps(text, ensure_ascii=ascii),
    st.text(st.characters(codec="utf-8") | st.sampled_from('"\\{}[],:\u2028')),
    st.booleans(),
)
SCALARS = st.sampled_from([*NUMBERS, "true", "false", "null"]) | STRINGS


def listed(parts, blank):
    return f"[{blank}{f',{blank}'.join(parts)}{blank}]"


def named(parts, blank):
    return f"{{{blank}{f'{blank},'.join(f'{name}{blank}:{value}' for name, value in parts)}{blank}}}"


VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.builds(listed, st.lists(inner, max_size=4), BLANKS)
        | st.builds(named, st.lists(st.tuples(STRINGS, inner), max_size=4), BLANKS)
    ),
    max_leaves=8,
)
FIELDS = st.lists(st.tuples(STRINGS, VALUES), max_size=6, unique_by=lambda field: json.loads(field[0]))
OURS = ("embedding", "_emb", "similarity")


@st.composite
def objects(draw):
    """An object in pieces: before a name, the name, up to its value, the value, after it."""
    found = draw(FIELDS)
    for name in draw(st.sets(st.sampled_from(OURS))):
        if name not in [json.loads(raw) for raw, _ in found]:
            found.insert(draw(st.integers(0, len(found))), (f'"{name}"', draw(VALUES)))
    return [
        [draw(BLANKS), raw, f"{draw(BLANKS)}:{draw(BLANKS)}", value, draw(BLANKS)] for raw, value in found
    ]


def joined(pieces):
    return ("{" + ",".join("".join(piece) for piece in pieces) + "}").encode()


def parsed(line):
    """Names and values in order, numbers as the digits they were written in."""
    return json.loads(line, object_pairs_hook=lambda pairs: pairs, parse_float=str, parse_int=str)


@given(objects())
def test_spans_agree_with_the_parser(pieces):
    line = joined(pieces)

    found = {name: json.loads(line[span.value : span.end]) for name, span in spans_of(line).items()}

    assert found == json.loads(line)
    assert list(found) == list(json.loads(line))


@given(objects(), st.dictionaries(st.sampled_from(OURS), VALUES))
def test_put_keeps_all_other_bytes(pieces, new):
    line = joined(pieces)

    found = put_fields(line, [(name.encode(), value.encode()) for name, value in new.items()], spans_of(line))

    there = [json.loads(piece[1]) for piece in pieces]
    for piece, name in zip(pieces, there, strict=True):
        piece[3] = new.get(name, piece[3])
    added = ",".join(f'"{name}":{value}' for name, value in new.items() if name not in there)
    body = joined(pieces)[:-1]
    assert found == body + (b"," if pieces and added else b"") + added.encode() + b"}"


@given(objects(), st.sets(st.sampled_from(OURS)))
def test_drop_removes_only_these_fields(pieces, names):
    line = joined(pieces)

    found = drop_fields(line, names, spans_of(line))

    assert parsed(found) == [(name, value) for name, value in parsed(line) if name not in names]
    kept = [piece for piece in pieces if json.loads(piece[1]) not in names]
    assert all("".join(piece[1:4]).encode() in found for piece in kept)


@given(objects(), st.sets(st.sampled_from(OURS)))
def test_rename_keeps_all_other_bytes(pieces, names):
    line = joined(pieces)

    found = rename_fields(line, {name: f"new {name}" for name in names}, spans_of(line))

    for piece in pieces:
        name = json.loads(piece[1])
        piece[1] = f'"new {name}"' if name in names else piece[1]
    assert found == joined(pieces)


@given(objects())
def test_a_duplicate_name_is_refused(pieces):
    twice = [*pieces, ["", '"twice"', ":", "1", ""], ["", '"tw\\u0069ce"', ":", "2", ""]]

    with pytest.raises(DuplicateName, match="twice"):
        spans_of(joined(twice))


def test_an_escaped_name_equals_the_unescaped_name():
    line = rb'{"\u005femb":1}'

    assert put_fields(line, [(b"_emb", b"2")], spans_of(line)) == rb'{"\u005femb":2}'


@pytest.mark.parametrize("line", [b"{}", b"{ }", b"{\t \r }"])
def test_an_empty_object_gets_no_comma(line):
    assert json.loads(put_fields(line, [(b"a", b"1"), (b"b", b"2")], spans_of(line))) == {"a": 1, "b": 2}
    assert json.loads(append_fields(line, [(b"a", b"1")], empty=True)) == {"a": 1}


def test_a_deeply_nested_value_needs_no_recursion():
    line = b'{"deep":' + b'[{"":' * 50_000 + b"1" + b"}]" * 50_000 + b',"a":1}'

    assert list(spans_of(line)) == ["deep", "a"]


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
    """For any order of the names."""
    assert is_plain(line, json.loads(line))
    for names in itertools.permutations(["a", "b", "c"]):
        assert drop_fields_of_plain(line, names) == drop_fields(line, names, spans_of(line))
