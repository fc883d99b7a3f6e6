"""Finds the changes of a checkpoint that explain vectors from elsewhere, the target.

The declared vectors show which texts differ. Each change is tried with a few of these, the
shortest ones, and a few equal texts; the best changes are then tried with all texts. Frequent and
cheap changes come first: those of vectors, texts and the network; then fewer bits of the weights,
states of padding, and two changes or three.

Axes: n texts, d the width.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32, Float64
from sentkit.errors import SentkitError
from sentkit.model.causes.compared import CLOSE, EQUAL, Result, compare
from sentkit.model.causes.padding import padded_results
from sentkit.model.causes.passes import VariantEncoder
from sentkit.model.causes.settings import Settings, Variant
from sentkit.model.causes.truncation import likely_limit
from sentkit.model.causes.variants import (
    all_variants,
    change_of_lengths,
    recorded_changes,
    variants_of_weights,
)
from sentkit.model.checkpoint_model import CheckpointModel

Indices = NDArray[np.int64]
Changes = tuple[Variant, ...]

EXPLAINED = 0.1  # of the mean distance of the texts that differ
LEAST_LIMIT = 5e-6  # of a text that a change explains
# Of the mean distance as declared: fewer bits explain a difference, although other programs choose
# other scales.
ROUNDED = 0.75
ROUNDED_TEXTS = 0.8  # share of the texts with a smaller distance
PADDED = 3  # texts that have a state of the padding: the others were in batches of other kinds
ROUNDED_IN_NOISE = 0.25  # of the mean distance, if rounding in bf16 is as large
SPREAD = 5e-3  # median distance of the texts, by the mean one of rounding in bf16
LARGEST_ROUNDED = 0.3  # mean distance that fewer bits can cause
MOST = 0.5  # share of the differing texts that a change has to explain
SCREENED = 8  # texts that differ, and half as many that are equal
SCREENED_TOKENS = 800
VERIFIED = 3  # best changes that are tried with all texts
BASES = 3  # changes of different settings that are joined with each other change
DEPTH = 3  # changes
NOISE = 0.3  # of the mean distance: rounding in bf16 that is not larger does not hide a change
NOISY_TEXTS = 24  # that are computed in bf16
FEWEST_MOVED = 3  # rows that show another order


@dataclass(frozen=True, slots=True)
class Explanation:
    """What explains the difference, or that there is none.

    `best` has the changes: none of them explains it if `explained_texts` is 0.
    """

    equal: bool
    largest_distance: float  # the largest distance as declared
    rounding: float | None = None  # the largest distance by rounding in bf16, if it was measured
    mean_rounding: float = 0.0  # the mean one; 0 if it was not measured
    best: Result | None = None
    equivalent_results: tuple[Result, ...] = ()  # other changes that give the same vectors
    differing_texts: int = 0
    explained_texts: int = 0  # of the differing texts
    share: float = 0.0  # of the difference that the changes remove
    order: Indices | None = None  # (n,): the text that each row of the target has the vector of
    results: tuple[Result, ...] = ()


def explain(
    model: CheckpointModel,
    texts: Sequence[str],
    target: Float32,
    declared: Float32 | None,
    record: Mapping[str, Any],
) -> Explanation:
    """Find the changes with which the model gives the target (n, d) for the texts.

    `declared` are the vectors that it gives without a change; None: they have another width.
    `record` says how the target was made; {}: nothing does.
    """
    encoder = VariantEncoder(model, texts)
    search = Search(encoder, target, declared)
    explanation = search.run(record)
    explains_most = explanation.explained_texts >= MOST * max(1, explanation.differing_texts)
    if not explains_most and search.order is not None:
        # The vectors of a change are there, in another order.
        ordered = Search(encoder, target[search.order], declared)
        in_order = ordered.run({})
        if in_order.equal or in_order.explained_texts >= MOST * in_order.differing_texts:
            return replace(in_order, equal=False, order=search.order)
    return explanation


class Search:
    """Tries changes in turn until one explains all texts that differ."""

    def __init__(self, encoder: VariantEncoder, target: Float32, declared: Float32 | None) -> None:
        self.encoder = encoder
        self.target = target
        self.lengths = encoder.lengths()
        self.every_text = np.arange(len(target))
        self.declared_vectors = declared
        self.declared = None if declared is None else compare((), target, declared)
        self.distances = np.ones(len(target))  # of another width: all texts differ
        if self.declared is not None:
            self.distances = self.declared.distances
        self.largest_distance = float(self.distances.max())
        self.rounding: float | None = None  # the largest distance by rounding in bf16
        self.mean_rounding = 0.0
        self.explained_limit = CLOSE  # largest distance of a text that a change explains
        self.differs = self.distances > EQUAL  # (n,): the texts that are to be explained
        self.results = list[Result]()
        self.order: Indices | None = None

    @property
    def mean_of_differing(self) -> float:
        """The mean distance of the texts that differ, as declared."""
        return float(self.distances[self.differs].mean())

    def of_record(self, record: Mapping[str, Any]) -> Explanation | None:
        """The recorded changes, if they give the target."""
        try:
            changes = tuple(recorded_changes(self.encoder, record))
            if not changes:
                return None
            results = self.tried([changes], self.every_text)
        except SentkitError:  # a change that this model does not have, or an impossible record
            return None
        self.results += results
        if not self.explains_all(results):
            return None
        return self.explanation(results)

    def run(self, record: Mapping[str, Any]) -> Explanation:
        explanation = self.judge_equality() or self.of_record(record) or self.causes()
        if explanation is not None:
            return explanation
        return Explanation(
            equal=False,
            largest_distance=self.largest_distance,
            rounding=self.rounding,
            mean_rounding=self.mean_rounding,
            differing_texts=int(self.differs.sum()),
            results=tuple(self.results),
        )

    def of_equal_vectors(self) -> Explanation:
        """The vectors are those of the model, but for rounding."""
        return Explanation(
            equal=True, largest_distance=self.largest_distance, rounding=self.rounding
        )

    def judge_equality(self) -> Explanation | None:
        """That the vectors are those of the model, but for rounding or a factor; None if they are
        not.

        If they are not, `explained_limit` and `differs` are adapted to the distances.
        """
        if self.declared is None:
            return None
        self.results.append(self.declared)
        if self.largest_distance <= EQUAL:
            return self.with_factor() or self.of_equal_vectors()

        # Equal but for rounding in bf16, which changes most texts: if few texts differ, and the
        # others are equal, it is not the cause.
        bf16_distances = self.distances_of_bf16()
        self.rounding = float(bf16_distances.max())
        self.mean_rounding = float(bf16_distances.mean())
        is_spread = np.median(self.distances) >= SPREAD * self.mean_rounding
        if is_spread and self.is_rounding(bf16_distances):
            return (
                self.of_fewer_bits(ROUNDED_IN_NOISE)
                or self.with_factor()
                or self.of_equal_vectors()
            )

        # Not equal. A text may differ by rounding even if its difference is explained.
        smallest_limit = LEAST_LIMIT
        noise = 3 * self.rounding
        if noise < NOISE * self.mean_of_differing:
            smallest_limit = max(LEAST_LIMIT, noise)
        self.explained_limit = float(
            np.clip(EXPLAINED * self.mean_of_differing, smallest_limit, CLOSE)
        )
        self.differs = self.distances > self.explained_limit
        return None

    def causes(self) -> Explanation | None:
        """One change, fewer bits of the weights, states of padding, or more changes."""
        variants = all_variants(self.encoder, self.target.shape[1])
        if self.declared is not None:
            limit = likely_limit(self.encoder, self.target, self.declared)
            if limit is not None and limit not in variants:
                variants.append(limit)
        singles = self.screened([(variant,) for variant in variants], ())
        verified = self.verified(singles)
        if self.explains_all(verified):
            return self.explanation(verified)
        return (
            self.of_fewer_bits(ROUNDED)
            or self.of_padding()
            or self.of_more_changes(variants, singles, verified)
        )

    def of_more_changes(
        self, variants: Sequence[Variant], singles: Sequence[Result], verified: Sequence[Result]
    ) -> Explanation | None:
        """The best changes of some settings, each with each change of other settings; then the best
        of these pairs again. One change remains if it explains most texts.

        `singles` are the results of each change with a few texts, `verified` those of the best
        ones with all texts. Both are best first.
        """
        best = list(verified)
        bases = self.bases(singles, verified)
        for _ in range(1, DEPTH):
            # One more change: the best ones with a few texts, then with all. Each base has other
            # few texts, so the results of one base are no measure for those of another.
            verified_of_bases = list[Result]()
            for base in bases:
                combinations = [
                    (*base.variants, variant)
                    for variant in variants
                    if all(variant.joins(other) for other in base.variants)
                ]
                verified_of_bases += self.verified(self.screened(combinations, base.variants))

            # It has to be better with all texts than fewer changes are.
            best = sorted([*verified_of_bases, *best], key=self.rank)
            is_better = bool(best) and len(best[0].variants) > len(bases[0].variants)
            if self.explains_all(best) or not is_better:
                break
            bases = best[:1]
        if best and self.explained(best[0]) >= MOST * self.differs.sum():
            return self.explanation(best)
        return None

    def with_factor(self) -> Explanation | None:
        """Equal vectors but for a factor: that of the lengths, if the model gives such vectors."""
        assert self.declared is not None
        if self.declared.factor is None:
            return None
        results = self.tried([(change_of_lengths(self.encoder),)], self.every_text)
        for result in results:
            if result.factor is None and result.distance <= self.declared.distance:
                self.differs = np.ones(len(self.target), bool)
                return self.explanation([result])
        return Explanation(equal=True, largest_distance=self.largest_distance, best=self.declared)

    def distances_of_bf16(self) -> Float64:
        """The distances that rounding in bf16 causes, of the shortest texts."""
        texts = self.shortest(self.every_text, NOISY_TEXTS)
        [vectors] = self.encoder.encode([self.encoder.declared], texts, self.target.shape[1])
        assert vectors is not None, "the declared width is that of the target"
        return compare((), vectors, self.encoder.rounding(texts)).distances

    def is_rounding(self, bf16_distances: Float64) -> bool:
        """Whether the difference is not larger than by rounding in bf16."""
        mean = bf16_distances.mean()
        is_small = self.distances.max() <= max(3 * bf16_distances.max(), 10 * mean)
        return bool(is_small and self.distances.mean() <= 2 * mean)

    def of_fewer_bits(self, share: float) -> Explanation | None:
        """Fewer bits of the weights, if these leave at most this share of the distance."""
        if self.declared_vectors is None or self.mean_of_differing > LARGEST_ROUNDED:
            return None
        combinations = [(variant,) for variant in variants_of_weights(self.encoder)]
        screened = sorted(self.screened(combinations, ()), key=lambda result: result.distance)
        screened = screened[:1]
        texts = self.medium_texts()
        verified = self.tried([result.variants for result in screened], texts)
        self.results += verified
        # With the factor of the lengths of these texts, as the results have it.
        before = compare((), self.target[texts], self.declared_vectors[texts]).distances
        for result in verified:
            is_closer = (result.distances < before).mean() >= ROUNDED_TEXTS
            if is_closer and result.distance <= share * before.mean():
                share_removed = 1.0 - result.distance / float(before.mean())
                return self.partly_tried(result, int(self.differs.sum()), share_removed)
        return None

    def of_padding(self) -> Explanation | None:
        """States of the padding, alone or with a change of the lengths."""
        texts = np.flatnonzero(self.differs)
        bases: list[Changes] = [(), (change_of_lengths(self.encoder),)]
        results = padded_results(self.encoder, bases, self.target, texts)
        self.results += results
        for result in sorted(results, key=self.rank):
            explained = result.explained(self.explained_limit)
            if explained >= min(PADDED, len(result.distances)) and len(result.distances) > 1:
                return self.partly_tried(result, explained, 1.0)
        return None

    def partly_tried(self, result: Result, explained: int, share: float) -> Explanation:
        """A result of only some of the texts, which explains this share of the difference."""
        return Explanation(
            equal=False,
            largest_distance=self.largest_distance,
            best=result,
            differing_texts=int(self.differs.sum()),
            explained_texts=explained,
            share=share,
            results=tuple(self.results),
        )

    def bases(self, singles: Sequence[Result], verified: Sequence[Result]) -> list[Result]:
        """The best results of different settings: by texts, and then by distance."""
        by_setting: dict[str, Result] = {}
        by_distance = sorted(singles, key=lambda result: result.distance)
        for result in [*verified[:1], *by_distance]:
            by_setting.setdefault(result.variants[0].setting, result)
        return list(by_setting.values())[:BASES]

    def shortest(self, texts: Indices, count: int) -> Indices:
        """The shortest of these texts, as many as are short enough together; at least two."""
        by_length = texts[np.argsort(self.lengths[texts], kind="stable")][:count]
        fitting = int((np.cumsum(self.lengths[by_length]) <= SCREENED_TOKENS).sum())
        return by_length[: max(2, fitting)]

    def medium_texts(self) -> Indices:
        return self.shortest(self.every_text, 2 * SCREENED)

    def screening_texts(self, base: Changes) -> Indices:
        """Texts that differ under the base, and some that do not."""
        differs = self.differs
        for result in self.results:
            if result.variants == base and len(result.distances) == len(self.target):
                differs = result.distances > self.explained_limit
        differing = np.flatnonzero(differs)
        if not len(differing):
            differing = self.every_text
        # A few of the longest do not count: changes of length are seen with texts beyond the limit.
        chosen = self.shortest(differing, SCREENED)
        equal = self.shortest(np.flatnonzero(~differs), SCREENED // 2)
        return np.sort(np.append(chosen, equal))

    def screened(self, combinations: Sequence[Changes], base: Changes) -> list[Result]:
        """The results with a few texts, best first."""
        results = self.tried(combinations, self.screening_texts(base))
        self.results += results
        return sorted(results, key=self.rank)

    def tried(self, combinations: Iterable[Changes], texts: Indices) -> list[Result]:
        """The results with these texts, without changes that are impossible."""
        possible = list(combinations)
        settings_list = [self.encoder.declared.changed_by(changes) for changes in possible]
        results = []
        arrays = self.encoder.encode(settings_list, texts, self.target.shape[1])
        for changes, settings, vectors in zip(possible, settings_list, arrays, strict=True):
            if vectors is None:
                continue
            results.append(compare(changes, self.target[texts], vectors))
            if self.order is None and self.shows_order(vectors, texts):
                self.order = self.order_under(settings)
        return results

    def verified(self, screened: Sequence[Result]) -> list[Result]:
        """The results with all texts, best first, of the best changes among results with a few
        texts: the first one, those that are as good, and up to VERIFIED further ones.
        """
        if not screened:
            return []
        as_good = list[Result]()
        further = list[Result]()
        for result in screened:
            if self.is_as_good(result, screened[0]):
                as_good.append(result)
            else:
                further.append(result)
        candidates = [*as_good, *further[: max(0, VERIFIED - len(as_good))]]

        verified = list[Result]()
        for result in candidates[: 2 * VERIFIED]:
            # After one that explains all texts, only those that can do so, too.
            explains_screened = result.explained(self.explained_limit) == len(result.distances)
            if self.explains_all(verified) and not explains_screened:
                break
            verified += self.tried([result.variants], self.every_text)
        self.results += verified
        return sorted(verified, key=self.rank)

    def is_as_good(self, result: Result, best: Result) -> bool:
        """Whether two results with the same texts are equally good, except for rounding."""
        limit = self.explained_limit
        is_near = abs(result.distance - best.distance) <= self.tolerance
        return result.explained(limit) == best.explained(limit) and is_near

    @property
    def tolerance(self) -> float:
        """The difference between two distances that counts as rounding."""
        return max(EQUAL, self.explained_limit / 10)

    def rank(self, result: Result) -> tuple[int, int, bool]:
        """Best first: texts that are explained, distance, and no factor. If rounding decides, the
        order of the variants does.
        """
        explained = result.explained(self.explained_limit)
        return -explained, round(result.distance / self.tolerance), result.factor is not None

    def explained(self, result: Result) -> int:
        """The number of differing texts that a result of all texts explains."""
        return int((self.differs & (result.distances <= self.explained_limit)).sum())

    def explains_all(self, results: Sequence[Result]) -> bool:
        return bool(results) and bool((results[0].distances <= self.explained_limit).all())

    def explanation(self, results: Sequence[Result]) -> Explanation:
        """The first of the results, which are of all texts."""
        best = results[0]
        same = [
            result
            for result in results[1:]
            if np.abs(result.distances - best.distances).max() <= self.tolerance
            and len(result.variants) == len(best.variants)
        ]
        before = max(float(self.distances[self.differs].mean()), 1e-12)
        after = float(best.distances[self.differs].mean())
        return Explanation(
            equal=False,
            largest_distance=self.largest_distance,
            best=best,
            equivalent_results=tuple(same),
            differing_texts=int(self.differs.sum()),
            explained_texts=self.explained(best),
            share=1.0 - min(after / before, 1.0),
            results=tuple(self.results),
        )

    def shows_order(self, vectors: Float32, texts: Indices) -> bool:
        """Whether some of these vectors are those of other rows of the target."""
        nearest, cosines = nearest_rows(self.target, vectors)
        is_close = cosines >= 1.0 - CLOSE
        cosines_in_order = compare((), self.target[texts], vectors).cosines
        is_moved = is_close & (cosines_in_order < 1.0 - CLOSE)
        return len(np.unique(nearest[is_moved])) >= FEWEST_MOVED

    def order_under(self, settings: Settings) -> Indices | None:
        """The row of the target that has the vector of each text, if most rows have one."""
        [vectors] = self.encoder.encode([settings], self.every_text, self.target.shape[1])
        assert vectors is not None, "these settings gave vectors"
        nearest, cosines = nearest_rows(self.target, vectors)
        cosines_in_order = compare((), self.target, vectors).cosines
        is_close = cosines >= 1.0 - CLOSE
        is_close_in_order = cosines_in_order >= 1.0 - CLOSE
        if is_close.mean() < MOST or is_close_in_order.mean() >= is_close.mean():
            return None
        # Equal texts have equal vectors: a row that has its vector in order keeps its index.
        return np.where(is_close & ~is_close_in_order, nearest, self.every_text)


def nearest_rows(target: Float32, vectors: Float32) -> tuple[Indices, Float64]:
    """For each of the vectors (m, d), the nearest row of the target (n, d), and its cosine."""
    units = []
    for array in (target, vectors):
        lengths = np.linalg.norm(array.astype(np.float64), axis=1, keepdims=True)
        units.append(array / np.maximum(lengths, 1e-12))
    cosines = units[1] @ units[0].T
    nearest = cosines.argmax(axis=1)
    return nearest, cosines[np.arange(len(nearest)), nearest]
