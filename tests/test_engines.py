"""The examples for several processes and for Ray Data, Dask, Spark and mteb: the vectors of the
command.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from support import PAIRS, ROOT, TEXTS, in_jsonl

ROWS = [
    {"id": number, "text": f"{TEXTS[number % len(TEXTS)]} {number}", "meta": {"tags": [number]}}
    for number in range(120)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, execute):
    """Rows in random order and in the order of their ids, and the latter with vectors of the
    command.
    """
    folder = tmp_path_factory.mktemp("engines")
    shuffled = random.Random(0).sample(ROWS, len(ROWS))
    (folder / "rows.jsonl").write_text(in_jsonl(*shuffled))
    (folder / "sorted.jsonl").write_text(in_jsonl(*ROWS))
    (folder / "pairs.jsonl").write_text(in_jsonl(*PAIRS))
    command = [
        "sentkit",
        "encode",
        "--precision",
        "fp32",
        "-q",
        "sorted.jsonl",
        "-o",
        "expected.jsonl",
    ]
    assert execute(command, folder).returncode == 0
    return folder


def run(script, *arguments, folder):
    """Run an example in another process, because the engines start threads and servers."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, str(ROOT / "examples" / script), *map(str, arguments)]
    completed = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr[-3000:]


def read(*files):
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def vectors(rows):
    return np.array([row.pop("embedding") for row in rows]).astype(np.float32)


@pytest.mark.parametrize(
    ("script", "engine", "rows", "arguments"),
    [
        ("ray_data.py", "ray", "rows.jsonl", []),
        ("dask_bag.py", "dask", "sorted.jsonl", []),
        ("spark.py", "pyspark", "rows.jsonl", ["nano", 3]),
    ],
)
def test_an_engine_gives_the_rows_and_vectors_of_the_command(
    script, engine, rows, arguments, folder, tmp_path
):
    """In the order of the ids. The batches are not those of the command, so the last bits may
    differ.
    """
    if not find_spec(engine):
        pytest.skip(f"{engine} is not installed")
    if engine == "pyspark" and not shutil.which("java"):
        pytest.skip("Spark needs a Java runtime")
    run(script, rows, tmp_path / "out", *arguments, folder=folder)

    files = sorted(
        path for path in (tmp_path / "out").iterdir() if path.suffix in (".json", ".jsonl")
    )
    encoded = read(*files)
    expected = read(folder / "expected.jsonl")
    assert len(files) == (arguments[1] if arguments else 1)
    np.testing.assert_allclose(vectors(encoded), vectors(expected), rtol=0, atol=1e-6)
    assert encoded == expected  # all other fields


@pytest.mark.parametrize("program", ["duckdb", "polars", "lancedb"])
def test_a_table_has_the_nearest_rows_of_search(program, folder, execute):
    pytest.importorskip(program)
    pytest.importorskip("pyarrow")
    for rows, table in (("cat expected.jsonl", "corpus"), ("head -5 expected.jsonl", "queries")):
        line = f"{rows} | sentkit cat -o {table}.parquet -f"
        assert execute(["sh", "-ec", line], folder).returncode == 0
    script = [sys.executable, str(ROOT / "examples/vector_tables.py"), program]
    completed = execute([*script, "corpus.parquet", "queries.parquet", "3"], folder)
    assert completed.returncode == 0, completed.stderr

    flags = ["--queries", "queries.parquet", "--corpus", "corpus.parquet", "--top", "3"]
    expected = execute(["sentkit", "search", *flags], folder).stdout.splitlines()
    for line_of_table, line_of_search in zip(completed.stdout.splitlines(), expected, strict=True):
        hits_of_table = json.loads(line_of_table)["hits"]
        hits_of_search = json.loads(line_of_search)["hits"]
        assert [hit["cosine"] for hit in hits_of_table] == pytest.approx(
            [own_hit["similarity"] for own_hit in hits_of_search], abs=1e-6
        )
        assert [hit["text"] for hit in hits_of_table] == [hit["text"] for hit in hits_of_search]


