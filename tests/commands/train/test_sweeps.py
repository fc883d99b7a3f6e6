"""Several values of a setting: a run for each combination and seed, and one table."""

import contextlib
import json
import shlex
from dataclasses import fields

import pytest

from commands.train.records import record_of
from sentkit.console import StepProgress
from sentkit.errors import CannotCreateError, UsageError
from sentkit.process import Stopped
from sentkit.training.catalogue import METHODS, load
from sentkit.training.loop.trainer import Trainer
from sentkit.training.run import Run
from sentkit.training.runs import command
from sentkit.training.runs.folder_lock import lock_folder
from sentkit.training.runs.results import results_of, results_of_combinations, sweep_line
from sentkit.training.settings import combinations
from support import TEXTS, in_jsonl, without_command

GRID = ("--set", "lr=1e-2,3e-2", "--set", "temperature=0.05,0.5", "--seed", "0,1")
NAMES = [f"lr={lr},temperature={t}" for lr in ("1e-2", "3e-2") for t in ("0.05", "0.5")]


def test_every_combination_has_the_runs_of_its_seeds(
    train, tmp_path, dev, tiny, texts, on_terminal
):
    """Each with the bytes of a run alone. The table has mean and deviation, and names the best."""
    result = train(*GRID, "--dev", dev, output="grid")
    single = ("--set", "lr=3e-2", "--set", "temperature=0.5", "--seed", 1, "--dev", dev)
    train(*single, output="alone")
    pairs = [[record_of(f"grid/{name}/seed-{seed}") for seed in (0, 1)] for name in NAMES]
    means = [(seed_0["dev"] + seed_1["dev"]) / 2 for seed_0, seed_1 in pairs]
    in_grid = without_command(tmp_path / "grid" / NAMES[3] / "seed-1")

    assert (result.code, result.err) == (0, "")
    assert in_grid == without_command(tmp_path / "alone")
    assert sorted(path.name for path in (tmp_path / "grid").iterdir()) == NAMES
    assert [row["checkpoint"] for row in result.rows] == [f"grid/{name}" for name in NAMES]
    assert [(row["lr"], row["temperature"]) for row in result.rows] == [
        (0.01, 0.05),
        (0.01, 0.5),
        (0.03, 0.05),
        (0.03, 0.5),
    ]
    for row, (seed_0, seed_1), mean in zip(result.rows, pairs, means, strict=True):
        assert (row["method"], row["seeds"]) == ("simcse", [0, 1])
        assert row["step"] == [seed_0["step"], seed_1["step"]]
        assert row["dev_by_seed"] == pytest.approx([seed_0["dev"], seed_1["dev"]])
        assert row["dev"] == pytest.approx(mean)
        assert row["dev_sd"] == pytest.approx(abs(seed_0["dev"] - seed_1["dev"]) / 2**0.5)
        assert row["best"] == (mean == max(means))
    quick = ("--batch", 3, "-q", "--threads", 1, "-m", tiny, "-o", "grid")
    lines = on_terminal("train", "simcse", texts, *quick, *GRID, "--dev", dev)
    scores = [f"{row['dev']:.2f} ({row['dev_sd']:.2f})" for row in result.rows]
    best = means.index(max(means))
    assert lines[0].split() == ["lr", "temperature", "seeds", "step", "dev"]
    assert [" ".join(line.split()[:3]) for line in lines[1:5]] == [
        "1e-2 0.05 2",
        "1e-2 0.5 2",
        "3e-2 0.05 2",
        "3e-2 0.5 2",
    ]
    assert all(line.endswith(score) for line, score in zip(lines[1:5], scores, strict=True))
    before = pairs[0][0]["dev_before"]
    best_line = f"best on dev: grid/{NAMES[best]}, {scores[best]}, before {before:.2f}"
    assert lines[5:] == ["(a): standard deviation", best_line]
    assert max(map(len, lines)) <= 80


def test_the_time_left_counts_the_work_of_the_later_runs(train, monkeypatch):
    """The rows of all steps, also of runs that read the rows again; finished runs do not count."""
    begun = []
    monkeypatch.setattr(StepProgress, "begin", lambda self, *values: begun.append(values))
    train("--epochs", "1,2", "--seed", "0,1", output="grid")
    train("--epochs", "1,3", "--seed", "0,1", output="grid")
    train("--set", "max_length=16,32", "--set", "steps=1", "--epochs", "2,3", output="groups")

    assert begun[:4] == [(1 + 2 + 2, 4), ((2 + 2) / 1, 3), (2 / 2, 2), (0.0, 1)]
    assert begun[4:8] == [(3 + 3, 3), (3 + 3, 3), (1.0, 2), (0.0, 1)]
    assert begun[8:] == [(3.0, 4), (2.0, 3), (1.0, 2), (0.0, 1)]


