"""The process: its standard streams, threads, signals and end. Imports little more than Python has
loaded.
"""

import contextlib
import io
import math
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from sentkit.errors import SentkitError, UsageError

STDIN, STDOUT, STDERR = 0, 1, 2
AGAIN = 0.01  # seconds
PAUSE = 0.05  # the same, between two looks for a signal
UNWINDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPING = (*UNWINDING, signal.SIGUSR1, signal.SIGUSR2)  # after a step of a training, or a block
RESUME = "the same command with --resume continues"
# The variables of OpenMP (torch, scikit-learn) and of the BLAS of numpy and torch.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # of CUDA, of CUDA in Windows, of ROCm

_threads: int | None = None  # of this command; None in a Python program that imports sentkit
_received = signal.SIGTERM  # the signal that SIGALRM repeats
_raised: signal.Signals | None = None  # the signal that raised an exception in this command


class LossyStderr(io.FileIO):
    """Standard error that never fails: text for a full disk or a closed pipe is discarded."""

    def write(self, data: object) -> int:
        with contextlib.suppress(OSError):
            return super().write(data) or 0  # type: ignore[arg-type]
        return memoryview(data).nbytes  # type: ignore[arg-type]


def prepare() -> None:
    """Prepare signals and streams. Call this before slow imports and before any file is opened."""
    if heeded(signal.SIGINT):
        signal.signal(signal.SIGINT, leave_at_once)
    # A closed standard stream gets a substitute, or else the next opened file gets its number, and
    # messages are written into it. Standard input cannot be read, and standard output cannot be
    # written. Python has set `sys.stdin` or `sys.stdout` to None, so a command still detects the
    # closed stream.
    for number, access in ((STDIN, os.O_WRONLY), (STDOUT, os.O_RDONLY), (STDERR, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, access)  # os.open uses the lowest free number, which is this one
            os.set_inheritable(number, True)
    stream = io.BufferedWriter(LossyStderr(STDERR, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(stream, errors="backslashreplace", line_buffering=True)
    # sentkit refuses or reports results that are not finite or did not converge
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", category=RuntimeWarning)  # of floating-point numbers
        warnings.filterwarnings("ignore", module=r"(numpy|scipy|sklearn|sentkit)\b")


def typed_words() -> list[str]:
    """The words of the command line after `sentkit`."""
    return sys.argv[1:]


def heeded(number: int) -> bool:
    """True unless the parent process ignores the signal, as `nohup` and background jobs of a shell
    do.
    """
    return signal.getsignal(number) is not signal.SIG_IGN


def leave_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Exit without cleanup: no command runs yet."""
    with contextlib.suppress(OSError):
        os.write(STDERR, b"sentkit: stopped by Ctrl-C\n")
    os._exit(128 + number)


def unwind_on_signals() -> None:
    """Let signals raise exceptions from now on, so that temporary files are removed."""
    global _raised
    _raised = None
    for number in UNWINDING:
        if heeded(number):
            signal.signal(number, unwind)
    signal.signal(signal.SIGALRM, unwind)


def unwind(number: int, frame: FrameType | None) -> None:
    """Raise, except within an import: an import may then half succeed, so try again later."""
    global _received, _raised
    if number != signal.SIGALRM:
        _received = signal.Signals(number)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        frame = frame.f_back
    _raised = _received
    if _received == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + _received)


def raised_signal() -> signal.Signals | None:
    """The signal that raised an exception. A library in C can replace this exception by another
    one.
    """
    return _raised


def is_first_process() -> bool:
    """Of the processes that train together, only the first one writes and prints.

    A process alone is the first one, whatever a launcher of other programs has set.
    """
    is_alone = os.environ.get("WORLD_SIZE", "1") == "1"
    return is_alone or os.environ.get("RANK", "0") == "0"


def is_stopped_within(seconds: float) -> bool:
    """Wait for a signal. A launcher sends one to all processes after the end of the first one."""
    received: list[int] = []
    for number in UNWINDING:
        if heeded(number):
            signal.signal(number, lambda number, frame: received.append(number))
    end = time.monotonic() + seconds
    while not received and time.monotonic() < end:
        time.sleep(PAUSE)
    return bool(received)


def limit_threads(requested: int | None = None, *, of_libraries: int | None = None) -> None:
    """Set the number of threads of this command; without a number, from the environment.

    `of_libraries` is the number for one operation of numpy or torch, by default the same.
    Call this before importing numpy, torch or tokenizers: they read the variables once.
    """
    global _threads
    # the first of nested regions
    nested = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    openmp = int(nested) if nested.isdecimal() else 0
    check_threads("--threads", requested)
    _threads = requested or threads_of_environment() or min(openmp, most_threads()) or usable_cpus()
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(of_libraries or _threads)))
    os.environ["RAYON_NUM_THREADS"] = str(_threads)  # of the tokenizers
    # Waiting threads of OpenMP sleep: beside other work, a loop takes the CPU from the thread that
    # works.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def threads_of_command() -> int | None:
    """Return the number of threads of this command, or None."""
    return _threads


def version_of(package: str) -> str:
    """Return the version of a package; a checkout on PYTHONPATH has no record of it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package) or "unknown"
    except PackageNotFoundError:
        return "unknown"


def threads_of_environment() -> int | None:
    """Return the value of SENTKIT_THREADS; None if it is unset or empty."""
    value = os.environ.get("SENTKIT_THREADS")
    if not value:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(
            f'the variable SENTKIT_THREADS is "{value}", expected a whole number of 1 or more'
        )
    check_threads("the variable SENTKIT_THREADS", int(value))
    return int(value)


def most_threads() -> int:
    """More threads than a few for each CPU only wait for each other, and a signal waits for their
    start.
    """
    return 4 * usable_cpus()


def check_threads(name: str, count: int | None) -> None:
    if count is not None and count > most_threads():
        problem = (
            f"{name} is {count}, at most {most_threads()}: four for each CPU that this "
            f"process may use"
        )
        raise UsageError(problem)


def precision_of_environment() -> str | None:
    """Return the value of SENTKIT_PRECISION, the choice of auto; None if it is unset or empty."""
    value = os.environ.get("SENTKIT_PRECISION") or None
    if value not in (None, "fp32", "bf16"):
        raise UsageError(f'the variable SENTKIT_PRECISION is "{value}", expected fp32 or bf16')
    return value


def may_have_gpu() -> bool:
    """False if torch certainly finds no GPU. Does not import it."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(map(os.path.exists, GPU_FILES))


def usable_cpus() -> int:
    """Return how many CPUs this process may use; processes of torchrun on one machine share
    them.
    """
    limits = [len(os.sched_getaffinity(0)), cgroup_quota()]
    cpus_per_task = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if cpus_per_task.isdecimal():
        limits.append(int(cpus_per_task))
    processes = 1
    local_processes = os.environ.get("LOCAL_WORLD_SIZE", "")
    if local_processes.isdecimal():
        processes = max(1, int(local_processes))
    return max(1, math.ceil(min(limits)) // processes)


def cgroup_quota(root: str = "/sys/fs/cgroup") -> float:
    """Return the CPU quota of the container of this process; infinity without a quota."""
    # Version 2: quota or "max", and period. Version 1: -1 without a quota.
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with contextlib.suppress(OSError):
            texts = [Path(root, name).read_text() for name in names]
            limits = " ".join(texts).split()
            if len(limits) == 2 and all(map(str.isdecimal, limits)):
                return int(limits[0]) / int(limits[1])
    return math.inf


@contextlib.contextmanager
def without_signals() -> Iterator[None]:
    """Ignore signals for a moment. After it, they end the process at once, because flushing can
    block.
    """
    heard = [number for number in (*UNWINDING, signal.SIGALRM) if heeded(number)]
    for number in heard:
        signal.signal(number, signal.SIG_IGN)
    yield
    for number in heard:
        signal.signal(number, signal.SIG_DFL)


def exit_immediately(code: int) -> NoReturn:
    """Exit immediately: a thread may still wait for input."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe is not an error
            if stream is not None:
                stream.flush()
    os._exit(code)


class Stopped(SentkitError):
    """Stopped by a signal, after saving."""

    exit_code = 75


class Interrupted(BaseException):
    """A requested stop in a loop without a state to save. Handlers of an Exception must not catch
    it.
    """


class Stop:
    """A requested stop after the current step of a training, or block of a vector folder."""

    def __init__(
        self, notice: Callable[[], None] = lambda: None, grace: float | None = None
    ) -> None:
        self.notice = notice
        self.grace = grace  # seconds from the request to an interruption; None: no limit
        self.requested = False
        self.received: int | None = None  # the first signal
        # raise in the signal handler, because a blocked read does not poll
        self.interrupting = False
        self.interrupts = 0  # number of Ctrl-C signals

    def poll(self) -> None:
        if self.requested:
            raise Interrupted

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """A signal inside this context stops the command at once, because there is no state to save
        yet.
        """
        try:
            self.poll()
            self.interrupting = True
            yield
        except Interrupted as error:
            advice = "to train, run the same command with --resume"
            raise Stopped("stopped before training began", advice=advice) from error
        finally:
            self.interrupting = False

    def request(self, number: int, frame: FrameType | None) -> None:
        """Process a signal."""
        self.requested = True
        if self.received is None:
            self.received = number
        if number == signal.SIGINT:
            self.interrupts += 1
            if self.interrupts > 1:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # a third one kills the process
                raise KeyboardInterrupt
        if self.interrupting or number == signal.SIGALRM:
            raise Interrupted
        if self.grace is not None:
            signal.setitimer(signal.ITIMER_REAL, self.grace)
        if number == signal.SIGINT:
            self.notice()


@contextlib.contextmanager
def handle_signals(
    notice: Callable[[], None] = lambda: None, grace: float | None = None
) -> Iterator[Stop]:
    """Signals inside this context request a stop. `notice` reports the first Ctrl-C; a second one
    exits.

    If the context does not end within `grace` seconds, it is interrupted. Signals that the parent
    process ignores stay ignored.
    """
    stop = Stop(notice, grace)
    signals = STOPPING if grace is None else (*STOPPING, signal.SIGALRM)
    before = {number: signal.signal(number, stop.request) for number in signals if heeded(number)}
    try:
        yield stop
    finally:
        if grace is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, previous in before.items():
            signal.signal(number, previous)
