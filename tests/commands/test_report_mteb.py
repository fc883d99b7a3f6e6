"""`report --format mteb`: result files that mteb reads, and the model-index of a card."""

import json

import pytest
from huggingface_hub import ModelCard

from support import NANO, PAIRS

REVISION = "no_revision_available"


@pytest.fixture
def data(tmp_path, jsonl):
    """Two sets of pairs with names of mteb, one without, a clustering, and a retrieval."""
    for name in ("sts/stsb.test", "sts/sts17_track5_enen.test", "sts/sts14_es.test"):
        (tmp_path / "data/sts").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"data/{name}.jsonl").write_bytes(jsonl(*PAIRS))
    (tmp_path / "data/retrieval/own").mkdir(parents=True)
    documents = [{"_id": f"d{n}", "text": pair["text_b"]} for n, pair in enumerate(PAIRS)]
    queries = [{"_id": f"q{n}", "text": pair["text_a"]} for n, pair in enumerate(PAIRS)]
    folder = tmp_path / "data/retrieval/own"
    (folder / "corpus.jsonl").write_bytes(jsonl(*documents))
    (folder / "queries.jsonl").write_bytes(jsonl(*queries))
    qrels = "".join(f"q{n}\td{n}\t1\n" for n in range(len(PAIRS)))
    (tmp_path / "data/retrieval/own/qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")
    return "data"


@pytest.fixture
def values(sentkit, data):
    """The values of the report in JSON, by task."""
    done = sentkit("report", "m=static", "--data", data, "--format", "json")
    return {record["task"]: record["value"] for record in done.rows}


def test_the_files_have_the_values_of_the_report(sentkit, data, values, tmp_path):
    done = sentkit("report", "m=static", "--data", data, "--format", "mteb", "-o", "out")
    folder = tmp_path / "out/sentkit__m"
    files = {path.name: json.loads(path.read_text()) for path in (folder / REVISION).iterdir()}
    [stsb] = files["STSBenchmark.json"]["scores"]["test"]
    [own] = files["own.json"]["scores"]["test"]
    [enen] = files["STS17.json"]["scores"]["test"]

    assert done.code == 0
    assert "warning: sts14_es is not written: mteb has another protocol" in done.err
    assert files.keys() == {"STSBenchmark.json", "STS17.json", "own.json"}
    by_name = {name.casefold().replace("-", ""): value for name, value in values.items()}
    assert 100 * stsb["main_score"] == pytest.approx(by_name["stsb"], abs=1e-4)
    assert 100 * own["main_score"] == pytest.approx(by_name["own"], abs=1e-4)
    assert stsb["main_score"] == stsb["cosine_spearman"]
    assert own["main_score"] == own["ndcg_at_10"]
    assert (enen["hf_subset"], enen["languages"]) == ("en-en", ["eng-Latn"])
    results = ModelCard.load(folder / "README.md").data.eval_results
    main = {result.dataset_name: result for result in results if result.metric_type == "main_score"}
    assert main["MTEB STSBenchmark"].metric_value == pytest.approx(by_name["stsb"], abs=1e-3)
    assert main["MTEB STSBenchmark"].dataset_type == "mteb/stsbenchmark-sts"
    assert main["MTEB own"].task_type == "Retrieval"


def test_a_folder_of_another_process_is_not_replaced(sentkit, data, tmp_path, monkeypatch):
    """--format mteb has no --force, so another name is the way out."""

    def make_folder(folder, *more):
        folder.mkdir(parents=True)
        (tmp_path / "out").mkdir()
        (tmp_path / "out/file").write_text("of another process")

    monkeypatch.setattr("sentkit.reports.mteb.write_checkpoint", make_folder)
    pairs = ("--pairs", "mine=data/sts/stsb.test.jsonl")
    done = sentkit("report", f"m={NANO}", *pairs, "--format", "mteb", "-o", "out")

    told = ["sentkit report: out: already exists"]
    assert (done.code, done.told) == (
        73,
        [*told, "  another process created it; choose another -o"],
    )


def test_each_checkpoint_of_a_row_has_its_files(sentkit, data, tmp_path):
    rows = ("m=static", f"m={NANO}")
    pairs = ("--pairs", "mine=data/sts/stsb.test.jsonl")
    done = sentkit("report", *rows, *pairs, "--format", "mteb", "-o", "out")

    assert done.code == 0
    files = sorted(str(path.relative_to(tmp_path / "out")) for path in tmp_path.glob("out/*/*/*"))
    assert files == [f"sentkit__m-{name}/{REVISION}/mine.json" for name in ("nano", "static")]


def test_what_is_refused(sentkit, data, tmp_path):
    report = ("report", "static", "--data", data, "--format", "mteb")
    to_stdout = sentkit(*report)
    (tmp_path / "there").mkdir()
    existing = sentkit(*report, "-o", "there")

    assert (to_stdout.code, "--format mteb writes a folder" in to_stdout.err) == (2, True)
    assert (existing.code, "there: already exists" in existing.err) == (73, True)
    assert list((tmp_path / "there").iterdir()) == []


