"""Vectors in rows: exact both ways, of one space and one shape, and nothing but finite numbers;
written.
"""

import base64
import hashlib
import json
import math
import re
import struct
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sentkit.errors import CannotCreateError, DataError, UsageError
from sentkit.formats.rows.block import Row, block_of_rows
from sentkit.formats.rows.kinds import score_value
from sentkit.formats.rows.rows import Inputs, Rejects
from sentkit.formats.vectors.file_writer import create_vector_file
from sentkit.formats.vectors.fingerprint import (
    Space,
    digest,
    emb_problem,
    name_for_label,
    short_label,
    space_of,
    target_space,
)
from sentkit.formats.vectors.store import open_inputs
from sentkit.formats.vectors.vector_file import VectorFile
from sentkit.formats.vectors.vectors import VectorReader, as_base64, as_list, raw_vectors
from sentkit.formats.vectors.writers import VectorOutput, file_name, open_writers, output_paths
from support import stored_rows

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def row(line):
    return Row(line.encode(), orjson.loads(line), "a.jsonl", 7)


@given(st.lists(FLOATS, min_size=1, max_size=20), st.sampled_from([as_list, as_base64]))
def test_a_vector_is_read_back_exactly(values, encode):
    vector = np.array(values, dtype=np.float32)

    line = b'{"embedding":%b}' % encode(vector)
    assert raw_vectors(block_of_rows([row(line.decode())]), ["embedding"]) == [vector.tobytes()]


def test_base64_is_little_endian_float32():
    expected = base64.b64encode(struct.pack("<3f", 1.0, -2.5, 0.1)).decode()

    assert json.loads(as_base64(np.array([1.0, -2.5, 0.1], dtype=np.float32))) == expected
    assert json.loads(as_base64(np.array([1.0, -2.5, 0.1], dtype=">f4"))) == expected


def test_a_list_has_the_shortest_digits_and_may_contain_integers():
    assert as_list(np.array([0.1, 1 / 3, 1e-8], dtype=np.float32)) == b"[0.1,0.33333334,1e-8]"
    raw = raw_vectors(block_of_rows([row('{"v":[1,-2,18446744073709551615]}')]), ["v"])

    assert raw == [struct.pack("<3f", 1.0, -2.0, 2.0**64)]


def test_rows_of_one_space(write):
    """With another label, after a bad row, and with numbers whose square is infinite."""
    rejects = Rejects(skip=True)
    lines = [
        b'{"embedding":[1e39,1],"_emb":"x:100000000000"}',
        b'{"embedding":[1],"_emb":"a:012300000000"}',
        b'{"embedding":[3e38],"_emb":"b/c:012300000000"}',
    ]
    inputs = Inputs([write("a.jsonl", b"\n".join(lines))], rejects=rejects)
    vectors_read = [
        vectors for block in VectorReader(inputs).blocks() for vectors in block.vectors.tolist()
    ]

    assert vectors_read == [[[1.0]], [[np.float32(3e38)]]]
    assert rejects.count == 1


def test_the_first_rows_are_read_in_blocks(write):
    """Bad rows do not count, and a bad row below the last one is not read."""
    bad = {0, 3, 4, 100}
    lines = [b'{"embedding":[%d]}' % n if n not in bad else b'{"text":1}' for n in range(101)]
    rejects = Rejects(skip=True)
    inputs = Inputs([write("a.jsonl", b"\n".join(lines))], rejects=rejects)
    blocks = list(VectorReader(inputs).blocks(limit=97))

    numbers = [number for block in blocks for number in block.rows.numbers]
    assert numbers == [number for number in range(1, 101) if number - 1 not in bad]
    assert (len(blocks), rejects.count) == (3, 3)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("1", 1.0), ("-2.5", -2.5), ('"3.5"', 3.5), ("null", None), ('"  "', None)],
)
def test_a_score_is_a_number_or_its_text(value, expected):
    assert score_value(row(f'{{"score":{value}}}'), "score") == expected


def test_a_row_without_its_vectors_keeps_all_other_bytes():
    full_row = row('{"id":1.10,"embedding":[1,2],"_emb":"a:100000000000", "text" : "x"}')
    remaining = block_of_rows([full_row]).without({"embedding", "_emb"})

    assert remaining.lines == [b'{"id":1.10, "text" : "x"}']
    assert remaining.values == [{"id": 1.1, "text": "x"}]
    same = block_of_rows([row('{"id":1,"id":2}')])
    assert same.without({"embedding", "_emb"}) is same


