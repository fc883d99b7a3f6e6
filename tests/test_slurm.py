"""The scripts of examples/slurm run where there is no Slurm."""

import re

from support import ROOT

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


def test_a_script_with_a_wrong_line_is_found(execute, tmp_path):
    for path in SLURM.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    broken = tmp_path / "train.sbatch"
    broken.write_text(broken.read_text() + "if true\n")

    result = execute(["sh", str(tmp_path / "check.sh")], tmp_path)

    assert result.returncode != 0
    assert re.search(r"train\.sbatch.*syntax error", result.stderr)
