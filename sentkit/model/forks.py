"""Locks that a fork waits for, so that a forked child can use the objects of its parent.

A fork copies only the thread that calls it. A lock that another thread holds would stay locked in
the child for ever, and what it protects half done. `multiprocessing`, gunicorn and the DataLoader
of PyTorch fork.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock, local
from types import TracebackType
from weakref import WeakSet

# A thread that holds a lock takes only locks of later levels. A fork takes them in the same order.
LOADING, PREPARING, WORKING = range(3)


class ForkLock:
    """A lock that is free in a forked child, or held by the thread that forked."""

    def __init__(self, level: int) -> None:
        self.level = level
        self._lock = RLock()
        with _registering:
            _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()


_registering = RLock()
_locks: WeakSet[ForkLock] = WeakSet()
_held_for_fork: list[ForkLock] = []
_of_thread = local()


@contextmanager
def without_fork() -> Iterator[None]:
    """A fork by another thread waits until this context ends. Do not wait for another thread in it.

    Libraries have their own locks: that of the kernels of oneDNN, and those of tokenizers.
    """
    if not hasattr(_of_thread, "lock"):
        _of_thread.lock = ForkLock(WORKING)
    with _of_thread.lock:
        yield


def _hold_all() -> None:
    """Before a fork: take every lock, and let no thread make another one."""
    while True:
        with _registering:
            locks = sorted(_locks, key=lambda lock: lock.level)
        for lock in locks:
            lock.__enter__()
        _registering.acquire()
        if len(_locks) <= len(locks):
            _held_for_fork.extend(locks)
            return
        _registering.release()
        _release(locks)


def _release_all() -> None:
    _release(_held_for_fork)
    _held_for_fork.clear()
    _registering.release()


def _release(locks: list[ForkLock]) -> None:
    for lock in reversed(locks):
        lock.__exit__(None, None, None)


def _start_child() -> None:
    _release_all()
    # The child has none of the threads of this library, which would warn of it, or wait for them.
    if "tokenizers" in sys.modules:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_start_child)
