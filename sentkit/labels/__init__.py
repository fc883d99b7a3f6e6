"""Takes vectors and returns labels: clusters and predicted classes."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Watch:
    begin: Callable[[int], None] = lambda count: None  # adds tasks to the total
    done: Callable[[], None] = lambda: None  # reports one finished task
    # surrounds a slow task
    slow: Callable[[str], AbstractContextManager[None]] = lambda task: nullcontext()


UNWATCHED = Watch()
