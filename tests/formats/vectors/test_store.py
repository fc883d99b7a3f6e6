"""Vector files and kinds of storage: what other libraries read, what is lost, and refused files."""

import gc
import json
import math
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import orjson
import pytest
import safetensors.numpy
import safetensors.torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sentkit.errors import DataError
from sentkit.formats.files import open_file
from sentkit.formats.vectors.arrays import StoredVectors
from sentkit.formats.vectors.file_writer import create_vector_file
from sentkit.formats.vectors.fingerprint import Space, digest
from sentkit.formats.vectors.tensors import STORES, Storage, finite_halves, read_header
from sentkit.formats.vectors.vector_file import VectorFile, VectorSource
from support import stored_rows

NAMES = {
    1: ("embedding",),
    2: ("embedding_a", "embedding_b"),
    3: ("embedding_anchor", "embedding_positive", "embedding_negative"),
}
OVERLAP = "overlaps another or leaves a gap"
DISAGREE = 'tensor "x": its type, shape and offsets do not agree'
AGREE = "its tensors and the names of its vectors do not agree"


EMB = "m/cls:010000000000"


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def fill(path, vectors, kind="float32", *, lines=None, **spec):
    """A vector file of vectors (n, k, d), with `{"id": n}` if there are no other lines."""
    names = NAMES[vectors.shape[1]]
    width = vectors.shape[2]
    lines = lines or [orjson.dumps({"id": number}) for number in range(len(vectors))]
    with create_vector_file(
        str(path), {"_emb": EMB} | spec, names, width=width, force=True, kind=kind
    ) as file:
        file.write(lines, vectors)
    return str(path)


def test_the_file_that_rows_are_read_from_is_closed_with_its_object(tmp_path, monkeypatch):
    opened = []

    def open_and_note(path):
        opened.append(open_file(path))
        return opened[-1]

    file = VectorFile(fill(tmp_path / "a.safetensors", normal(3, 1, 2)))
    monkeypatch.setattr("sentkit.formats.vectors.vector_file.open_file", open_and_note)
    assert [file.row(index).number for index in (0, 2)] == [1, 3]
    assert [each.closed for each in opened] == [False]
    del file
    gc.collect()  # the object and its cached function refer to each other

    assert [each.closed for each in opened] == [True]


# Written


@pytest.mark.parametrize("texts", [1, 2, 3])
@pytest.mark.parametrize(("count", "width"), [(0, 0), (0, 3), (1, 3), (7, 3)])
def test_written_rows_are_read_back(tmp_path, monkeypatch, count, width, texts):
    """In blocks of four. A file without rows may have the width 0."""
    monkeypatch.setattr("sentkit.formats.vectors.vector_file.BLOCK", 4)
    spec = {"model": "m", "max_length": 64}
    vectors = normal(count, texts, width)
    lines = [orjson.dumps({"text": f"é {'x' * number}"}) for number in range(count)]

    file = VectorFile(fill(tmp_path / "a.safetensors", vectors, lines=lines, **spec))

    assert (file.count, file.width, file.names, file.space_name) == (
        count,
        width,
        NAMES[texts],
        EMB,
    )
    assert file.metadata == {"_emb": EMB, **spec, "vectors": list(NAMES[texts])}
    rows = stored_rows(file)
    assert [(row.number, row.line) for row, _ in rows] == list(enumerate(lines, start=1))
    assert [stored.tolist() for _, stored in rows] == vectors.tolist()
    assert [len(block) for block in file.blocks()] == {0: [], 1: [1], 7: [4, 3]}[count]
    assert np.array_equal(decoded(file), vectors)


# Read with suspicion


