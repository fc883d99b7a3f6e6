"""Kinds of storage: what other libraries read, what is lost, and the refusal of damaged files."""

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import safetensors.numpy
import safetensors.torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from sentkit.errors import DataError
from sentkit.formats.vectors.fingerprint import Spec, digest
from sentkit.formats.vectors.store import Store, StoredVectors
from sentkit.formats.vectors.tensors import STORES, Storage, finite_halves, read_header
from sentkit.formats.vectors.vector_file import create_vector_file
from support import stored_rows

TRIPLET = ("embedding_anchor", "embedding_positive", "embedding_negative")
NAMES = {1: ("embedding",), 2: ("embedding_a", "embedding_b"), 3: TRIPLET}
EMB = "m/cls:010000000000"
Write = Callable[[str, bytes], str]


def fill(path: Path, vectors: np.ndarray, kind: str) -> str:
    """A vector file of vectors (n, k, d)."""
    writer = create_vector_file(
        str(path), {"_emb": EMB}, NAMES[vectors.shape[1]], width=vectors.shape[2], force=True, kind=kind
    )
    with writer as store:
        for number, row in enumerate(vectors):
            store.write([orjson.dumps({"id": number})], row[None])
    return str(path)


def decoded(path: str) -> np.ndarray:
    file = Store(path)
    return np.concatenate([np.empty((0, len(file.names), file.width), np.float32), *file.blocks()])


def by_hand(tensors: Any, kind: str, width: int) -> np.ndarray:
    """The vectors as the manual page describes them for other programs."""
    codes = tensors["embeddings"]
    if kind == "int8":
        return codes * tensors["scales"]
    if kind == "binary":
        return 2.0 * np.unpackbits(codes, axis=-1, count=width) - 1.0
    return codes.astype(np.float32)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("shape", [(0, 1, 3), (1, 1, 1), (5, 1, 3), (3, 2, 9), (4, 1, 64), (2, 3, 2)])
def test_other_libraries_read_the_tensors(tmp_path: Path, kind: str, shape: tuple[int, int, int]) -> None:
    vectors = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    path = fill(tmp_path / "a.safetensors", vectors, kind)
    types = {"float32": "F32", "float16": "F16", "int8": "I8", "binary": "U8"}
    lines = [b'{"id":%d}\n' % number for number in range(shape[0])]

    with_torch = {name: tensor.numpy() for name, tensor in safetensors.torch.load_file(path).items()}
    for tensors in (safetensors.numpy.load_file(path), with_torch):
        found = by_hand(tensors, kind, shape[2])
        assert found.shape == (shape if shape[1] > 1 else (shape[0], shape[2]))
        assert np.array_equal(found.reshape(shape), decoded(path))
        assert tensors["row_offsets"].tolist() == np.cumsum([0, *map(len, lines)]).tolist()
        assert tensors["rows"].tobytes() == b"".join(lines)
    header = read_header(path)
    assert header.entries["embeddings"].dtype == types[kind]
    for name in ("scales" if kind == "int8" else "embeddings", "row_offsets"):
        assert header.entries[name].start % 8 == 0


def test_what_each_kind_keeps(tmp_path: Path) -> None:
    """Loops over numbers: half a step of the scale, the nearest float16, and the sign."""
    vectors = (np.random.default_rng(4).normal(size=(50, 1, 7)) * 10.0 ** np.arange(-3, 4)).astype(np.float32)
    vectors[7] = 0.0
    files = {kind: fill(tmp_path / f"{kind}.safetensors", vectors, kind) for kind in STORES}
    found = {kind: decoded(path)[:, 0] for kind, path in files.items()}

    for column in range(7):
        numbers = [float(row[0, column]) for row in vectors]
        step = max(map(abs, numbers)) / 127
        for row, number in enumerate(numbers):
            assert found["float32"][row, column] == number
            assert found["float16"][row, column] == np.float16(number)
            assert abs(found["int8"][row, column] - number) <= step / 2 * 1.0001
            assert found["binary"][row, column] == (1 if number > 0 else -1)


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(arrays(np.float32, array_shapes(min_dims=3, max_dims=3, max_side=5).map(lambda s: (s[0], 1, s[2])),
              elements=finite))  # fmt: skip
