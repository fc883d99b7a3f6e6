"""The script that writes the tables of tests/benchmarks/README.md."""

import re

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
