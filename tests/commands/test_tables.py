"""Tables on a terminal: 80 columns, complete numbers, no control characters."""

import numpy as np
import pytest

from sentkit.console import shortened

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
            {**pair, "_emb": "ckpt/mean:0123456789ab", "score": gold, "topic": ["even", "odd"][n % 2]}
        )
    for name in ("a.jsonl", LONG):
        (tmp_path / name).write_bytes(jsonl(*rows))


@pytest.mark.usefixtures("reports")
def test_a_report_is_legible_at_80_columns(on_terminal, sentkit):
    """Every number of the JSON report stands whole in the table; the names give way; no line is broken."""
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
    for part in (record, *record["groups"].values()):
        for kind in ("spearman", "pearson"):
            low, high = part[f"{kind}_ci95"]
            assert f" {part[kind]:.2f} [{low:.2f}, {high:.2f}]" in words


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
    (tmp_path / "t.jsonl").write_bytes(jsonl(*({"text": t, "embedding": [1, n]} for n, t in enumerate(wide))))
    assert len(on_terminal("score", "t.jsonl")) == 2


def test_an_inspection_cuts_nothing_and_begins_with_ten_lines(on_terminal, tiny):
    """Names and values, a line each; a path is whole, however long."""
    short, whole = on_terminal("inspect", tiny), on_terminal("inspect", tiny, "-v", width=20)
    names = [line.split()[0] for line in whole]
    shown = {name: line.split(maxsplit=1)[1] for name, line in zip(names, whole, strict=True)}

    assert (shown["folder"], shown["layers"], shown["prompt"]) == (str(tiny), "3", "none")
    assert (shown["tokenizer.tokens"], shown["tokenizer.lowercase"]) == ("16,384", "no")
    assert names[:6] == ["model", "architecture", "layers", "width", "parameters", "readout"]
    assert [line.split()[0] for line in short] == [*names[:10], "..."]
    assert short[-1].split(maxsplit=1)[1] == f"{len(whole) - 10} more lines with -v"
