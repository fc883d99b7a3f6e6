"""A vector folder whose processes were killed any number of times has the bytes of an undisturbed
run.
"""

import gzip
import itertools
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from sentkit import cli
from sentkit.formats.vectors.file_writer import VectorFileWriter
from sentkit.model.runs import folder_writer
from support import contents

KILLS = 2  # of a history, or more
FAILPOINTS = [
    (os, "fsync"),
    (os, "link"),
    (Path, "replace"),
    (VectorFileWriter, "write"),
    (VectorFileWriter, "finish"),
    (folder_writer, "copy_block"),
    (folder_writer, "create_folder"),
]
HISTORIES = ("plain", "shards", "reuse", "two writers")
TEXTS = ["the cat", "a dog runs .", "cat cat dog", "the", "dog runs the cat runs", ""]


def kill_at(function, call, *, before):
    """The function, of which one call kills the process before or after it runs."""
    calls = itertools.count(1)

    def wrapped(*args, **kwargs):
        is_last = next(calls) == call
        if is_last and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return wrapped


def start(command, death=None):
    """The process of a command in a fork of this one. `death` is a failpoint, the call and its
    moment.
    """
    child = os.fork()
    if child == 0:
        if death is not None:
            (owner, name), call, before = death
            setattr(owner, name, kill_at(getattr(owner, name), call, before=before))
        os._exit(cli.run_command_line(command))
    return child


def exit_code(child):
    """That of a process, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def write_inputs(draw):
    """The rows are lines of a file, which bytes divide, and a stream, whose number of blocks is
    unknown.
    """
    rows = [json.dumps({"id": number, "text": draw.choice(TEXTS)}) + "\n" for number in range(90)]
    Path("a.jsonl").write_text("".join(rows[:40]))
    stream = "".join(rows[40:60]).encode()
    Path("b.jsonl.gz").write_bytes(gzip.compress(stream))
    Path("old.jsonl").write_text("".join(rows[60:]))
    return ["old.jsonl", "a.jsonl", "b.jsonl.gz"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_a_history_with_kills_ends_in_the_bytes_of_an_undisturbed_run(sentkit, words, seed):
    draw = random.Random(seed)
    history = HISTORIES[seed % len(HISTORIES)]
    files = write_inputs(draw)
    command = ["encode", *files, "-m", words, "-q", "--block-bytes", "200"]
    assert sentkit(*command, "-o", "whole/").code == 0
    if history == "reuse":
        assert sentkit("encode", *files[:2], *command[4:], "-o", "old/").code == 0
        command += ["--reuse", "old"]
    command += ["-o", "killed/", "--resume"]
    codes = []

    while codes.count(-signal.SIGKILL) < KILLS:
        assert len(codes) < 200
        children = []
        for writer in range(2 if history == "two writers" else 1):
            shard = []
            if history == "shards" or (history == "two writers" and draw.random() < 0.5):
                count = draw.randint(1, 5)
                shard = ["--shard", f"{draw.randint(1, count)}/{count}"]
            death = (draw.choice(FAILPOINTS), draw.randint(1, 9), draw.random() < 0.5)
            children.append(
                start(command + shard, death if writer == 0 or draw.random() < 0.5 else None)
            )
        if draw.random() < 0.3:  # at any moment, not only at a failpoint
            time.sleep(draw.uniform(0, 0.3))
            os.kill(children[0], signal.SIGKILL)
        codes += map(exit_code, children)
        complete = sorted(Path("killed").glob("0*"))
        if len(complete) > 12:  # so that the next processes have work
            for path in complete[::2]:
                path.unlink()

    assert exit_code(start(command)) == 0
    assert {*codes} <= {0, -signal.SIGKILL}
    assert contents(Path("killed")) == contents(Path("whole"))
    assert sentkit("check", "killed", "--deep").code == 0
