"""The memory that a step frees is used by the next one."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from sentkit.training.loop.processes import CPU, open_processes

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

with open_processes(CPU):
    for _ in range(8):
        torch.ones(1 << 24)  # 64 MB: glibc returns it at once by default
    before = faults()
    for _ in range(5):
        torch.ones(1 << 24)
    print(faults() - before, resource.getpagesize())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is a function of glibc")
def test_large_blocks_are_not_returned_to_the_system():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    faults, page = map(int, done.stdout.split())

    assert faults < 2 * (1 << 26) / page  # not those of five blocks
