"""Figures of the papers: the records of the pictures against plain loops and numpy."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sentkit.papers import figure_command
from sentkit.papers.consert import figures as consert
from sentkit.papers.defsent import figures as defsent
from sentkit.papers.sg_bert import figures as sg_bert
from support import in_jsonl

TEXTS = "the cat sat\nthe dog and the cat\na dog\n"
random = np.random.default_rng(0)


@pytest.fixture
def file(tmp_path):
    """`file("a.jsonl", text)`: the path of a file."""

    def write(name, content):
        (tmp_path / name).write_text(content)
        return str(tmp_path / name)

    return write


def records(picture):
    return list(picture.records())


def vectors_in(values):
    return in_jsonl(*({"embedding": vector.tolist()} for vector in values))


def report(label, spearman, **fields):
    return json.dumps({"encoder": f"{label}:100000000000", "spearman": spearman, **fields}) + "\n"


def test_each_view_of_the_axes_is_a_panel(file):
    """Two independent sources with a large skewness, mixed, with a mean far from zero."""
    sources = random.exponential(size=(400, 2))
    vectors = (sources @ [[1.0, 0.5], [0.4, 2.0]] + [5, 3]).round(4)
    path = file("v.jsonl", vectors_in(vectors))
    points = records(defsent.axes([path]))
    coordinates = {
        panel: np.array([[r["x"], r["y"]] for r in points if r["panel"] == panel])
        for panel in ("not centered", "centered", "whitened", "independent components")
    }
    centered = vectors - vectors.mean(axis=0)
    for panel, matrix in (("not centered", vectors), ("centered", centered)):
        squares = np.diag(np.linalg.svd(matrix)[1] ** 2)
        products = coordinates[panel].T @ coordinates[panel]
        assert products == pytest.approx(squares, rel=1e-4, abs=1e-2)

    assert np.cov(coordinates["whitened"].T) == pytest.approx(np.eye(2), abs=1e-5)
    components = coordinates["independent components"]
    correlations = np.abs(np.corrcoef(components.T, sources.T)[:2, 2:])
    assert sorted(correlations.max(axis=0)) == pytest.approx([1, 1], abs=0.02)


def test_the_panels_of_several_files_have_their_names(file):
    paths = [file(f"{name}.jsonl", vectors_in(random.normal(size=(9, 2)))) for name in "ab"]
    panels = dict.fromkeys(record["panel"] for record in records(defsent.axes(paths)))

    assert len(panels) == 2 * 4
    assert {"a, not centered", "b, independent components"} <= panels.keys()


def test_correlations_are_those_of_numpy(file):
    """Absolute values, for the first 32 of 40 axes; the mean is of all."""
    vectors = random.normal(size=(100, 40)) @ random.normal(size=(40, 40))
    [panel] = defsent.correlations([file("v.jsonl", vectors_in(vectors))]).panels
    expected = np.abs(np.corrcoef(vectors.T))

    assert panel.grid.values == pytest.approx(expected[:32, :32], abs=1e-5)
    assert panel.note == f"mean {(expected.sum() - 40) / (40 * 39):.3f}"


def test_norms_and_distances_of_words_equal_a_plain_loop(file, tiny):
    """Tokens are in the order of their counts, with the special tokens of each text."""
    from transformers import AutoTokenizer

    points = records(consert.words([file("t.txt", TEXTS)], model=str(tiny)))
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    counts = Counter(token for text in TEXTS.splitlines() for token in tokenizer(text).tokens())
    points_of = {
        name: [point for point in points if name in point and "series" not in point]
        for name in consert.AXES
    }
    tokens = [point["token"] for point in points_of["norm"]]
    table = load_file(tiny / "model.safetensors")["embeddings.word_embeddings.weight"].astype(
        np.float64
    )
    vectors = [table[tokenizer.convert_tokens_to_ids(token)] for token in tokens]
    expected = {"norm": [np.linalg.norm(vector) for vector in vectors]}
    for count in (3, 5, 7):
        for index, vector in enumerate(vectors):
            other_vectors = vectors[:index] + vectors[index + 1 :]
            distances = sorted(np.linalg.norm(vector - other) for other in other_vectors)
            dots = sorted(other_vectors @ vector)
            expected.setdefault(f"distance, k = {count}", []).append(np.mean(distances[:count]))
            expected.setdefault(f"dot product, k = {count}", []).append(np.mean(dots[-count:]))
    statistics = consert.word_statistics([file("t.txt", TEXTS)], model=str(tiny))

    shown_counts = [point["count"] for point in points_of["norm"]]
    assert dict(zip(tokens, shown_counts, strict=True)) == counts
    assert shown_counts == sorted(counts.values(), reverse=True)
    assert statistics == {
        name: pytest.approx([np.mean(values)], rel=1e-5) for name, values in expected.items()
    }
    ranks = [*zip(tokens, range(1, 99), strict=False)]
    for name, points in points_of.items():
        values = expected[name if name == "norm" else f"{name}, k = 3"]
        assert [point[name] for point in points] == pytest.approx(values, rel=1e-5)
        assert [(point["token"], point["rank"]) for point in points] == ranks


def test_lines_of_words_are_means_of_bins():
    """The ranks 1 to 99, 100 to 499, and 500 to 700, at the geometric centres."""
    ranks = np.arange(1.0, 701)
    values = random.normal(size=700)
    line = consert.means(ranks, values)

    assert line.y == pytest.approx([values[:99].mean(), values[99:499].mean(), values[499:].mean()])
    assert line.x == pytest.approx([np.sqrt(99), np.sqrt(100 * 499), np.sqrt(500 * 700)])


def test_masking_has_a_line_for_each_encoder(file):
    """By the number in the name of the space; 0 if it has none. An average of files is no report.

    Several data sets are drawn as their mean.
    """
    reports = report("m/mean/out36", 45) + report("m/mean", 40.5, spearman_ci95=[39, 42])
    reports += report("m/mean/out5/n", 50) + report("m/mean", 1, file="average")

    assert records(consert.masking([file("r.jsonl", reports)])) == [
        {"series": "m/mean", "left_out": 0, "spearman": 40.5, "spearman_interval": [39, 42]},
        {"series": "m/mean", "left_out": 36, "spearman": 45, "spearman_interval": [None, None]},
        {"series": "m/mean/n", "left_out": 5, "spearman": 50},
    ]
    several = "".join(report(f"m/mean/out{n}", 10 * n + k, n=5) for n in (1, 2) for k in (0, 3))
    assert [r["spearman"] for r in records(consert.masking([file("s.jsonl", several)]))] == [
        11.5,
        21.5,
    ]


TABLE = (
    "batch\tlr\ttest\ttest_sd\n-\t-\t9\t-\n64\t1e-5\t50\t0.5\n16\t1e-5\t48\t-\n16\t3e-5\t47\t-\n"
)
OTHER_TABLE = "batch\ttest\n16\t30\n"


def test_a_scale_has_a_line_for_each_name(file):
    """In the order of the numbers; a line with the default has none."""
    table = file("table.tsv", TABLE)

    assert records(consert.scale([table], x="batch", value="test", name="lr")) == [
        {"series": "1e-5", "batch": 16, "test": 48, "test_interval": [None, None]},
        {"series": "1e-5", "batch": 64, "test": 50, "test_interval": [49.5, 50.5]},
        {"series": "3e-5", "batch": 16, "test": 47},
    ]
    picture = consert.scale([table], x="batch", value="test", log=True)
    assert [(r["batch"], r["test"]) for r in records(picture)] == [(16, 47.5), (64, 50)]
    assert picture.panels[0].x.ticks == (16, 64)


def test_the_metric_of_dev_in_a_table_is_not_known(file):
    """`train` prints the score of any metric as "dev"."""
    table = file("table.jsonl", in_jsonl({"batch": 16, "dev": 48}, {"batch": 64, "dev": 50}))
    [panel] = consert.scale([table], x="batch", value="dev").panels

    assert panel.y.label == "score x 100 on --dev"


def test_domains_have_means_over_seeds(file):
    """Of 50 and 54: the mean 52 and the standard deviation sqrt(8). A row with test_sd has
    its own.
    """
    table = "method\tdata\ttest\ttest_sd\na\tx\t50\t-\na\tx\t54\t-\nb\tx\t40\t1.5\nb\ty\t-\t-\n"
    picture = sg_bert.domains([file("t.tsv", table)], name="method", domain="data", value="test")
    first, second, third = records(picture)

    assert first["test"] == 52
    assert first["test_interval"] == pytest.approx([52 - 8**0.5, 52 + 8**0.5], rel=1e-6)
    assert second == {"series": "b", "domain": "x", "test": 40, "test_interval": [38.5, 41.5]}
    assert third == {"series": "b", "domain": "y", "test": None, "test_interval": [None, None]}


@pytest.mark.parametrize(
    ("words", "content", "code", "problem"),
    [
        ("masking", report("m/mean", 1), 65, "in.jsonl: no report has left out tokens"),
        (
            "masking",
            report("m/out4", 1) * 2 + report("m", 1),
            65,
            "1 report of m without 0 tokens, but 2",
        ),
        (
            "masking",
            "".join(report("m/out4", 1, n=n) for n in (9, 7))
            + "".join(report("m", 1, n=n) for n in (7, 8)),
            65,
            "in.jsonl:4: the reports of m without 0 tokens have 7, 8 pairs, but others 7, 9",
        ),
        ("scale --x n --value t", '{"m":1}\n', 65, 'in.jsonl: no row has a number in "n"'),
        ("scale --x n --value t", '{"n":"many","t":1}\n', 65, 'jsonl:1: "n" is "many", expected'),
        ("scale --x n --value t --log", '{"n":0,"t":1}\n', 65, "--log needs numbers above 0"),
        ("scale --x n", "{}", 2, "the following arguments are required: --value"),
        ("masking -o x.txt", "{}", 2, "x.txt: unknown format of a picture"),
    ],
)
def test_figures_that_cannot_be_drawn(file, capsys, words, content, code, problem):
    arguments = [*words.split(), file("in.jsonl", content)]
    with pytest.raises(SystemExit) as ended:
        figure_command.main(consert.__name__, arguments)

    assert ended.value.code == code
    assert problem in capsys.readouterr().err


def test_the_command_line_writes_the_numbers(file, tmp_path, capsys):
    """Over an existing file only with -f, and never over its input."""
    table = file("table.tsv", TABLE)
    out = tmp_path / "out.jsonl"
    arguments = ["scale", table, "--x", "batch", "--value", "test", "-o", str(out)]
    figure_command.main(consert.__name__, arguments)

    assert [json.loads(line)["test"] for line in out.read_text().splitlines()] == [47.5, 50]
    with pytest.raises(SystemExit) as ended:
        figure_command.main(consert.__name__, ["scale", file("t.tsv", OTHER_TABLE), *arguments[2:]])
    assert ended.value.code == 73
    assert f"{out}: already exists" in capsys.readouterr().err
    assert [json.loads(line)["test"] for line in out.read_text().splitlines()] == [47.5, 50]
    figure_command.main(
        consert.__name__, ["scale", file("t.tsv", OTHER_TABLE), *arguments[2:], "-f"]
    )
    assert [json.loads(line)["test"] for line in out.read_text().splitlines()] == [30]
    rows = file("table.jsonl", '{"batch":16,"test":48}\n')
    with pytest.raises(SystemExit) as ended:
        figure_command.main(consert.__name__, ["scale", rows, *arguments[2:-1], rows, "-f"])
    assert (ended.value.code, Path(rows).read_text()) == (2, '{"batch":16,"test":48}\n')
    assert f"would overwrite the input {rows}" in capsys.readouterr().err


def test_the_scores_of_pairs_of_views_are_a_map(file):
    """A row is a first view, a column a second one; a missing pair is an empty cell."""
    lines = ("view_a\tview_b\ttest", "none\tnone\t40", "none\tdropout\t42.5", "dropout\tnone\t41")
    picture = consert.views([file("views.tsv", "\n".join(lines) + "\n")])
    [panel] = picture.panels

    assert (panel.y.names, panel.x.names) == (("none", "dropout"), ("none", "dropout"))
    assert panel.grid.values == pytest.approx(np.array([[40, 42.5], [41, np.nan]]), nan_ok=True)
    assert (panel.grid.low, panel.grid.high) == (40, 42.5)
    assert records(picture)[1] == {"view_b": "dropout", "view_a": "none", "test": 42.5}


def test_several_scores_of_a_pair_of_views_are_averaged(file):
    """As those of several seeds in the other figures."""
    lines = ("view_a\tview_b\ttest", "none\tnone\t40", "none\tdropout\t42", "none\tnone\t43")
    [panel] = consert.views([file("views.tsv", "\n".join(lines) + "\n")]).panels

    assert panel.grid.values.tolist() == [[41.5, 42.0]]


def test_a_reader_that_ends_early_is_no_error(file):
    """`python -m sentkit.papers.consert.figures ... | head -1`."""
    table = file("table.tsv", TABLE)
    reader, writer = os.pipe()
    os.close(reader)
    words = ["-m", consert.__name__, "scale", table, "--x", "batch", "--value", "test"]
    ended = subprocess.run(
        [sys.executable, *words], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)

    assert (ended.returncode, ended.stderr) == (0, "")