@pytest.fixture
def stored(tmp_path):
    def write(name, vectors, **spec):
        path = str(tmp_path / f"{name}.safetensors")
        with create_vector_file(
            path, spec, ("embedding",), width=len(vectors[0]), force=False
        ) as writer:
            for number, vector in enumerate(vectors):
                writer.write([b'{"n":%d}' % number], np.array([[vector]], np.float32))
        return path

    return write


def blocks_of(*paths, skip=False):
    reader = VectorReader(open_inputs(list(paths), rejects=Rejects(skip=skip)))
    return [block.tolist() for path in paths for block in reader.arrays(path, 2)]


def test_a_bad_vector_in_a_block_is_named_or_skipped(stored):
    whole = stored("whole", [[1, 2], [3, 4], [5, 6]])
    for skip in (False, True):
        assert blocks_of(whole, skip=skip) == [[[[1, 2]], [[3, 4]]], [[[5, 6]]]]
    path = stored("a", [[1, 2], [3, 4], [5, 6], [7, math.nan], [9, 10]])

    with pytest.raises(DataError, match=r"a\.safetensors:4: a vector contains NaN or infinity"):
        blocks_of(path)
    assert blocks_of(path, skip=True) == [[[[1, 2]], [[3, 4]]], [[[5, 6]], [[9, 10]]]]


# Written: spliced into JSONL, or beside their rows in a vector file


ONE = np.array([[0.5, -1.0]], dtype=np.float32)


def written(path, rows, *, extra=(), emb="m/cls:012300000000", replace=False):
    form = VectorOutput(replace=replace)
    with open_writers([str(path)], [{"_emb": emb}], ("embedding",), 2, form) as [sink]:
        for line, vectors in rows:
            sink.put(block_of_rows([line]), vectors[None], [extra] if extra else ())
    return path.read_bytes()


@pytest.mark.parametrize("name", ["a.jsonl", "a.safetensors"])
def test_existing_fields_need_replace(tmp_path, name):
    with pytest.raises(
        DataError, match=r'^a\.jsonl:7: field "embedding" already exists$'
    ) as caught:
        written(tmp_path / name, [(row('{"embedding":[1,2]}'), ONE)])

    assert caught.value.advice == "use --replace to overwrite it"
    assert list(tmp_path.iterdir()) == []


def test_zero_vectors_and_minus_zero_are_written(tmp_path):
    pairs = [[[0, 0], [0, 0]], [[0.5, 0], [0, 0]], [[-0.0, 0], [0, 0]]]
    rows = block_of_rows([row('{"id":1}')] * len(pairs))
    with open_writers([str(tmp_path / "a.jsonl")], [{}], ("a", "b"), 2, VectorOutput()) as [sink]:
        sink.put(rows, np.array(pairs, np.float32))
    zeros = '{"id":1,"a":[0.0,0.0],"b":[0.0,0.0]}'
    half_zeros = ['{"id":1,"a":[0.5,0.0],"b":[0.0,0.0]}', '{"id":1,"a":[-0.0,0.0],"b":[0.0,0.0]}']

    assert (tmp_path / "a.jsonl").read_text().splitlines() == [zeros, *half_zeros]


@pytest.mark.parametrize("emb", ['a "b"\\c:1', "a\nb:1", "é:1"])
def test_any_space_name_is_written_as_json(tmp_path, emb):
    content = written(tmp_path / "a.jsonl", [(row("{}"), ONE)], emb=emb)

    assert content.count(b"\n") == 1
    assert orjson.loads(content)["_emb"] == emb


def test_a_vector_file_keeps_rows_without_their_old_vectors(tmp_path):
    path = tmp_path / "a.safetensors"
    old = row('{"_emb":"x:100000000000","embedding":[9]}')

    written(path, [(old, ONE)], replace=True, extra=[(b"n_tokens", b"4")])

    ((stored_row, vectors),) = stored_rows(str(path))
    assert stored_row.line == b'{"n_tokens":4}'
    assert vectors.tolist() == ONE.tolist()


