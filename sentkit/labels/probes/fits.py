"""Fits of a classifier: what one learns from and is tested on, and many of them in order."""

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from sentkit.labels.probes.examples import Codes, Features

Places = NDArray[np.intp]  # of rows


@dataclass(frozen=True, slots=True)
class Data:
    """All rows there are, of whatever file."""

    features: Features  # (n, d)
    codes: Codes
    classes: int


@dataclass(frozen=True, slots=True)
class Fit:
    train: Places
    test: Places
    penalty: float
    dev: Places | None = None  # what tells a network when to stop; without, it holds out some of `train`


@dataclass(frozen=True, slots=True)
class Outcome:
    predicted: Codes  # of the rows of `test`
    right: float  # the share of them that is
    finished: bool = True  # it converged


Head = Callable[[Data, Fit], Outcome]


def outcome(data: Data, fit: Fit, predicted: Codes) -> Outcome:
    return Outcome(predicted, float(np.mean(predicted == data.codes[fit.test])))


def in_order(work: Callable[[Fit], Outcome], fits: Iterable[Fit], jobs: int) -> Iterator[Outcome]:
    """The outcomes in the order of the fits, which are the same for any number of jobs.

    Each fit multiplies on one thread: how many there are would decide how sums are rounded.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), heeding_warnings(work) as heeded:
        if jobs == 1:
            yield from map(heeded, fits)
            return
        pool = ThreadPoolExecutor(jobs)
        try:
            yield from pool.map(heeded, fits)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # nobody waits for them after Ctrl-C


@contextmanager
def heeding_warnings(work: Callable[[Fit], Outcome]) -> Iterator[Callable[[Fit], Outcome]]:
    """The work, with outcomes that say whether scikit-learn found that a fit did not converge."""
    from sklearn.exceptions import ConvergenceWarning

    fit = threading.local()  # a warning is shown by the thread that makes the fit

    def heeded(asked: Fit) -> Outcome:
        fit.warned = False
        found = work(asked)
        return replace(found, finished=found.finished and not fit.warned)

    with warnings.catch_warnings():
        warnings.simplefilter("always", ConvergenceWarning)
        show = warnings.showwarning

        def heed(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, ConvergenceWarning):
                fit.warned = True
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = heed
        yield heeded
