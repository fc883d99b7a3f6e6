"""Runs `sentkit train` many times in forked children, stops each at different places, and resumes
it.

python -m training.killing FOLDER CASES -- ARGUMENTS: CASES is JSON, a list of [processes, deaths].
A death, a [function, call, moment], belongs to one run: the n-th call of that function kills the
last process, "before" or "after" it runs or in the "midst" of a write, or sends it a signal, "TERM"
or "INT". The death ["clock", seconds, ""] ends each process after this CPU time, wherever it is.
The same command with --resume follows. Prints, for each case, the exit codes of all processes, the
paths that are left, and a digest of the checkpoint.
"""

import gc
import hashlib
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

import torch

from sentkit import cli
from sentkit.metrics import statistics
from sentkit.model.checkpoint import export
from sentkit.training import catalogue
from sentkit.training.data import dev
from sentkit.training.loop import optimizers, state, trainer
from sentkit.training.runs import checkpoint, command  # noqa: F401
from training.together import fork

os.fsync = os.fstat  # a kill loses nothing of a file that is not on the disk
# A third of the time of a run is the interval.
statistics.resamples_for = lambda pairs, count=20: count
SLOW_IMPORT = 99  # exit code of a run that imported torch._dynamo, which takes a second
PLACES = {
    "fsync": (os, "fsync"),
    "rename": (Path, "replace"),
    "write": (torch, "save"),
    "log": (state.Checkpointer, "write"),
    "judge": (dev.EvaluationRows, "best_score"),
    "optimizer": (optimizers.Adam, "step"),
    "gradient": (trainer, "clip_gradient"),
    "weights": (checkpoint, "write_weights"),
    "json": (export, "write_json"),
    "publish": (Path, "rename"),
    "clean": (checkpoint.shutil, "rmtree"),
}


def dying(function, call, moment):
    counted = 0

    def wrapped(*args, **kwargs):
        nonlocal counted
        counted += 1
        if counted == call and moment == "midst":
            file = args[0].log if isinstance(args[0], state.Checkpointer) else args[1]
            file.write(b"half of it")
            file.flush()
        if counted == call and moment != "after":
            os.kill(os.getpid(), getattr(signal, f"SIG{moment}", signal.SIGKILL))
        result = function(*args, **kwargs)
        if counted == call and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return wrapped


def run_of(arguments, world, death):
    """A process of a run; it ends with the exit code of the run or with SLOW_IMPORT."""
    if death and death[0] == "clock":
        # SIGPROF has no handler: the process ends at once.
        signal.setitimer(signal.ITIMER_PROF, death[1])
    elif death and os.environ["RANK"] == str(world - 1):
        owner, name = PLACES[death[0]]
        setattr(owner, name, dying(getattr(owner, name), death[1], death[2]))
    code = cli.run_command_line(arguments)
    os._exit(SLOW_IMPORT if "torch._dynamo" in sys.modules else code)


def codes_of(arguments, world, death=None):
    """The exit codes of the processes of a run, or minus the signal that ended them."""
    return fork(world, [partial(run_of, arguments, world, death)])


def digest(folder):
    hash_of_files = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = str(path.relative_to(folder))
            hash_of_files.update(name.encode() + path.read_bytes())
    return hash_of_files.hexdigest()


def main():
    folder = Path(sys.argv[1])
    cases = json.loads(sys.argv[2])
    arguments = sys.argv[4:]
    catalogue.load(arguments[1])
    gc.collect()
    gc.freeze()
    for number, (world, deaths) in enumerate(cases):
        case_folder = folder / f"case{number}"
        case_folder.mkdir()
        os.chdir(case_folder)
        codes = []
        flags = ["-o", "out"]
        for death in deaths:
            codes.append(codes_of([*arguments, *flags], world, death))
            flags = ["-o", "out", "--resume"]
        codes.append(codes_of([*arguments, *flags], world))
        names = sorted(path.name for path in case_folder.iterdir())
        sys.stdout.write(
            json.dumps({"codes": codes, "left": names, "digest": digest(case_folder / "out")})
            + "\n"
        )
        sys.stdout.flush()  # without it, each later child prints the line too


if __name__ == "__main__":
    main()