def file_of(header, data=b"", *, length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def tensor(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


ODD = [
    *(None, [], tensor(dtype="F31"), tensor(shape=(0, 2**62), offsets=(0, 0))),
    *(tensor(shape=shape) for shape in ((2,), (1.0,), (True,), (2**62,) * 200_000)),
    *(tensor(offsets=offsets) for offsets in ((0,), (4, 0), (-4, 0))),
]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the header is longer than the file"),
        (file_of({}, length=2**63), "the header is longer than the file"),
        (file_of(b"[" * 100_000), "the header is not JSON"),
        (file_of([1]), "the header is not an object"),
        (file_of({"__metadata__": {"a": 1}}), "a metadata value is not a string"),
        (file_of({"x": tensor()}, bytes(5)), "longer than its header declares"),
        (file_of({"x": tensor(offsets=(4, 8))}, bytes(8)), f'tensor "x" {OVERLAP}'),
        (file_of({"x": tensor(), "y": tensor()}, bytes(4)), f'tensor "y" {OVERLAP}'),
        (
            file_of({"x": tensor(), "y": tensor(offsets=(8, 12))}, bytes(12)),
            f'tensor "y" {OVERLAP}',
        ),
        *((file_of({"x": entry}, bytes(4)), DISAGREE) for entry in ODD),
    ],
)
def test_a_header_that_contradicts_its_file_is_refused(write, content, problem):
    with pytest.raises(DataError, match=problem):
        read_header(write("a.safetensors", content))


def test_a_truncated_vector_file_is_refused(tmp_path):
    path = fill(tmp_path / "a.safetensors", normal(3, 1, 3))
    whole = Path(path).read_bytes()

    for end in range(len(whole)):
        (tmp_path / "cut.safetensors").write_bytes(whole[:end])
        with pytest.raises(DataError, match="incomplete or damaged safetensors file"):
            VectorFile(str(tmp_path / "cut.safetensors"))


def vector_file(kind="float32", **changes):
    """Two rows of width 3, `{}` each; `changes` are other tensors, another spec, or entries of the
    spec.
    """
    codes = {"int8": np.ones((2, 3), np.int8), "binary": np.ones((2, 1), np.uint8)}
    spec = {"vectors": ["embedding"], "store": kind, **({"width": 3} if kind == "binary" else {})}
    spec |= {name: changes.pop(name) for name in ("store", "width") if name in changes}
    written = changes.pop("spec", orjson.dumps(spec).decode())
    entries = {
        "embeddings": codes.get(kind, np.ones((2, 3), "f2" if kind == "float16" else "f4")),
        **({"scales": np.ones(3, np.float32)} if kind == "int8" else {}),
        "row_offsets": np.array([0, 3, 6], np.int64),
        "rows": np.frombuffer(b"{}\n{}\n", np.uint8),
        **changes,
    }
    tensors = {name: value for name, value in entries.items() if value is not None}
    return safetensors.numpy.save(tensors, None if written is None else {"sentkit": written})


@pytest.mark.parametrize("spec", [None, '{"_emb":null}'])
def test_a_vector_file_of_another_program_is_read(write, spec):
    file = VectorFile(write("a.safetensors", vector_file(spec=spec)))

    assert file.space_name is None
    rows = [(row.line, vectors.tolist()) for row, vectors in stored_rows(file)]
    assert rows == [(b"{}", [[1.0, 1.0, 1.0]])] * 2


NO_ROWS = " row_offsets and rows do not agree"
OTHER_SPACE = b'{"_emb":"m:0123456789ab"}\n{"_emb":"m:ba9876543210"}\n'


