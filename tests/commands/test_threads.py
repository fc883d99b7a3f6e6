"""The number of threads: SENTKIT_THREADS, `--threads`, or the CPUs that the process may use."""

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sentkit import cli, process
from sentkit.process import THREAD_VARIABLES, cgroup_quota, usable_cpus

# At its end the program reports the largest pool of a BLAS or of OpenMP, and the threads of torch.
PROGRAM = """
import os, sys
from sentkit import cli, process
def leave(code):
    from threadpoolctl import threadpool_info
    sizes = [pool["num_threads"] for pool in threadpool_info()]
    torch = sys.modules.get("torch")
    sizes += [torch.get_num_threads()] if torch else []
    sys.stderr.write(f"\\nTHREADS {max(sizes)} {len(os.listdir('/proc/self/task'))}\\n")
    sys.stderr.flush()
    os._exit(code)
cli.exit_immediately = leave
cli.main()
"""
COMMANDS = (("encode",), ("cluster", "v.jsonl", "-k", "2"))
several_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one core: no pool has two threads"
)


LINES = "".join(f"{word} {n}\n" for n in range(40) for word in ("cat", "sea"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the inputs of these commands."""
    folder = tmp_path_factory.mktemp("threads")
    (folder / "lines.txt").write_text(LINES)
    lines, vectors = (str(folder / name) for name in ("lines.txt", "v.jsonl"))
    assert cli.run_command_line(["encode", "-q", lines, "-o", vectors]) == 0
    return folder


@pytest.fixture
def threads(folder):
    """The largest pool that a command leaves, run as a process with these variables; and all its
    threads.
    """

    def run(*arguments, **variables):
        unset = (*THREAD_VARIABLES, "SENTKIT_THREADS")
        bare = {name: value for name, value in os.environ.items() if name not in unset}
        completed = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            input=LINES.encode(),
            capture_output=True,
            check=False,
            cwd=folder,
            env=bare | variables,
        )
        assert completed.returncode == 0, completed.stderr
        numbers = completed.stderr.decode().rpartition("THREADS ")[2].split()
        return int(numbers[0]), int(numbers[1])

    return run


ONE = {"SENTKIT_THREADS": "1", "OMP_NUM_THREADS": "8"}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_one_thread_is_one_everywhere(threads, command):
    """Also where the environment of other programs allows more, so that many processes share a
    machine.

    The process has a thread that computes, one that reads ahead, and what Python itself starts: the
    tokenizer starts no further ones.
    """
    pool, tasks = threads(*command, **ONE)

    assert pool == 1
    assert command[0] != "encode" or tasks <= 3


@several_cores
def test_the_environment_decides_without_the_flag(threads):
    score = ("score", "v.jsonl", "--top", "2")
    assert threads(*score, SENTKIT_THREADS="2", OMP_NUM_THREADS="1")[0] == 2
    assert threads(*score, OMP_NUM_THREADS="1")[0] == 1
    assert threads(*score, OMP_NUM_THREADS="2")[0] == 2


@pytest.mark.usefixtures("with_torch")
def test_encode_computes_a_batch_in_each_thread(sentkit, monkeypatch):
    """Two batches meet, and torch has one thread: no thread waits for another one within a
    layer.
    """
    import torch

    from sentkit.model.transformer.encoder import TransformerEncoder

    start = TransformerEncoder._start
    meeting = threading.Barrier(2)

    def meet(self, batch):
        meeting.wait(60)
        return start(self, batch)

    monkeypatch.setattr(TransformerEncoder, "_start", meet)
    Path("texts.txt").write_text("".join(f"{'cat ' * n}\n" for n in (1, 2, 3, 4)))
    result = sentkit("encode", "texts.txt", "-q", "--threads", 2, "--batch-tokens", 1)

    assert (result.code, torch.get_num_threads()) == (0, 1), result.err


def test_a_process_that_may_use_one_cpu_has_one_thread(threads):
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert threads("score", "v.jsonl", "--top", "2")[0] == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 16),
        ({"SLURM_CPUS_PER_TASK": "3"}, 3),
        ({"SLURM_CPUS_PER_TASK": "99"}, 16),  # the mask of the process is smaller
        ({"LOCAL_WORLD_SIZE": "5"}, 3),  # processes of torchrun share the CPUs
        ({"LOCAL_WORLD_SIZE": "50"}, 1),
        ({"SLURM_CPUS_PER_TASK": "8(x2)", "LOCAL_WORLD_SIZE": ""}, 16),
    ],
)
def test_the_cpus_of_a_task(monkeypatch, variables, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.setattr(process, "cgroup_quota", lambda: math.inf)
    for name in ("SLURM_CPUS_PER_TASK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert usable_cpus() == count

    monkeypatch.setattr(process, "cgroup_quota", lambda: 1.5)
    assert usable_cpus() == (
        2 if count > 2 and "LOCAL_WORLD_SIZE" not in variables else usable_cpus()
    )


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "250000 100000"}, 2.5),
        ({"cpu.max": "max 100000"}, math.inf),
        ({}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
    ],
)
def test_the_quota_of_the_container(tmp_path, files, quota):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")

    assert cgroup_quota(str(tmp_path)) == quota


@pytest.mark.usefixtures("with_torch")
@pytest.mark.parametrize("output", ["v.safetensors", "v/"])
def test_vectors_do_not_depend_on_the_number_of_threads(sentkit, output):
    """Blocks, batches and threads: 100 texts of 1 to 40 words, in the groups of 32, 128 ...
    rows.
    """
    texts = "".join(f"{'cat ' * (1 + n * 7 % 40)}{n}\n" for n in range(100))
    Path("texts.txt").write_text(texts)
    written = []
    for count in (1, 3):
        path = Path(f"{count}{output}")
        flags = ("--threads", count, "--batch-tokens", 500, "-q")
        result = sentkit("encode", "texts.txt", "-o", f"{count}{output}", *flags)
        assert (result.code, result.err) == (0, "")
        files = sorted(path.glob("*.safetensors")) or [path]
        written.append(b"".join(file.read_bytes() for file in files))
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("flags", "recorded", "used"), [((), 3, 3), ((), 4096, 4), (("--threads", 1), 3, 1)]
)
def test_a_vector_folder_keeps_its_number_of_threads(sentkit, monkeypatch, flags, recorded, used):
    """It has one if the vectors depend on it: for a model that runs through transformers.

    A number of a larger machine becomes the largest one.
    """
    monkeypatch.setattr(process, "usable_cpus", lambda: 1)
    command = ("encode", "-q", "texts.txt", "-o", "v/")
    Path("texts.txt").write_text("a cat\n")
    assert sentkit(*command).code == 0
    run = json.loads(Path("v/run.json").read_text())
    run["encoder"]["threads"] = recorded
    Path("v/run.json").write_text(json.dumps(run))
    result = sentkit(*command, "--resume", *flags)

    assert (result.code, result.err, process.threads_of_command()) == (0, "", used)


def test_a_training_has_the_threads_of_its_command(monkeypatch):
    """The flag, the resumed run, SENTKIT_THREADS, OMP_NUM_THREADS, all CPUs: in this order."""
    from sentkit.training.loop import processes

    monkeypatch.setattr(process, "_threads", None)  # each is restored
    monkeypatch.setattr(process.os, "environ", {**os.environ, "OMP_NUM_THREADS": "1"})
    monkeypatch.delitem(process.os.environ, "SENTKIT_THREADS", raising=False)
    numbers = []
    monkeypatch.setattr(processes.torch, "set_num_threads", numbers.append)
    monkeypatch.setattr(processes, "usable_cpus", lambda: 3)

    process.limit_threads()
    processes.use_threads(None, {})
    process.os.environ["SENTKIT_THREADS"] = "2"
    process.limit_threads()
    processes.use_threads(None, {})
    processes.use_threads(None, {"threads": 3})
    processes.use_threads(4, {"threads": 3})

    assert numbers == [1, 2, 3, 4]