@pytest.mark.parametrize(
    "name",
    [
        *("a", "a.jsonl", "a.JSONL", "a.ndjson", "a.json", "a.gz", "a.jsonl.zst"),
        *(".a", "a.003", "a.v2", "tmp.Ab3dEf9hIj", "null.arrow"),
    ],
)
def test_jsonl_is_the_format_of_all_other_names(tmp_path, name):
    """A pipe or a device may have any name."""
    (tmp_path / "null.arrow").symlink_to("/dev/null")
    written(tmp_path / name, [(row("{}"), ONE)])

    if name != "null.arrow":
        [vector] = Inputs([str(tmp_path / name)], "jsonl").read(
            lambda row_read: row_read.values["embedding"]
        )
        assert vector == ONE[0].tolist()


@pytest.mark.parametrize(
    "name",
    [
        *(
            "a.xlsx",
            "a.txt.gz",
            "a.arrow",
            "a.JSONLL",
            "a.safetensor",
            "a.safetensors.gz",
            "b.parquet.zst",
        ),
        *("jsonl.bz2", "tmp.Ab3"),
    ],
)
def test_an_unknown_suffix_is_refused_with_the_known_ones(tmp_path, name):
    format = re.escape(name[name.index(".") :])
    with pytest.raises(UsageError, match=rf"{name}: unknown output format {format}$") as caught:
        written(tmp_path / name, [])

    assert (
        caught.value.advice
        == "use a name with .jsonl, .jsonl.gz, .jsonl.zst, .parquet or .safetensors"
    )
    assert list(tmp_path.iterdir()) == []


def test_each_of_several_readouts_has_a_file_sorted_by_layer(tmp_path):
    assert output_paths("-", ["cls"], VectorOutput(), force=False) == ["-"]
    readouts = ["L2:cls", "L10:cls", "mean"]
    paths = output_paths(str(tmp_path / "sweep"), readouts, VectorOutput(), force=False)

    names = ["L02-cls.safetensors", "L10-cls.safetensors", "mean.safetensors"]
    assert [Path(path).name for path in paths] == names == sorted(names)
    assert file_name("L1+L12:mean") == "L01+L12-mean"


def test_all_files_of_a_sweep_appear_or_none(tmp_path):
    paths = output_paths(str(tmp_path / "sweep"), ["cls", "mean"], VectorOutput(), force=False)
    specs = [{"_emb": "m/cls:010000000000"}, {"_emb": "m/mean:020000000000"}]

    def fill(*, fails):
        with open_writers(paths, specs, ("embedding",), 2, VectorOutput()) as opened:
            for sink in opened:
                sink.put(block_of_rows([row("{}")]), ONE[None])
            if fails:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        fill(fails=True)
    assert not list((tmp_path / "sweep").iterdir())
    fill(fails=False)
    assert [VectorFile(path).space_name for path in paths] == [
        "m/cls:010000000000",
        "m/mean:020000000000",
    ]
    with pytest.raises(CannotCreateError, match="already exists"):
        output_paths(str(tmp_path / "sweep"), ["cls", "mean"], VectorOutput(), force=False)


# Spaces and their names: equal steps give equal hashes in every command


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), JSON))
@example({"b": "x", "a": [1, None]})
def test_a_digest_is_blake2b_of_the_canonical_json(values):
    """As the json module writes it, with names in the order of their characters."""
    raw = json.dumps(values, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()

    assert digest(dict(reversed(values.items()))) == hashlib.blake2b(raw, digest_size=6).hexdigest()


def test_a_step_depends_only_on_the_space():
    """A filter that knows only `_emb` comes to the hash that the encoder comes to."""
    encoder = Space("m/mean", digest("weights"), {"model": "m"})
    at_once = encoder.after_step("/n", "1111").after_step("+whitening", "2222")
    hash_of_input = space_of(encoder.after_step("/n", "1111").name)
    filtered = Space("m/mean/n", hash_of_input).after_step("+whitening", "2222")

    assert filtered.hash == at_once.hash == digest([digest([encoder.hash, "1111"]), "2222"])
    assert at_once.label == filtered.label == "m/mean/n+whitening"
    assert at_once.full_metadata == {
        "_emb": at_once.name,
        "model": "m",
        "steps": ["/n:1111", "+whitening:2222"],
    }


def test_the_order_of_steps_and_repeated_steps_matter():
    start = Space("m", "00")
    one = start.after_step("a", "1")
    two = start.after_step("b", "2")
    specs = [
        start,
        one,
        start.after_step("a", "2"),
        one.after_step("b", "2"),
        two.after_step("a", "1"),
    ]

    assert len({space.hash for space in specs}) == 5


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("nano", "nano"),
        ("sentence-transformers/all-MiniLM-L6-v2", "all-MiniLM-L6-v2"),
        ("/tmp/my model/", "my-model"),
        ("pkg:gt_x", "pkg-gt_x"),
        ("somebody/tiny@v1.0", "tiny-v1.0"),
        ("somebody/tiny@refs/pr/1", "tiny-pr-1"),
        ("x/a@b", "a-b"),
        ('a"b\\c\n', "a-b-c-"),
        ("größe", "gr-e"),
        ("/", "model"),
        ("", "model"),
    ],
)
def test_a_label_is_the_last_part_of_a_name(name, label):
    assert name_for_label(name) == label