def test_runs_that_exist_are_kept_and_others_are_added(train, tmp_path, dev):
    """Also with fewer seeds before; a folder of other settings or rows is an error."""
    train("--set", "lr=1e-2,2e-2", "--dev", dev, output="grid")
    before = (tmp_path / "grid/lr=2e-2/seed-0/sentkit.json").stat().st_mtime_ns
    extended = train("--set", "lr=2e-2,3e-2", "--dev", dev, "--seed", "0,1", output="grid")
    other = train("--set", "lr=2e-2,3e-2", "--dev", dev, "--epochs", 2, output="grid")

    assert extended.code == 0
    assert [row["seeds"] for row in extended.rows] == [[0, 1], [0, 1]]
    assert (tmp_path / "grid/lr=2e-2/seed-0/sentkit.json").stat().st_mtime_ns == before
    assert sorted(path.parent.name for path in tmp_path.glob("grid/*/seed-0")) == [
        "lr=1e-2",
        "lr=2e-2",
        "lr=3e-2",
    ]
    assert other.code == 65
    assert other.told[0].endswith(
        ": grid/lr=2e-2/seed-0: belongs to a different run: epochs (2, was 1)"
    )


def test_a_stopped_sweep_continues(train, tmp_path, dev, monkeypatch):
    """In the third of four runs, after its states are saved; the result has the bytes of a whole
    sweep.
    """
    flags = ("--set", "lr=1e-2,3e-2", "--seed", "0,1", "--dev", dev, "--save-every", 1)
    train(*flags, output="whole")
    original_train = Trainer.train
    runs = []

    def stop_third(trainer):
        runs.append(original_train(trainer))
        if len(runs) == 3:
            raise Stopped("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", stop_third)
        stopped = train(*flags)
    fresh = train(*flags)
    resumed = train(*flags, "--resume")

    assert (stopped.code, fresh.code, resumed.code) == (75, 73, 0)
    assert fresh.told[0] == "sentkit train: out/lr=3e-2/seed-0.part: contains an unfinished run"
    assert without_command(tmp_path / "out") == without_command(tmp_path / "whole")
    rows = [
        {**row, "checkpoint": row["checkpoint"].replace("whole", "out")}
        for row in train(*flags).rows
    ]
    assert resumed.rows == rows


def test_the_list_has_a_command_for_each_run(train, sentkit, tmp_path, dev):
    """The commands make the runs of the sweep, which then prints its table."""
    settings = ("--set", "max_length=16", "--set", "lr=1e-2,3e-2")
    flags = (*settings, "--seed", "0,1", "--dev", dev, "--resume")
    listed = train(*flags, "--list", output="grid").out.decode()
    commands = [shlex.split(line) for line in listed.splitlines()]
    outputs = [words[words.index("-o") + 1] for words in commands]

    assert outputs == [f"grid/lr={lr}/seed-{seed}" for lr in ("1e-2", "3e-2") for seed in (0, 1)]
    assert not (tmp_path / "grid").exists()
    assert commands[0][:3] == ["sentkit", "train", "simcse"]
    for words in commands:
        assert sentkit(*words[1:]).code == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("grid/*/*/sentkit.json")}
    result = train(*flags, output="grid")
    assert (len(before), len(result.rows), result.code) == (4, 2, 0)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    train(*flags, output="whole")
    assert without_command(tmp_path / "whole") == without_command(tmp_path / "grid")


