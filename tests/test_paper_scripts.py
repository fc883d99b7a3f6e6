"""examples/papers: every published row is made, or listed as impossible, and so is every figure."""

import contextlib
import itertools
import json
import math
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sentkit.errors import SentkitError
from sentkit.papers.published import published
from sentkit.reports.tables import HERE, Line, Table, published_table, rendered, tables_of
from sentkit.training.catalogue import METHODS
from sentkit.training.settings import build
from support import (
    PAIRS,
    ROOT,
    TEXTS,
    WORDS,
    heed_signals,
    load_script,
    make_bert,
    with_program,
    write_rows,
    write_script,
)

SCRIPT = ROOT / "examples/papers/papers.py"
ENTRIES = sorted(WORDS)[:12]
SETS = ("sts12", "sts13", "sts14", "sts15", "sts16", "sts14_es")
STSB = ("stsb.train", "stsb.dev", "stsb.test")
SENTEVAL = (
    "mr",
    "cr",
    "subj",
    "mpqa",
    "trec.train",
    "trec.test",
    "sst2.train",
    "sst2.dev",
    "sst2.test",
)
TRACKS = ("sts17_track1_arar", "sts17_track3_eses", "sts17_track5_enen")
CLUSTERS = ("agnews", "searchsnippets", "stackoverflow", "biomedical", "tweet")
GOOGLE = ("googlenews_ts", "googlenews_s", "googlenews_t")
COLUMNS = 60  # of a terminal
FIGURES = {"sg-bert": 6, "consert": 7, "pairsupcon": 3, "defsent-plus": 8}
GLUE = {"qnli": True, "sst2": False, "cola": False, "mrpc": True, "rte": True}  # of pairs


sys.path.insert(0, str(SCRIPT.parent))
papers = load_script(SCRIPT)
EVERY = [(name, base) for name, paper in papers.PAPERS.items() for base in paper.recipes]


@pytest.fixture(scope="module")
def furnished(tmp_path_factory):
    """A base of four layers, and complete suites of a few rows each."""
    folder = tmp_path_factory.mktemp("papers")
    texts = [f"{text} {end}".strip() for end in ("", "today", "again", "here") for text in TEXTS]
    labels = ("entailment", "contradiction", "neutral")
    bare = [{"text_a": a, "text_b": b} for a, b in zip(texts, texts[1:] + texts[:1], strict=True)]
    two = [{"text": text, "label": n % 2} for n, text in enumerate(texts)]
    pairs = [row | {"label": n % 2} for n, row in enumerate(bare)]
    threes = zip(texts[::3], texts[1::3], texts[2::3], strict=True)
    oxford = [(ENTRIES[n % len(ENTRIES)], text) for n, text in enumerate(texts[:24])]
    wordnet = [(f"{ENTRIES[n % 6]} {ENTRIES[n % 5]}", text) for n, text in enumerate(texts[24:])]
    files = {
        "sts/sts16.train": bare[:1],  # without a score
        "nli/train": [row | {"label": labels[n % 3]} for n, row in enumerate(bare)],
        "nli/triplets": [{"anchor": a, "positive": b, "negative": c} for a, b, c in threes],
        "paraphrases/stsb": bare,
        "corpora/own": [{"text": text} for text in texts],
        "dictionary/oxford": [{"entry": entry, "definition": text} for entry, text in oxford],
        "dictionary/wordnet": [{"entry": entry, "definition": text} for entry, text in wordnet],
    }
    files |= {f"sts/{name}": PAIRS * 2 for name in (*STSB, "sickr.test", *SETS, *TRACKS)}
    files |= {f"clustering/{name}": two[:8] for name in (*CLUSTERS, *GOOGLE)}
    files |= {f"senteval/{name}": two for name in SENTEVAL}
    files |= {f"senteval/mrpc.{split}": pairs for split in ("train", "test")}
    for task, paired in GLUE.items():
        files |= {
            f"glue/{task}.{split}": (pairs if paired else two)[:12]
            for split in ("train", "dev", "test")
        }
    write_rows(folder / "data", files)
    make_bert(folder / "base", "BertForMaskedLM", num_hidden_layers=4)
    return folder


