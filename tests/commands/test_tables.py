"""Tables on a terminal: 80 columns, complete numbers, no control characters."""

import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from sentkit.console import fitted, kept_columns, shortened

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
    assert lines[1].startswith("a-file-with-a-na")
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


def test_control_characters_of_rows_do_not_reach_the_terminal(on_terminal, tmp_path, jsonl):
    """Control characters are escaped; markup and names of emoji are shown as they are."""
    texts = ["[bold]loud[/bold] :smile:", "red \x1b[31m line\nend [/x]"]
    (tmp_path / "t.jsonl").write_bytes(
        jsonl(*({"text": text, "embedding": [1, n]} for n, text in enumerate(texts)))
    )
    lines = on_terminal("score", "t.jsonl", "--top", 1)

    assert re.split(" {2,}", lines[0].strip()) == ["cosine", "row a", "a", "row b", "b"]
    assert re.split(" {2,}", lines[1].rstrip()) == [
        *("0.7071", "1", "[bold]loud[/bold] :smile:", "2", r"red \x1b[31m line\nend [/x]")
    ]
    assert len(lines) == 2


def test_a_pair_shows_the_number_and_the_text_or_entry_of_its_rows(on_terminal, tmp_path, jsonl):
    """`score` and `duplicates` use the same columns. A row of several files has the name of its file."""
    rows = jsonl(
        {"entry": "dog", "embedding": [1, 0]},
        {"id": 7, "embedding": [1, 0]},
        {"text": "a cat", "entry": "cat", "embedding": [1, 0]},
    )
    (tmp_path / "t.jsonl").write_bytes(rows)
    expected = [["1", "dog", "2"], ["1", "dog", "3", "a cat"], ["2", "3", "a cat"]]

    for command in ("score", "duplicates"):
        lines = on_terminal(command, "t.jsonl", "--threshold", 1)
        assert [re.split(" {2,}", line.strip()) for line in lines[1:]] == [
            ["1.0000", *cells] for cells in expected
        ]
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(jsonl({"text": name[0], "embedding": [1, 0]}))
    lines = on_terminal("score", "a.jsonl", "b.jsonl")
    assert lines[1].split() == ["1.0000", "a.jsonl:1", "a", "b.jsonl:1", "b"]


@pytest.mark.parametrize(
    ("cells", "width", "expected"),
    [
        (["a cat", "a dog"], 5, ["a cat", "a dog"]),  # they fit
        (["/x/y/one.txt", "/x/y/two.txt"], 9, ["…one.txt", "…two.txt"]),
        (["/x/y/one.txt", "/x/y/two.txt"], 10, ["…y/one.txt", "…y/two.txt"]),  # as little as necessary
        (["/x/one.txt", "  minus /x/two.txt", "/x/two.txt"], 9, ["…one.txt", "  minus …two.txt", "…two.txt"]),
        (["the same cat", "the same dog", "other"], 8, ["…cat", "…dog", "other"]),
        (["abcdefgh1", "abcdefgh2"], 7, ["ab…fgh1", "ab…fgh2"]),  # no word ends: the middle
        (["abcdefgh1", "abcdefgh2", "xbcdefgh2"], 7, ["ab…fgh1", "ab…fgh2", "xbcdefgh2"]),
        (["北京是首都一", "北京是首都二"], 8, ["北 …都一", "北 …都二"]),  # 2 places a letter
        (["a single long cell"], 6, ["a single long cell"]),  # the table cuts its end
        (["same same", "same same"], 5, ["same same", "same same"]),
    ],
)
def test_shortened_cells_show_how_they_differ(cells, width, expected):
    assert shortened(cells, width) == expected


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


def test_names_of_metadata_are_escaped(on_terminal):
    save_file({"a": np.zeros(1)}, "x.safetensors", {"x\x1b[31m": "y\x1b[31m"})

    assert r"metadata.x\x1b[31m  y\x1b[31m" in on_terminal("inspect", "x.safetensors", "-v")


