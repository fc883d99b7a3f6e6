"""What --dev says of a finished run: by which readout the result is read, and whether training helped."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sentkit.training.dev import Dev
from sentkit.training.method import Method
from sentkit.training.origin import Base
from sentkit.training.state import Position
from sentkit.training.stopping import Stop


class Judged(Protocol):
    """What is asked of a job."""

    @property
    def kind(self) -> type[Method]: ...
    @property
    def settings(self) -> Any: ...
    @property
    def base(self) -> Base: ...
    @property
    def dev(self) -> Dev | None: ...
    @property
    def stop(self) -> Stop: ...


def choose_readout(job: Judged, method: Method) -> dict[str, Any]:
    """The best on --dev of the ways to read the result, what each scored, and the base read so.

    Empty where there is nothing to choose by, or from.
    """
    names = method.readouts(job.settings)
    if job.dev is None or len(names) == 1:
        return {}
    scores = {name: job.dev.score_as(name, method, job.stop.poll) for name in names}
    # Where all similarities are equal there is no correlation; of equal scores the first wins.
    best = max(names, key=lambda name: -math.inf if math.isnan(scores[name]) else scores[name])
    base = job.kind.build(job.base, job.settings).to(method.device)
    before = job.dev.score_as(best, base, job.stop.poll)
    return {
        "readout": best,
        "dev": known(scores[best]),
        "dev_before": known(before),
        "dev_by_readout": {name: known(score) for name, score in scores.items()},
    }


def known(score: float) -> float | None:
    return None if math.isnan(score) else score


def remarks(position: Position, chosen: Mapping[str, Any]) -> Sequence[str]:
    """What a person should be told of the result, where there is a --dev."""
    best, first, place = position.best_score, position.first_score, f"step {position.best_step}"
    if chosen:
        best, first, place = chosen["dev"], chosen["dev_before"], f"read by {chosen['readout']}"
    if best is None:
        return ["no look at --dev gave a correlation: the last weights are kept"]
    if first is not None and best <= first:
        return [f"--dev was {first:.2f} before training, and is at best {best:.2f} ({place})"]
    return []
