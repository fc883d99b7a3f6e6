"""`plot sweep` and `plot curve`: numbers from reports and logs."""

import json
import shutil
from pathlib import Path

import pytest


def report(label, spearman, **fields):
    return (
        json.dumps({"file": "f", "encoder": f"{label}:100000000000", "spearman": spearman, **fields}) + "\n"
    )


def test_a_sweep_has_a_line_for_each_readout(plot):
    """In the order of the layers; an undefined correlation is null, and other readouts have no layer."""
    given = (
        report("m/L1:cls", 20.5, spearman_ci95=[18, 22])
        + report("m/L0:cls", None, spearman_ci95=[None, None])
        + report("m/L1:mean/n", 40)
        + report("m/mean-first-last", 45)
        + json.dumps({"file": "average", "encoder": "m/L9:cls:100000000000", "spearman": 1}) + "\n"
    )  # fmt: skip

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
    assert set(names) <= set(svg("sweep", stdin=given)[0])


def test_layers_of_transformed_vectors_are_a_line(plot):
    given = report("m/L1:mean+whitening", 40) + report("m/L2:mean+whitening", 41)

    assert plot("sweep", stdin=given) == [
        {"series": "mean+whitening", "layer": 1, "spearman": 40},
        {"series": "mean+whitening", "layer": 2, "spearman": 41},
    ]


def test_the_mean_of_several_data_sets_is_drawn(plot):
    given = report("m/L1:cls", 20, spearman_ci95=[18, 22]) + report("m/L1:cls", 30) + report("m/mean", 1) * 2

    assert plot("sweep", stdin=given) == [
        {"series": "cls", "layer": 1, "spearman": 25},
        {"series": "mean", "spearman": 1},
    ]


def test_a_level_and_a_line_of_another_model_have_different_names(plot):
    """Equal names have equal colors in all panels."""
    given = report("m/L1:mean", 20) + report("k/mean", 40)

    assert [record["series"] for record in plot("sweep", stdin=given)] == ["mean", "mean (last layer)"]


def test_each_model_is_a_panel(plot, svg):
    given = report("m/L1:cls", 20) + report("k/L1:cls", 30)

    assert [record["panel"] for record in plot("sweep", stdin=given)] == ["m", "k"]
    assert {"m", "k", "layer", "Spearman x 100"} <= set(svg("sweep", stdin=given)[0])


@pytest.mark.parametrize(
    ("given", "problem", "advice"),
    [
        (report("m/mean", 3), "-: no report has one layer",
         "sentkit encode --readout 'L*:cls,L*:mean' makes one file for each layer"),
        (report("m/L1:cls", 3) * 2 + report("m/L2:cls", 3),
         "-:3: 1 reports of m/L2:cls, but 2 of another encoder",
         "draw all of them with the same data sets"),
        ('{"spearman":1}\n', '-:1: "encoder" is missing', None),
        ('{"spearman":1,"encoder":"m"}\n',
         '-:1: "encoder" is a string, expected the name of a space, as in a report of sentkit score', None),
        (report("m/L1:cls", "high"), '-:1: "spearman" is a string, expected a number', None),
    ],
)  # fmt: skip
def test_reports_that_cannot_be_drawn(sentkit, given, problem, advice):
    done = sentkit("plot", "sweep", stdin=given)

    assert done.code == 65
    assert done.told == [f"sentkit plot sweep: {problem}", *([f"  {advice}"] if advice else [])]