@pytest.fixture
def run(furnished, forked_program, tmp_path_factory, tmp_path):
    """`run("consert", "--collect")`: the finished script; `sentkit` and `python3` are forked
    programs.
    """
    environment = with_program(tmp_path_factory.mktemp("program"), forked_program)

    def call(paper, *flags, terminal=None):
        """The finished script; with a terminal, which is closed, it prints there."""
        paths = ("--base", "base", "--data", "data", "--out", tmp_path / "out")
        completed = subprocess.run(
            ["python3", SCRIPT, paper, *paths, *flags],
            cwd=furnished,
            env=environment | {"COLUMNS": str(COLUMNS)} if terminal else environment,
            stdout=terminal or subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if terminal:
            os.close(terminal)
        return completed

    call.environment = environment
    return call


@pytest.fixture
def runner(furnished, tmp_path, monkeypatch):
    """The plan of a paper for a base: `runner("consert", "bert-large")`; nothing runs."""
    monkeypatch.chdir(furnished)

    def plan(paper, base, *flags):
        words = (
            paper,
            "--base",
            "base",
            "--preset",
            base,
            "--data",
            "data",
            "--out",
            str(tmp_path / "out"),
        )
        monkeypatch.setattr(sys.modules["running"], "run", lambda words, **options: "")
        return papers.Runner(papers.parse([*words, *flags]))

    return plan


def rows_of(paper, base):
    """The published rows in the tables of a base: table, system and readout; also those without a
    base.
    """
    names = {base, "bert" if base == "bert-base" else base}
    rows = [row for row in published() if row["paper"] == paper]
    tables = {row["table"] for row in rows if row["base"] in names}
    rows = [row for row in rows if row["table"] in tables and row["base"] in {*names, None}]
    return {(row["table"], row["system"], row["readout"]) for row in rows}


@pytest.mark.parametrize(("paper", "base"), EVERY)
def test_every_published_row_is_made_or_impossible(runner, paper, base):
    """Nothing is trained without a row, and each system that is not made has a reason."""
    plan = runner(paper, base)
    planned = {
        (row.table, row.name, row.readout or None) for rows in plan.rows.values() for row in rows
    }
    for table, system, readout in rows_of(paper, base):
        of_system = planned & {(table, system, readout), (table, system, None)}
        assert (
            of_system or system in plan.paper.impossible or table in plan.paper.tables_made_here
        ), (table, system, readout)
    assert all(
        plan.rows[system_needed.name]
        or system_needed.tables
        or any(system_needed in plan.before(later_system) for later_system in plan.needed)
        for system_needed in plan.needed
    )
    assert all(plan.paper.impossible.values())


@pytest.mark.parametrize(("paper", "count"), FIGURES.items())
def test_every_figure_is_made_or_impossible(paper, count):
    paper_plan = papers.PAPERS[paper]
    figure_ranges = ", ".join(paper_plan.figures.values()).split(", ")
    ranges = [re.fullmatch(r"(\d)(?: to (\d))?", figure_range) for figure_range in figure_ranges]
    planned = {
        n
        for range_match in ranges
        if range_match
        for n in range(int(range_match[1]), int(range_match[2] or range_match[1]) + 1)
    }
    impossible = {
        int(name.removeprefix("figure "))
        for name in paper_plan.impossible
        if name.startswith("figure ")
    }

    assert sorted([*planned, *impossible]) == [*range(1, count + 1)]


def test_every_base_of_a_published_row_has_a_recipe():
    bases = {
        (row["paper"], row["base"]) for row in published() if row["base"] not in (None, "bert")
    }

    assert bases <= {*EVERY}


@pytest.mark.parametrize(
    ("base", "first", "last", "entry", "senteval", "ica"),
    [
        ("bert-base", "mean", "step3 --set readout=prompt", "mean", "mean", {"2", "4", "6"}),
        ("bert-large", "mean", "step3 --set readout=prompt", "mean", "cls", {"2", "4", "6"}),
        ("roberta-base", "cls", "step3 --set readout=prompt", "cls", "prompt", {"2"}),
        ("roberta-large", "cls", "step3 --set readout=mean", "cls", "prompt", {"2"}),
    ],
)
def test_the_recipe_follows_the_base(runner, base, first, last, entry, senteval, ica):
    """Presets, readouts and entries of DefSent+; in table 7: the readout of SentEval."""
    plan = runner("defsent-plus", base)
    step1, step3 = (plan.systems[f"defsent-plus-{name}"] for name in ("1-a", "3-a"))
    system_name = "defsent-plus-3-a-ica" if "4" in ica else "defsent-plus-3-a"

    assert plan.words(step1.train)[2:] == ["--preset", base, "--set", f"readout={first}"]
    assert " ".join(plan.words(step3.train)[2:]) == f"--preset {base}-{last}"
    assert step1.entries.readout.format_map(plan.values) == entry
    assert {row.readout for row in plan.rows[system_name] if row.table == "4"} == {senteval}
    assert {row.table for row in plan.rows["defsent-plus-3-a-ica"]} == ica
    second = [plan.rows[f"{start}+defsent-plus-2"] for start in ("simcse-unsup", "sncse")]
    assert all(second) if base == "roberta-large" else not any(second)
    tokenizers = {"bert": papers.BERT, "roberta": papers.ROBERTA}
    assert plan.tokenizers() == tokenizers | {base.partition("-")[0]: "base"}


def test_pairsupcon_keeps_the_last_step_except_in_table_8():
    """The paper selects no model. The trainings of the script always have --dev."""
    method_class = METHODS["pairsupcon"].load()
    systems = [
        candidate
        for candidate in papers.PAPERS["pairsupcon"].systems
        if candidate.train.startswith("pairsupcon")
    ]
    final = {}
    for system in systems:
        _, _, *words = system.train.split()
        flags = dict(zip(words[::2], words[1::2], strict=True))
        settings = [flags["--set"]] if "--set" in flags else []
        final[system.name] = build(
            method_class.Settings, method_class.presets, flags.get("--preset", "paper"), settings
        ).final

    assert final.pop("pairsupcon-stsb-dev") == "best"
    assert len(final) == 9
    assert set(final.values()) == {"last"}


def test_rows_have_the_order_and_the_readouts_of_the_paper(runner, tmp_path):
    """In table 4 of DefSent+, a checkpoint that declares `prompt` has the readout of SentEval."""
    batches = [row.name for _, row in runner("consert", "bert-base").rows_of("4")]
    base = runner("sg-bert", "bert-base")
    untuned = [
        argument
        for system, row in base.rows_of("1")[:4]
        for argument in base.arguments(system, row)
    ]
    plan = runner("defsent-plus", "bert-base", "--seeds", "0")
    run = tmp_path / "out/runs/defsent-plus-3-a-ica/seed-0"
    run.mkdir(parents=True)
    (run / "sentkit.json").write_text('{"readout": "prompt"}')
    system_with_ica = plan.systems["defsent-plus-3-a-ica"]
    arguments = [
        [*plan.arguments(system_with_ica, row)]
        for row in plan.rows[system_with_ica.name]
        if row.table in ("2", "4")
    ]

    assert batches == [f"consert-batch{size}" for size in (16, 48, 96, 192, 288)]
    assert untuned == [
        f"no-tuning=base#{argument}" for argument in ("cls", "mean", "L0+L1+L2+L3+L4:wk")
    ]
    assert [argument.removeprefix(f"{system_with_ica.name}=") for [argument] in arguments[:2]] == [
        str(run),
        f"{run}#mean",
    ]


def test_a_given_checkpoint_needs_no_runs_before_it(runner):
    plan = runner("defsent-plus", "roberta-large", "--table", "4")
    with_step_3 = runner(
        "defsent-plus", "roberta-large", "--table", "4", "--given", "defsent-plus-3-a=base"
    )
    steps = {f"defsent-plus-{step}-a" for step in (1, 2, 3)}

    assert steps <= {system.name for system in plan.needed}
    assert steps & {system.name for system in with_step_3.needed} == {"defsent-plus-3-a"}
    assert (with_step_3.systems["defsent-plus-3-a"], None) in with_step_3.waiting()


def test_rows_have_the_seeds_and_the_best_on_dev(runner, tmp_path):
    """Of two seeds, the better one on the dev pairs, and the mean of both."""
    plan = runner("defsent-plus", "bert-base", "--seeds", "3,4")
    for seed, dev in ((3, 70.5), (4, 71.0)):
        folder = tmp_path / f"out/runs/simcse-unsup/seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "sentkit.json").write_text(json.dumps({"dev": dev, "readout": "cls"}))
    system = plan.systems["simcse-unsup"]
    rows = {
        row.name: [argument.partition("=")[2] for argument in plan.arguments(system, row)]
        for row in plan.rows["simcse-unsup"]
        if row.table == "3"
    }
    runs = [str(tmp_path / f"out/runs/simcse-unsup/seed-{seed}") for seed in (3, 4)]

    assert rows == {"simcse-unsup": runs[1:], "simcse-unsup, mean of seeds": runs}


@pytest.mark.parametrize(
    ("flags", "code", "problem"),
    [
        (("--preset", "bert-tiny"), 2, "--preset bert-tiny: unknown"),
        (
            (),
            2,
            "pairsupcon has settings for distilbert-base, bert-base, bert-large, but base is "
            "another",
        ),
        ((), 2, "\n  choose whose settings it gets, such as --preset distilbert-base\n"),
        (
            ("--preset", "bert-base", "--table", "9"),
            2,
            "\n  choose one of 1, 2, 3, 4, 5, 6, 7, 8\n",
        ),
        (
            ("--preset", "bert-base", "--only", "none"),
            2,
            "--only none: the systems are no-tuning, ",
        ),
        (
            ("--preset", "bert-base", "--only", "simcse-sup", "--seed", "0"),
            66,
            "nli/triplets: no such file",
        ),
        (
            ("--preset", "bert-base", "--only", "sbert"),
            2,
            "--only sbert --seed None: its seeds are 0",
        ),
        (("--preset", "bert-base", "--given", "x=nano"), 2, "--given x: the systems are no-tuning"),
        (("--preset", "bert-base", "--given", "sbert"), 2, "--given sbert: expected SYSTEM=CHECK"),
        (("--preset", "bert-base", "--settings", "'a"), 2, "--settings 'a: no closing quotation"),
        (("--preset", "bert-base", "--data", "none"), 66, "none: not a folder of data"),
        (("--preset", "bert-base", "--data", "base"), 66, "base/sts/stsb.dev: no such file"),
    ],
)
def test_wrong_use_is_refused(run, furnished, tmp_path, flags, code, problem):
    data = tmp_path / "data"
    shutil.copytree(furnished / "data", data)
    (data / "nli/triplets.jsonl").unlink()
    completed = run("pairsupcon", "--data", data, *flags)

    assert (completed.returncode, completed.stdout) == (code, "")
    assert problem in completed.stderr
    assert "Traceback" not in completed.stderr


def test_a_run_that_a_table_does_not_need_is_refused(run):
    flags = ("--preset", "bert-base", "--table", "1", "--only", "pairsupcon-stsb-dev")
    refused = run("pairsupcon", *flags, "--seed", "0")
    without_run = run("pairsupcon", "--preset", "bert-base", "--seed", "5", "--list")

    assert refused.returncode == without_run.returncode == 2
    assert "--only pairsupcon-stsb-dev: table 1 does not need it" in refused.stderr
    assert "--seed needs --only" in without_run.stderr


def test_separators_of_unicode_are_in_rows():
    """str.splitlines splits at them."""
    text = '{"text": "a\u2028b\u0085c"}\n{"text": "d"}\n\nlast'

    lines = ['{"text": "a\u2028b\u0085c"}\n', '{"text": "d"}\n', "\n", "last"]
    assert papers.lines_of(text) == lines


def test_rows_and_runs_of_other_options_are_not_used_again(run, tmp_path):
    """Such as the few rows of a trial."""
    flags = ("pairsupcon", "--preset", "bert-base", "--list")
    trial = run(*flags, "--quick")
    (tmp_path / "out/runs").mkdir()
    whole = run(*flags)
    other = run("sg-bert", "--preset", "bert-base", "--list", "--quick")

    assert trial.returncode == 0, trial.stderr
    assert (whole.returncode, whole.stdout) == (2, "")
    assert "out has runs with quick=True, not False" in whole.stderr
    assert other.returncode == 2
    assert "out has runs with paper=pairsupcon, not sg-bert" in other.stderr
    assert run(*flags, "--quick").stdout == trial.stdout


def test_without_the_environment_of_sentkit_its_command_is_missed(furnished, tmp_path):
    paths = ("--base", "base", "--data", "data", "--out", tmp_path / "out")
    command = [sys.executable, SCRIPT, "pairsupcon", "--preset", "bert-base", *paths, "--list"]
    completed = subprocess.run(
        command, cwd=furnished, env={"PATH": ""}, capture_output=True, text=True, check=False
    )

    assert completed.returncode == 69
    assert completed.stderr.splitlines() == [
        "papers.py: sentkit: no such command",
        "  activate the environment of sentkit, such as: . .venv/bin/activate",
    ]


def test_one_base_can_have_two_paths(run, furnished, tmp_path):
    first = run("pairsupcon", "--preset", "bert-base", "--list")
    (tmp_path / "out/runs").mkdir()
    again = run("pairsupcon", "--preset", "bert-base", "--list", "--base", furnished / "base")

    assert (first.returncode, again.returncode) == (0, 0), again.stderr


def test_a_folder_without_runs_gets_other_options(run, tmp_path):
    """Such as the right preset after a list of the runs of a wrong one."""
    wrong = run("pairsupcon", "--preset", "distilbert-base", "--list", "--quick")
    (tmp_path / "out/rows/other.jsonl").touch()
    right = run("pairsupcon", "--preset", "bert-base", "--list")

    assert (wrong.returncode, right.returncode) == (0, 0), right.stderr
    assert right.stdout.startswith("--only no-tuning\n")
    recorded = json.loads((tmp_path / "out/options.json").read_text())
    assert (recorded["preset"], recorded["quick"]) == ("bert-base", False)
    assert not (tmp_path / "out/rows/other.jsonl").exists()


def test_wrong_options_remove_no_rows(run, tmp_path):
    run("pairsupcon", "--preset", "bert-base", "--list")
    kept = tmp_path / "out/rows/other.jsonl"
    kept.touch()
    recorded = (tmp_path / "out/options.json").read_bytes()
    codes = []
    for flags in (("--preset", "typo"), ("--preset", "distilbert-base", "--data", "none")):
        codes.append(run("pairsupcon", *flags, "--list").returncode)

    assert codes == [2, 66]
    assert kept.exists()
    assert (tmp_path / "out/options.json").read_bytes() == recorded


def test_rows_beside_another_file_of_options_are_kept(run, tmp_path):
    """A folder of the user can have such names."""
    kept = tmp_path / "out/rows/a"
    kept.parent.mkdir(parents=True)
    kept.touch()
    (tmp_path / "out/options.json").write_text("{}")
    result = run("pairsupcon", "--preset", "bert-base", "--list")

    assert (result.returncode, result.stdout) == (2, "")
    assert "out has runs with paper=None, not pairsupcon" in result.stderr
    assert kept.exists()
    assert (tmp_path / "out/options.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("content", "code", "problem"),
    [
        (b"", 65, "options.json:"),
        (b'{"paper": "pairsup', 65, "options.json:"),
        (b"\xff\xfe", 65, "options.json:"),
        (b"[1]", 65, "options.json:"),
        (b'{"paper": NaN}', 65, "options.json:"),
        (b"{}", 2, "out has runs with paper=None, not pairsupcon"),
        (b'{"paper": 1e9, "other": []}', 2, "out has runs with paper=1000000000.0"),
    ],
)
def test_a_damaged_record_of_the_options_is_an_error(run, tmp_path, content, code, problem):
    (tmp_path / "out/runs").mkdir(parents=True)
    (tmp_path / "out/options.json").write_bytes(content)
    result = run("pairsupcon", "--preset", "bert-base", "--list")

    assert (result.returncode, result.stdout) == (code, "")
    assert problem in result.stderr
    assert "Traceback" not in result.stderr


def test_one_table_needs_only_its_runs(run, runner, tmp_path):
    """Other tables, figures and their systems are not made, and a call for all tables evaluates
    again.
    """
    quick = partial(run, "consert", "--preset", "bert-base", "--quick", "--figures", "jsonl")
    listed = quick("--table", "1", "--list")
    master, terminal = pty.openpty()
    completed = quick("--table", "1", "--given", "sbert-nli=base", terminal=terminal)
    plan = runner("consert", "bert-base", "--table", "3")

    assert listed.stdout.splitlines() == ["--only no-tuning", "--only sbert-nli --seed 1"]
    assert completed.returncode == 0, completed.stderr
    assert {path.name for path in (tmp_path / "out/tables").iterdir()} == {
        "table-1.jsonl",
        "table-1.txt",
    }
    check_terminal(master, tmp_path / "out/tables/table-1.txt")
    assert not (tmp_path / "out/figures").exists()
    assert quick("--table", "1", "--list").stdout == "--only sbert-nli --seed 1\n"
    assert quick("--list").stdout.startswith("--only no-tuning\n")
    assert {row.table for rows in plan.rows.values() for row in rows} == {"3"}


def test_a_table_of_one_suite_fits_the_terminal(run, tmp_path):
    master, terminal = pty.openpty()
    flags = ["--preset", "bert-base", "--quick", "--table", "2"]
    completed = run("pairsupcon", *flags, terminal=terminal)

    assert completed.returncode == 0, completed.stderr
    check_terminal(master, tmp_path / "out/tables/table-2.txt")


def check_terminal(master, path):
    """The file has all columns in a line. The terminal has them in parts, one below the other."""
    lines = printed_on(master).splitlines()
    text = path.read_text()

    assert max(map(len, text.splitlines())) > COLUMNS >= max(map(len, lines))
    assert {*" ".join(lines).split()} == {*text.split()}


def printed_on(terminal):
    """What programs wrote to a terminal that they have left."""
    printed = b""
    with contextlib.suppress(OSError), os.fdopen(terminal, "rb", 0) as file:
        while data := file.read(4096):
            printed += data
    return printed.decode()


def test_a_list_may_be_read_in_part(execute, furnished, tmp_path):
    arguments = f"--base base --preset bert-base --data data --out {tmp_path}/out --list"
    completed = execute(["sh", "-c", f"python3 {SCRIPT} pairsupcon {arguments} | true"], furnished)

    assert (completed.returncode, completed.stderr) == (0, "")


def not_made(out, paper, base):
    """The published rows that have no own row, and the tables and figures that are not there."""
    plan = papers.PAPERS[paper]
    rows_made = {
        (path.stem.removeprefix("table-"), json.loads(line)["row"].partition("#")[0])
        for path in out.glob("tables/table-*.jsonl")
        for line in path.open()
    }
    texts = {
        path.stem.removeprefix("table-").replace("-", " "): path
        for path in out.glob("tables/*.txt")
    }
    for table in plan.tables_made_here.keys() & texts.keys():
        lines = [line.split() for line in texts[table].read_text().splitlines()]
        rows_made |= {(table, line[1]) for line in lines if line[:1] == ["here"]}
    rows = {
        (table, system)
        for table, system, _ in rows_of(paper, base)
        if system not in plan.impossible
    }
    rows |= {
        (added_system.added, added_system.name)
        for added_system in plan.systems
        if added_system.added
    }
    pictures = {name for name in plan.figures if not list(out.glob(f"figures/{name}.*"))}
    return rows - rows_made, plan.tables_made_here.keys() - texts.keys(), pictures


SETTINGS = "--threads 1 --set warmup=0 --set max_length=64 --epochs 1"
FAST = ("--preset", "bert-base", "--figures", "jsonl", "--settings", SETTINGS)


@pytest.mark.slow
def test_a_quick_run_makes_tables_and_figures(run, furnished, tmp_path, execute):
    """The runs are listed; the second is task 2 of a job array, the others are made by the next
    call.
    """
    listed = run("pairsupcon", *FAST, "--quick", "--list")
    (tmp_path / "runs.txt").write_text(listed.stdout)
    write_script(tmp_path / "srun", 'exec "$@"')
    write_script(tmp_path / "python", 'exec python3 "$@"')
    paths = ("--base", furnished / "base", "--data", furnished / "data", "--out", tmp_path / "out")
    script = ["sh", ROOT / "examples/slurm/papers.sbatch", tmp_path / "runs.txt"]
    path = f"{tmp_path}:{run.environment['PATH']}"
    command = [*script, "pairsupcon", *paths, *FAST, "--quick"]
    alone = execute(command, ROOT, SLURM_ARRAY_TASK_ID="2", PATH=path)
    listed_again = run("pairsupcon", *FAST, "--quick", "--list")
    before = (tmp_path / "out/runs/sbert/seed-0/model.safetensors").stat().st_mtime_ns
    completed = run("pairsupcon", *FAST, "--quick")
    rows, notes, pictures = not_made(tmp_path / "out", "pairsupcon", "bert-base")

    assert (alone.returncode, alone.stdout) == (0, ""), alone.stderr
    assert "papers.py: the recipe of bert-base: " in alone.stderr
    assert listed.stdout.splitlines()[:2] == ["--only no-tuning", "--only sbert --seed 0"]
    assert listed_again.stdout == listed.stdout.replace("--only sbert --seed 0\n", "")
    assert completed.returncode == 0, completed.stderr
    assert (tmp_path / "out/runs/sbert/seed-0/model.safetensors").stat().st_mtime_ns == before
    assert run("pairsupcon", *FAST, "--quick", "--list").stdout == ""
    assert {table for table, _ in rows} == {"4", "5", "6", "7"}  # SentEval is not a part of --quick
    assert {system.partition("-sweep")[0] for table, system in rows if table in ("4", "5")} == {
        "pairsupcon-beta",
        "pairsupcon-id-only-no-hard-neg",
        "pairsupcon-no-hard-neg",
    }
    assert (notes, pictures) == (set(), set())
    assert "not made: table 7: " in completed.stderr
    sizes = [
        line.split() for line in (tmp_path / "out/tables/table-2.txt").read_text().splitlines()
    ]
    # Rows and classes beside the published numbers.
    assert " ".join(sizes[2][:5]) == "agnews 8 8,000 2 4"


GIVEN = {
    "sg-bert": ("--given", "glove=words:binary"),
    "consert": ("--given", "glove=words:binary"),
    "pairsupcon": (),
    "defsent-plus": ("--given", "roberta=base"),  # a tokenizer
}


@pytest.mark.slow
@pytest.mark.parametrize("paper", papers.PAPERS)
def test_every_row_and_figure_of_a_paper_is_made(run, paper, tmp_path):
    """Without --quick, on complete suites of a few rows: nine English files have 32 texts each, and
    one has two without a score.
    """
    completed = run(paper, *FAST, "--seeds", "1", *GIVEN[paper])

    assert completed.returncode == 0, completed.stderr
    assert not_made(tmp_path / "out", paper, "bert-base") == (set(), set(), set())
    notes = [
        f"not made: {setting}-texts{count} (texts): {count} texts; sts has 290"
        for setting in ("unsupervised", "supervised")
        for count in (1000, 10000)
    ]
    assert re.findall("not made: .*", completed.stderr) == (notes if paper == "consert" else [])


@pytest.mark.slow
def test_a_stopped_run_is_finished_by_the_next_call(furnished, tmp_path):
    """SIGTERM: the training saves its state and exits with 75; the next call continues there."""
    environment = with_program(tmp_path)
    words = [sys.executable, SCRIPT, "pairsupcon", "--out", tmp_path / "out", "--base", "base"]
    words += ["--data", "data", "--preset", "bert-base", "--only", "pairsupcon", "--seed", "0"]
    words += ["--settings", "--threads 1 --set steps=400 --set epochs=500 --batch 8 --save-every 5"]
    with subprocess.Popen(
        words, cwd=furnished, env=environment, preexec_fn=heed_signals
    ) as process:
        partial_folder = tmp_path / "out/runs/pairsupcon/seed-0.part"
        while not list(partial_folder.glob("state*")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 75
    completed = subprocess.run(words, cwd=furnished, env=environment, check=False)

    assert completed.returncode == 0
    assert (
        json.loads((tmp_path / "out/runs/pairsupcon/seed-0/sentkit.json").read_text())["step"]
        == 400
    )


@pytest.mark.parametrize(
    ("base", "flags"), [("bert-base", ["--readout", "cls"]), ("sbert-base", [])]
)
def test_the_space_of_the_base_has_the_vectors_of_the_paper(
    runner, tmp_path, monkeypatch, base, flags
):
    """Figure 5 has the [CLS] of BERT, figure 6 the vectors that SBERT declares."""
    plan = runner("sg-bert", base, "--seeds", "1")
    assert Path(plan.dev).exists()  # prepared by a command, before commands are recorded
    (tmp_path / "out/runs/sg-opt/seed-1").mkdir(parents=True)
    commands = []
    for module in ("running", "figures"):
        monkeypatch.setattr(sys.modules[module], "run", lambda words, **_: commands.append(words))
    papers.figures.space(plan)

    encode = commands[0]
    assert encode[1] == "encode"
    assert encode[encode.index("-f") + 1 :] == [*flags, "-q"]


def test_the_average_of_a_figure_has_all_sets(runner):
    sets, label = papers.figures.sets_of_average(runner("consert", "bert-base"))

    assert [*sets] == ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"]
    assert label == "average, Spearman x 100"


def test_missing_runs_are_named(runner, tmp_path, capsys):
    """A system without a run, and one with fewer seeds than others."""
    plan = runner("consert", "bert-base", "--seeds", "3,4")
    for name in ("consert", "consert-batch16"):
        (tmp_path / f"out/runs/{name}/seed-3").mkdir(parents=True)
    (tmp_path / "out/runs/consert/seed-4").mkdir()
    plan.say_unfinished("4")
    plan.say_unfinished("4")

    assert capsys.readouterr().err.splitlines() == [
        "papers.py: not finished: table 4: consert-batch16 has 1 of 2 seeds",
        *(f"papers.py: not finished: table 4: no run of consert-batch{n}" for n in (48, 192, 288)),
    ]


def test_missing_columns_are_named(runner, capsys):
    """Table 1 of SG-BERT has the seven STS sets and their average."""
    plan = runner("sg-bert", "bert-base")
    tasks = ("STS12", "STS13", "STS14", "STS15", "STS-B")
    plan.say_missing_values("1", [{"suite": "sts", "task": task} for task in tasks])

    assert capsys.readouterr().err == "papers.py: not measured: table 1: STS16, SICK-R, avg\n"


def test_the_rates_of_defsent_plus_are_those_of_its_presets(runner):
    """As printed: 22 rates, of three steps from the pretrained encoders and one or two others."""
    plan = runner("defsent-plus", "bert-base")
    table = papers.tables.rates(plan, "5")

    assert {line.names: line.cells for line in table.lines} == {
        ("pretrained", "bert-base"): ("5e-05", "4e-05", "3e-05"),
        ("pretrained", "bert-large"): ("4e-05", "4e-05", "3e-05"),
        ("pretrained", "roberta-base"): ("3e-05", "2e-05", "1e-05"),
        ("pretrained", "roberta-large"): ("3e-05", "2e-05", "1e-05"),
        ("simcse", "bert-base"): ("3e-05", "", ""),
        ("simcse", "bert-large"): ("1e-05", "", ""),
        ("simcse", "roberta-base"): ("1e-05", "", ""),
        ("simcse", "roberta-large"): ("3e-05", "2e-05", ""),
        ("sncse", "bert-base"): ("2e-05", "", ""),
        ("sncse", "bert-large"): ("1e-05", "", ""),
        ("sncse", "roberta-base"): ("2e-06", "", ""),
        ("sncse", "roberta-large"): ("1e-06", "1e-06", ""),
    }


@pytest.mark.parametrize(("paper", "number"), [("sg-bert", "10"), ("consert", "4")])
def test_printed_names_and_values_are_not_marked_as_inferred(paper, number):
    for table in tables_of(paper, number):
        lines = published_table(table).lines
        assert not any("(?)" in cell for line in lines for cell in (*line.names, *line.cells))


def test_a_table_of_the_paper_has_the_seeds_of_its_measured_rows():
    [table] = tables_of("sg-bert", "1")
    measured = [Line((HERE, "a", "cls"), ("1.0",) * 8), Line((HERE, "b", "cls"), ("2.0",) * 8)]
    with_seeds = published_table(table, measured, ["bert-base"], ["2", "1"])
    without = published_table(table, measured, ["bert-base"])

    assert with_seeds.names == ("base", "system", "readout", "seeds")
    assert [line.names[-1] for line in with_seeds.lines[:2]] == ["2", "1"]
    assert {line.names[-1] for line in with_seeds.lines[2:]} == {""}
    assert without.names == ("base", "system", "readout")
    assert [line.names[:3] for line in with_seeds.lines] == [line.names for line in without.lines]


def test_settings_of_the_papers_that_depend_on_the_base(runner):
    """SimCSE for BERT-large has the rate 1e-5, dictionary c and the rows of DefSent are parts of
    Oxford, table 6 of SG-BERT has batches of 16, and ConSERT has an SBERT of its own code.
    """
    plan = runner("pairsupcon", "bert-large")
    preset = plan.words(plan.systems["simcse-sup"].train)[-1]
    kind = METHODS["simcse-sup"].load()
    efficiency = papers.PAPERS["sg-bert"].systems[3]

    assert build(kind.Settings, kind.presets, preset, []).lr == 1e-5
    rows_of_consert = runner("consert", "bert-base").rows
    assert [row.name for row in rows_of_consert["consert-sup"]] == ["sbert-nli-reimpl"]
    assert papers.PAPERS["defsent-plus"].rows["single"] == ("single_tokens", "oxford")
    assert papers.PAPERS["defsent-plus"].systems[0].train.startswith("defsent {oxford} ")
    assert (efficiency.name, efficiency.script.split()[-2:]) == ("efficiency", ["--batch", "16"])


def test_table_9_has_the_optimizer_and_the_folds_of_senteval(runner):
    table = papers.tables.settings(runner("sg-bert", "bert-base"), "9")

    assert {line.names[0]: line.cells[0] for line in table.lines} == {
        "seeds": "1,2,3,4,1234,2345,3456,7890",
        "folds": "10",
        "hidden units of the classifier": "50",
        "optimizer": "adam",
        "batch": "64",
        "epochs between two evaluations": "4",
        "evaluations without a better score": "5",
    }


@pytest.mark.parametrize(
    ("base", "maker"),
    [("roberta-large", "simcse-unsup+defsent-plus-1"), ("bert-base", "simcse-unsup")],
)
def test_figure_8_has_the_entries_of_the_last_step(runner, monkeypatch, base, maker):
    makers = []

    def stop(runner, spec):
        makers.append(spec.maker)
        raise papers.MissingError

    monkeypatch.setattr(papers.figures, "entries_of", stop)
    with pytest.raises(papers.MissingError):
        papers.figures.entries(runner("defsent-plus", base), "entries-simcse")
    assert makers == [maker]


def test_entries_are_transformed_as_their_name_says(runner, tmp_path, monkeypatch):
    """The factor of ICA is that of the paper only for its number of entries."""
    plan = runner("defsent-plus", "bert-base")
    fits = []

    def record(words, **_):
        output = words[words.index("-o") + 1]
        output.parent.mkdir(parents=True, exist_ok=True)
        output.touch()
        if words[1:3] == ["whiten", "fit"]:
            fits.append(words[4 : words.index("-o")])

    monkeypatch.setattr(sys.modules["running"], "run", record)
    rows = '{"entry": "a", "definition": "b"}\n{"entry": "a", "definition": "c"}\n'
    (tmp_path / "dictionary.jsonl").write_text(rows)
    monkeypatch.setattr(plan.prepared, "file", lambda name: str(tmp_path / "dictionary.jsonl"))
    entries = papers.tables.Entries
    paths = [plan.entries(entries("base", transform=name)) for name in ("ica-200", "centered")]
    monkeypatch.setattr(papers.tables, "ENTRIES_OF_PAPER", 1)
    plan.entries(entries("base", transform="ica"))

    assert [path.rpartition("/")[2] for path in paths] == [
        "base-mean-ica-200.safetensors",
        "base-mean-centered.safetensors",
    ]
    ica = ["--kind", "ica", "--keep-width", "--keep-signs", "--seed", "42"]
    assert fits == [
        [*ica, "--iterations", "200", "--scale", "auto"],
        ["--kind", "center"],
        [*ica, "--variance", "arbitrary", "--scale", "100"],
    ]


def test_increments_are_those_of_the_same_start(runner, tmp_path):
    """A mean of seeds is compared with a mean; the published averages of BERT-base are 76.25 and
    79.76, 78.97 and 80.47.
    """
    plan = runner("defsent-plus", "bert-base")
    values = {"simcse-unsup": 50.0, "simcse-unsup+defsent-plus-1": 52.5}
    values |= {"sncse, mean of seeds": 40.0, "sncse+defsent-plus-1, mean of seeds": 39.0}
    records = [{"row": row, "task": "avg", "value": value} for row, value in values.items()]
    write_rows(tmp_path / "out/tables", {"table-3": records})
    table = papers.tables.increments(plan, "increments")
    cells = {line.names: line.cells for line in table.lines}

    assert cells.pop(("here", "simcse-unsup+defsent-plus-1")) == ("+2.50",)
    assert cells.pop(("here", "sncse+defsent-plus-1, mean of seeds")) == ("-1.00",)
    assert cells == {
        ("published", "simcse-unsup+defsent-plus-1"): ("+3.51",),
        ("published", "sncse+defsent-plus-1"): ("+1.50",),
    }


def test_figures_of_consert_have_lines_beside_the_published_values(runner, tmp_path, monkeypatch):
    """The gain without frequent tokens: 50 with all tokens, 53 without five; 10 and 21, 22 of two
    sets for the base.
    """
    plan = runner("consert", "bert-base")
    label = "average, Spearman x 100"
    scores = [("consert/mean-last2", 50.0), ("consert/mean-last2/out5", 53.0)]
    scores += [("base/mean-last2", 10.0), ("base/mean-last2", 10.0)]
    scores += [("base/mean-last2/out1", 21.0), ("base/mean-last2/out1", 22.0)]
    write_rows(tmp_path / "out/tables", {"masking": [{"encoder": a, label: b} for a, b in scores]})
    records = [
        {"row": row, "task": "avg", "value": value, "values": [value], "sd": None}
        for row, value in (("0.05", 60.0), ("0.1", 62.0), ("none,none", 61.0))
    ]
    monkeypatch.setattr(papers.tables, "records_of", lambda runner, name: records)

    def cells(table):
        return {line.names[:2]: line.cells for line in table.lines}

    assert cells(papers.tables.gain_without_tokens(plan, "figure 4")) == {
        ("here", "no-tuning"): ("11.50",),
        ("here", "consert"): ("3.00",),
        ("bert-base", "consert"): ("0.3",),
    }
    assert cells(papers.tables.without_views(plan, "figure 5")) == {
        ("here", "none,none"): ("61.00",),
        ("bert-base", "none,none"): ("63.84",),
    }
    with pytest.raises(papers.MissingError, match=r"no score with temperature 0\.08, 0\.12, 0\.15"):
        papers.tables.best_temperature(plan, "figure 7")
    records += [record | {"row": row} for row in ("0.08", "0.12", "0.15") for record in records[:1]]
    assert cells(papers.tables.best_temperature(plan, "figure 7")) == {
        ("here", "consert"): ("0.1",),
        ("bert-base", "consert"): ("0.1",),
    }


def test_the_best_values_of_a_base_are_bold_and_the_second_underlined():
    """Each base for itself, with three values or more; "-" is no value, and equal values share."""
    names = [("a", "x"), ("a", "y"), ("a", "z"), ("b", "x"), ("b", "y")]
    cells = [("7.0", "-"), ("9.1 (0.2)", "5.0"), ("9.1", "6.0"), ("1.0", "1.0"), ("2.0", "2.0")]
    lines = tuple(Line(name, cell) for name, cell in zip(names, cells, strict=True))
    table = Table("t", ("base", "system"), ("p", "q"), lines, emphasizes=True)

    text = rendered([table], "markdown", 80)
    assert "; bold, underlined: the best and the second value of a base**\n" in text
    assert text.splitlines()[4:] == [
        "| a | x | <ins>7.0</ins> | - |",
        "| a | y | **9.1 (0.2)** | 5.0 |",
        "| a | z | **9.1** | 6.0 |",
        "| b | x | 1.0 | 1.0 |",
        "| b | y | 2.0 | 2.0 |",
    ]
    assert r"a & y & \textbf{9.1 (0.2)} & 5.0 \\" in rendered([table], "latex", 80)
    assert (
        "**" not in rendered([replace(table, emphasizes=False)], "markdown", 80).partition("\n")[2]
    )


def test_figure_4_has_bars_of_what_texts_of_nli_lose(runner, monkeypatch, tmp_path):
    """Means of two seeds: 60 and 57 on STS-B, 50 and 48 on the average; a correlation of the flow
    is undefined.
    """
    plan = runner("sg-bert", "bert-base", "--figures", "jsonl")
    (tmp_path / "out/tables").mkdir(parents=True)
    (tmp_path / "out/figures").mkdir()
    records = []
    for texts, task, values in (
        ("STS-B", "STS-B", [59.0, 61.0]),
        ("NLI", "STS-B", [57.0, 57.0]),
        ("STS-B", "avg", [50.0, 50.0]),
        ("NLI", "avg", [47.0, 49.0]),
    ):
        records.append({"row": f"SG-OPT,{texts}", "task": task, "values": values})
    records.append({"row": "flow,STS-B", "task": "STS-B", "values": [40.0, None]})
    records.append({"row": "flow,NLI", "task": "STS-B", "values": [40.0, 41.0]})
    monkeypatch.setattr(papers.figures, "records_of", lambda runner, name: records)
    papers.figures.domains(plan)

    rows = [json.loads(line) for line in (tmp_path / "out/tables/domain-gaps.jsonl").open()]
    gap = "lost with texts of NLI, Spearman x 100"
    assert rows == [
        {"system": "SG-OPT", "domain": "STS-B", gap: 3.0},
        {"system": "SG-OPT", "domain": "average", gap: 2.0},
    ]
    drawn = [json.loads(line) for line in (tmp_path / "out/figures/domains.jsonl").open()]
    assert [row[gap] for row in drawn if gap in row] == [3.0, 2.0]


def test_what_no_run_makes_is_named_with_its_reason(runner, capsys):
    runner("consert", "bert-base", "--table", "1").say_impossible()
    of_table = capsys.readouterr().err.splitlines()
    runner("pairsupcon", "bert-base").say_impossible()

    assert of_table == [
        "papers.py: not possible: use: Universal Sentence Encoder, a TensorFlow network that "
        "sentkit does not run",
        "papers.py: not possible: infersent-glove: InferSent, an LSTM that only its own code reads",
    ]
    assert "not possible: published words of table 2: " in capsys.readouterr().err
    runner("pairsupcon", "bert-base", "--table", "1").say_impossible()
    assert capsys.readouterr().err == ""
    runner("sg-bert", "bert-base", "--table", "1").say_impossible()
    assert "not possible: marks of borrowed scores: " in capsys.readouterr().err
    runner("consert", "bert-base", "--table", "2").say_impossible()
    cost = {form: -math.log(1 / (1 + math.exp(-form))) for form in (1 - 2, -2)}  # of z = 2
    assert f"costs {cost[-1]:.2f} instead of {cost[-2]:.2f}" in capsys.readouterr().err


def test_a_setting_of_a_system_has_priority_over_one_of_all_runs(runner, monkeypatch):
    """Otherwise the row of two epochs has one, and rows with different batches are equal."""
    monkeypatch.setattr(papers.Runner, "entries", lambda self, spec: "entries.safetensors")
    settings = ("--settings", "--epochs 1 --batch 8 --set readout=cls")
    commands = {}
    for paper, name in (
        ("defsent-plus", "defsent-plus-1-a-epochs2"),
        ("defsent-plus", "defsent-plus-1-a"),
        ("defsent-plus", "defsent-plus-1-b"),
        ("consert", "consert-batch48"),
    ):
        plan = runner(paper, "bert-base", *settings)
        command = plan.train_command(plan.systems[name], 0, Path("run"))
        of_command = {}
        for flag, value in itertools.pairwise(map(str, command)):
            name_of_setting, _, value_of_set = value.partition("=")
            if flag == "--set":
                of_command[name_of_setting] = value_of_set
            else:
                of_command[flag] = value
        commands[name] = of_command

    plan = runner("consert", "bert-base", "--settings", "--dev own.jsonl")
    command = plan.train_command(plan.systems["consert"], 0, Path("run"))
    assert command.count("--dev") == 1
    assert "own.jsonl" in command
    assert commands["defsent-plus-1-a-epochs2"]["--epochs"] == "2"
    assert commands["defsent-plus-1-a"]["--epochs"] == "1"
    assert commands["defsent-plus-1-a"]["--batch"] == "8"
    assert commands["defsent-plus-1-a"]["readout"] == "mean"
    assert commands["defsent-plus-1-b"]["--batch"] == "16"
    assert commands["consert-batch48"]["--batch"] == "48"


def test_the_minutes_of_training_are_those_of_runs_without_interruption(runner, tmp_path):
    """Two runs of 90 and 150 seconds, and one without a time, which was continued."""
    plan = runner("defsent-plus", "bert-base", "--seeds", "0..2")
    runs = tmp_path / "out/runs/defsent-plus-1-a"
    for seed, seconds in ((0, 90), (1, 150), (2, None)):
        folder = runs / f"seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "sentkit.json").write_text(json.dumps({"made_with": {"device": "cuda"}}))
        if seconds is not None:
            (runs / f"seed-{seed}.time.json").write_text(json.dumps({"seconds": seconds}))
    table = papers.tables.minutes(plan, "minutes")

    assert [(*line.names, *line.cells) for line in table.lines] == [
        ("here", "defsent-plus-1-a", "2", "2.0", "cuda"),
        ("published", "", "", "48", "RTX 2080 Ti"),
    ]
    values = ("null", '"9"', "[]", "true", "-1", "NaN", "1e999")
    for content in ("", "{", "[]", "{}", *(f'{{"seconds": {value}}}' for value in values)):
        (runs / "seed-0.time.json").write_text(content)
        with pytest.raises(SentkitError, match=r"seed-0\.time\.json"):
            papers.tables.minutes(plan, "minutes")
    with pytest.raises(papers.MissingError, match="no run has a time"):
        papers.tables.minutes(runner("pairsupcon", "bert-base"), "minutes")


@pytest.fixture
def executing_runner(runner, execute, furnished, monkeypatch):
    """A plan whose commands run."""

    def run(words, **options):
        completed = execute([*map(str, words)], furnished)
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    def plan(paper, base):
        paper_runner = runner(paper, base)
        monkeypatch.setattr(sys.modules["running"], "run", run)
        return paper_runner

    return plan


def test_a_run_gets_the_readout_prompt_by_a_copy(executing_runner, furnished, tmp_path):
    """In table 4 of DefSent+, RoBERTa-large has this readout, and another one in the others."""
    run = tmp_path / "defsent-plus-3-a/seed-0"
    shutil.copytree(furnished / "base", run)
    copy = executing_runner("defsent-plus", "roberta-large").with_readout(str(run), "prompt")

    assert json.loads((Path(copy) / "sentkit.json").read_text())["readout"] == "prompt"
    assert Path(copy).name == "seed-0"


def test_the_copy_of_a_given_checkpoint_is_in_the_folder_of_the_runs(
    executing_runner, furnished, tmp_path
):
    copy = executing_runner("defsent-plus", "roberta-large").with_readout("base", "prompt")

    assert Path(copy).is_relative_to(tmp_path / "out")
    assert Path(copy).name == "base"
    assert not (furnished / "prompt-of-base").exists()


def test_tables_of_given_checkpoints_without_a_record_of_their_training(runner):
    """Those of ConSERT's steps, and of GLUE."""
    consert = runner("consert", "bert-base", "--given", "consert-batch16=base")
    sg_bert = runner("sg-bert", "bert-base", "--given", "no-tuning-rte=base")

    with pytest.raises(papers.MissingError, match="none of its runs is there"):
        papers.tables.steps(consert, "steps")
    with pytest.raises(papers.MissingError, match="none of its runs is there"):
        papers.tables.glue(sg_bert, "10")


def test_folders_can_have_spaces_in_their_names(runner, tmp_path):
    plan = runner("consert", "bert-base", "--out", str(tmp_path / "my runs"))

    assert plan.words("consert {sts} --preset unsup-{size}") == [
        "consert",
        str(tmp_path / "my runs/rows/sts.jsonl"),
        "--preset",
        "unsup-base",
    ]


def test_the_evaluation_of_pairsupcon_reads_64_tokens(executing_runner):
    """Of the base, and of all that is trained from it."""
    plan = executing_runner("pairsupcon", "bert-base")
    [untuned] = plan.checkpoints(plan.systems["no-tuning"]).values()
    declared = json.loads((Path(untuned) / "sentence_bert_config.json").read_text())

    assert declared["max_seq_length"] == 64
    assert plan.start_of(plan.systems["pairsupcon"], 0) == untuned
    assert executing_runner("consert", "bert-base").base == "base"


def test_the_texts_of_consert_have_pairs_without_a_score(tmp_path, monkeypatch, capsys):
    """As far as the data have them. Few texts are repeated to the number of all."""
    monkeypatch.setattr(sys.modules["rows"], "sentkit", lambda words: Path(words[1]).read_text())
    kinds = papers.PAPERS["consert"].rows
    data = tmp_path / "data"
    pairs = [{"text_a": f"a {n}", "text_b": f"b {n}", "score": 1} for n in range(2)]
    names = ("sts12", "sts15.test", "stsb.dev", "sickr.train")
    write_rows(data, {f"sts/{name}": pairs for name in names})

    def texts(folder, name):
        rows = papers.Rows(data, tmp_path / folder, kinds, "", quick=False)
        return [json.loads(line)["text"] for line in rows.lines(name)]

    without = texts("without", "sts")
    warning = capsys.readouterr().err
    write_rows(data, {"sts/sts16.train": [{"text_a": "c", "text_b": "d"}]})

    assert without == ["a 0", "b 0", "a 1", "b 1"] * 4
    assert warning == f"papers.py: not used: {data}/sts/sts1[56].train: no such file\n"
    assert texts("with", "sts") == [*without, "c", "d"]
    assert capsys.readouterr().err == ""
    assert len({*texts("one", "sts-1")}) == 1
    assert len(texts("one", "sts-1")) == 18
    assert len(texts("ten", "sts-10")) == 10


def test_a_packed_copy_has_no_further_texts(tmp_path, monkeypatch):
    """As `sentkit report` does not read it."""
    monkeypatch.setattr(sys.modules["rows"], "sentkit", lambda words: Path(words[1]).read_text())
    data = tmp_path / "data"
    write_rows(data, {f"sts/{name}": [{"text": name}] for name in ("sts12", "sts13")})
    (data / "sts/sts12.jsonl").rename(data / "sts/sts12.jsonl.gz")
    shutil.copy(data / "sts/sts13.jsonl", data / "sts/sts13.jsonl.gz")
    rows = papers.Rows(data, tmp_path / "rows", {}, "", quick=False)

    assert rows.files("sts/sts1[23]") == [f"{data}/sts/sts12.jsonl.gz", f"{data}/sts/sts13.jsonl"]
    assert [json.loads(line)["text"] for line in rows.texts("sts/sts13")] == ["sts13"]


def test_figure_6_of_consert_has_two_settings_and_all_texts(runner, monkeypatch, tmp_path):
    plan = runner("consert", "bert-base", "--figures", "jsonl")
    (tmp_path / "out/tables").mkdir(parents=True)
    (tmp_path / "out/figures").mkdir()
    values = {"unsupervised,10": 60, "unsupervised,all": 70, "supervised,10": 75}
    records = [
        {"row": row, "task": "avg", "value": value, "sd": None} for row, value in values.items()
    ]
    monkeypatch.setattr(papers.figures, "records_of", lambda runner, name: records)
    monkeypatch.setattr(plan.prepared, "lines", lambda name: ["text"] * 89_192)
    papers.figures.make(plan, "texts")

    label = "average, Spearman x 100"
    drawn = [json.loads(line) for line in (tmp_path / "out/figures/texts.jsonl").open()]
    lines = {row["texts"]: row[label] for row in drawn if row["series"] == "unsupervised"}
    planned = [row.name for _, row in plan.rows_of("texts")]
    assert lines == {10: 60, 89_192: 70}
    counts = ("1", "10", "100", "1000", "10000", "all")
    assert {*planned} == {f"{name},{n}" for name in ("unsupervised", "supervised") for n in counts}


def test_glue_has_the_number_of_its_seeds(runner, tmp_path):
    """BERT with two seeds of one task, SG-OPT without runs."""
    plan = runner("sg-bert", "bert-base", "--seeds", "1,2")
    for seed, accuracy in ((1, 80.0), (2, 82.0)):
        folder = tmp_path / f"out/runs/no-tuning-rte/seed-{seed}"
        folder.mkdir(parents=True)
        folder.with_suffix(".json").write_text(json.dumps({"test": {"accuracy": accuracy}}))
    table = papers.tables.glue(plan, "10")

    assert table.names == ("base", "system", "readout", "seeds")
    assert [line.names[-1] for line in table.lines if line.is_measured] == ["0 to 2", "0"]
    assert table.lines[0].cells[table.columns.index("RTE")] == "81.00 (1.41)"