def test_widths_are_taken_from_the_widest_name():
    """12 + 30 + 10 and two gaps of 2 are 56; 8 is as short as a name gets."""
    assert fitted([12, 30, 10], [True, True, False], 56) == [12, 30, 10]
    assert fitted([12, 30, 10], [True, True, False], 40) == [12, 14, 10]
    assert fitted([12, 30, 10], [True, True, False], 36) == [11, 11, 10]
    assert fitted([12, 30, 10], [True, True, False], 5) == [8, 8, 10]


def test_columns_are_left_out_so_that_names_are_legible():
    """Names 20 and 10 wide need 14 and 10: with numbers of 30 and 20 and three gaps that is 80."""
    lengths, names = [20, 10, 30, 20], [True, True, False, False]

    assert kept_columns(lengths, names, [2, 3], 80) == [0, 1, 2, 3]
    assert kept_columns(lengths, names, [2, 3], 79) == [0, 1, 3]
    assert kept_columns(lengths, names, [2, 3], 30) == [0, 1]
    assert kept_columns(lengths, names, [], 30) == [0, 1, 2, 3]


def test_agreement_with_classes_fits_80_columns(on_terminal, tmp_path, jsonl):
    """Iterations and inertia are omitted. V-measure equals NMI, so only JSON has it."""
    random = np.random.default_rng(5)
    vectors = (1000 * random.standard_normal((60, 4))).tolist()
    rows = [{"embedding": v, "c": "abc"[n % 3]} for n, v in enumerate(vectors)]
    (tmp_path / "v.jsonl").write_bytes(jsonl(*rows))
    lines = on_terminal("cluster", "v.jsonl", "--truth", "c", "--seed", "0..9")

    assert len(lines) == 13
    assert lines[0].split() == ["seed", "n", "k", "ACC", "NMI", "ARI", "AMI"]
    assert lines[-2].split()[:4] == ["mean", "(sd)", "60", "3"]
    assert lines[-1] == "(a): standard deviation"
    assert max(len(line.rstrip()) for line in lines) <= 80


def test_vectors_are_shortened_on_a_terminal_alone(on_terminal, sentkit, tmp_path, jsonl):
    """The first three numbers, or the start of base64, and how many there are; a row in a pipe is whole."""
    vector = [0.125, -2.0, 1 / 3] + [1.0] * 253
    row = {"text": "a \u202e b", "embedding": vector, "small": [1, 2], "_emb": "m:0123456789ab"}
    (tmp_path / "v.jsonl").write_bytes(jsonl(row))
    expected = (
        r'{"text": "a \u202e b", "embedding": [0.125, -2, 0.3333, ... 256 numbers], '
        r'"small": [1, 2], "_emb": "m:0123456789ab"}'
    )

    assert "".join(on_terminal("cat", "v.jsonl", width=200)) == expected
    assert sentkit("cat", "v.jsonl").out == jsonl(row)
    (tmp_path / "v.jsonl").write_bytes(jsonl({"embedding": [1.5] * 256}))
    (line,) = on_terminal("cat", "v.jsonl", "--vectors", "base64", width=200)
    assert line == '{"embedding": "AADAPwAA... 256 numbers"}'


def test_descriptions_of_clusters_are_wrapped_and_not_truncated(on_terminal, jsonl, tmp_path):
    words = [f"word{n}" for n in range(40)]
    rows = [{"embedding": [1, n], "text": " ".join(words[4 * n : 4 * n + 4])} for n in range(10)]
    (tmp_path / "rows.jsonl").write_bytes(jsonl(*rows))
    lines = on_terminal("cluster", "rows.jsonl", "-k", 1, "--describe", "--nearest", 10, "--keywords", 40)
    shown = " ".join(lines).split()

    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert all(shown.count(word) == 2 for word in words)  # as a keyword and in its text
