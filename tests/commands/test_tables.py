"""Tables on a terminal: 80 columns, complete numbers, no control characters."""

from random import Random

import numpy as np
import pytest

from sentkit.console import print_table
from sentkit.escaping import MINUS, columns_of, label_cells, labels_of, shortened
from sentkit.reports.tables import Line, Table, text_lines

LONG = "a-file-with-a-name-that-is-too-long-for-any-terminal.jsonl"
INTERVAL = "[a, b]: 95 % interval"


@pytest.fixture
def reports(tmp_path, jsonl):
    """Forty scored pairs in two groups, under a short name and a long one."""
    random = np.random.default_rng(2)
    rows = []
    for n, gold in enumerate(random.random(40).round(3).tolist()):
        x = gold + 0.3 * random.random()
        pair = {"embedding_a": [1, 0], "embedding_b": [x, 1]}
        rows.append(
            {
                **pair,
                "_emb": "ckpt/mean:0123456789ab",
                "score": gold,
                "topic": ["even", "odd"][n % 2],
            }
        )
    for name in ("a.jsonl", LONG):
        (tmp_path / name).write_bytes(jsonl(*rows))


def test_a_query_without_a_text_has_its_entry(on_terminal, tmp_path, jsonl):
    rows = [{"text": None, "entry": "x", "embedding": [1]}, {"text": None, "embedding": [1]}]
    (tmp_path / "rows.jsonl").write_bytes(jsonl(*rows))
    lines = on_terminal("search", "--queries", "rows.jsonl", "--corpus", "rows.jsonl", "-q")

    assert [line.split() for line in lines] == [
        ["query", "cosine", "row", "hit"],
        ["x", "1.0000", "2"],
        ["row", "2", "1.0000", "1", "x"],
    ]


@pytest.mark.usefixtures("reports")
def test_a_report_is_legible_at_80_columns(on_terminal, sentkit):
    """Every number of the JSON report stands whole in the table; the names give way; no line is
    broken.
    """
    flags = ("--gold", "score", "--group", "topic", "--baseline", "a.jsonl")
    lines = on_terminal("score", LONG, *flags)
    record = sentkit("score", LONG, *flags).rows[0]
    words = " ".join(lines)

    assert " ".join(lines[0].split()) == "file encoder pairs Spearman x 100 Pearson x 100"
    names = ["all", "mean", "weighted", "even", "odd", "minus", "p"]
    assert [line.split()[0] for line in lines[2:-1]] == names
    assert lines[-1] == INTERVAL
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert not set(words) & set("│┃|+─━")
    assert lines[1].startswith("a-f")
    assert ".jsonl " in lines[1]
    assert "…" in lines[1]
    for scores in (record, *record["groups"].values()):
        for kind in ("spearman", "pearson"):
            low, high = scores[f"{kind}_ci95"]
            assert f" {scores[kind]:.2f} [{low:.2f}, {high:.2f}]" in words


@pytest.mark.usefixtures("reports")
def test_reports_of_a_narrow_terminal_and_of_several_files(on_terminal):
    """No number is cut. A baseline is not compared with itself."""
    flags = ("--gold", "score")
    wide, narrow = (on_terminal("score", "a.jsonl", *flags, width=width) for width in (200, 30))
    lines = on_terminal("score", "a.jsonl", LONG, *flags, "--baseline", "a.jsonl")

    assert " ".join(narrow[:-1]).split()[-7:] == wide[1].split()[-7:]
    assert narrow[-1] == wide[-1] == lines[-1] == INTERVAL
    names = [line.split()[0] for line in lines[1:-1]]
    assert names == ["a.jsonl", lines[2].split()[0], "minus", "p", "average"]


def test_a_baseline_without_a_space_is_not_compared_with_itself(on_terminal, tmp_path, jsonl):
    """As one with "_emb"; the other file still is."""
    vectors = [{"embedding_a": [1.0, 0.0], "embedding_b": [1.0, n]} for n in range(5)]
    for name in ("a.jsonl", "b.jsonl"):
        rows = [{"score": n, **row} for n, row in enumerate(vectors)]
        (tmp_path / name).write_bytes(jsonl(*rows))
    lines = on_terminal("score", "a.jsonl", "b.jsonl", "--gold", "score", "--baseline", "a.jsonl")

    assert [line.split()[0] for line in lines[1:-1]] == ["a.jsonl", "b.jsonl", "minus", "p"]


