"""The script that writes the tables of tests/benchmarks/README.md."""

import json
import re
import sys

import pytest

from support import ROOT, TEXTS, load_script

FOLDER = ROOT / "tests/benchmarks"
README = (FOLDER / "README.md").read_text()


def test_every_script_has_its_lines_in_the_document():
    names = [name for name in re.findall("<!-- (.*) -->", README) if name != "end"]

    scripts = load_script(FOLDER / "run.py").scripts("texts", "test", "dev", "folder", "static")
    assert sorted(scripts) == sorted(names)


def test_only_the_lines_of_one_script_are_replaced():
    text = "A\n<!-- one -->\n\nold\n\n<!-- end -->\nB\n<!-- two -->\n<!-- end -->\nC\n"

    with_block = load_script(FOLDER / "run.py").with_block
    first = with_block(text, "one", "new\n")
    two_blocks = with_block(first, "two", "| other |\n")

    assert first == "A\n<!-- one -->\n\nnew\n\n<!-- end -->\nB\n<!-- two -->\n<!-- end -->\nC\n"
    assert two_blocks == first.replace("<!-- two -->\n", "<!-- two -->\n\n| other |\n\n")


EXAMPLES = ROOT / "examples"
# They need a package that is not installed for the tests.
FOREIGN = {EXAMPLES / f"{name}.py" for name in ("dask_bag", "mteb_task", "ray_data", "spark")}
MODULES = {FOLDER / f"{name}.py" for name in ("peers", "timing", "usage")}
SCRIPTS = sorted({*FOLDER.glob("*.py"), *EXAMPLES.glob("*.py")} - FOREIGN - MODULES)
NEED_NOTHING = ("classifiers", "clusters", "memory", "pairs", "processes", "referee", "search")
# All scripts in one process, so that large libraries are imported once.
RUN_ALL = """
import contextlib, io, json, runpy, sys

paths = json.loads(sys.argv[1])
arguments = sys.argv[2:]
for path in paths:
    sys.argv = [path, *arguments]
    sys.path[0] = path.rpartition("/")[0]
    printed = io.StringIO()
    code = None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as error:
            code = error.code
    print(json.dumps([code, printed.getvalue()]))
"""


@pytest.fixture
def outputs_of(execute, tmp_path):
    """By script: its exit code, and what it prints with these arguments. None writes a file."""

    def run(scripts, *arguments):
        paths = json.dumps([str(script) for script in scripts])
        command = [sys.executable, "-c", RUN_ALL, paths, *arguments]
        done = execute(command, tmp_path, PYTHONPATH=str(ROOT))
        assert not done.returncode, done.stderr
        assert not [*tmp_path.iterdir()]
        return dict(zip(scripts, map(json.loads, done.stdout.splitlines()), strict=True))

    return run


def test_every_script_describes_itself(outputs_of):
    """The exit code is 0, or that of a wrong command line after the usage alone."""
    outputs = outputs_of(SCRIPTS, "-h")
    undescribed = [
        path for path, (code, text) in outputs.items() if path.name not in f"{code}{text}"
    ]

    assert len(outputs) > 30
    assert undescribed == []
    assert all(code == 0 for path, (code, _) in outputs.items() if path.parent == FOLDER)
    assert (FOLDER / "README.md").read_text() == README


def test_missing_arguments_are_wrong_usage(outputs_of):
    scripts = [
        script for script in SCRIPTS if script.parent == FOLDER and script.stem not in NEED_NOTHING
    ]
    assert {code for code, _ in outputs_of(scripts).values()} == {2}


def test_a_missing_file_of_texts_changes_no_table(outputs_of):
    [(code, printed)] = outputs_of([FOLDER / "run.py"], "missing.txt").values()

    assert code == 2
    assert printed.endswith("run.py: error: missing.txt: no such file\n")
    assert (FOLDER / "README.md").read_text() == README


def test_searches_on_a_device_run_on_a_cpu(execute, tmp_path):
    small = ["--device", "cpu", "--rows", "3000", "--width", "16", "--queries", "30"]
    lines = execute(["python3", FOLDER / "search.py", *small], tmp_path).stdout.splitlines()

    assert sum(line.startswith("| ") for line in lines) == 4
    assert lines[-1] == "rows in the same place as in float64: 100.00%; equal in all searches: True"


@pytest.mark.slow
def test_the_script_for_a_gpu_runs_on_a_cpu(tmp_path):
    small = ["--device", "cpu", "--size", "tiny", "--count", "24", "--length", "8", "--batch", "4"]
    small += ["--rounds", "1"]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS * 3))
    run = load_script(FOLDER / "run.py").output_of
    path = str(tmp_path / "texts.txt")
    output = run("gpu", "1", path, *small, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    lines = output.splitlines()
    first = {line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")}

    assert first > {
        *(
            "sentkit: texts to vectors",
            "`train simcse`, bf16, 4 x 8",
            "`train sg-bert`, bf16, 4 x 8",
        ),
        "plain loop of transformers, bf16, 4 x 8",
    }
    assert [line for line in lines if " operations take " in line][1].startswith(
        "train simcse, 6 steps of 4 x 8: "
    )