def test_masking_has_a_line_for_each_encoder(plot, svg):
    """By the number in the name of the space; 0 if it has none."""
    given = (
        report("m/mean/out36", 45)
        + report("m/mean", 40.5, spearman_ci95=[39, 42])
        + report("m/mean/out5/n", 50)
        + json.dumps({"file": "average", "encoder": "m/mean:100000000000", "spearman": 1}) + "\n"
    )  # fmt: skip

    assert plot("masking", stdin=given) == [
        {"series": "m/mean", "left_out": 0, "spearman": 40.5, "spearman_interval": [39, 42]},
        {"series": "m/mean", "left_out": 36, "spearman": 45, "spearman_interval": [None, None]},
        {"series": "m/mean/n", "left_out": 5, "spearman": 50},
    ]
    assert {"tokens left out", "Spearman x 100", "m/mean/n"} <= set(svg("masking", stdin=given)[0])


def test_masking_draws_the_mean_of_several_data_sets(plot, sentkit):
    given = "".join(report(f"m/mean/out{n}", 10 * n + k) for n in (1, 2) for k in (0, 3))
    uneven = sentkit("plot", "masking", stdin=given + report("m/mean/out4", 1))

    assert [record["spearman"] for record in plot("masking", stdin=given)] == [11.5, 21.5]
    assert uneven.code == 65
    assert uneven.told == [
        "sentkit plot masking: -:5: 1 reports of m/mean without 4 tokens, but 2 of another encoder",
        "  draw all of them with the same data sets",
    ]


def test_masking_needs_left_out_tokens(sentkit):
    done = sentkit("plot", "masking", stdin=report("m/mean", 1))

    assert done.code == 65
    assert done.told == [
        "sentkit plot masking: -: no report has left out tokens",
        "  sentkit encode --leave-out TOKENS leaves tokens out",
    ]


def steps(count, *, terms=("contrast",), rate=0.1):
    lines = [{"step": 0, "dev": 50.0, "best": False}]
    for step in range(1, count + 1):
        values = {name: step + place for place, name in enumerate(terms)}
        lines.append({"step": step, "loss": sum(values.values()), "terms": values, "lr": [rate], "norm": 2})
    lines.append({"step": count, "dev": None, "best": True})
    return "".join(json.dumps(line) + "\n" for line in lines)


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
    assert {"a", "b", "loss", "learning rate"} <= set(svg("curve", "a", "b.log")[0])
    assert [record["series"] for record in seeds] == ["seed-3"] + ["seed-10"] * 3


@pytest.mark.parametrize(
    ("flags", "given", "problem"),
    [
        ([], '{"loss":1}\n', '-:1: "step" is missing'),
        ([], '{"step":null}\n', '-:1: "step" is null, expected a number'),
        ([], '{"step":1,"terms":{"a":"b"}}\n', '-:1: the term "a" is not a number'),
        (["--show", "drift"], steps(1), "-: no run has drift"),
    ],
)
def test_logs_that_cannot_be_drawn(sentkit, flags, given, problem):
    done = sentkit("plot", "curve", *flags, stdin=given)

    assert (done.code, done.told[0]) == (65, f"sentkit plot curve: {problem}")


def group_report(name, **scores):
    groups = {each: {"n": 9, "spearman": s, "spearman_ci95": [s - 1, s + 2]} for each, s in scores.items()}
    return json.dumps({"file": f"{name}.jsonl", "encoder": f"{name}:100000000000", "groups": groups}) + "\n"


def test_domains_have_a_bar_for_each_report(plot, svg):
    """A domain that one report lacks has no bar of it."""
    given = group_report("m", news=50, forums=40) + group_report("k/cls", forums=45)

    assert plot("domains", stdin=given) == [
        {"series": "m", "domain": "news", "spearman": 50, "spearman_interval": [49, 52]},
        {"series": "m", "domain": "forums", "spearman": 40, "spearman_interval": [39, 42]},
        {"series": "k/cls", "domain": "forums", "spearman": 45, "spearman_interval": [44, 47]},
    ]
    assert {"news", "forums", "50.0", "40.0", "45.0", "m", "k/cls"} <= set(svg("domains", stdin=given)[0])


