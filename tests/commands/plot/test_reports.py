"""Texts in the pictures of `plot sweep` and `plot curve`; commands/sessions/plot.txt has their
numbers.
"""

import json

import pytest

from sentkit.errors import DataError
from sentkit.formats.rows.rows import Inputs
from sentkit.plots.drawing import figure_of
from sentkit.plots.reports import curve
from support import in_jsonl


def test_pictures_name_lines_panels_and_axes(svg, tmp_path):
    names = ("m/L1:mean", "m/mean", "k/L1:cls")
    reports = in_jsonl(*({"encoder": f"{name}:100000000000", "spearman": 40} for name in names))
    step = in_jsonl({"step": 1, "loss": 1, "terms": {"contrast": 1}, "lr": [0.1]})
    for name in ("a", "b"):
        (tmp_path / f"{name}.log").write_text(step)

    assert {"m", "k", "mean (last layer)", "layer", "Spearman x 100"} <= {
        *svg("sweep", stdin=reports)
    }
    assert {"a", "b", "loss", "learning rate"} <= {*svg("curve", "a.log", "b.log")}


@pytest.mark.parametrize(
    ("figure", "content"), [("curve", "Folders of sentkit train"), ("sweep", "Reports of")]
)
def test_help_names_the_input(sentkit, figure, content):
    """It is not rows of any format."""
    for flag in ("-h", "--help"):
        text = " ".join(sentkit("plot", figure, flag).out.decode().split())
        assert f"[FILE]... {content}" in text
        assert "TSV" not in text


def test_the_name_of_a_folder_has_no_suffix(plot, tmp_path):
    """A dot is a part of it, as in lr=1.5e-5; only that of an unfinished run is left out."""
    for name in ("lr=1.5e-5", "lr=2.5e-5", "lr=3.5e-5.part"):
        (tmp_path / name).mkdir()
        step = in_jsonl({"step": 1, "loss": 1, "terms": {"contrast": 1}, "lr": [0.1]})
        (tmp_path / name / "steps.jsonl").write_text(step)
    names = ["lr=1.5e-5", "lr=2.5e-5", "lr=3.5e-5"]

    assert [record["series"] for record in plot("curve", *names, "--show", "loss")] == names


@pytest.mark.parametrize("rates", [["high", 0.1], [0.1, None], ["high"]])
def test_a_learning_rate_that_is_no_number_is_refused(sentkit, rates):
    steps = in_jsonl({"step": 1, "loss": 1, "terms": {"contrast": 1}, "lr": rates})
    result = sentkit("plot", "curve", stdin=steps)

    assert result.code == 65
    assert result.told[0].startswith('sentkit plot curve: -:1: "lr" ')


@pytest.mark.parametrize(("note", "kept_step"), [(None, 2), ({"step": 3}, 3), ({"step": 9}, None)])
def test_the_kept_step_is_marked(plot, svg, tmp_path, note, kept_step):
    """It is the last best one, or that of the checkpoint, which --set final=last changes."""
    scores = [
        (0, 50.0, False),
        (1, 60.0, True),
        (2, 62.5, True),
        (3, 61.0, False),
        (4, None, False),
    ]
    log = in_jsonl(*({"step": step, "dev": dev, "best": best} for step, dev, best in scores))
    (tmp_path / "steps.jsonl").write_text(log)
    if note is not None:
        (tmp_path / "sentkit.json").write_text(json.dumps(note))
    records = plot("curve", ".")

    assert [record["step"] for record in records if record.get("kept")] == (
        [] if kept_step is None else [kept_step]
    )
    drawn = [(record["step"], record["dev"]) for record in records]
    assert drawn == [(step, dev) for step, dev, _ in scores]
    assert svg("curve", ".").count("kept") == (kept_step is not None)


@pytest.mark.parametrize(
    ("notes", "label"),
    [
        ([{"metric": "MRR@10"}], "MRR@10 x 100 on --dev"),
        ([{"metric": "accuracy"}, {"metric": "accuracy"}], "accuracy x 100 on --dev"),
        ([{"step": 1}], "Spearman x 100 on --dev"),
        ([{"step": 1}, {"metric": "MRR@10"}], "score x 100 on --dev"),
        ([None], "score x 100 on --dev"),
    ],
)
def test_the_axis_of_dev_names_the_metric_of_the_checkpoint(svg, tmp_path, notes, label):
    """It is Spearman's correlation without a record of another one; a log alone has none."""
    folders = []
    for number, note in enumerate(notes):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        (folder / "steps.jsonl").write_text(in_jsonl({"step": 1, "dev": 50.0, "best": True}))
        if note is not None:
            (folder / "sentkit.json").write_text(json.dumps(note))
        folders.append(folder)

    assert [text for text in svg("curve", *folders) if "--dev" in text] == [label]


@pytest.mark.parametrize(
    "note",
    [
        *({"metric": value} for value in (["MRR@10"], {"a": 1}, None, 7, True)),
        *({"step": value} for value in ([1], "1", None, 1.5, True)),
    ],
    ids=str,
)
def test_a_damaged_record_of_a_run_is_an_error(tmp_path, note):
    (tmp_path / "steps.jsonl").write_text(in_jsonl({"step": 1, "dev": 50.0, "best": True}))
    (tmp_path / "sentkit.json").write_text(json.dumps(note))
    [name] = note

    with pytest.raises(DataError, match=f'sentkit.json: "{name}" is '):
        curve(Inputs([str(tmp_path / "steps.jsonl")]), [], 100)


def test_a_term_of_the_loss_does_not_look_like_the_loss(tmp_path):
    """Its panel says what it is; its lines are thin, with hollow points."""
    pytest.importorskip("matplotlib")
    steps = (
        {"step": n, "loss": 3, "terms": {"contrast": 2, "drift": 1}, "lr": [0.1]} for n in (1, 2)
    )
    (tmp_path / "steps.jsonl").write_text(in_jsonl(*steps))
    inputs = Inputs([str(tmp_path / "steps.jsonl")])
    drawn = figure_of(curve(inputs, [], 100), 174.0)
    loss, *terms = drawn.axes[:3]
    lines = [axes.lines[0] for axes in (loss, *terms)]

    labels = [axes.get_ylabel() for axes in (loss, *terms)]
    assert labels == ["loss", "contrast, a term of the loss", "drift, a term of the loss"]
    assert [line.get_markerfacecolor() == "white" for line in lines] == [False, True, True]
    assert lines[1].get_linewidth() < lines[0].get_linewidth()
