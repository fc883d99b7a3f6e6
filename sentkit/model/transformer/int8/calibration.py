"""Finds the scales of int8 on the texts of the package, and the loss of vectors on the same texts.

The texts are always the same, so a checkpoint always has the same scales. They differ in length, subject,
style and language, and none of them is from a data set.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.model.reading import max_length
from sentkit.model.text.batching import Arrays
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.text.tokens import Tokens
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.int8.blocks import start_recording, use_integers
from sentkit.model.transformer.packed import pack

WARN_BELOW = 0.99  # the lowest cosine


def calibration_texts() -> list[str]:
    return Path(__file__).with_name("texts.txt").read_text(encoding="utf-8").splitlines()


def usable(tokenizer: Tokenizer) -> list[Tokens]:
    """Return the tokens of the texts, except those that this tokenizer cannot read."""
    return [tokens for tokens in tokenizer(calibration_texts()) if not tokens.problem]


def calibrate(bert: Bert, checkpoint: Checkpoint, dtype: torch.dtype) -> Bert:
    """Replace the blocks of an encoder in float32. `dtype` is for all that is not a product of integers.

    The scales do not depend on the prompt, the length or the readout, because the space does not depend on
    the prompt and the length.
    """
    limit, lowercase = max_length(checkpoint, None), checkpoint.declared.lowercase
    tokens = usable(Tokenizer(checkpoint, max_length=limit, lowercase=lowercase))
    start_recording(bert)
    with torch.inference_mode():
        *_, last = bert.states(pack(sorted((each.ids for each in tokens), key=len)))
    check_finite([last], checkpoint.name)
    use_integers(bert, dtype)
    return bert.to(dtype)


def check_finite(values: Sequence[Tensor], name: str) -> None:
    if not values or not all(bool(each.isfinite().all()) for each in values):
        problem = "the model has no finite vectors for the texts of the package, which int8 needs"
        raise DataError(problem, source=name, advice="use --precision fp32")


def losses(exact: Arrays, found: Arrays) -> list[dict[str, float]]:
    """Return the lowest and the mean cosine between two versions of vectors, for each array."""
    cosines = [cosine(*pair) for pair in zip(exact, found, strict=True)]
    return [{"lowest": round(float(c.min()), 4), "mean": round(float(c.mean()), 4)} for c in cosines]


def cosine(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float64]:
    left, right = left.astype(np.float64), right.astype(np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return (left * right).sum(1) / np.where(norms == 0, 1.0, norms)
