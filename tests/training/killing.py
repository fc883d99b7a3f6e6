"""Runs `sentkit train` many times in forked children, kills each at a different place, and resumes it.

python killing.py FOLDER CASES -- ARGUMENTS: CASES is JSON, a list of [function, call, moment]. For each, the
n-th call of that function kills the process, "before" or "after" it runs or in the "midst" of a write; the
same command with --resume follows. Prints, for each case, how both ended and a digest of the checkpoint.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import torch

from sentkit import cli
from sentkit.formats.checkpoints import export
from sentkit.formats.outputs import temporary
from sentkit.training.data import dev
from sentkit.training.loop import optimizers, state, trainer
from sentkit.training.runs import run

SLOW_IMPORT = 99  # exit code of a run that imported torch._dynamo, which takes a second
PLACES = {
    "fsync": (os, "fsync"),
    "rename": (Path, "replace"),
    "write": (torch, "save"),
    "judge": (dev.Dev, "score"),
    "optimizer": (optimizers.Adam, "step"),
    "gradient": (trainer, "clip_gradient"),
    "state": (state.Keeper, "save"),
    "best": (state.Keeper, "save_best"),
    "weights": (run, "write_weights"),
    "json": (export, "write_json"),
    "modules": (export, "write_json"),
    "publish": (temporary, "rename_folder"),
    "clean": (run.shutil, "rmtree"),
}


def dying(function, call, moment):
    counted = 0

    def wrapped(*args, **kwargs):
        nonlocal counted
        counted += 1
        if counted == call and moment == "midst":
            args[1].write(b"half of it")
            args[1].flush()
        if counted == call and moment != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        found = function(*args, **kwargs)
        if counted == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return wrapped


def run(arguments, case=None):
    """In a child; its exit code, or minus the signal that ended it, or SLOW_IMPORT."""
    child = os.fork()
    if child == 0:
        if case is not None:
            owner, name = PLACES[case[0]]
            setattr(owner, name, dying(getattr(owner, name), case[1], case[2]))
        code = cli.status(arguments)
        os._exit(SLOW_IMPORT if "torch._dynamo" in sys.modules else code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def digest(folder):
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()


def main():
    folder, cases, arguments = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[4:]
    for number, case in enumerate(cases):
        own = folder / f"case{number}"
        own.mkdir()
        os.chdir(own)
        killed = run([*arguments, "-o", "out"], case) if case else 0
        resumed = run([*arguments, "-o", "out", "--resume"])
        left = sorted(path.name for path in own.iterdir())
        end = {"case": case, "killed": killed, "resumed": resumed, "left": left}
        sys.stdout.write(json.dumps({**end, "digest": digest(own / "out")}) + "\n")


if __name__ == "__main__":
    main()