def test_undefined_values_are_not_written_and_named(sentkit, data, tmp_path):
    """A correlation is undefined if all scores, or all cosines, are equal."""
    equal = [{"text_a": "a cat", "text_b": "a cat", "score": n} for n in range(6)]
    (tmp_path / "equal.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in equal))
    pairs = ("--pairs", "equal=equal.jsonl")
    report = ("report", "m=static", *pairs, "--format", "mteb", "-o")
    alone = sentkit(*report, "alone")
    beside = sentkit(*report, "out", "--pairs", "mine=data/sts/stsb.test.jsonl")

    warning = 'sentkit report: warning: row "m": equal is not written: its value is undefined'
    problem = "sentkit report: no result file was written: no evaluation has a value"
    assert (alone.code, alone.told) == (1, [warning, problem])
    assert not (tmp_path / "alone").exists()
    assert (beside.code, warning in beside.told) == (0, True)
    assert [path.name for path in tmp_path.glob("out/*/*/*")] == ["mine.json"]


def test_test_sets_without_a_task_are_refused_before_the_evaluations(sentkit, data, tmp_path):
    (tmp_path / "data/sts/sts17_track5_enen.test.jsonl").unlink()
    report = ("report", "m=static", "--data", data, "--suites", "sts-multilingual")
    report += ("--results", "kept")
    done = sentkit(*report, "--format", "mteb", "-o", "out")

    assert done.code == 2
    assert done.told[0] == (
        "sentkit report: --format mteb: no test set has a task of mteb: sts14_es"
    )
    assert not (tmp_path / "kept").exists()


FLAGS_OF_TABLES = (
    "--baseline m",
    "--intervals",
    "--train data/sts/stsb.test.jsonl",
    "--paper sg-bert",
    "--paper sg-bert --table 1",
    "--head logreg",
    "--seed 2",
    "--force",
)


@pytest.mark.parametrize("flags", FLAGS_OF_TABLES)
def test_flags_that_do_not_change_the_files_are_refused(sentkit, data, tmp_path, flags):
    report = ("report", "m=static", "--data", data, "--format", "mteb", "-o", "out")
    done = sentkit(*report, *flags.split())

    problem = f"{flags.split()[0]} cannot be used with --format mteb"
    assert (done.code, done.told) == (2, [f"sentkit report: {problem}"])
    assert not (tmp_path / "out").exists()


def test_flags_that_choose_tests_change_the_files(sentkit, data, tmp_path):
    """Of --suites, --field and --results, whose second run reads nothing again."""
    (tmp_path / "named.jsonl").write_text(
        "".join(
            json.dumps({"a": pair["text_a"], "text_b": pair["text_b"], "score": pair["score"]})
            + "\n"
            for pair in PAIRS
        )
    )
    report = ("report", "m=static", "--data", data, "--suites", "sts", "--format", "mteb")
    pairs = ("--pairs", "mine=named.jsonl", "--field", "text_a=a")
    done = sentkit(*report, *pairs, "--results", "kept", "-o", "out")
    again = sentkit(*report, *pairs, "--results", "kept", "-o", "out2")

    assert (done.code, again.code) == (0, 0), done.err + again.err
    files = {path.name for path in (tmp_path / f"out/sentkit__m/{REVISION}").iterdir()}
    assert files == {"STSBenchmark.json", "mine.json"}
    for path in tmp_path.glob("out/*/*/*.json"):
        copy = tmp_path / "out2" / path.relative_to(tmp_path / "out")
        assert copy.read_bytes() == path.read_bytes()
    assert any((tmp_path / "kept").iterdir())


def test_mteb_reads_the_files_and_has_these_tasks(sentkit, data, tmp_path):
    mteb = pytest.importorskip("mteb")
    from mteb.results.task_result import TaskResult

    from sentkit.reports.mteb import TASKS

    sentkit("report", "m=static", "--data", data, "--format", "mteb", "-o", "out")
    path = tmp_path / f"out/sentkit__m/{REVISION}/STSBenchmark.json"
    [scores] = json.loads(path.read_text())["scores"]["test"]
    assert TaskResult.from_disk(path).get_score() == scores["main_score"]
    for task in TASKS.values():
        metadata = mteb.get_task(task.name).metadata
        assert metadata.dataset["path"] == task.dataset
        assert (metadata.type, metadata.main_score) == (task.kind, task.main_score)


def test_equal_names_are_refused_before_any_work(sentkit, data, tmp_path):
    """Of two checkpoints, and of two test sets; another name for one of them helps."""
    for run in ("first", "second"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "seed-1").symlink_to(NANO)
    pairs = ("--pairs", "mine=data/sts/stsb.test.jsonl")
    output = ("--format", "mteb", "-o", "out")
    seeds = sentkit("report", "m=first/seed-1", "m=second/seed-1", *pairs, *output)
    of_both = ("--data", data, "--pairs", "own=data/sts/stsb.test.jsonl")
    tests = sentkit("report", "m=static", *of_both, *output)
    other_names = sentkit("report", "m=first/seed-1", "n=second/seed-1", *pairs, *output)

    problem = "first/seed-1 and second/seed-1 have the name sentkit__m-seed-1"
    assert (seeds.code, problem in seeds.err) == (2, True)
    assert (tests.code, "two test sets have the name own" in tests.err) == (2, True)
    assert other_names.code == 0
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == [
        "sentkit__m",
        "sentkit__n",
    ]
