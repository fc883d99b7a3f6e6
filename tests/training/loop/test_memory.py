"""A process of training keeps the memory that it has."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, torch
from sentkit.training.loop.processes import CPU, open_processes

# The fields of `struct mallinfo` of glibc.
NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in NAMES]

libc = ctypes.CDLL(None)
libc.mallinfo.restype = Mallinfo

with open_processes(CPU):
    mapped_before = libc.mallinfo().hblkhd
    block = torch.ones(1 << 24)  # 64 MB: glibc maps it and returns it at once by default
    mapped_while_used = libc.mallinfo().hblkhd
    heap_while_used = libc.mallinfo().arena
    del block
    heap_afterwards = libc.mallinfo().arena
    print(mapped_while_used - mapped_before, heap_while_used, heap_afterwards)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is a function of glibc")
def test_large_blocks_are_not_returned_to_the_system():
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    mapped, heap_while_used, heap_afterwards = map(int, completed.stdout.split())

    assert mapped < 1 << 26  # the block is a part of the heap
    assert heap_while_used >= 1 << 26
    assert heap_afterwards == heap_while_used  # and the heap does not shrink
