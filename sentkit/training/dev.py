"""How good the encoder is on pairs that people have scored: Spearman's correlation x 100."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.kinds import PAIR
from sentkit.formats.rows import Inputs
from sentkit.metrics.correlation import spearman
from sentkit.metrics.similarity import SIMILARITIES
from sentkit.model.packed import pack
from sentkit.model.plan import BUDGETS, batches
from sentkit.model.tokens import Tokenizer
from sentkit.training.examples import ExampleParser, Reads, Scores
from sentkit.training.method import Method


@dataclass(frozen=True, slots=True)
class Dev:
    tokens: Sequence[NDArray[np.int64]]  # of the left texts, then of the right ones
    gold: NDArray[np.float64]

    @property
    def digest(self) -> str:
        found = hashlib.blake2b(self.gold.tobytes(), digest_size=16)
        for ids in self.tokens:
            found.update(len(ids).to_bytes(4, "little") + ids.tobytes())
        return found.hexdigest()

    def score(self, method: Method, poll: Callable[[], None]) -> float:
        """The correlation now; NaN where all similarities are equal. Leaves no trace in the method."""
        training = method.training
        method.eval()
        try:
            with torch.no_grad():
                vectors = self._vectors(method, poll)
        finally:
            method.train(training)
        left, right = np.split(vectors, 2)
        if not np.isfinite(vectors).all():
            return float("nan")
        return 100.0 * spearman(SIMILARITIES["cosine"](left, right), self.gold)

    def _vectors(self, method: Method, poll: Callable[[], None]) -> NDArray[np.float32]:
        found: NDArray[np.float32] | None = None
        for batch in batches([len(ids) for ids in self.tokens], BUDGETS[method.device.type]):
            poll()
            vectors = method.dev_vectors(pack([self.tokens[place] for place in batch], method.device))
            if found is None:
                found = np.empty((len(self.tokens), vectors.shape[1]), np.float32)
            found[batch] = vectors.float().cpu().numpy()
        assert found is not None, "no pairs"
        return found


def read_dev(path: str, tokenizer: Tokenizer) -> Dev:
    """The pairs of a file; a DataError where they cannot tell good from bad."""
    reads = Reads((PAIR,), "score", Scores())
    examples = [e for e in Inputs([path]).read(ExampleParser("--dev", reads, {})) if e is not None]
    gold = np.array([example.target for example in examples], np.float64)
    if len(gold) < 2:
        raise DataError(f"{len(gold)} scored pairs: too few to correlate", source=path)
    if gold.min() == gold.max():
        raise DataError(f'"score" is the same in all {len(gold)} rows: no correlation', source=path)
    tokens = tokenizer([example.texts[side] for side in (0, 1) for example in examples])
    for place, each in enumerate(tokens):
        if each.problem:
            raise examples[place % len(examples)].row.error(each.problem)
    return Dev([np.array(each.ids, np.int64) for each in tokens], gold)
