"""The state of a run on disk: whole or not there, the last two kept, with the best weights beside them."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sentkit.errors import DataError
from sentkit.formats.temporary import MARK, replacing

STATE, BEST = re.compile(r"state-(\d+)\.pt"), re.compile(r"best-(\d+)\.pt")
KEPT = 2


@dataclass(slots=True)
class Position:
    """Where a run stands, besides its tensors."""

    step: int = 0
    evaluated: int = -1  # the step after which the encoder was last judged
    first_score: float | None = None  # before training
    last_score: float | None = None
    best_score: float | None = None
    best_step: int = -1
    waited: int = 0  # looks since the best, or, cumulatively, of a score below the one before
    log_bytes: int = 0

    def exhausted(self, patience: int) -> bool:
        return bool(patience) and self.waited >= patience

    def judge(self, score: float, *, cumulative: bool) -> bool:
        """Take a score; whether it is the best so far. One that is no number is never the best."""
        if self.step == 0:
            self.first_score = score
            return False
        better = score == score and (self.best_score is None or score > self.best_score)
        if cumulative:
            self.waited += self.last_score is not None and score < self.last_score
        else:
            self.waited = 0 if better else self.waited + 1
        self.last_score = score
        if better:
            self.best_score, self.best_step = score, self.step
        return better


@dataclass(slots=True)
class Keeper:
    folder: Path
    named: dict[int, int] = field(default_factory=dict)  # by the step of each kept state: its best step

    def save(self, position: Position, tensors: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        content = {"position": asdict(position), "identity": dict(identity), **tensors}
        write(self.folder / f"state-{position.step}.pt", content)
        self.named[position.step] = position.best_step
        for step in sorted(self.named)[:-KEPT]:
            (self.folder / f"state-{step}.pt").unlink(missing_ok=True)
            del self.named[step]
        self._prune(position.best_step)

    def _prune(self, best: int) -> None:
        """Best weights stay while a state speaks of them."""
        for step in set(self._steps(BEST)) - {best, *self.named.values()}:
            (self.folder / f"best-{step}.pt").unlink()

    def forget(self) -> None:
        """What an earlier run has left here."""
        for name, steps in (("state", self._steps(STATE)), ("best", self._steps(BEST))):
            for step in steps:
                (self.folder / f"{name}-{step}.pt").unlink()
        for half in self.folder.glob(f".*{MARK}*"):  # the folder is locked: no living process writes them
            half.unlink()

    def load(self) -> dict[str, Any] | None:
        """The newest state that can be read; None where nothing has been saved."""
        found, problem = None, None
        for step in sorted(self._steps(STATE)):
            try:
                found = read(self.folder / f"state-{step}.pt")
            except DataError as error:
                problem = error
            else:
                self.named[step] = found["position"]["best_step"]
        if found is None:
            if problem is not None:
                raise problem
            return None
        return {**found, "position": Position(**found["position"])}

    def save_best(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        write(self.folder / f"best-{step}.pt", dict(tensors))
        self._prune(step)

    def load_best(self, step: int) -> dict[str, Tensor]:
        return read(self.folder / f"best-{step}.pt")

    def _steps(self, name: re.Pattern[str]) -> list[int]:
        matches = (name.fullmatch(path.name) for path in self.folder.iterdir())
        return [int(match[1]) for match in matches if match]


def read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # bytes that are no state can fail anywhere in the unpickler
        advice = "-f begins anew"
        raise DataError("not a state of a run, or cut short", source=str(path), advice=advice) from error
    return found


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all, and on the disk when this returns."""
    with replacing(path) as file:
        torch.save(dict(content), file)
