"""Finds the change of a checkpoint, or the two changes, that explain vectors from elsewhere, the
target.

A `Variant` is one change: other programs make it by mistake, or with other settings. One loop
encodes some texts under each variant, on the CPU in float32, and compares the vectors with the
target.
Axes: n texts, d the width.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sentkit.arrays import Float32, Float64
from sentkit.errors import SentkitError, UsageError
from sentkit.formats.checkpoints.readout import CONV, NAMED, WK, Readout, parse_readout
from sentkit.model.checkpoint_model import CheckpointModel
from sentkit.model.checkpoint_reading import plan_reading, same
from sentkit.model.reading import ReadingOptions, all_steps, width_behind
from sentkit.model.text.rules import backend_of
from sentkit.model.text.tokens import TokenBlock
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.device import one_thread_each
from sentkit.model.transformer.encoder import TransformerEncoder
from sentkit.model.transformer.packed import pack_block
from sentkit.model.transformer.readouts import apply_readouts, width_of_vectors
from sentkit.model.transformer.transformers_model import TransformersModel
from sentkit.transforms.steps import Linear, Norm, Normalize, Step, Truncate, applied

Network = Bert | TransformersModel
# Limits of the distance, which is 0 for equal vectors; see `distances`. Measured with
# all-MiniLM-L6-v2: other programs in float16 8e-7, in bfloat16 1e-5 to 5e-5; int8 4e-4 with a scale
# per row, 5e-2 with one scale.
EQUAL = 2e-6
EXPLAINED = 0.01  # of the distance without a change
CLOSE = 5e-4  # and the largest distance, as other programs also round
ROUNDED = 0.75  # of the distance without a change: other programs round other numbers too
BASES = 3  # best changes of different settings that are joined with each other change
LENGTHS = (16, 32, 64, 128, 256, 512)
MOST_LENGTHS = 24  # limits that are tried between the longest equal text and the shortest other one
SAME_FACTOR = 2e-3  # largest logarithm of a factor between lengths that rounding can explain
BATCHES = 8
WEIGHTS = {
    "bf16": "weights in bf16",
    "int8 by row": "weights in int8, a scale for each row",
    "int8": "weights in int8, a scale for each matrix",
}
PROMPTS = (
    "query: ",  # E5
    "passage: ",
    "search_query: ",  # Nomic
    "search_document: ",
    "Represent this sentence for searching relevant passages: ",  # BGE and mxbai
    # GTE and Qwen
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
    "task: search result | query: ",  # EmbeddingGemma
    "title: none | text: ",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All that determines the vectors. None: as the checkpoint declares."""

    readout: str
    unit: bool  # vectors have unit length
    prompt: str | None = None
    max_length: int | None = None
    case: str | None = None  # lower or cased
    special: str = (
        "read"  # by readout and model; unread: not by the readout; absent: not by the model
    )
    shift: int = 0  # of the positions
    weights: str = "fp32"
    dense: bool = True  # the layers behind the readout
    dim: int | None = None  # first numbers to keep; 0: all numbers
    again: bool = True  # vectors with fewer numbers have unit length again

    @property
    def of_texts(self) -> tuple[Any, ...]:
        """What determines the tokens."""
        special = self.special if self.special == "absent" else "read"
        in_template = NAMED.get(self.readout) == NAMED["prompt"]
        return self.prompt, self.max_length, self.case, special, in_template


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    changes: Mapping[str, Any]  # of `Settings`

    @property
    def setting(self) -> str:
        """The first setting that changes."""
        return next(iter(self.changes))


@dataclass(frozen=True, slots=True)
class Result:
    """The agreement of the vectors under some variants with the target.

    A factor between the norms that is the same for all texts counts apart: it has no part in the
    distance.
    """

    variants: tuple[Variant, ...]
    distances: Float64  # (n,)
    cosines: Float64  # (n,)
    ratios: Float64  # (n,), of the norms: these by the target
    factor: float | None  # of the target's norms by these, if it is not 1

    @property
    def distance(self) -> float:
        return float(self.distances.mean())

    @property
    def name(self) -> str:
        if not self.variants:
            return "as declared"
        return "with " + " and ".join(variant.name for variant in self.variants)

    def record(self) -> dict[str, Any]:
        cosine = {"lowest": float(self.cosines.min()), "mean": float(self.cosines.mean())}
        ratio = {"lowest": float(self.ratios.min()), "highest": float(self.ratios.max())}
        changes = [variant.name for variant in self.variants]
        return {"changes": changes, "cosine": cosine, "norm_ratio": ratio}