@pytest.mark.parametrize(
    ("emb", "space", "words"),
    [
        ("ckpt/cls:a1b2c3d4e5f6", "a1b2c3d4e5f6", "ckpt/cls (a1b2…)"),
        ("a:b:0123456", "0123456", "a:b (0123…)"),
        ("0123456", "0123456", "? (0123…)"),
        ("", "", "? (…)"),
    ],
)
def test_the_space_of_an_emb_follows_its_last_colon(emb, space, words):
    assert (space_of(emb), short_label(emb)) == (space, words)
    assert short_label(None) == "without _emb"


@given(
    st.text(min_size=1),
    st.from_regex(r"[a-z0-9+./_-]*(:cls)?(>[0-9a-f]{12})?", fullmatch=True),
    st.lists(st.tuples(st.from_regex(r"[/+][a-z0-9]{1,9}", fullmatch=True), JSON), max_size=3),
)
def test_steps_keep_a_name_well_formed(model, readout, steps):
    label = name_for_label(model)
    spec = Space(f"{label}/{readout}", digest(model))
    for suffix, step in steps:
        spec = spec.after_step(suffix, digest(step))

    assert re.fullmatch(r"[A-Za-z0-9._+-]+", label)
    assert emb_problem(spec.name) is None
    assert emb_problem(None) is None


@pytest.mark.parametrize(
    "emb",
    [
        *(
            "",
            ":",
            "x",
            "x:",
            "y:",
            "a1b2c3d4e5f6",
            ":a1b2c3d4e5f6",
            "x:a1b2c3d4e5f",
            "x:a1b2c3d4e5f60",
        ),
        *(
            "x:A1B2C3D4E5F6",
            "x:a1b2c3d4e5fg",
            "x:a1b2c3d4e5f6\n",
            "x y:a1b2c3d4e5f6",
            "x:a1b2c3d4e5f6 ",
        ),
        *("x\x1b:a1b2c3d4e5f6", "é:a1b2c3d4e5f6", "x>:a1b2c3d4e5f6", "x>0123:a1b2c3d4e5f6"),
        *("x:a1b2c3d4e5f6:", "x:١٢٣٤٥٦٧٨٩٠١٢", ">0123456789ab:a1b2c3d4e5f6"),
        *(7, 1.5, True, [], {}),
    ],
)
def test_a_malformed_name_of_a_space_is_described(emb):
    problem = emb_problem(emb)

    assert problem is not None
    assert problem.startswith('"_emb" is ')
    assert problem.endswith("expected LABEL:HASH with 12 hexadecimal digits")


@pytest.mark.parametrize(
    ("emb", "space"),
    [
        ("ckpt/pooler:mean>0123456789ab:a1b2c3d4e5f6", "0123456789ab"),
        ("ckpt/mean>ba9876543210>0123456789ab:a1b2c3d4e5f6", "0123456789ab"),
        ("ckpt/pooler>0123456789ab/n:a1b2c3d4e5f6", None),
        ("ckpt/pooler>0123456789ab+whitening:a1b2c3d4e5f6", None),
        ("ckpt/pooler>0123456789ab\n:a1b2c3d4e5f6", None),
        ("ckpt/pooler>0123456789AB:a1b2c3d4e5f6", None),
        ("ckpt/pooler>0123456789a:a1b2c3d4e5f6", None),
        ("ckpt/pooler>0123456789abc:a1b2c3d4e5f6", None),
        ("ckpt/pooler:a1b2c3d4e5f6", None),
        (">0123456789ab", None),
        ("", None),
    ],
)
def test_the_end_of_a_label_contains_the_target_space(emb, space):
    """Twelve digits behind the last `>`, with nothing after them but the colon and the space
    itself.
    """
    assert target_space(emb) == space