def test_a_hit_that_is_too_long_keeps_its_begin(on_terminal, tmp_path):
    text = "a cat sits on the mat in the garden of the house at the end of the long street"
    (tmp_path / "texts.txt").write_text(f"{text}\n")
    lines = on_terminal("search", "a cat", "texts.txt", width=60)

    shown = lines[1].split("1  ")[-1].strip()
    assert shown.endswith("…")
    assert text.startswith(shown.removesuffix("…"))


@pytest.mark.parametrize(
    ("cell", "width", "expected"),
    [
        ("a cat", 5, "a cat"),  # it fits
        ("/x/y/one.txt", 10, "/x/…ne.txt"),
        ("abcdefgh1", 7, "ab…fgh1"),
        ("北京是首都一", 8, "北 …都一"),  # 2 places a letter
    ],
)
def test_a_long_cell_loses_its_middle(cell, width, expected):
    assert shortened(cell, width) == expected


MEANS = ["mlm-layers-0-mean.safetensors", "mlm-layers-10-mean.safetensors"]
SEEDS = ["runs/consert/seed-1", "runs/consert/seed-10"]


@pytest.mark.parametrize(
    ("cells", "width", "expected"),
    [
        (["hits-nano.jsonl", "  n 60", "hits-static.jsonl"], 8, ["…nano…", "  n 60", "…static…"]),
        (["hits-nano.jsonl", "hits-static.jsonl"], 12, ["hits-nano…", "hits-static…"]),
        (["hits-nano.jsonl", "hits-static.jsonl"], 15, ["hits-nano.jsonl", "hits-…tic.jsonl"]),
        (MEANS, 30, MEANS),
        (MEANS, 14, ["mlm-layers-0…", "mlm-layers-10…"]),
        (MEANS, 8, ["…0…", "…10…"]),
        ([MEANS[1], f"  minus {MEANS[0]}"], 16, ["mlm-layers-10…", "  minus …0…"]),
        (SEEDS, 8, ["…seed-1", "…seed-10"]),
        (SEEDS, 12, ["…ert/seed-1", "…ert/seed-10"]),
        # the difference is in a word
        (["ab-" + 9 * "x" + y + 9 * "x" for y in "12"], 8, ["…1…", "…2…"]),
        (["a1" + 9 * "-", "a1" + 9 * "-" + "b"], 6, ["…----", "…----b"]),
    ],
)
def test_names_in_a_column_lose_what_they_share(cells, width, expected):
    assert label_cells(cells, width) == expected


def test_labels_differ_whatever_the_names_share():
    """Names of few characters, so that they share much, of one and of two columns; and nearly no
    room.
    """
    random = Random(3)
    for number in range(1500):
        letters = random.choice(["ab", "ab-./", "a北b"])
        begin, *middles = (
            "".join(random.choices(letters, k=random.randrange(25))) for _ in range(9)
        )
        names = {begin + middle + ".jsonl" * (number % 2) for middle in middles}
        width = random.randrange(5, 30)
        labels = labels_of(names, width)

        assert labels.keys() == names
        assert len(set(labels.values())) == len(names)
        assert max(map(columns_of, labels.values())) <= width


def test_hits_of_two_models_have_different_labels_at_80_columns(on_terminal, tmp_path, jsonl):
    """The baseline has no comparison, and the head of the differences names it, however long its
    name is.
    """
    names = [
        "runs/with-a-long-name/hits-of-nano.jsonl",
        "runs/with-a-long-name/hits-of-static.jsonl",
    ]
    (tmp_path / "runs/with-a-long-name").mkdir(parents=True)
    (tmp_path / "q.tsv").write_text("".join(f"{query} 0 a 1\n" for query in range(20)))
    for step, name in enumerate(names):
        rows = []
        for n in range(20):
            documents = "ab"[:: 1 - 2 * (n * step % 2)]
            rows.append({"id": n, "hits": [{"id": document} for document in documents]})
        (tmp_path / name).write_bytes(jsonl(*rows))
    head, *lines = on_terminal("score", *names, "--qrels", "q.tsv", "--baseline", names[0])
    baseline = lines[:5]
    other = lines[5:10]

    assert max(map(len, [head, *lines])) <= 80
    assert head.split() == ["file", "measure", "x", "100", "value", "minus", head.split()[-2], "p"]
    assert "nano" in head
    assert [line.split()[0] for line in (baseline[0], other[0])] == ["…nano…", "…static…"]
    assert [len(line.split()) for line in (baseline[0], other[0])] == [5, 9]
    assert " 0.00 [" not in " ".join(baseline)
    # Half of the queries have the relevant document at rank 2.
    assert other[4].split()[-4] == "-25.00"