def compared(variants: tuple[Variant, ...], target: Float32, vectors: Float32) -> Result:
    """Compare vectors (n, d) with the target ones.

    The distance of a and b is |a - b|^2 / (2 |a| |b|), so it is 0 only for equal vectors: unit
    length does not change a cosine. Before, b is multiplied by the median of |a| / |b|.
    """
    a = target.astype(np.float64)
    b = vectors.astype(np.float64)
    norms_of_a = np.maximum(np.linalg.norm(a, axis=1), 1e-8)
    norms_of_b = np.maximum(np.linalg.norm(b, axis=1), 1e-8)
    cosines = np.vecdot(a, b) / (norms_of_a * norms_of_b)
    ratios = norms_of_b / norms_of_a
    factor = 1.0 / float(np.median(ratios))
    if abs(np.log(factor)) <= SAME_FACTOR:
        factor = 1.0
    scaled = factor * ratios
    distances = (scaled + 1 / scaled) / 2 - cosines
    return Result(variants, distances, cosines, ratios, None if factor == 1.0 else factor)


def explain(
    model: CheckpointModel, texts: Sequence[str], target: Float32
) -> tuple[bool, Result | None, list[Result]]:
    """Find the variant, or the two variants, with which the model gives these vectors (n, d) of the
    texts.

    Returns whether the best result explains them, this result, and all of them. The first one is
    without a change, unless the widths differ.
    """
    encoder = VariantEncoder(model, texts, target)
    without_change = encoder.results([()])
    declared_distance = np.inf
    if without_change:
        [declared] = without_change
        declared_distance = declared.distance
        encoder.variants += encoder.variants_of_length(declared)

    # One change.
    singles = encoder.results((variant,) for variant in encoder.variants)
    results = without_change + singles
    if not results:
        return False, None, []
    limit = max(EQUAL, min(EXPLAINED * declared_distance, CLOSE))
    best = nearest(results)
    if best.distance <= limit:
        return True, best, results
    changes_weights = bool(best.variants) and best.variants[0].setting == "weights"
    if changes_weights and best.distance <= ROUNDED * declared_distance:
        return True, best, results

    # Two changes: the best ones of some settings, each with each change of another setting.
    best_by_setting: dict[str, Variant] = {}
    for result in sorted(singles, key=lambda result: result.distance):
        [variant] = result.variants
        if result.distance < declared_distance:
            best_by_setting.setdefault(variant.setting, variant)
    pairs: dict[frozenset[str], tuple[Variant, ...]] = {}
    for a in list(best_by_setting.values())[:BASES]:
        for b in encoder.variants:
            if a.setting != b.setting:
                pairs.setdefault(frozenset((a.name, b.name)), (a, b))
    results += encoder.results(pairs.values())
    best = nearest(results)
    return best.distance <= limit, best, results


def nearest(results: Sequence[Result]) -> Result:
    """The result with the least distance; if rounding decides, the first one without a factor."""
    return min(
        results, key=lambda result: (round(result.distance / EQUAL), result.factor is not None)
    )


