"""What every command that reads rows does with them: one table, one line for a command.

Three tests run for all commands, the others once for each class that reads rows.
"""

import gzip
import io
import json
from dataclasses import dataclass
from pathlib import Path

import fsspec
import numpy as np
import pytest

from sentkit.labels.probes.classifiers import VectorClassifier, write_classifier
from support import write_affine

PAIR = '{"embedding_a":[1,0],"embedding_b":[0,1],"_emb":"m:100000000000","score":%s}\n'
GOLD = PAIR % 1 + '{"embedding_a":[1,0],"embedding_b":[1,0],"_emb":"m:100000000000","score":2}\n'
LABELLED = '{"embedding":[1,0],"label":"a"}\n{"embedding":[0,1],"label":"b"}\n' * 5


@dataclass(frozen=True)
class Case:
    name: str
    line: str  # the command and its flags
    good: str  # rows that the command takes
    bad: str  # a row that it does not
    problem: str
    names_files: bool = False  # the output is binary and contains the names of the files

    @property
    def command(self):
        return self.line.split()

    @property
    def words(self):
        """What messages begin with."""
        return " ".join(
            self.command[:2] if self.command[0] in ("whiten", "plot") else self.command[:1]
        )


TEXT = '{"text":"a cat"}\n'
NO_TEXT = ('{"text":7}', '"text" is a number, expected a string')
VECTOR = '{"embedding":[1,2]}\n'
VECTORS = '{"embedding":[1,2]}\n{"embedding":[2,1]}\n{"embedding":[3,3]}\n'
NO_VECTOR = ('{"embedding":[1,"x"]}', '"embedding" has a string at index 1')
NULL = ('{"embedding":[1,null]}', '"embedding" has null at index 1')
MINED = '{"text_a":"a","text_b":%s,"embedding_a":[1,0],"embedding_b":[1,1]}\n'
NOT_MINED = ((MINED % 7).strip(), '"text_b" is a number, expected a string')
ENTRY = '{"entry":"cat","definition":"an animal"}\n'
NO_ENTRY = ('{"entry":"cat","definition":["x"]}', '"definition" is a list, expected a string')
HITS = '{"id":"q1","hits":[{"row":1,"id":"d1"}]}\n'
NO_HITS = ('{"id":"q2","hits":7}', '"hits" is a number, expected a list of objects')
NO_GOLD = ((PAIR % '"many"').strip(), '"score" is "many", expected a number')
NO_LABEL = (
    '{"embedding":[1,0],"label":null}',
    '"label" is null, expected a string or a whole number',
)
STEP = '{"step":1,"loss":2.5,"terms":{"contrast":2.5},"lr":[0.1]}\n'
REPORT = '{"encoder":"m/L1:cls:100000000000","%s":50.5}'
CASES = (
    Case("encode", "encode", TEXT, *NO_TEXT),
    Case("train", "train simcse -o out -f --threads 1", TEXT * 2, *NO_TEXT),
    Case("translate", "translate", TEXT, *NO_TEXT),
    Case("augment", "augment --op delete", TEXT, *NO_TEXT),
    Case("score", "score", PAIR % 1, '{"embedding_a":[1,0]}', '"embedding_b" is missing'),
    Case("gold", "score --gold score", GOLD, *NO_GOLD),
    Case("diff", "diff corpus.jsonl", VECTOR, *NO_VECTOR),
    Case("diff-model", "diff -m static", '{"text":"a","embedding":[1,2]}\n', *NO_VECTOR),
    Case("search", "search --corpus corpus.jsonl", '{"text":"a","embedding":[1,0]}\n', *NO_VECTOR),
    Case("qrels", "score --qrels qrels.tsv", HITS, *NO_HITS),
    Case(
        "duplicates",
        "duplicates --threshold 0.5",
        '{"text":"a","embedding":[1,2]}\n' * 2,
        *NO_VECTOR,
    ),
    Case("mine", "mine --corpus corpus.jsonl", MINED % '"b"', *NOT_MINED),
    Case("probe", "probe --label label --folds 3 --penalties 1", LABELLED, *NO_LABEL),
    Case("predict", "predict -m C", VECTOR, *NO_VECTOR),
    Case("cluster", "cluster -k 1", VECTOR, *NO_VECTOR),
    Case("build-entries", "build-entries", ENTRY, *NO_ENTRY),
    Case("distill-static", "distill-static --weights sif -o out -f", TEXT, *NO_TEXT),
    Case("fit", "whiten fit --kind center -o -", VECTORS, *NO_VECTOR, names_files=True),
    Case("apply", "whiten apply -t T", VECTOR, *NULL),
    Case("cat", "cat", '{"a":1}\n', '{"a":', "not JSON: unexpected end of data (column 6)"),
    Case("space", "plot space --by pca", VECTORS, *NO_VECTOR),
    Case("curve", "plot curve", STEP, '{"step":2,"loss":2.5}', '"terms" is missing'),
    Case(
        "sweep",
        "plot sweep",
        REPORT % "spearman" + "\n",
        REPORT % "pearson",
        '"spearman" is missing',
    ),
    Case("inspect", "inspect", VECTOR, *NO_VECTOR),
)
READERS = {  # a command for each class or function that reads rows
    *("encode", "train", "translate", "augment", "score", "fit", "duplicates", "search", "cluster"),
    *("build-entries", "cat", "inspect", "curve"),
}
NO_OBJECT = "this row is a list, expected an object"
every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
WRITING = [
    case
    for case in CASES
    if "out" not in case.command and case.command[0] not in ("diff", "inspect")
]
READING = [case for case in CASES if case.name in READERS]
readers = pytest.mark.parametrize("case", READING, ids=lambda case: case.name)
renaming = pytest.mark.parametrize(
    "case", [case for case in READING if case.name != "curve"], ids=lambda case: case.name
)
rejecting = pytest.mark.parametrize(
    "case", [case for case in READING if case.name != "inspect"], ids=lambda case: case.name
)