@pytest.mark.parametrize(
    ("offsets", "rows", "problem"),
    [
        ([0, 4, 3], b"{}\n{}\n", NO_ROWS),  # "{}\n{" is not a row
        ([0, 3, 0], b"{}\n{}\n", NO_ROWS),
        ([0, 2**62, 2**62 + 3], b"{}\n{}\n", NO_ROWS),
        ([0, -3, 6], b"{}\n{}\n", NO_ROWS),
        ([2**63 - 1, -(2**63), 0], b"{}\n{}\n", NO_ROWS),
        ([0, 3, 6], b"[]\n{}\n", "1: this row is a list, expected an object"),
        ([0, 3, 6], b"{}\n\xff}\n", "2: not UTF-8"),
        ([0, 3, 6], b"{}\n{\n}", "2: a row has more than one line"),
        (
            [0, 26, 52],
            OTHER_SPACE,
            '2: "_emb" of this row differs from "_emb" in the metadata of the file',
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused(write, offsets, rows, problem):
    spec = {"spec": '{"_emb":"m:0123456789ab"}'} if rows == OTHER_SPACE else {}
    changes = {
        "rows": np.frombuffer(rows, np.uint8),
        "row_offsets": np.array(offsets, np.int64),
        **spec,
    }

    with pytest.raises(DataError, match=rf"a\.safetensors:{problem}"):
        stored_rows(write("a.safetensors", vector_file(**changes)))


@pytest.mark.parametrize(
    ("kind", "changes", "problem"),
    [
        ("float32", {"embeddings": None}, 'no F32 tensor "embeddings" (it has row_offsets, rows)'),
        ("float32", {"embeddings": np.ones((2, 1), np.float16)}, 'no F32 tensor "embeddings"'),
        ("float32", {"row_offsets": np.zeros(3, np.int32)}, 'no I64 tensor "row_offsets"'),
        ("float32", {"row_offsets": np.zeros(2, np.int64)}, AGREE),
        *(
            ("float32", {"embeddings": np.ones(shape, "f4")}, AGREE)
            for shape in (2, (2, 1, 1, 1), (2, 2, 1))
        ),
        ("float32", {"embeddings": np.ones((2, 0), np.float32)}, "its vectors are empty"),
        *(
            ("float32", {"spec": f'{{"vectors":{names}}}'}, AGREE)
            for names in ("[]", '["a\\"b"]', '["embedding_a","embedding_b"]')
        ),
        ("int8", {"scales": None}, 'no F32 tensor "scales"'),
        ("int8", {"scales": np.ones(2, np.float32)}, "scales and embeddings do not agree"),
        ("int8", {"scales": np.ones((1, 3), np.float32)}, "scales and embeddings do not agree"),
        ("int8", {"scales": np.ones(3, np.float64)}, 'no F32 tensor "scales"'),
        *(
            (
                "int8",
                {"scales": np.array([1, bad, 1], np.float32)},
                "a scale is not a positive number",
            )
            for bad in (0.0, -1.0, math.nan, math.inf)
        ),
        ("int8", {"embeddings": np.ones((2, 3), np.float32)}, 'no I8 tensor "embeddings"'),
        ("float16", {"embeddings": np.ones((2, 3), np.float32)}, 'no F16 tensor "embeddings"'),
        (
            "float16",
            {"store": "int4"},
            '"store" is "int4", expected float32, float16, int8, binary',
        ),
        ("float16", {"store": ["int8"]}, '"store" is ["int8"], expected'),
        ("float16", {"store": None}, '"store" is null, expected'),
        *(
            ("binary", {"width": n}, '"width" and embeddings do not agree')
            for n in (9, 0, -3, "3", None)
        ),
    ],
)
def test_another_or_a_damaged_file_is_refused(write, kind, changes, problem):
    with pytest.raises(DataError) as caught:
        VectorFile(write("a.safetensors", vector_file(kind, **changes)))

    start = "damaged" if "positive" in problem else "not a vector file"
    assert str(caught.value).rpartition("/")[2].startswith(f"a.safetensors: {start}: ")
    assert problem in str(caught.value)


# Kinds of storage


def decoded(path):
    file = path if isinstance(path, VectorSource) else VectorFile(path)
    return np.concatenate([np.empty((0, len(file.names), file.width), np.float32), *file.blocks()])


def by_hand(tensors, kind, width):
    """The vectors as the manual page describes them for other programs."""
    codes = tensors["embeddings"]
    if kind == "int8":
        return codes * tensors["scales"]
    if kind == "binary":
        return 2.0 * np.unpackbits(codes, axis=-1, count=width) - 1.0
    return codes.astype(np.float32)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(
    "shape", [(0, 1, 3), (1, 1, 1), (5, 1, 3), (3, 2, 9), (4, 1, 64), (2, 3, 2)]
)
def test_other_libraries_read_the_tensors(tmp_path, kind, shape):
    vectors = normal(*shape, seed=3)
    path = fill(tmp_path / "a.safetensors", vectors, kind)
    types = {"float32": "F32", "float16": "F16", "int8": "I8", "binary": "U8"}
    lines = [b'{"id":%d}\n' % number for number in range(shape[0])]

    with_torch = {
        name: tensor.numpy() for name, tensor in safetensors.torch.load_file(path).items()
    }
    for tensors in (safetensors.numpy.load_file(path), with_torch):
        by_definition = by_hand(tensors, kind, shape[2])
        assert by_definition.shape == (shape if shape[1] > 1 else (shape[0], shape[2]))
        assert np.array_equal(by_definition.reshape(shape), decoded(path))
        assert tensors["row_offsets"].tolist() == np.cumsum([0, *map(len, lines)]).tolist()
        assert tensors["rows"].tobytes() == b"".join(lines)
    header = read_header(path)
    assert header.entries["embeddings"].dtype == types[kind]
    for name in ("scales" if kind == "int8" else "embeddings", "row_offsets"):
        assert header.entries[name].start % 8 == 0


def test_what_each_kind_keeps(tmp_path):
    """Loops over numbers: half a step of the scale, the nearest float16, and the sign."""
    vectors = (np.random.default_rng(4).normal(size=(50, 1, 7)) * 10.0 ** np.arange(-3, 4)).astype(
        np.float32
    )
    vectors[7] = 0.0
    files = {kind: fill(tmp_path / f"{kind}.safetensors", vectors, kind) for kind in STORES}
    read_vectors = {kind: decoded(path)[:, 0] for kind, path in files.items()}

    for column in range(7):
        numbers = [float(row[0, column]) for row in vectors]
        step = max(map(abs, numbers)) / 127
        for row, number in enumerate(numbers):
            assert read_vectors["float32"][row, column] == number
            assert read_vectors["float16"][row, column] == np.float16(number)
            assert abs(read_vectors["int8"][row, column] - number) <= step / 2 * 1.0001
            assert read_vectors["binary"][row, column] == (1 if number > 0 else -1)


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    arrays(np.float32, st.tuples(st.integers(1, 5), st.just(1), st.integers(1, 5)), elements=finite)
)
def test_storing_the_read_vectors_again_changes_nothing(tmp_path, vectors):
    """The products of int8 codes and scales are exact, up to the ends of float32."""
    # A vector that would be zero in int8 is an error, as one beside much longer ones.
    magnitudes = np.abs(vectors.astype(np.float64))
    limit = np.maximum(magnitudes.max(axis=0) / 250, 1e-30)
    is_lost = (magnitudes <= limit).all(axis=(1, 2))
    vectors[is_lost] = 0
    for kind in ("int8", "binary"):
        first = fill(tmp_path / "a.safetensors", vectors, kind)
        read = decoded(first)
        second = fill(tmp_path / "b.safetensors", read, kind)
        first_tensors = safetensors.numpy.load_file(first)
        second_tensors = safetensors.numpy.load_file(second)

        assert np.isfinite(read).all()
        assert np.array_equal(first_tensors["embeddings"], second_tensors["embeddings"])
        if kind == "int8":
            assert np.array_equal(first_tensors["scales"], second_tensors["scales"])
            scales = [Fraction(float(scale)) for scale in first_tensors["scales"]]
            for row, codes in zip(
                read[:, 0].tolist(), first_tensors["embeddings"].tolist(), strict=True
            ):
                assert row == [code * scale for code, scale in zip(codes, scales, strict=True)]


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("width", [1, 3, 768])
def test_the_reserved_space_fits_any_header(tmp_path, kind, width):
    """For each number of padding bytes."""
    path = str(tmp_path / "a")
    with create_vector_file(path, {}, NAMES[1], width=width, force=False, kind=kind) as writer:
        for count in [10**k + more for k in range(13) for more in range(8)]:
            assert (
                len(writer._header(min(count, 10**12), 10**17, writer.header_size))
                == writer.header_size
            )


def test_int8_is_written_in_several_passes_of_rows(tmp_path, monkeypatch):
    vectors = normal(11, 2, 3, seed=5)
    whole = Path(fill(tmp_path / "a.safetensors", vectors, "int8")).read_bytes()
    monkeypatch.setattr("sentkit.formats.vectors.file_writer.ROWS_PER_PASS", 4)

    assert Path(fill(tmp_path / "b.safetensors", vectors, "int8")).read_bytes() == whole


def test_signs_are_another_space_and_their_signs_are_the_same(tmp_path):
    ones = np.ones((2, 1, 3), np.float32)
    signs = VectorFile(fill(tmp_path / "a.safetensors", ones, "binary"))
    expected = Space("m/cls", "010000000000").after_step("/sign", digest("/sign"))

    assert signs.space_name == expected.name != EMB
    assert (
        VectorFile(
            fill(tmp_path / "b.safetensors", ones, "binary", _emb=signs.space_name)
        ).space_name
        == expected.name
    )
    for kind in ("float16", "int8"):
        assert VectorFile(fill(tmp_path / "b.safetensors", ones, kind)).space_name == EMB
    metadata = VectorFile(
        fill(tmp_path / "b.safetensors", ones, "binary", steps=["/n:111111111111"])
    ).metadata
    assert metadata["steps"] == ["/n:111111111111", f"/sign:{digest('/sign')}"]


@pytest.mark.parametrize("finite", [True, False])
def test_every_float16_becomes_the_float32_of_struct(finite):
    """Also of arrays with gaps. The bits of zeros, subnormal numbers, infinities and NaN agree."""
    halves = [struct.unpack("<e", code.to_bytes(2, "little"))[0] for code in range(65536)]
    selected = [code for code, value in enumerate(halves) if math.isfinite(value) or not finite]
    codes = np.repeat(np.array(selected, "<u2").view("<f2"), 2)[::2]
    expected = np.array([halves[code] for code in selected]).astype("<f4")

    vectors = Storage("float16", len(codes)).decode(codes)

    assert finite_halves(codes) == finite
    for number in (math.inf, -math.inf, math.nan):
        assert not finite_halves(np.array([[0.0, 65504.0], [1.0, number]], "<f2"))
    assert np.array_equal(vectors, expected, equal_nan=True)
    assert np.array_equal(np.signbit(vectors), np.signbit(expected))


@given(st.data())
def test_selected_rows_are_those_of_all_rows(tmp_path, data):
    """Of one or several files, some without rows."""
    kind = data.draw(st.sampled_from(STORES))
    lists_of_lengths = st.lists(st.integers(0, 4), min_size=1, max_size=4)
    lengths = data.draw(lists_of_lengths.filter(any))
    arrays_of_files = [normal(length, 1, 9, seed=n) for n, length in enumerate(lengths)]
    files = [
        fill(tmp_path / f"{n}.safetensors", vectors_of_file, kind)
        for n, vectors_of_file in enumerate(arrays_of_files)
    ]
    vectors = np.concatenate([decoded(path)[:, 0] for path in files])
    stores = [VectorFile(path).files[0] for path in files]
    stored = StoredVectors([file for file in stores if file.count], lambda codes: codes[:, 0])
    numbers = st.integers(0, sum(lengths))

    start = data.draw(numbers)
    stop = data.draw(numbers)
    row_lists = st.lists(st.integers(0, sum(lengths) - 1), max_size=6)
    chosen = np.array(data.draw(row_lists), np.intp)

    assert (len(stored), stored.shape) == (len(vectors), vectors.shape)
    assert np.array_equal(stored[start:stop], vectors[start:stop])
    assert np.array_equal(stored[chosen], vectors[chosen])