def test_the_runs_of_the_list_write_one_file_of_bad_rows(train, sentkit, tmp_path):
    """The first run does. Then more seeds, and the table, need no other file."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(in_jsonl(*({"text": text} for text in TEXTS), {"text": 3}))
    flags = ("--seed", "0,1", "--rejects", "bad.jsonl")
    listed = train(*flags, "--list", rows=rows, output="runs").out.decode()
    for line in listed.splitlines():
        assert sentkit(*shlex.split(line)[1:]).code == 0
    before = (tmp_path / "bad.jsonl").read_bytes()
    table = train(*flags, rows=rows, output="runs")
    more = train(*flags, "--seed", "0..2", rows=rows, output="runs")

    assert (table.code, len(table.rows)) == (0, 2), table.err
    assert (more.code, len(more.rows)) == (0, 3), more.err
    assert before.count(b"\n") == 1
    assert (tmp_path / "bad.jsonl").read_bytes() == before


def test_bad_rows_of_other_data_are_not_dropped(train, tmp_path):
    """A sweep in the folder of runs of other rows, and more seeds with other bad rows."""
    for name, bad in (("a", 3), ("b", 4)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(in_jsonl(*({"text": text} for text in TEXTS), {"text": bad}))
    flags = ("--rejects", "bad.jsonl", "--seed")
    first = train(*flags, "0", rows=tmp_path / "a.jsonl", output="runs/seed-0")
    before = (tmp_path / "bad.jsonl").read_bytes()
    sweep = train(*flags, "0,1", "--lr", "1e-4,2e-4", rows=tmp_path / "b.jsonl", output="runs")
    more = train(*flags, "0,1", rows=tmp_path / "b.jsonl", output="runs")

    assert first.code == 0
    for refused in (sweep, more):
        assert (refused.code, "bad.jsonl: already exists" in refused.err) == (73, True)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["seed-0"]
    assert (tmp_path / "bad.jsonl").read_bytes() == before


def test_the_first_run_to_train_of_the_list_writes_the_bad_rows(train, tmp_path, texts):
    """Not a finished one. Where they are written, no run writes them."""
    train("--seed", 0, output="runs/seed-0")
    flags = ("--seed", "0..2", "--rejects", "bad.jsonl", "--list")

    def targets():
        lines = train(*flags, output="runs").out.decode().splitlines()
        words = map(shlex.split, lines)
        return [line[line.index("--rejects") + 1] for line in words]

    assert targets() == ["/dev/null", "bad.jsonl", "/dev/null"]
    (tmp_path / "bad.jsonl").touch()
    assert targets() == ["/dev/null"] * 3
    texts.write_text("other rows\n")
    assert targets() == ["/dev/null", "bad.jsonl", "/dev/null"]


def test_rows_are_read_again_for_settings_that_change_them(train, tmp_path, dev):
    """A text of one token is a bad row only in part of the runs, and is written to
    --rejects once.
    """
    rows = tmp_path / "rows.jsonl"
    rows.write_text(in_jsonl(*({"text": text} for text in [*TEXTS, TEXTS[0]]), {"text": 3}))
    flags = ("--set", "dedup=off,on", "--set", "lr=1e-2,3e-2", "--rejects", "bad.jsonl")
    result = train(*flags, rows=rows)
    counts = [record_of(f"{row['checkpoint']}/seed-0")["rows"] for row in result.rows]

    assert result.code == 0
    assert [(row["dedup"], count) for row, count in zip(result.rows, counts, strict=True)] == [
        (False, 10),
        (False, 10),
        (True, 9),
        (True, 9),
    ]
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 1


# Commas.

TEXTUAL = {  # settings of all methods whose values are texts of any form
    "chunk_tokens",
    "dims",
    "guide",
    "guide_layers",
    "projection_from",
    "prompt",
    "prompt_name",
    "template",
    "template_b",
}


def test_a_comma_in_a_text_is_part_of_the_value():
    """In all settings but numbers, on and off, words with choices, and readouts."""
    one_value = set()
    for name, listing in METHODS.items():
        kind = listing.load().Settings
        for field in fields(kind):
            runs = None
            with contextlib.suppress(UsageError):  # of a list of words that are neither on nor off
                runs = combinations(kind, {field.name: "1,2"})
            if runs == [{}]:
                one_value.add((name, "readout") if field.name == "readout" else field.name)

    assert one_value == {*TEXTUAL, ("defsent-plus", "readout")}


def test_combinations_are_in_the_order_of_the_command_line():
    kind = METHODS["simcse"].load().Settings

    assert combinations(kind, {"batch": "2,4", "lr": "1e-1, 0.1 ,1", "epochs": "3"}) == [
        {"batch": batch, "lr": lr} for batch in ("2", "4") for lr in ("1e-1", "1")
    ]
    assert combinations(kind, {"lr": "1,1.0"}) == [{"lr": "1"}]
    assert combinations(kind, {"lr": "1", "unknown": "1,2"}) == [{}]


def test_another_command_cannot_take_the_folder_between_two_runs(train, tmp_path, monkeypatch):
    """The runs have other rows, because max_length changes them."""
    folder = tmp_path / "grid/rows.part"
    perform_group = command.perform_group
    refusals = []

    def attempted(*arguments):
        with (
            pytest.raises(CannotCreateError, match="another sentkit train uses this folder"),
            lock_folder(folder, "rows.lock", is_first_process=True),
        ):
            pytest.fail("the folder is locked")
        refusals.append(folder)
        return perform_group(*arguments)

    monkeypatch.setattr(command, "perform_group", attempted)
    result = train("--set", "max_length=8,16", output="grid")

    assert (result.code, len(refusals)) == (0, 2)
    assert not folder.exists()


UNSTABLE = ("--set", "optimizer=adamw-bert", "--set", "beta2=0.99999")


def test_a_run_that_diverges_is_named_and_the_others_are_trained(train, tmp_path):
    """With another value, --resume keeps the finished runs."""
    swept = train("--lr", "1e-3,1e38,1e-2", *UNSTABLE, output="grid")
    finished = without_command(tmp_path / "grid/lr=1e-3")
    resumed = train("--lr", "1e-3,1e-4,1e-2", *UNSTABLE, "--resume", output="grid")

    assert swept.code == 65
    assert swept.told[0].startswith("sentkit train: grid/lr=1e38/seed-0: ")
    assert "NaN or infinity after step 1" in swept.told[0]
    assert swept.told[-2:] == [
        "sentkit train: training: 1 of 3 runs diverged: grid/lr=1e38/seed-0",
        "  replace these values; with --resume, the command keeps the finished runs",
    ]
    assert [row["lr"] for row in swept.rows] == [1e-3, 1e38, 1e-2]
    assert [row["seeds"] for row in swept.rows] == [[0], [], [0]]
    assert [row.get("diverged") for row in swept.rows] == [None, [0], None]
    assert resumed.code == 0, resumed.err
    assert [row["lr"] for row in resumed.rows] == [1e-3, 1e-4, 1e-2]
    assert without_command(tmp_path / "grid/lr=1e-3") == finished


def test_all_seeds_are_trained_and_those_that_diverge_are_named(train):
    made = train("--lr", "1e38", *UNSTABLE, "--seed", "0,1", output="seeds")

    assert made.code == 65
    assert made.rows == []
    names = [line.split(": ")[1] for line in made.told if "NaN or infinity" in line]
    assert names == ["seeds/seed-0", "seeds/seed-1"]
    assert made.told[-2:] == [
        "sentkit train: training: 2 of 2 runs diverged: seeds/seed-0, seeds/seed-1",
        "  another --seed can help, or a lower --lr with another -o",
    ]


def test_seeds_have_no_mean_if_one_diverged(tmp_path):
    method = load("simcse")
    settings = method.method_class.Settings()
    runs = [
        Run(method=method, settings=settings, seed=seed, root=tmp_path, several=True)
        for seed in (0, 1, 2)
    ]
    for run, score in zip(runs, (90.0, 70.0, 80.0), strict=True):
        run.output.mkdir(parents=True)
        (run.output / "sentkit.json").write_text(json.dumps({"step": 3, "dev": score}))
    *_, mean = results_of(runs)
    without_mean = results_of(runs, diverged=[runs[1].output])

    assert mean["dev_mean"] == 80.0
    assert [(record["seed"], record["dev"]) for record in without_mean] == [(0, 90.0), (2, 80.0)]


def test_a_combination_without_a_finished_run_has_no_score(train, tmp_path, dev):
    swept = train("--lr", "1e38,1e-3", *UNSTABLE, "--dev", dev, "--seed", "0,1", output="grid")
    unstable, stable = swept.rows

    assert swept.code == 65
    assert unstable["diverged"] == [0, 1]
    assert (unstable["dev"], unstable["dev_before"], unstable["best"]) == (None, None, False)
    assert stable["best"]
    assert (tmp_path / "grid/lr=1e-3/seed-1").is_dir()


def test_a_combination_with_a_diverged_seed_has_no_score(tmp_path):
    """It is not the best one, although its other seed has the highest score."""
    method = load("simcse")
    settings = method.method_class.Settings()
    runs = [
        Run(method=method, settings=settings, seed=seed, root=tmp_path, several=True, chosen=chosen)
        for chosen in ({"lr": "1"}, {"lr": "2"})
        for seed in (0, 1)
    ]
    diverged = [runs[1].output]
    for run, score in zip(runs, (90.0, None, 70.0, 80.0), strict=True):
        if score is not None:
            run.output.mkdir(parents=True)
            scores = {"step": 3, "dev_before": 60.0, "dev": score}
            (run.output / "sentkit.json").write_text(json.dumps(scores))
    unstable, stable = results_of_combinations(runs, [{"lr": 1.0}, {"lr": 2.0}], diverged)

    assert (unstable["seeds"], unstable["diverged"]) == ([0], [1])
    assert (unstable["dev"], unstable["dev_sd"], unstable["best"]) == (None, None, False)
    assert unstable["dev_by_seed"] == [90.0]
    assert (stable["dev"], stable["best"]) == (75.0, True)
    assert "diverged" not in stable
    assert sweep_line(unstable, {"lr": "1"})[0]["dev"] == "diverged"
    assert sweep_line(stable, {"lr": "2"})[0]["dev"] == "75.00 (7.07)"


def test_the_bad_rows_are_written_if_a_run_diverges(train, tmp_path):
    """The finished runs are without them."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(in_jsonl(*({"text": text} for text in TEXTS), {"text": 3}))
    flags = ("--set", "lr=1e-2,1e38", "--rejects", "bad.jsonl")
    done = train(*flags, rows=rows, output="grid")

    assert done.code == 65
    assert [json.loads(line)["row"] for line in (tmp_path / "bad.jsonl").open()] == ['{"text": 3}']
    assert (tmp_path / "grid/lr=1e-2/seed-0/sentkit.json").exists()