@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")
def test_jq_makes_requests_of_an_embedding_api_and_rows_of_its_answers(tmp_path, execute):
    """The two lines of examples/README.md. The answers are made here."""
    readme = (ROOT / "examples/README.md").read_text().replace("\\\n", " ")
    requests, answers = (line for line in readme.splitlines() if line.startswith("jq -c "))
    (tmp_path / "rows.jsonl").write_text(
        in_jsonl({"id": "r1", "text": 'a "cat"'}, {"id": "r2", "text": "a dog"})
    )
    assert execute(["sh", "-ec", requests], tmp_path).returncode == 0

    requests_read = read(tmp_path / "requests.jsonl")
    assert [request["body"]["input"] for request in requests_read] == ['a "cat"', "a dog"]
    answer = [
        {
            "custom_id": request["custom_id"],
            "response": {"body": {"data": [{"embedding": [1.0, number]}]}},
        }
        for number, request in enumerate(requests_read)
    ]
    (tmp_path / "answers.jsonl").write_text(in_jsonl(*answer))
    assert execute(["sh", "-ec", answers], tmp_path).returncode == 0
    assert execute(["sentkit", "score", "vectors.jsonl", "--top", "1"], tmp_path).returncode == 0
    assert read(tmp_path / "vectors.jsonl")[1] == {"id": "r2", "embedding": [1.0, 1]}


def test_mteb_gives_the_correlation_of_the_command(folder, tmp_path, execute):
    pytest.importorskip("mteb")
    run("mteb_task.py", "pairs.jsonl", tmp_path / "scores.json", folder=folder)

    line = "sentkit encode -q --precision fp32 pairs.jsonl | sentkit score --gold score"
    report = json.loads(execute(["sh", "-ec", line], folder).stdout)
    [scores] = json.loads((tmp_path / "scores.json").read_text())["scores"]["test"]
    assert 100 * scores["cosine_spearman"] == pytest.approx(report["spearman"], abs=1e-3)
    assert 100 * scores["cosine_pearson"] == pytest.approx(report["pearson"], abs=1e-3)


def test_mteb_reads_the_data_set_of_a_task_from_a_folder(folder, tmp_path):
    """The columns are those of the data set on the hub; the scores are those of the pairs."""
    pytest.importorskip("mteb")
    (tmp_path / "stsb").mkdir()
    rows = [
        {"sentence1": pair["text_a"], "sentence2": pair["text_b"], "score": pair["score"]}
        for pair in PAIRS
    ]
    (tmp_path / "stsb/test.jsonl").write_text(in_jsonl(*rows))
    arguments = ("nano", "STSBenchmark")
    run("mteb_task.py", tmp_path / "stsb", tmp_path / "task.json", *arguments, folder=folder)
    run("mteb_task.py", "pairs.jsonl", tmp_path / "pairs.json", folder=folder)

    [task] = json.loads((tmp_path / "task.json").read_text())["scores"]["test"]
    [pairs] = json.loads((tmp_path / "pairs.json").read_text())["scores"]["test"]
    assert task["main_score"] == pytest.approx(pairs["main_score"], abs=1e-6)


def test_several_processes_give_the_vector_folder_of_one(folder, tmp_path, execute):
    """After the loss of a block, the same command writes only this block. The name of the input
    contains the word that once stood for the shard.
    """
    (tmp_path / "SHARDS").mkdir()
    (tmp_path / "SHARDS/rows.jsonl").write_text(in_jsonl(*ROWS))
    flags = ["--precision", "fp32", "--block-bytes", "1K", "-q"]
    command = ["sh", str(ROOT / "examples/parallel.sh"), "SHARDS/rows.jsonl", "vectors", *flags]
    first = execute(command, tmp_path, JOBS="3")
    blocks = sorted((tmp_path / "vectors").glob("*.safetensors"))
    written = {path.name: path.stat().st_mtime_ns for path in blocks}
    blocks[1].unlink()
    second = execute(command, tmp_path, JOBS="2")

    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    rewritten = {path.name for path in blocks if path.stat().st_mtime_ns != written[path.name]}
    assert len(blocks) > 3
    assert rewritten == {blocks[1].name}
    line = f"sentkit encode SHARDS/rows.jsonl -o one/ {' '.join(flags)}"
    for step in (
        line,
        "sentkit cat one -o one.safetensors",
        "sentkit cat vectors -o many.safetensors",
    ):
        assert execute(["sh", "-ec", step], tmp_path).returncode == 0
    assert (tmp_path / "one.safetensors").read_bytes() == (
        tmp_path / "many.safetensors"
    ).read_bytes()
