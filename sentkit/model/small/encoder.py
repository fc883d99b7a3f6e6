"""The encoder of a few texts: reduces the token states of `SmallBert` to vectors and names their spaces."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from sentkit.arrays import Float32
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.formats.checkpoints.readout import PLAIN, POOLED, Readout
from sentkit.model.post_steps import spec_behind, spec_of_readout, steps_of_checkpoint, width_behind
from sentkit.model.reading import Reading
from sentkit.model.small.bert import SmallBert
from sentkit.model.small.weights import read_arrays
from sentkit.model.text.batching import Arrays
from sentkit.model.text.stream import Tally
from sentkit.model.text.tokens import Tokens, check_ids
from sentkit.model.transformer.architecture import Architecture, UnsupportedArchitecture, architecture_of
from sentkit.model.weights_hash import hash_of_weights
from sentkit.process import threads_of_command
from sentkit.transforms.steps import Normalize

MOST_WORK = 1 << 34  # multiplications in the blocks; for more, torch is faster in spite of its import
BUDGET = 512  # tokens in a batch: larger arrays do not fit into the caches of a CPU
REDUCTIONS: Mapping[str, Callable[[Float32, int], Float32]] = {  # states (t, d) and their first position
    "cls": lambda states, first: states[0],
    "mean": lambda states, first: states.mean(0, np.float64),
    "max": lambda states, first: states.max(0),
    "mean-sqrt": lambda states, first: states.sum(0, np.float64) / np.sqrt(len(states)),
    "weighted-mean": lambda states, first: np.average(
        states, 0, np.arange(first + 1, first + len(states) + 1)
    ),
    "last": lambda states, first: states[-1],
}


def open_small_encoder(checkpoint: Checkpoint, reading: Reading, tokens: int) -> "SmallEncoder | None":
    """Return an encoder for a whole input of this number of tokens, or None if torch is faster or necessary.

    The result for a wrong checkpoint is also None, so that the encoder with torch raises the error.
    """
    try:
        architecture = architecture_of(checkpoint)
    except UnsupportedArchitecture:
        return None
    parts = [part for readout in reading.readouts for part in readout.parts]
    known = all(part.reduction in (*PLAIN, *POOLED, "token") for part in parts)
    if (
        tokens * products_of_token(architecture) > MOST_WORK
        or not known
        or set(reading.steps) - {"normalise"}
    ):
        return None
    arrays = read_arrays(checkpoint, architecture)
    if arrays is None:
        return None
    body = SmallBert(arrays, architecture)
    if any(part.pooled for part in parts) and not body.has_pooler:
        return None
    return SmallEncoder(checkpoint, reading, body, arrays)


def products_of_token(shape: Architecture) -> int:
    """Return the number of multiplications for a token, without those of attention."""
    return shape.depth * (4 * shape.width * shape.width + 2 * shape.width * shape.inner)


class SmallEncoder:
    device, precision, budget, groups_at_once = "cpu", "fp32", BUDGET, 0

    def __init__(
        self, checkpoint: Checkpoint, reading: Reading, body: SmallBert, arrays: Mapping[str, Float32]
    ) -> None:
        self.checkpoint, self.reading, self.body, self.notes = checkpoint, reading, body, list[str]()
        before = body.architecture.width * len(reading.readouts[0].parts)
        self.steps = steps_of_checkpoint(checkpoint, reading, before, lambda folder: Normalize())
        self.width = width_behind(self.steps, before)
        threads = threads_of_command() or 1
        machine = {"precision": self.precision}
        weights = {
            pooled: hash_of_weights(arrays, np.asarray, with_pooler=pooled, threads=threads)
            for pooled in {readout.pooled for readout in reading.readouts}
        }
        self.specs = [
            spec_behind(
                self.steps,
                spec_of_readout(
                    *(checkpoint, reading, readout, weights[readout.pooled], body.architecture.rules),
                    layers=readout.resolved(body.architecture.depth),
                    machine=machine,
                ),
                reading.transform,
            )
            for readout in reading.readouts
        ]

    def read(self, batches: Iterable[Sequence[Tokens]]) -> Iterator[Arrays]:
        return map(self.vectors, batches)

    def vectors(self, batch: Sequence[Tokens]) -> Arrays:
        check_ids(batch, self.body.architecture.vocabulary, self.checkpoint.name)
        with np.errstate(all="ignore"):  # as torch does; infinite vectors are refused later
            layers = list(self.body.states([tokens.ids for tokens in batch]))
            ends = np.cumsum([len(tokens.ids) for tokens in batch])
            owns = [
                [states[end - len(tokens.ids) : end] for states in layers]
                for tokens, end in zip(batch, ends, strict=True)
            ]
            return [
                np.stack([self.vector(*each, readout) for each in zip(owns, batch, strict=True)])
                for readout in self.reading.readouts
            ]

    def vector(self, layers: Sequence[Float32], tokens: Tokens, readout: Readout) -> Float32:
        """Reduce the states (t, d) of each layer of a text to the vector of the readout."""
        depth = self.body.architecture.depth
        joined = [
            np.mean([self.reduced(layers[k], tokens, part.reduction) for k in part.resolved(depth)], 0)
            for part in readout.parts
        ]
        return np.concatenate(joined).astype(np.float32)

    def reduced(self, states: Float32, tokens: Tokens, reduction: str) -> Float32:
        if reduction == "token":
            return states[tokens.at]
        first = self.reading.tokenizer.skip
        own = states[first:]
        if self.reading.left_out:
            read = ~np.isin(tokens.ids[first:], self.reading.left_out)
            own = own[read] if read.any() else own
        vector = REDUCTIONS[POOLED.get(reduction, reduction)](own, first)
        return self.body.pooled(vector.astype(np.float32)) if reduction in POOLED else vector

    def finish(self, vectors: Arrays) -> Arrays:
        """Apply the operations after the readout; return (b, width) arrays."""
        for step in self.steps:
            vectors = [step(each) for each in vectors]
        return vectors

    def remarks(self, tally: Tally) -> list[str]:
        return tally.truncation(self.reading.tokenizer.max_length, "tokens")