def test_storing_the_read_vectors_again_changes_nothing(tmp_path: Path, vectors: np.ndarray) -> None:
    """The products of int8 codes and scales are exact, up to the ends of float32."""
    for kind in ("int8", "binary"):
        first = fill(tmp_path / "a.safetensors", vectors, kind)
        read = decoded(first)
        again = fill(tmp_path / "b.safetensors", read, kind)
        one, two = safetensors.numpy.load_file(first), safetensors.numpy.load_file(again)

        assert np.isfinite(read).all()
        assert np.array_equal(one["embeddings"], two["embeddings"])
        if kind == "int8":
            assert np.array_equal(one["scales"], two["scales"])
            exact = [[Fraction(int(code)) * Fraction(float(scale)) for code, scale in zip(row, one["scales"],
                     strict=True)] for row in one["embeddings"]]  # fmt: skip
            assert [[Fraction(float(x)) for x in row] for row in read[:, 0]] == exact


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("width", [1, 3, 768])
def test_the_reserved_space_fits_any_header(tmp_path: Path, kind: str, width: int) -> None:
    """For each number of padding bytes."""
    path = str(tmp_path / "a")
    with create_vector_file(path, {}, NAMES[1], width=width, force=False, kind=kind) as writer:
        for count in [10**k + more for k in range(13) for more in range(8)]:
            assert len(writer._header(min(count, 10**12), 10**17, writer.room)) == writer.room


def test_int8_is_written_in_several_passes_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(5).normal(size=(11, 2, 3)).astype(np.float32)
    whole = Path(fill(tmp_path / "a.safetensors", vectors, "int8")).read_bytes()
    monkeypatch.setattr("sentkit.formats.vectors.vector_file.ROWS_PER_PASS", 4)

    assert Path(fill(tmp_path / "b.safetensors", vectors, "int8")).read_bytes() == whole


def test_signs_are_another_space_and_their_signs_are_the_same(tmp_path: Path) -> None:
    ones = np.ones((2, 1, 3), np.float32)
    signs = Store(fill(tmp_path / "a.safetensors", ones, "binary"))
    expected = Spec("m/cls", "010000000000").after("/sign", digest("/sign"))

    assert signs.emb == expected.emb != EMB
    assert spec_of_signs(tmp_path, signs.spec)["_emb"] == expected.emb
    for kind in ("float16", "int8"):
        assert Store(fill(tmp_path / "a.safetensors", ones, kind)).emb == EMB
    known = spec_of_signs(tmp_path, {"_emb": EMB, "model": "m", "steps": ["/n:111111111111"]})
    assert known["steps"] == ["/n:111111111111", f"/sign:{digest('/sign')}"]


def spec_of_signs(folder: Path, spec: Any) -> Any:
    """The spec of signs of vectors with this spec."""
    path = str(folder / "b.safetensors")
    with create_vector_file(path, spec, NAMES[1], width=3, force=True, kind="binary"):
        pass
    return Store(path).spec


@pytest.mark.parametrize("finite", [True, False])
def test_every_float16_becomes_the_float32_of_struct(finite: bool) -> None:
    """Also of arrays with gaps. The bits of zeros, subnormal numbers, infinities and NaN agree."""
    halves = [struct.unpack("<e", code.to_bytes(2, "little"))[0] for code in range(65536)]
    kept = [code for code, value in enumerate(halves) if math.isfinite(value) or not finite]
    codes = np.repeat(np.array(kept, "<u2").view("<f2"), 2)[::2]
    expected = np.array([halves[code] for code in kept]).astype("<f4")

    vectors = Storage("float16", len(codes)).decode(codes)

    assert finite_halves(codes) == finite
    assert np.array_equal(vectors, expected, equal_nan=True)
    assert np.array_equal(np.signbit(vectors), np.signbit(expected))


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, -math.nan])
def test_one_float16_that_is_not_finite_is_found(number: float) -> None:
    codes = np.array([[0.0, 65504.0, -65504.0], [1.0, number, 2.0]], "<f2")

    assert not finite_halves(codes)
    assert finite_halves(codes[:1])
    assert finite_halves(codes[:0])
    decoded = Storage("float16", 3).decode(codes)
    assert np.array_equal(decoded, codes.astype("<f4"), equal_nan=True)


