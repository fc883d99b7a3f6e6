"""The number of tokens at which another program truncates long texts.

Under the right limit, the vector of a truncated text is that of the target, and limits near the
right one give similar vectors. So a few of all limits are tried with one text, and then those
between the neighbours of the best one, until no limit is left between them.
"""

import numpy as np

from sentkit.arrays import Float32
from sentkit.model.causes.compared import EQUAL, FARTHEST, Result, compare
from sentkit.model.causes.passes import VariantEncoder
from sentkit.model.causes.settings import Variant

LIMITS = 16  # that are tried at a time
# Of the largest distance: texts with a smaller one are equal, but for other rounding.
ROUNDED_AWAY = 0.01


def change_of_limit(length: int, declared: int) -> Variant:
    """Another largest number of tokens."""
    return Variant(f"at most {length} tokens instead of {declared}", {"max_length": length})


def likely_limit(encoder: VariantEncoder, target: Float32, declared: Result) -> Variant | None:
    """The best limit for the text that differs most, if other texts are equal as declared."""
    # By the cosine: a factor of the norms is that of the longer texts.
    distances = 1.0 - declared.cosines
    limit_of_equal = max(EQUAL, ROUNDED_AWAY * distances.max())
    if distances.min() > limit_of_equal or distances.max() <= limit_of_equal:
        return None
    text = int(distances.argmax())
    first = 1
    last = int(encoder.lengths()[text]) - 1
    while first <= last:
        limits = np.unique(np.linspace(first, last, LIMITS).round().astype(int)).tolist()
        distances_of_limits = distances_of_text(encoder, target, text, limits)
        best = int(np.argmin(distances_of_limits))
        if distances_of_limits[best] == FARTHEST:  # no limit is possible
            return None
        if last - first < LIMITS:
            return change_of_limit(limits[best], encoder.reading.tokenizer.max_length)
        first = limits[max(best - 1, 0)]
        last = limits[min(best + 1, len(limits) - 1)]
    return None


def distances_of_text(
    encoder: VariantEncoder, target: Float32, text: int, limits: list[int]
) -> list[float]:
    """The distance of one text from the target under each limit; FARTHEST for impossible ones."""
    declared_limit = encoder.reading.tokenizer.max_length
    changes = [change_of_limit(limit, declared_limit) for limit in limits]
    settings = [encoder.declared.changed_by([change]) for change in changes]
    distances = [FARTHEST] * len(limits)
    possible = [i for i, changed in enumerate(settings) if encoder.changes_tokens(changed)]
    row = np.array([text])
    vectors = encoder.encode([settings[i] for i in possible], row, target.shape[1])
    for i, vector in zip(possible, vectors, strict=True):
        if vector is not None:
            [distances[i]] = compare((), target[row], vector).distances.tolist()
    return distances
