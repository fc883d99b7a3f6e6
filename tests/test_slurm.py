"""The scripts of examples/slurm run where there is no Slurm."""

import os
import re

import pytest

from support import ROOT, write_script

SLURM = ROOT / "examples/slurm"


def test_the_scripts_run_with_stand_ins_for_slurm(execute, tmp_path):
    result = execute(["sh", str(SLURM / "check.sh")], tmp_path)

    assert result.returncode == 0, result.stderr
    steps = result.stdout.splitlines()
    assert [step for step in steps if not step.startswith("ok: ")] == []
    for script in SLURM.glob("*.sbatch"):
        assert f"ok: the syntax of {script.name}" in steps
    assert len(steps) == len([*SLURM.glob("*.sbatch")]) + 6
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["papers", "sweep"])
def test_a_task_without_a_line_runs_nothing(execute, tmp_path, name):
    """The second task of a list with one run."""
    (tmp_path / "runs.txt").write_text("--only no-tuning\n")
    write_script(tmp_path / "srun", f'echo "$@" >>{tmp_path}/commands')
    command = ["sh", str(SLURM / f"{name}.sbatch"), "runs.txt", "sg-bert"]
    variables = {"SLURM_CPUS_PER_TASK": "1", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    first = execute(command, tmp_path, SLURM_ARRAY_TASK_ID="1", **variables)
    second = execute(command, tmp_path, SLURM_ARRAY_TASK_ID="2", **variables)

    assert (first.returncode, second.returncode) == (0, 2)
    assert second.stderr.startswith(f"{name}.sbatch: runs.txt has no line 2; ")
    assert (tmp_path / "commands").read_text().count("\n") == 1


def test_a_script_with_a_wrong_line_is_found(execute, tmp_path):
    for path in SLURM.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    broken = tmp_path / "train.sbatch"
    broken.write_text(broken.read_text() + "if true\n")

    result = execute(["sh", str(tmp_path / "check.sh")], tmp_path)

    assert result.returncode != 0
    assert re.search(r"train\.sbatch.*syntax error", result.stderr)