@given(st.data())
def test_selected_rows_are_those_of_all_rows(tmp_path: Path, data: Any) -> None:
    """Of one or several files, some without rows."""
    kind = data.draw(st.sampled_from(STORES))
    lengths = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any))
    generator = np.random.default_rng(sum(lengths))
    parts = [generator.normal(size=(length, 1, 9)).astype(np.float32) for length in lengths]
    files = [fill(tmp_path / f"{n}.safetensors", part, kind) for n, part in enumerate(parts)]
    vectors = np.concatenate([decoded(path)[:, 0] for path in files])
    stores = [Store(path).files[0] for path in files]
    stored = StoredVectors([file for file in stores if file.count], lambda codes: codes[:, 0])
    numbers = st.integers(0, sum(lengths))

    start, stop = data.draw(numbers), data.draw(numbers)
    chosen = np.array(data.draw(st.lists(st.integers(0, sum(lengths) - 1), max_size=6)), np.intp)

    assert (len(stored), stored.shape) == (len(vectors), vectors.shape)
    assert np.array_equal(stored[start:stop], vectors[start:stop])
    assert np.array_equal(stored[chosen], vectors[chosen])


def content(kind: str, **changes: Any) -> bytes:
    """Two rows of width 3; `changes` are other tensors, or entries of the spec."""
    codes = {"int8": np.ones((2, 3), np.int8), "binary": np.ones((2, 1), np.uint8)}
    spec = {"vectors": ["embedding"], "store": kind, **({"width": 3} if kind == "binary" else {})}
    spec |= {name: value for name, value in changes.items() if name in ("store", "width")}
    parts: dict[str, Any] = {
        "embeddings": codes.get(kind, np.ones((2, 3), "f2" if kind == "float16" else "f4")),
        **({"scales": np.ones(3, np.float32)} if kind == "int8" else {}),
        "row_offsets": np.array([0, 3, 6], np.int64),
        "rows": np.frombuffer(b"{}\n{}\n", np.uint8),
        **{name: value for name, value in changes.items() if name not in spec},
    }
    tensors = {name: value for name, value in parts.items() if value is not None}
    return safetensors.numpy.save(tensors, {"sentkit": orjson.dumps(spec).decode()})


@pytest.mark.parametrize(
    ("kind", "changes", "problem"),
    [
        ("int8", {"scales": None}, 'no F32 tensor "scales"'),
        ("int8", {"scales": np.ones(2, np.float32)}, "scales and embeddings do not agree"),
        ("int8", {"scales": np.ones((1, 3), np.float32)}, "scales and embeddings do not agree"),
        ("int8", {"scales": np.ones(3, np.float64)}, 'no F32 tensor "scales"'),
        *(
            ("int8", {"scales": np.array([1, bad, 1], np.float32)}, "a scale is not a positive number")
            for bad in (0.0, -1.0, math.nan, math.inf)
        ),
        ("int8", {"embeddings": np.ones((2, 3), np.float32)}, 'no I8 tensor "embeddings"'),
        ("float16", {"embeddings": np.ones((2, 3), np.float32)}, 'no F16 tensor "embeddings"'),
        ("float16", {"store": "int4"}, '"store" is "int4", expected float32, float16, int8, binary'),
        ("float16", {"store": ["int8"]}, '"store" is ["int8"], expected'),
        ("float16", {"store": None}, '"store" is null, expected'),
        *(("binary", {"width": n}, '"width" and embeddings do not agree') for n in (9, 0, -3, "3", None)),
    ],
)
def test_a_damaged_file_is_refused(write: Write, kind: str, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError) as caught:
        Store(write("a.safetensors", content(kind, **changes)))

    assert problem in str(caught.value)


@given(st.data())
def test_a_changed_byte_gives_rows_or_a_data_error(write: Write, data: Any) -> None:
    raw = bytearray(content(data.draw(st.sampled_from(STORES))))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))

    try:
        rows = stored_rows(write("a.safetensors", bytes(raw)))
    except DataError:
        return

    assert len(rows) == 2
