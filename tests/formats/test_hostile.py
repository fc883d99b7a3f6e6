"""Any bytes at every reader: a value comes out, or an error that names the place, and never anything else."""

import gzip
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import safetensors.numpy
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentkit.errors import DataError, NoInputError, UsageError
from sentkit.formats.checkpoints import read_checkpoint
from sentkit.formats.convert import convert
from sentkit.formats.kinds import TextParser
from sentkit.formats.rows import FORMATS, Inputs, Rejects
from sentkit.formats.store import Store
from sentkit.formats.tensors import read_array, read_header
from sentkit.formats.vectors import VectorReader
from sentkit.model.reading import Wishes, plan_reading
from sentkit.transforms.affine import read_affine

SENTKIT = (DataError, NoInputError, UsageError)
some = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
few = settings(some, max_examples=8)

VECTORS = {
    "embeddings": np.arange(6, dtype=np.float32).reshape(2, 3),
    "row_offsets": np.array([0, 3, 6]),
    "rows": np.frombuffer(b"{}\n{}\n", np.uint8),
}
STORE = safetensors.numpy.save(VECTORS, {"sentkit": '{"vectors":["embedding"],"_emb":"m:01"}'})
AFFINE = safetensors.numpy.save(
    {"kernel": np.eye(2, dtype=np.float32), "bias": np.ones((1, 2), np.float32)},
    {"sentkit": '{"kind":"pca"}'},
)
JSONL = (
    b'\xef\xbb\xbf{"text":"a \\u00e9 b","id":1.10,"embedding":[0.5,-1e3],"_emb":"m:01"}\r\n\n{"text":"x"}\n'
)
TABLE = b'text,score,embedding\r\n"a, ""b""\nc",1.5,AACAPw==\r\nd\t,2,\n'
SAMPLES = [
    JSONL,
    TABLE,
    TABLE.replace(b",", b"\t"),
    STORE,
    AFFINE,
    gzip.compress(JSONL),
    zstandard.compress(JSONL),
]


@st.composite
def mutated(draw: Any, samples: list[bytes]) -> bytes:
    """A valid file with bytes changed, taken out, doubled, or set in."""
    content = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 8)))
        middle = draw(st.binary(max_size=8) | st.just(bytes(content[start:end]) * 2))
        content[start:end] = middle
    return bytes(content)


ANY = st.binary(max_size=200) | mutated(SAMPLES)


def survives(read: Callable[[], Any]) -> None:
    """It gives a value, or one of our errors."""
    with suppress(*SENTKIT):
        read()


@some
@given(content=ANY)
@pytest.mark.parametrize("format", [name or None for name in FORMATS])
def test_rows_of_every_format(write: Callable[[str, bytes], str], format: str | None, content: bytes) -> None:
    inputs = Inputs([write("a", content)], format)

    survives(lambda: list(inputs.read(TextParser({}))))
    survives(lambda: list(VectorReader(inputs).read(lambda row: row)))


@some
@given(content=ANY)
@pytest.mark.parametrize("format", [name or None for name in FORMATS])
def test_bad_rows_are_skipped_and_every_line_is_a_row_or_a_reject(
    write: Callable[[str, bytes], str], format: str | None, content: bytes
) -> None:
    """With skip there is no error at all, for every fault is a fault of a row."""
    rejects = Rejects(skip=True)
    inputs = Inputs([write("a", content)], format, rejects=rejects)

    rows = list(inputs.read(lambda row: row))

    lines = content.count(b"\n") + 1
    assert len(rows) + rejects.count <= lines
    assert all(orjson.loads(row.line) == row.values for row in rows)


@some
@given(content=ANY)
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.zst", "a.safetensors"])
def test_files_of_every_suffix(write: Callable[[str, bytes], str], name: str, content: bytes) -> None:
    path = write(name, content)

    survives(lambda: list(Inputs([path]).read(TextParser({}))))
    survives(lambda: list(VectorReader(Inputs([path])).read(lambda row: row)))
    survives(lambda: read_header(path))
    survives(lambda: list(Store(path)) + list(Store(path).blocks()))
    survives(lambda: [read_array(path, name) for name in read_header(path).entries])
    survives(lambda: read_affine(path))


@some
@given(content=mutated([JSONL, STORE]))
def test_what_is_joined_is_one_row_a_line(write: Callable[[str, bytes], str], content: bytes) -> None:
    path = write("a.safetensors" if content[7:8] == b"\0" else "a.jsonl", content)
    out = Path(path).with_name("out.jsonl")
    out.unlink(missing_ok=True)

    survives(lambda: convert(Inputs([path]), str(out), head=None, encoding=None, force=False))

    lines = out.read_bytes().split(b"\n")[:-1] if out.exists() else []
    assert all(isinstance(json.loads(line), dict) for line in lines)


@some
@given(
    header=st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-2, 2**64 - 1)
        | st.floats()
        | st.sampled_from(["F32", "U8", "x"]),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "embeddings", "rows"]),
                inner,
            )
        ),
        max_leaves=20,
    )
)
def test_headers_of_any_json(write: Callable[[str, bytes], str], header: Any) -> None:
    raw = json.dumps(header).replace("NaN", "null").replace("Infinity", "1e999").encode()
    path = write("a.safetensors", len(raw).to_bytes(8, "little") + raw + bytes(16))

    survives(lambda: [read_array(path, name) for name in read_header(path).entries])
    survives(lambda: list(Store(path)))
    survives(lambda: read_affine(path))


