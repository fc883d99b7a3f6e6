"""`--device` of commands that compare vectors: the same bytes. The device is the CPU of torch."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from sentkit.metrics import device
from sentkit.metrics.device import Blocks

pytestmark = pytest.mark.filterwarnings("error::UserWarning")  # of torch


@pytest.fixture
def blocks(monkeypatch):
    """The flag --device cuda selects the CPU of torch, with blocks of 16 rows; the blocks that are
    copied.
    """
    copies = []
    copy = Blocks._copy

    def counted_copy(blocks, start, *rest):
        copies.append(start)
        return copy(blocks, start, *rest)

    for module in ("device", "encoder"):
        where = f"sentkit.model.transformer.{module}.pick_device"
        monkeypatch.setattr(where, lambda name: torch.device("cpu"))
    monkeypatch.setattr(device, "ROWS_PER_BLOCK", 16)
    monkeypatch.setattr(device, "SPARE", 2)
    monkeypatch.setattr(Blocks, "_copy", counted_copy)
    return copies


@pytest.fixture
def files(sentkit, tmp_path, jsonl):
    """Rows in clusters, some equal, one of them zero, as JSONL and as vector files; and pairs."""
    random = np.random.default_rng(0)
    centres = np.repeat(random.standard_normal((12, 8)), 10, axis=0)
    vectors = centres + 0.3 * random.standard_normal((120, 8))
    vectors[40:55] = vectors[3]
    vectors[7] = 0
    rows = [
        {"text": f"t{n}", "embedding": v} for n, v in enumerate(vectors.astype(np.float32).tolist())
    ]
    (tmp_path / "rows.jsonl").write_bytes(jsonl(*rows))
    for store in ("float32", "float16", "int8", "binary"):
        result = sentkit("cat", "rows.jsonl", "--store", store, "-o", f"{store}.safetensors")
        assert result.code == 0
    pairs = [
        {
            "text_a": a["text"],
            "text_b": b["text"],
            "embedding_a": a["embedding"],
            "embedding_b": b["embedding"],
        }
        for a, b in pairwise(rows)
    ]
    (tmp_path / "pairs.jsonl").write_bytes(jsonl(*pairs))
    return tmp_path


SEARCH = "search --queries rows.jsonl --corpus"


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "words",
    [
        f"{SEARCH} rows.jsonl",
        f"{SEARCH} float32.safetensors --flat",
        f"{SEARCH} float16.safetensors --top 3",
        f"{SEARCH} float16.safetensors --top 500",
        f"{SEARCH} float16.safetensors --top 30 --threshold 0.9",
        f"{SEARCH} int8.safetensors --metric dot",
        f"{SEARCH} int8.safetensors --threshold 0.5",
        "mine pairs.jsonl --corpus float16.safetensors",
        "mine pairs.jsonl --corpus rows.jsonl --margin 1.1 --skip 2 --top 9 --triplets",
        "mine pairs.jsonl --corpus pairs.jsonl --margin -0.01 --metric dot",
        "duplicates float16.safetensors --threshold 0.9",
        "duplicates rows.jsonl --threshold 2 --metric dot --groups",
        "duplicates float32.safetensors --threshold 0.95 --unique",
        "duplicates rows.jsonl --against float16.safetensors --against int8.safetensors "
        "--threshold 0.8",
        "cluster float16.safetensors -k 5",
        "cluster rows.jsonl -k 2..4 --seed 0,1",
        "cluster rows.jsonl -k 5 --set sample=60 --normalize",
        "cluster rows.jsonl -k 5 --algorithm minibatch",
    ],
)
def test_the_output_has_the_bytes_of_the_cpu(sentkit, blocks, words):
    by_numpy = sentkit(*words.split())
    by_torch = sentkit(*words.split(), "--device", "cuda")

    assert by_numpy.code == 0, by_numpy.told
    assert len(by_numpy.out) > 100
    assert by_torch == by_numpy
    assert blocks


def test_rows_are_assigned_to_centroids(sentkit, files, blocks):
    flags = ("--centroids", "c.jsonl", "-o", "one.jsonl")
    assert sentkit("cluster", "rows.jsonl", "-k", "5", *flags).code == 0
    result = sentkit("cluster", "rows.jsonl", "--from-centroids", "c.jsonl", "--device", "cuda")

    assert blocks
    assert result.out == (files / "one.jsonl").read_bytes()


@pytest.mark.usefixtures("with_torch")
def test_texts_and_parts_of_a_folder_are_compared(sentkit, tmp_path, blocks, monkeypatch):
    """The model runs on the same device. The blocks of the folder are not those of the device."""
    monkeypatch.setenv("SENTKIT_PRECISION", "fp32")
    words = [
        f"{a} {b} {c}"
        for a in ("a", "the")
        for b in ("cat", "dog", "man")
        for c in ("runs", "eats")
    ]
    (tmp_path / "texts.txt").write_text(
        "".join(f"{text} {n}\n" for n in range(9) for text in words)
    )
    folder = ["-o", "vectors/", "--block-bytes", "1000", "--store", "float16"]
    assert sentkit("encode", "texts.txt", *folder).code == 0
    search = ["search", "a cat", "two men", "--corpus", "vectors/"]

    for more in ([], ["--top", "100"], ["--shard", "2/2"], ["--threshold", "0.3"]):
        assert sentkit(*search, *more, "--device", "cuda") == sentkit(
            *search, *more, "--device", "cpu"
        )
    assert blocks


@pytest.mark.usefixtures("with_torch")
def test_signs_and_distances_are_compared_on_the_cpu(sentkit, tmp_path, blocks, monkeypatch):
    """With TEXT, the flag selects the device of the model."""
    monkeypatch.setenv("SENTKIT_PRECISION", "fp32")
    (tmp_path / "texts.txt").write_text("a cat\na dog\nrain\n")
    for store in ("binary", "float16"):
        path = f"{store}.safetensors"
        assert sentkit("encode", "texts.txt", "--store", store, "-o", path).code == 0
    for words in (["binary.safetensors"], ["float16.safetensors", "--metric", "manhattan"]):
        command = ["search", "two cats", "--corpus", *words]
        assert sentkit(*command, "--device", "cuda") == sentkit(*command)
    assert not blocks