class VariantEncoder:
    """Encodes the texts under variants, and compares the vectors with the target."""

    def __init__(self, model: CheckpointModel, texts: Sequence[str], target: Float32) -> None:
        self.texts = texts
        self.target = target
        self.checkpoint = model.checkpoint
        self.reading = model.reading
        encoder = TransformerEncoder(self.checkpoint, self.reading, device="cpu", precision="fp32")
        self.body = encoder.body
        self.steps = encoder.steps
        self.threads = encoder.threads
        self.bodies = lru_cache(1)(self.rounded_body)
        self.tokens = cache(self.tokenized)
        unit = any(isinstance(step, Normalize) for step in self.steps)
        self.declared = Settings(self.reading.readouts[0].name, unit)
        self.variants = [
            *self.variants_of_readout(),
            *self.variants_of_vectors(),
            *self.variants_of_texts(),
            *self.variants_of_network(),
        ]

    def variants_of_readout(self) -> Iterator[Variant]:
        declared = self.reading.readouts[0]
        depth = self.body.depth
        names = [name for name in NAMED if name not in ("prompt", "pooler:cls", CONV, *WK)]
        names += [f"L{layer}:{name}" for layer in range(depth) for name in ("mean", "cls")]
        for readout in map(parse_readout, names):
            is_possible = self.body.has_pooler or not readout.pooled
            if is_possible and not same(readout, declared, depth):
                yield Variant(
                    f"readout {readout.name} instead of {declared.name}", {"readout": readout.name}
                )

    def variants_of_vectors(self) -> Iterator[Variant]:
        yield Variant(
            "no unit length" if self.declared.unit else "unit length",
            {"unit": not self.declared.unit},
        )
        if any(isinstance(step, Linear | Norm) for step in self.steps):
            yield Variant("no layers behind the readout", {"dense": False})
        if any(isinstance(step, Truncate) for step in self.steps):
            yield Variant("all numbers", {"dim": 0})
        dim = self.target.shape[1]
        width = width_of_vectors(self.body, self.reading.readouts)
        if dim >= width_behind(self.steps, width):
            return
        if self.declared.unit:
            yield Variant(f"the first {dim} numbers, at unit length again", {"dim": dim})
            changes = {"dim": dim, "again": False}
            yield Variant(f"the first {dim} numbers, not at unit length again", changes)
        else:
            yield Variant(f"the first {dim} numbers", {"dim": dim})

    def variants_of_texts(self) -> Iterator[Variant]:
        """Changes of the tokens that change those of these texts."""
        tokenizer = self.reading.tokenizer
        declared_prompt = tokenizer.prompt
        instead = f" instead of {shown(declared_prompt)}" if declared_prompt else ""
        possible = []
        for prompt in dict.fromkeys([*self.checkpoint.declared.prompts.values(), *PROMPTS]):
            if prompt and prompt != declared_prompt:
                possible.append(Variant(f"prompt {shown(prompt)}{instead}", {"prompt": prompt}))
        possible.append(Variant(f"no prompt{instead}", {"prompt": ""}))
        for length in LENGTHS:
            name = f"at most {length} tokens instead of {tokenizer.max_length}"
            possible.append(Variant(name, {"max_length": length}))
        possible.append(Variant("lower case", {"case": "lower"}))
        possible.append(Variant("no lower case", {"case": "cased"}))
        possible.append(Variant("no special tokens", {"special": "absent"}))
        return self.that_change_tokens(possible)

    def variants_of_length(self, declared: Result) -> Iterator[Variant]:
        """Limits of the length with which exactly those texts change that differ as declared."""
        tokenizer = self.reading.tokenizer
        lengths = self.tokens(*self.declared.of_texts).lengths
        is_equal = (
            1.0 - declared.cosines <= CLOSE
        )  # the factor of the lengths is one of the longer texts
        if is_equal.all() or not is_equal.any():
            return iter(())
        longest_equal = int(lengths[is_equal].max())
        shortest_other = int(lengths[~is_equal].min())
        limits = range(longest_equal, min(shortest_other, longest_equal + MOST_LENGTHS))
        names = {variant.name for variant in self.variants}
        possible = [
            Variant(f"at most {n} tokens instead of {tokenizer.max_length}", {"max_length": n})
            for n in limits
        ]
        return self.that_change_tokens(
            [variant for variant in possible if variant.name not in names]
        )

    def that_change_tokens(self, possible: Sequence[Variant]) -> Iterator[Variant]:
        """The variants that the model has, and under which these texts have other tokens."""
        declared_ids = self.tokens(*self.declared.of_texts).ids
        for variant in possible:
            try:
                ids = self.tokens(*replace(self.declared, **variant.changes).of_texts).ids
            except SentkitError:  # such as a length that the model does not have
                continue
            if not np.array_equal(ids, declared_ids):
                yield variant

    def variants_of_network(self) -> Iterator[Variant]:
        yield Variant("special tokens left out of the readout", {"special": "unread"})
        if isinstance(self.body, Bert) and self.body.positions is not None:
            for shift in (1, -1, -2):
                if self.body.architecture.position_offset + shift >= 0:
                    yield Variant(f"positions shifted by {shift:+}", {"shift": shift})
        for weights, name in WEIGHTS.items():
            yield Variant(name, {"weights": weights})

    def results(self, combinations: Iterable[tuple[Variant, ...]]) -> list[Result]:
        """The results in the same order, without variants that are impossible or give another
        width.
        """
        # The combinations by what determines the states of the network: one pass has several
        # readouts.
        passes: dict[str, list[tuple[int, tuple[Variant, ...], Settings]]] = {}
        for number, variants in enumerate(combinations):
            settings = self.declared
            for variant in variants:
                settings = replace(settings, **variant.changes)
            of_states = repr(
                [settings.weights, settings.of_texts, settings.special, settings.shift]
            )
            passes.setdefault(of_states, []).append((number, variants, settings))

        results: dict[int, Result] = {}  # by the number of the combination
        for _, combinations_of_pass in sorted(passes.items()):  # the same weights after each other
            _, _, first_settings = combinations_of_pass[0]
            readouts = dict.fromkeys(settings.readout for _, _, settings in combinations_of_pass)
            vectors_of_readouts = self.states(first_settings, readouts)
            for number, variants, settings in combinations_of_pass:
                vectors = self.vectors(vectors_of_readouts[settings.readout], settings)
                if vectors is not None:
                    results[number] = compared(variants, self.target, vectors)
        return [results[number] for number in sorted(results)]

    def vectors(self, readout: Float32, settings: Settings) -> Float32 | None:
        """The vectors (n, d) of a readout, or None if they have another width than the target."""
        steps = self.steps_of(settings)
        try:
            if width_behind(steps, readout.shape[1]) != self.target.shape[1]:
                return None
        except UsageError:
            return None
        for step in steps:
            readout = applied(step, readout)
        return readout

    def steps_of(self, settings: Settings) -> list[Step]:
        omitted: list[type] = []
        if not settings.dense:
            omitted += [Linear, Norm]
        if not settings.unit:
            omitted.append(Normalize)
        if settings.dim == 0:
            omitted.append(Truncate)
        steps = [step for step in self.steps if not isinstance(step, tuple(omitted))]
        if settings.unit and not self.declared.unit:
            steps.append(Normalize())
        if not settings.again:
            return [*steps, Truncate(settings.dim or 0)]
        return all_steps(steps, ReadingOptions(dim=settings.dim or None))

    def tokenized(
        self,
        prompt: str | None,
        max_length: int | None,
        case: str | None,
        special: str,
        in_template: bool,
    ) -> TokenBlock:
        options = ReadingOptions(
            None if in_template else "mean", prompt=prompt, max_length=max_length
        )
        tokenizer = plan_reading(self.checkpoint, options).tokenizer
        if case is not None:
            tokenizer.lowercase = case == "lower"
        if case == "cased":
            rules = tokenizer.rules()
            rules["normalizer"] = cased(rules.get("normalizer"))
            tokenizer.backend = backend_of(rules, str(self.checkpoint.folder))
        tokens = tokenizer(self.texts)
        if special != "absent":
            return tokens
        is_of_text = tokens_of_texts(tokens.lengths, tokenizer.before, tokenizer.after)
        counts = np.add.reduceat(is_of_text, tokens.starts, dtype=np.int64)

        def without_first_tokens(column: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
            if column is None:
                return None
            return np.maximum(column - tokenizer.before, 0)

        return TokenBlock(
            tokens.ids[is_of_text],
            counts,
            counts,
            at=without_first_tokens(tokens.at),
            skip=without_first_tokens(tokens.skip),
        )

    def states(self, settings: Settings, names: Collection[str]) -> dict[str, Float32]:
        """The readouts (n, d) of one pass through the network."""
        tokens = self.tokens(*settings.of_texts)
        body = self.bodies(settings.weights)
        readouts = [parse_readout(name) for name in names]
        batches = np.array_split(
            np.argsort(tokens.lengths, kind="stable"), min(BATCHES, len(tokens))
        )

        def run(batch: NDArray[np.intp]) -> list[Float32]:
            with torch.inference_mode():
                vectors = self.read(body, tokens.take(batch), readouts, settings)
                return [tensor.float().numpy() for tensor in vectors]

        map_batches = one_thread_each(self.threads).map if self.threads else map
        arrays_of_batches = list(map_batches(run, batches))
        input_order = np.argsort(np.concatenate(batches))
        vectors_by_name = {}
        for name, arrays in zip(names, zip(*arrays_of_batches, strict=True), strict=True):
            vectors_by_name[name] = np.concatenate(arrays)[input_order]
        return vectors_by_name

    def read(
        self, body: Network, tokens: TokenBlock, readouts: Sequence[Readout], settings: Settings
    ) -> list[Tensor]:
        """The readouts (b, d) of a batch."""
        packed = pack_block(tokens, torch.device("cpu"))
        if settings.shift:
            assert isinstance(body, Bert), "others have no such variant"
            assert body.positions is not None, "rotary positions have no such variant"
            last = body.positions.num_embeddings - 1 - body.architecture.position_offset
            packed = replace(packed, positions=(packed.positions + settings.shift).clamp(max=last))
        if settings.special == "unread":
            tokenizer = self.reading.tokenizer
            before = max(tokenizer.before, packed.skip)
            packed = replace(packed, read=tokens_of_texts(tokens.lengths, before, tokenizer.after))
        return apply_readouts(body, packed, readouts)

    def rounded_body(self, weights: str) -> Network:
        """The network with weights of fewer bits."""
        if weights == "fp32":
            return self.body
        body = deepcopy(self.body)
        if weights == "bf16":
            for parameter in body.parameters():
                parameter.data = parameter.bfloat16().float()
            return body
        for name, layer in body.named_modules():
            if not isinstance(layer, nn.Linear):
                continue
            rows = [len(layer.weight)]
            if isinstance(body, Bert) and name.endswith((".qkv", ".up")):
                rows = body.architecture.matrices(name.rpartition(".")[2])
            by_row = weights == "int8 by row"
            matrices = [
                int8_rounded(matrix, by_row=by_row) for matrix in layer.weight.data.split(rows)
            ]
            layer.weight.data = torch.cat(matrices)
        return body


def int8_rounded(matrix: Tensor, *, by_row: bool) -> Tensor:
    """Return the values of a matrix (m, k) in int8, with a scale for each row or for all of it."""
    largest = matrix.abs().amax(1, keepdim=True) if by_row else matrix.abs().max()
    scale = largest.clamp_min(1e-12) / 127
    return (matrix / scale).round() * scale


def tokens_of_texts(lengths: NDArray[np.int64], before: int, after: int) -> NDArray[np.bool_]:
    """Whether each token is a token of its text; all tokens of a text that has no others."""
    positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    counts = np.repeat(lengths, lengths)
    return (positions >= before) & (positions < counts - after) | (counts <= before + after)


def cased(step: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A normalizer of a tokenizer without its lower case."""
    if step is None or step["type"] == "Lowercase":
        return None
    if "normalizers" in step:
        inner = [cased(normalizer) for normalizer in step["normalizers"]]
        return {
            **step,
            "normalizers": [normalizer for normalizer in inner if normalizer is not None],
        }
    if "lowercase" in step:
        return {**step, "lowercase": False}
    return dict(step)


def shown(prompt: str) -> str:
    text = prompt if len(prompt) <= 40 else f"{prompt[:37]}..."
    return json.dumps(text, ensure_ascii=False)
