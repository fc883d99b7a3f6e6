"""How a command follows work that takes long."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Watch:
    begin: Callable[[int], None] = lambda of: None  # more tasks are known
    done: Callable[[], None] = lambda: None  # one of them is done
    slow: Callable[[str], AbstractContextManager[None]] = lambda what: nullcontext()  # around a slow task


UNWATCHED = Watch()