@pytest.fixture
def run(sentkit, tiny, marian, classifier, tmp_path_factory):
    """The command of a case, and the small checkpoint, transform or classifier where it
    wants one.
    """
    transform = tmp_path_factory.mktemp("transforms") / "t.safetensors"
    write_affine(transform, np.eye(2), np.zeros(2), {})
    of_vectors = VectorClassifier("", ("no", "yes"), np.eye(2), np.zeros(2))
    with (transform.parent / "c.safetensors").open("wb") as file:
        write_classifier(file, of_vectors, {})
    files = {"T": transform, "C": transform.parent / "c.safetensors", "B": classifier}

    def run(case, *arguments, **options):
        if case.command[0] == "search":  # which names its rows by a flag, and reads others too
            Path("corpus.jsonl").write_text(case.good)
            arguments = arguments if arguments[0].startswith("--") else ("--queries", *arguments)
        if case.name == "qrels":
            Path("qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
        if case.name in ("diff", "mine"):
            Path("corpus.jsonl").write_text(
                VECTOR if case.name == "diff" else '{"text":"c","embedding":[0,1]}'
            )
        models = dict.fromkeys(("encode", "train", "build-entries", "distill-static"), tiny)
        models |= {"translate": marian}
        name = case.words.split()[-1]
        model = ("-m", models[name]) if name in models else ()
        command = [files.get(word, word) for word in case.command]
        return sentkit(*command, *arguments, *model, **options)

    return run


def problems(result):
    """All lines except warnings, the readout of `train` and the counts of `mine`."""
    told = [line for line in result.told if "warning: " not in line]
    return [line for line in told if ": readout " not in line and " negatives for " not in line]


@every
def test_a_good_stream_is_taken(run, case):
    """Rows on standard input end with 0, output on stdout, the same each time, and no problem on
    stderr.
    """
    result = run(case, "-", stdin=case.good)
    repeated = run(case, "-", stdin=case.good)

    assert result.code == 0
    assert result.out
    assert repeated.out == result.out
    assert problems(result) == []


@every
def test_a_bad_row_is_reported_with_file_and_line(run, case, tmp_path):
    """`sentkit COMMAND: file:line: problem`, at most one more line, exit code 65, and no
    traceback.
    """
    (tmp_path / "rows.jsonl").write_text(case.good + case.bad + "\n" + case.good)
    line = case.good.count("\n") + 1
    result = run(case, "rows.jsonl")
    told = problems(result)

    assert result.code == 65
    assert told[0] == f"sentkit {case.words}: rows.jsonl:{line}: {case.problem}"
    assert all(line.startswith("  ") for line in told[1:])
    assert len(told) <= 2


@every
def test_missing_files_unknown_flags_and_empty_input_are_refused(run, case):
    """No output, and one line of the problem, so that a script notices an empty pipe."""
    missing = run(case, "./rows.jsonl")
    unknown = run(case, "--nonsense")
    empty = run(case, "-", stdin=b"")

    assert (missing.code, unknown.code, empty.code) == (66, 2, 65)
    assert missing.told[-1].startswith(f"sentkit {case.words}: ./rows.jsonl: no such ")
    assert unknown.told[0].startswith(f"sentkit {case.words}: no such option: --nonsense")
    assert unknown.told[1:] == [f"  see: sentkit {case.words} --help"]
    assert empty.out == b""
    assert problems(empty) == [f"sentkit {case.words}: no rows in standard input"]


@pytest.mark.parametrize("case", WRITING, ids=lambda case: case.name)
def test_an_output_that_exists_is_kept(run, case):
    """73 before any work is done, and the file untouched; -f writes over it."""
    name = "out.safetensors" if case.name == "fit" else "out.jsonl"
    Path(name).write_text("dear old bytes")
    refused = run(case, "-", "-o", name, stdin=case.good)
    content = Path(name).read_text()
    forced = run(case, "-", "-f", "-o", name, stdin=case.good)

    problem = f"sentkit {case.words}: {name}: already exists"
    assert (refused.code, refused.told[-2:]) == (73, [problem, "  use -f to overwrite it"])
    assert (content, forced.code) == ("dear old bytes", 0)
    assert Path(name).read_bytes() != b"dear old bytes"


@pytest.mark.parametrize("case", WRITING, ids=lambda case: case.name)
def test_an_output_at_a_url_is_refused(run, case):
    """Nothing is written, also not into a local folder with the name of the scheme."""
    end = "safetensors" if case.name == "fit" else "jsonl"
    for url in (f"memory://bucket/out.{end}", f"hf://datasets/org/name/out.{end}"):
        result = run(case, "-", "-f", "-o", url, stdin=case.good)

        problem = f"sentkit {case.words}: {url}: an output cannot be at a URL"
        assert (result.code, result.told[-2]) == (2, problem)
        assert "rclone" in result.told[-1]
    assert not fsspec.filesystem("memory").exists("/bucket")
    assert not [*Path().glob("*:")]


def in_zst(content):
    return pytest.importorskip("zstandard").compress(content)


def in_parquet(content):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    rows = [json.loads(line) for line in content.splitlines()]
    parquet.write_table(arrow.Table.from_pylist(rows), file)
    return file.getvalue()


@readers
def test_compressed_files_and_parquet_are_read(run, case):
    """By suffix; the same comes out as of the plain file."""
    Path("rows.jsonl").write_text(case.good)
    plain = run(case, "rows.jsonl")
    for suffix, pack in (
        (".jsonl.gz", gzip.compress),
        (".jsonl.zst", in_zst),
        (".parquet", in_parquet),
    ):
        Path(f"rows{suffix}").write_bytes(pack(case.good.encode()))
        packed = run(case, f"rows{suffix}")
        assert (packed.code, problems(packed)) == (0, [])
        assert case.names_files or packed.out.replace(suffix.encode(), b".jsonl") == plain.out


@every
def test_a_file_at_a_url_is_read(run, case, tmp_path):
    """The same comes out as of the local file, except for its name; a missing file is an error."""
    Path("rows.jsonl").write_text(case.good)
    url = f"memory://{tmp_path.name}/rows.jsonl"
    fsspec.filesystem("memory").pipe(url, case.good.encode())
    local = run(case, "rows.jsonl")
    remote = run(case, url)
    missing = run(case, url.replace("rows", "none"))

    assert (remote.code, problems(remote)) == (0, []), remote.err
    assert case.names_files or remote.out.replace(url.encode(), b"rows.jsonl") == local.out
    assert (missing.code, missing.told[-1]) == (
        66,
        f"sentkit {case.words}: {url.replace('rows', 'none')}: no such file, or access is denied",
    )


@readers
def test_damaged_files_are_refused(run, case, tmp_path):
    """Bytes that are not UTF-8 have their line. A compressed file is truncated."""
    whole = gzip.compress(case.good.encode() * 500, mtime=0)
    (tmp_path / "rows.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    truncated = run(case, "rows.jsonl.gz")
    not_utf8 = run(case, "-", stdin=case.good.encode() + b'{"text":"\xff"}\n')

    assert (truncated.code, not_utf8.code) == (65, 65)
    assert "rows.jsonl.gz: incomplete or damaged gzip file" in truncated.err
    assert f": -:{case.good.count(chr(10)) + 1}: not UTF-8" in not_utf8.err


@renaming
def test_unknown_fields_are_refused(run, case):
    result = run(case, "-", "--field", "texxt=title", stdin=case.good)

    assert result.code == 2
    assert ': --field "texxt=title": unknown field "texxt"' in result.err


@readers
def test_a_bug_is_one_line_and_70(run, case, monkeypatch):
    """With -v, the traceback is before it, without the secrets of URLs."""

    def broken(*_, **__):
        raise ZeroDivisionError("a mistake\nat https://user:word@host/x?token=1")

    monkeypatch.setattr("sentkit.formats.rows.lines.line_blocks", broken)
    result = run(case, "-", stdin=case.good)
    verbose = run(case, "-", "-v", stdin=case.good)
    line = f"sentkit {case.words}: a bug in sentkit: ZeroDivisionError: a mistake"

    assert (result.code, verbose.code) == (70, 70)
    assert problems(result) == [line, "  run it again with -v, and report the traceback"]
    assert verbose.told[-2:] == [line, "  please report it with the traceback"]
    assert "Traceback (most recent call last):" in verbose.told
    assert "at https://host/x?..." in verbose.told
    assert "word" not in verbose.told[-3]


@rejecting
def test_bad_rows_can_be_rejected(run, case, tmp_path):
    """The result is that of the good rows, and --rejects gets the others with file, line and
    reason.

    It is also written if there are no good rows, which is an error.
    """
    spoilt = "[1]\n" + case.good + case.bad + "\n" + case.good
    result = run(case, "-", "--rejects", "bad.jsonl", stdin=spoilt)
    first, second = map(json.loads, (tmp_path / "bad.jsonl").read_text().splitlines())
    line = 2 + case.good.count("\n")

    assert result.code == 0
    # Blank lines give the good rows the same line numbers.
    assert result.out == run(case, "-", stdin=f"\n{case.good}\n{case.good}").out
    assert first == {"file": "-", "line": 1, "reason": NO_OBJECT, "row": "[1]"}
    assert second == {"file": "-", "line": line, "reason": case.problem, "row": case.bad}
    counted = f"bad rows written to bad.jsonl: 2; the first is -:1: {NO_OBJECT}"
    assert f"sentkit {case.words}: warning: {counted}" in result.told
    none = run(case, "-", "--rejects", "all.jsonl", stdin="[1]\n[2]\n")
    assert (none.code, none.out) == (65, b"")
    problem = "no valid rows in standard input; bad rows: 2"
    assert none.told[-1] == f"sentkit {case.words}: {problem}"
    assert (tmp_path / "all.jsonl").read_text().count("\n") == 2


OUTPUT_FIELDS = {  # a command -> a good row, and its output field
    "encode": ('{"text":"a"}', '"embedding":[1]'),
    "encode --on-truncate mark": ('{"text":"a"}', '"n_tokens":1'),
    "score": (PAIR.strip() % 1, '"similarity":1'),
    "score --matrix": ('{"embedding":[1,0]}', '"similarities":[]'),
    "search --corpus corpus.jsonl --queries -": ('{"embedding":[1,0]}', '"hits":[]'),
    "duplicates --threshold 0.5 --groups": ('{"embedding":[1]}', '"group":1'),
    "cluster -k 1": ('{"embedding":[1]}', '"cluster":1'),
    "mine --corpus corpus.jsonl": (MINED.strip() % '"b"', '"negative":"c"'),
    "augment --op lower": ('{"text":"a"}', '"text_a":"b"'),
}


@pytest.mark.parametrize("line", OUTPUT_FIELDS)
def test_a_row_with_the_output_field_is_a_bad_row(sentkit, line, tmp_path):
    """The writer's bad rows go the way of the reader's."""
    command = line.split()
    good, field = OUTPUT_FIELDS[line]
    bad = f"{good[:-1]},{field}}}"
    (tmp_path / "corpus.jsonl").write_text('{"text":"c","embedding":[0,1]}\n')
    refused = sentkit(*command, stdin=f"{good}\n{bad}\n{good}\n")
    replaced = sentkit(*command, "--replace", stdin=f"{bad}\n")
    result = sentkit(*command, "--rejects", "bad.jsonl", stdin=f"{good}\n{bad}\n{good}\n")
    (reject,) = map(json.loads, (tmp_path / "bad.jsonl").read_text().splitlines())

    assert refused.code == 65
    assert "-:2: " in refused.err
    assert " already exists" in refused.err
    assert (result.code, reject["line"], reject["row"]) == (0, 2, bad)
    assert (replaced.code, len(replaced.rows)) == (0, 1)
    assert result.out == sentkit(*command, stdin=f"{good}\n\n{good}\n").out