def test_reports_of_one_encoder_have_the_names_of_their_files(plot, jsonl):
    one, other = (json.loads(group_report("m", news=n)) for n in (1, 2))
    records = plot("domains", stdin=jsonl(one, {**other, "file": "b.jsonl"}))

    assert [record["series"] for record in records] == ["m.jsonl", "b.jsonl"]


def tsv(content):
    Path("table.tsv").write_text(content)
    return "table.tsv"


def test_a_table_of_domains_has_means_over_seeds(plot):
    """Of 50 and 54: the mean 52 and the standard deviation sqrt(8). A row with test_sd has its own."""
    given = "method\tdata\ttest\ttest_sd\na\tx\t50\t-\na\tx\t54\t-\nb\tx\t40\t1.5\nb\ty\t-\t-\n"
    flags = ("--name", "method", "--domain", "data", "--value", "test")
    first, second, third = plot("domains", *flags, tsv(given))

    assert first["test"] == 52
    assert first["test_interval"] == pytest.approx([52 - 8**0.5, 52 + 8**0.5], rel=1e-6)
    assert second == {"series": "b", "domain": "x", "test": 40, "test_interval": [38.5, 41.5]}
    assert third == {"series": "b", "domain": "y", "test": None, "test_interval": [None, None]}


TABLE = "batch\tlr\ttest\ttest_sd\n-\t-\t9\t-\n64\t1e-5\t50\t0.5\n16\t1e-5\t48\t-\n16\t3e-5\t47\t-\n"


def test_a_scale_has_a_line_for_each_name(plot):
    """In the order of the numbers; the line of sweep.sh with all defaults has none."""
    flags = ("--x", "batch", "--value", "test", "--name", "lr")

    assert plot("scale", *flags, tsv(TABLE)) == [
        {"series": "1e-5", "batch": 16, "test": 48, "test_interval": [None, None]},
        {"series": "1e-5", "batch": 64, "test": 50, "test_interval": [49.5, 50.5]},
        {"series": "3e-5", "batch": 16, "test": 47},
    ]


def test_numbers_beyond_64_bits_are_drawn(plot):
    given = '{"rows":1e30,"test":2}\n{"rows":4e20,"test":1}\n'
    records = plot("scale", "--x", "rows", "--value", "test", stdin=given)

    assert [(record["rows"], record["test"]) for record in records] == [(4e20, 1), (1e30, 2)]


def test_a_scale_without_names_averages_rows_with_one_number(plot):
    records = plot("scale", "--x", "batch", "--value", "test", tsv(TABLE))

    assert [(record["batch"], record["test"]) for record in records] == [(16, 47.5), (64, 50)]


def test_a_logarithmic_axis_has_the_numbers_of_the_table(svg):
    texts, _, _ = svg("scale", "--x", "batch", "--value", "test", "--log", tsv(TABLE))

    assert {"16", "64", "batch", "test"} <= set(texts)
    assert not [text for text in texts if "mathdefault" in text]


@pytest.mark.parametrize(
    ("arguments", "given", "code", "problem"),
    [
        (["domains"], '{"file":"f"}\n', 65, "-: no report has groups"),
        (["domains"], '{"groups":[1]}\n', 65,
         '-:1: "groups" is not an object, as in a report of sentkit score'),
        (["domains", "--name", "m"], "", 2, "--name and --domain need each other"),
        (["scale", "--x", "n", "--value", "t"], '{"m":1}\n', 65, '-: no row has a number in "n"'),
        (["scale", "--x", "n", "--value", "t"], '{"n":"many","t":1}\n', 65,
         '-:1: "n" is a string, expected a number'),
        (["scale", "--x", "n", "--value", "t", "--log"], '{"n":0,"t":1}\n', 65,
         '-:1: "n" is 0, but --log needs numbers above 0'),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_drawn(sentkit, arguments, given, code, problem):
    done = sentkit("plot", *arguments, stdin=given)

    assert (done.code, done.told[0]) == (code, f"sentkit plot {arguments[0]}: {problem}")
