"""`plot sweep` and `plot curve`: numbers from reports and logs."""

import json
import shutil

import pytest

from support import in_jsonl


def report(label, spearman, **fields):
    return in_jsonl({"file": "f", "encoder": f"{label}:100000000000", "spearman": spearman, **fields})


def test_a_sweep_has_a_line_for_each_readout(plot):
    """In the order of the layers; an undefined correlation is null, and other readouts have no layer."""
    given = report("m/L1:cls", 20.5, spearman_ci95=[18, 22])
    given += report("m/L0:cls", None, spearman_ci95=[None, None]) + report("m/L1:mean/n", 40)
    given += report("m/mean-first-last", 45) + report("m/L9:cls", 1, file="average")

    assert plot("sweep", stdin=given) == [
        {"series": "cls", "layer": 0, "spearman": None, "spearman_interval": [None, None]},
        {"series": "cls", "layer": 1, "spearman": 20.5, "spearman_interval": [18, 22]},
        {"series": "mean/n", "layer": 1, "spearman": 40},
        {"series": "mean-first-last", "spearman": 45},
    ]


def test_a_line_and_a_level_have_different_names(plot, svg):
    """The level is named after its layer only if a line has the same readout."""
    given = report("m/L1:mean", 40) + report("m/L2:mean", 41) + report("m/mean", 41) + report("m/max", 20)
    names = ["mean", "mean (last layer)", "max"]

    assert list(dict.fromkeys(record["series"] for record in plot("sweep", stdin=given))) == names
    assert set(names) <= set(svg("sweep", stdin=given))


def test_the_mean_of_several_data_sets_is_drawn(plot):
    given = report("m/L1:cls", 20, spearman_ci95=[18, 22]) + report("m/L1:cls", 30) + report("m/mean", 1) * 2

    assert plot("sweep", stdin=given) == [
        {"series": "cls", "layer": 1, "spearman": 25},
        {"series": "mean", "spearman": 1},
    ]


def test_each_model_is_a_panel(plot, svg):
    given = report("m/L1:cls", 20) + report("k/L1:cls", 30)

    assert [record["panel"] for record in plot("sweep", stdin=given)] == ["m", "k"]
    assert {"m", "k", "layer", "Spearman x 100"} <= set(svg("sweep", stdin=given))


def steps(count, *, terms=("contrast",), rate=0.1):
    lines = [{"step": 0, "dev": 50.0, "best": False}]
    for step in range(1, count + 1):
        values = {name: step + place for place, name in enumerate(terms)}
        lines.append({"step": step, "loss": sum(values.values()), "terms": values, "lr": [rate], "norm": 2})
    lines.append({"step": count, "dev": None, "best": True})
    return in_jsonl(*lines)


def test_a_log_has_a_panel_for_each_quantity(plot):
    """The loss alone if it has one term; scores on --dev can be undefined."""
    records = plot("curve", stdin=steps(2))

    assert records == [
        {"series": "run", "step": 1, "loss": 1},
        {"series": "run", "step": 2, "loss": 2},
        {"series": "run", "step": 1, "lr": 0.1},
        {"series": "run", "step": 2, "lr": 0.1},
        {"series": "run", "step": 0, "dev": 50},
        {"series": "run", "step": 2, "dev": None},
    ]
    several = plot("curve", stdin=steps(1, terms=("contrast", "drift")))
    assert [next(iter(set(record) - {"series", "step"})) for record in several] == [
        "loss", "contrast", "drift", "lr", "dev", "dev",
    ]  # fmt: skip


@pytest.mark.parametrize(("made", "kept"), [(None, 2), ({"step": 3}, 3), ({"step": 9}, None)])
def test_the_kept_step_is_marked(plot, svg, tmp_path, made, kept):
    """It is the last best one, or that of the checkpoint, which --set final=last changes."""
    scores = [(0, 50.0, False), (1, 60.0, True), (2, 62.5, True), (3, 61.0, False), (4, None, False)]
    log = in_jsonl(*({"step": step, "dev": dev, "best": best} for step, dev, best in scores))
    (tmp_path / "steps.jsonl").write_text(log)
    if made is not None:
        (tmp_path / "sentkit.json").write_text(json.dumps(made))
    records = plot("curve", ".")

    assert [record["step"] for record in records if record.get("kept")] == ([] if kept is None else [kept])
    assert [(record["step"], record["dev"]) for record in records] == [each[:2] for each in scores]
    assert svg("curve", ".").count("kept") == (kept is not None)


def test_points_of_a_long_run_are_means(plot):
    """Seven steps in three points: the means of the steps 1 to 3, 4 and 5, 6 and 7."""
    records = plot("curve", "--show", "loss", "--points", 3, stdin=steps(7))

    assert [(record["step"], record["loss"]) for record in records] == [(2, 2), (4.5, 4.5), (6.5, 6.5)]


def test_several_runs_share_the_panels(plot, svg, tmp_path):
    """A log, a folder of a run, and one of seeds of which one is not finished."""
    for name, count in (("a", 2), ("runs/seed-3.part", 1), ("runs/seed-10", 3)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "steps.jsonl").write_text(steps(count))
    shutil.copy(tmp_path / "runs/seed-10/steps.jsonl", tmp_path / "b.log")
    records = plot("curve", "a/", "b.log", "--show", "norm")
    seeds = plot("curve", "runs", "--show", "norm")

    assert [(record["series"], record["step"]) for record in records] == [
        ("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 3),
    ]  # fmt: skip
    assert {"a", "b", "loss", "learning rate"} <= set(svg("curve", "a", "b.log"))
    assert [record["series"] for record in seeds] == ["seed-3"] + ["seed-10"] * 3
