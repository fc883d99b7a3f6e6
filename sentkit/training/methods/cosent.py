"""CoSENT (https://spaces.ac.cn/archives/8847): orders the cosines of scored pairs as their scores.

Only the order of the scores matters, so they may have any scale.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from sentkit.errors import DataError
from sentkit.formats.rows.kinds import PAIR
from sentkit.training.base import Base
from sentkit.training.data.batches import Batch
from sentkit.training.data.corpus import Corpus
from sentkit.training.data.examples import Reads, Scores
from sentkit.training.losses.losses import ranked_pairs, unit
from sentkit.training.method import Method, Needs, Outputs, Term
from sentkit.training.recipe import Dims
from sentkit.training.settings import ours, readout, released


class CoSENT(Method):
    @dataclass(frozen=True, kw_only=True)
    class Settings(Dims):
        temperature: float = released(0.05, "divisor of the cosines: 1 / 20", above=0)
        readout: str = readout("mean", of_paper=False)
        batch: int = ours(32)
        lr: float = ours(2e-5)
        warmup: float = ours(0.1)
        schedule: str = ours("linear")
        max_length: int = ours(128)

    presets: ClassVar = {}
    needs: ClassVar = Needs(static=True, vectors=("left", "right"))

    @classmethod
    def reads(cls, base: Base, settings: Settings) -> Reads:
        return Reads((PAIR,), "score", Scores())

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: Any, source: str) -> None:
        assert corpus.targets is not None, "reads asks for scores"
        if corpus.targets.min() == corpus.targets.max():
            problem = f'"score" is the same in all {len(corpus)} rows: no order to learn'
            raise DataError(problem, source=source)

    def encode(self, batch: Batch) -> Outputs:
        left, right = self.vectors(self.pack([*batch.texts[0], *batch.texts[1]])).chunk(2)
        assert batch.targets is not None, "pairs without scores"
        return {"left": left, "right": right, "score": torch.from_numpy(batch.targets).to(left)}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        cosines = (unit(outputs["left"]) * unit(outputs["right"])).sum(1)
        return {"cosine": Term(ranked_pairs(cosines, outputs["score"], self.settings.temperature), 1.0)}