def test_no_file_of_bad_rows_remains_if_all_runs_diverge(train, tmp_path):
    """The command can be repeated with other values."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(in_jsonl(*({"text": text} for text in TEXTS), {"text": 3}))
    flags = ("--rejects", "bad.jsonl", "--resume")
    failed = train(*flags, "--set", "lr=9e37,1e38", rows=rows, output="grid")
    repeated = train(*flags, "--set", "lr=1e-2,2e-2", rows=rows, output="grid")

    assert (failed.code, repeated.code) == (65, 0)
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--batch", "3,9"], "the learning rate is 0 in the only step, which is a warm-up step"),
        (["--set", "batches=mixed,by-file"], "batches=by-file needs several different files"),
        (["--set", "metric=accuracy,f1"], "scores of different metrics cannot be compared"),
    ],
)
def test_no_run_is_trained_if_another_one_cannot_be(train, tmp_path, dev, flags, problem):
    method, judged = "simcse", ()
    if "metric" in flags[-1]:
        method, judged = "classify", ("--dev", dev)
    elif flags[0] == "--set":
        method = "contrast"
    rows = {"rows": dev} if method != "simcse" else {}
    done = train(*flags, "--set", "warmup=0.1", *judged, method=method, output="grid", **rows)

    assert (done.code, problem in done.told[0]) == (2, True)
    assert not list(tmp_path.glob("grid/*/seed-0*"))


def test_a_run_that_another_command_stopped_meanwhile_is_not_started_again(
    train, tmp_path, monkeypatch
):
    """The command checked its folder before; its state has the time of the other one."""
    original_train = Trainer.train
    state = tmp_path / "out/seed-1.part/state-2.pt"

    def stop_other(trainer):
        if trainer.run.seed == 0:
            state.parent.mkdir(exist_ok=True)
            state.write_bytes(b"of another process")
        original_train(trainer)

    monkeypatch.setattr(Trainer, "train", stop_other)
    done = train("--seed", "0,1")

    told = ["sentkit train: out/seed-1.part: contains an unfinished run"]
    assert (done.code, done.told[:1]) == (73, told)
    assert state.read_bytes() == b"of another process"


def test_a_list_of_settings_without_an_output_is_that_of_the_method(sentkit):
    for flag, value in (("--preset", "unsup-base"), ("--set", "batch=3"), ("--lr", "1")):
        done = sentkit("train", "simcse", "--list", flag, value)
        assert (done.code, done.told) == (2, [f"sentkit train: {flag} needs -o"])