# Checkpoint folders

FILES: dict[str, Any] = {
    "config.json": {
        "model_type": "bert",
        "hidden_size": 8,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 15,
        "max_position_embeddings": 32,
        "output_hidden_states": True,
    },
    "modules.json": [
        {"type": "x.Transformer", "path": ""},
        {"type": "x.WeightedLayerPooling", "path": "0_Layers"},
        {"type": "x.Pooling", "path": "1_Pooling"},
        {"type": "x.Dense", "path": "2_Dense"},
        {"type": "x.Normalize", "path": "3_Normalize"},
    ],
    "sentkit.json": {
        "readout": "prompt",
        "steps": ["normalise"],
        "max_length": 16,
        "lowercase": True,
        "template": "[X] [MASK]",
    },
    "0_Layers/config.json": {"layer_start": 1},
    "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "include_prompt": True},
    "2_Dense/config.json": {"module_input_name": "sentence_embedding", "use_residual": False},
    "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": True},
    "config_sentence_transformers.json": {"prompts": {"q": "query : "}, "default_prompt_name": "q"},
    "tokenizer_config.json": {
        "do_lower_case": True,
        "model_max_length": 20,
        "tokenizer_class": "BertTokenizer",
    },
    "model.safetensors.index.json": {"weight_map": {"a": "b.safetensors"}},
}
ODD = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1.5,
        2**63,
        1e300,
        "",
        "x",
        "../x",
        "/",
        "a\0b",
        "x" * 5000,
        "L9:cls",
        [],
        [None],
        {},
        {"a": 1},
    ]
)


@pytest.fixture
def checkpoint(base: Path, tmp_path: Path) -> Callable[[str, bytes], Path]:
    """A good checkpoint, one of whose files has other bytes."""
    layers = {"layer_weights": np.array([1, 0, 1], np.float32)}

    def make(name: str, content: bytes) -> Path:
        folder = tmp_path / "checkpoint"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder)
        for path, value in FILES.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(orjson.dumps(value))
        safetensors.numpy.save_file(layers, folder / "0_Layers/model.safetensors")
        (folder / name).write_bytes(content)
        return folder

    return make


def read_all(folder: Path, *, own: bool) -> None:
    if not own:
        (folder / "sentkit.json").unlink()
    checkpoint = read_checkpoint(str(folder))
    reading = plan_reading(checkpoint, Wishes())
    reading.tokenizer(["the cat sat .", "", "é \U0001f600"])
    checkpoint.weights()


def test_the_checkpoint_that_is_changed_below_is_a_good_one(checkpoint: Callable[[str, bytes], Path]) -> None:
    for own in (True, False):
        read_all(checkpoint("extra.json", b"{}"), own=own)


@few
@given(data=st.data())
@pytest.mark.parametrize("name", FILES)
def test_checkpoint_files_with_odd_values(
    checkpoint: Callable[[str, bytes], Path], name: str, data: Any
) -> None:
    value = FILES[name]
    entry = data.draw(st.sampled_from(range(len(value)) if isinstance(value, list) else list(value)))
    changed = list(value) if isinstance(value, list) else dict(value)
    inner = changed[entry]
    if isinstance(inner, dict) and data.draw(st.booleans()):
        changed[entry] = {**inner, data.draw(st.sampled_from(sorted(inner))): data.draw(ODD)}
    else:
        changed[entry] = data.draw(ODD)
    folder = checkpoint(name, orjson.dumps(changed))
    own = name == "sentkit.json" or data.draw(st.booleans())

    survives(lambda: read_all(folder, own=own))


@few
@given(data=st.data())
@pytest.mark.parametrize("name", [*FILES, "0_Layers/model.safetensors"])
def test_checkpoint_files_of_any_bytes(
    checkpoint: Callable[[str, bytes], Path], name: str, data: Any
) -> None:
    sample = orjson.dumps(FILES.get(name, {}))
    content = data.draw(st.binary(max_size=60) | mutated([sample]))
    folder = checkpoint(name, content)

    survives(lambda: read_all(folder, own=name == "sentkit.json"))


@few
@given(data=st.data())
def test_tokenizers_of_odd_values(base: Path, checkpoint: Callable[[str, bytes], Path], data: Any) -> None:
    """One value anywhere in tokenizer.json is another."""
    rules = json.loads((base / "tokenizer.json").read_text())
    inner: Any = rules
    while True:
        key = data.draw(st.sampled_from(range(len(inner)) if isinstance(inner, list) else list(inner)))
        if not isinstance(inner[key], dict | list) or not inner[key] or data.draw(st.integers(0, 4)) == 0:
            break
        inner = inner[key]
    inner[key] = data.draw(ODD)
    folder = checkpoint("tokenizer.json", json.dumps(rules).encode())

    survives(lambda: read_all(folder, own=True))


@few
@given(content=st.binary(max_size=60))
def test_tokenizers_of_any_bytes(checkpoint: Callable[[str, bytes], Path], content: bytes) -> None:
    survives(lambda: read_all(checkpoint("tokenizer.json", content), own=False))