@pytest.mark.parametrize("flag", ["--label", "--qrels"])
def test_a_baseline_alone_has_no_columns_of_differences(on_terminal, tmp_path, jsonl, flag):
    pairs = [{"embedding_a": [n], "embedding_b": [1], "same": n % 3 > 0} for n in range(1, 7)]
    (tmp_path / "pairs.jsonl").write_bytes(jsonl(*pairs))
    (tmp_path / "hits.jsonl").write_bytes(jsonl({"id": 1, "hits": [{"id": "a"}]}))
    (tmp_path / "q.tsv").write_text("1 0 a 1\n")
    file, value = ("pairs.jsonl", "same") if flag == "--label" else ("hits.jsonl", "q.tsv")
    lines = on_terminal("score", file, flag, value, "--baseline", file)

    assert "minus" not in " ".join(lines)
    assert lines[0].split()[:4] == ["file", "measure", "x", "100"]


def test_names_in_a_table_of_report_differ():
    """Of 30 columns the names have 14: 7 are for the readout, 5 for the value, 4 are gaps."""
    names = [f"checkpoint-of-the-long-experiment-{n}-final" for n in range(3)]
    lines = tuple(Line((name, "mean"), ("12.34",)) for name in names)
    shown = [*text_lines(Table("t", ("row", "readout"), ("STS-B",), lines), 30)][2:]

    assert max(map(len, shown)) <= 30
    assert [line.split()[0] for line in shown] == [f"…{name[-13:]}" for name in names]


def test_long_texts_that_begin_alike_differ_in_the_table(on_terminal, tmp_path, jsonl):
    """Chinese takes two columns a letter, and each pair is still one line."""
    start = "a sentence that begins with the same words as all others of this file, "
    texts = [start + end for end in ("then a cat", "then a dog")]
    wide = ["北京是中国的首都。人口超过两千万。" * 3] * 2
    rows = jsonl(*({"text": text, "embedding": [1, n]} for n, text in enumerate(texts)))
    (tmp_path / "t.jsonl").write_bytes(rows)

    for words in (("duplicates", "--threshold", 0), ("score",)):
        line = on_terminal(words[0], "t.jsonl", *words[1:])[1]
        assert "cat" in line
        assert "dog" in line
    (tmp_path / "t.jsonl").write_bytes(
        jsonl(*({"text": t, "embedding": [1, n]} for n, t in enumerate(wide)))
    )
    assert len(on_terminal("score", "t.jsonl")) == 2


def test_a_table_without_rows_has_its_heads(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_table(["file", f"{MINUS}{LONG}{LONG}"], [], labels=["file"])
    [heads] = capsys.readouterr().out.splitlines()

    assert heads.split()[0] == "file"


def test_an_inspection_cuts_nothing_and_begins_with_ten_lines(on_terminal, tiny):
    """Names and values, a line each; a path is whole, however long."""
    short = on_terminal("inspect", tiny)
    whole = on_terminal("inspect", tiny, "-v", width=20)
    names = [line.split()[0] for line in whole]
    shown = {name: line.split(maxsplit=1)[1] for name, line in zip(names, whole, strict=True)}

    assert (shown["folder"], shown["layers"], shown["prompt"]) == (str(tiny), "3", "none")
    assert (shown["tokenizer.tokens"], shown["tokenizer.lowercase"]) == ("16,384", "yes")
    assert names[:6] == ["model", "architecture", "layers", "width", "parameters", "readout"]
    assert [line.split()[0] for line in short] == [*names[:10], "..."]
    assert short[-1].split(maxsplit=1)[1] == f"{len(whole) - 10} more lines with -v"
