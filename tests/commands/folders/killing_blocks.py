"""Runs `sentkit encode -o killed/` in forked children that kill themselves, then finishes the folder.

The file cases.json is a list of [function, call, moment, shard, shards]: the n-th call of the function kills
the process before it runs (moment 1) or after (2). Prints how each child ended.
"""

import json
import os
import signal
import sys
from pathlib import Path

from sentkit import cli
from sentkit.formats.vectors import vector_file
from sentkit.model.blocks import BlockWriter  # noqa: F401, so that the children do not import it

os.fsync = os.fstat  # a kill loses nothing of a file that is not on the disk
PLACES = {
    "fsync": (os, "fsync"),
    "replace": (Path, "replace"),
    "link": (os, "link"),
    "write": (vector_file.VectorFileWriter, "write"),
    "finish": (vector_file.VectorFileWriter, "finish"),
}
FLAGS = ["-m", "words.txt", "-q", "--block-bytes", "200"]
COMMAND = ["encode", "corpus.jsonl", *FLAGS, "-o", "killed/", "--resume"]


def dying(function, call, moment):
    counted = 0

    def wrapped(*args, **kwargs):
        nonlocal counted
        counted += 1
        if counted == call and moment == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if counted == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return wrapped


def run(arguments, case=None):
    child = os.fork()
    if child == 0:
        if case is not None:
            owner, name = PLACES[case[0]]
            setattr(owner, name, dying(getattr(owner, name), *case[1:3]))
        os._exit(cli.status(arguments))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main():
    ends = []
    for case in json.loads(Path("cases.json").read_text()):
        shard, count = case[3:]
        ends.append(run([*COMMAND, "--shard", f"{min(shard, count)}/{count}"], case))
        blocks = sorted(Path("killed").glob("0*"))
        if len(blocks) > 5:  # so that the next children have work
            for path in blocks[::2]:
                path.unlink()
    ends.append(run(COMMAND))
    sys.stdout.write(json.dumps(ends))
    sys.exit(ends[-1])


main()
