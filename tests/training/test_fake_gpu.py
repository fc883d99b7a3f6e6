"""Encoding, searches and methods keep their tensors on the GPU. It is not real; see `fake_gpu.py`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sentkit.training.catalogue import METHODS
from support import ROOT


@pytest.fixture(scope="module")
def guard(tmp_path_factory):
    """The device as a library."""
    torch_folder, library = Path(torch.__file__).parent, tmp_path_factory.mktemp("guard") / "guard.so"
    command = ["g++", "-std=c++20", "-fPIC", "-shared", str(ROOT / "tests/fake_gpu.cpp"), "-o", str(library)]
    command += [f"-I{torch_folder}/include", f"-L{torch_folder}/lib", "-lc10"]
    subprocess.run(command, check=True, timeout=300)
    return library


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler of C++")
def test_no_operation_has_tensors_of_two_devices(guard, base_folder, tmp_path):
    script = Path(__file__).with_name("fake_gpu.py")
    done = subprocess.run(
        [sys.executable, str(script), str(guard), str(base_folder), str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=1200, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-2000:]
    assert {
        line.split()[1] for line in done.stdout.splitlines() if line.startswith("train")
    } == METHODS.keys()
