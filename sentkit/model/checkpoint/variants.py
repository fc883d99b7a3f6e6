"""Finds the change of a checkpoint, or the two changes, that explain given vectors of texts.

A `Variant` is one change: other programs make it by mistake, or with other settings. One loop encodes some
texts under each variant, on the CPU in float32, and compares the vectors with the given ones.
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
# Limits of the distance, which is 0 for equal vectors; see `distances`. Measured with all-MiniLM-L6-v2: other
# programs in float16 8e-7, in bfloat16 1e-5 to 5e-5; int8 4e-4 with a scale per row, 5e-2 with one scale.
EQUAL = 2e-6
EXPLAINED, CLOSE = 0.01, 5e-4  # of the distance without a change; and largest, as other programs also round
ROUNDED = 0.75  # of the distance without a change: other programs round other numbers too
BASES = 3  # best changes of different kinds that are joined with each other change
LENGTHS = (16, 32, 64, 128, 256, 512)
MOST_LENGTHS = 24  # limits that are tried between the longest equal text and the shortest other one
SAME_FACTOR = 2e-3  # largest logarithm of a factor between lengths that rounding can explain
BATCHES = 8
WEIGHTS = {
    "bf16": "weights in bf16",
    "int8 by row": "weights in int8, a scale for each row",
    "int8": "weights in int8, a scale for each matrix",
}
PROMPTS = (  # of E5, Nomic, BGE and mxbai, GTE and Qwen, EmbeddingGemma
    *("query: ", "passage: ", "search_query: ", "search_document: "),
    "Represent this sentence for searching relevant passages: ",
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
    *("task: search result | query: ", "title: none | text: "),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """All that determines the vectors. None: as the checkpoint declares."""

    readout: str
    unit: bool  # vectors have unit length
    prompt: str | None = None
    max_length: int | None = None
    case: str | None = None  # lower or cased
    special: str = "read"  # by readout and model; unread: not by the readout; absent: not by the model
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
    def kind(self) -> str:
        return next(iter(self.changes))


@dataclass(frozen=True, slots=True)
class Result:
    """The agreement of the vectors under some variants with the given vectors.

    A factor between the norms that is the same for all texts counts apart: it has no part in the distance.
    """

    variants: tuple[Variant, ...]
    distances: Float64  # (n,)
    cosines: Float64  # (n,)
    ratios: Float64  # (n,), of the norms: these by the given ones
    factor: float | None  # of the given norms by these, if it is not 1

    @property
    def distance(self) -> float:
        return float(self.distances.mean())

    @property
    def name(self) -> str:
        return f"with {' and '.join(each.name for each in self.variants)}" if self.variants else "as declared"

    def record(self) -> dict[str, Any]:
        cosine = {"lowest": float(self.cosines.min()), "mean": float(self.cosines.mean())}
        ratio = {"lowest": float(self.ratios.min()), "highest": float(self.ratios.max())}
        return {"changes": [each.name for each in self.variants], "cosine": cosine, "norm_ratio": ratio}


def compared(variants: tuple[Variant, ...], given: Float32, vectors: Float32) -> Result:
    """Compare vectors (n, d) with the given ones.

    The distance of a and b is |a - b|^2 / (2 |a| |b|), so it is 0 only for equal vectors: unit length does
    not change a cosine. Before, b is multiplied by the median of |a| / |b|.
    """
    a = given.astype(np.float64)
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
    model: CheckpointModel, texts: Sequence[str], given: Float32
) -> tuple[bool, Result | None, list[Result]]:
    """Find the variant, or the two variants, with which the model gives these vectors (n, d) of the texts.

    Returns whether the best result explains them, this result, and all of them. The first one is without a
    change, unless the widths differ.
    """
    encoder = VariantEncoder(model, texts, given)
    declared = next(iter(encoder.results([()])), None)
    if declared is not None:
        encoder.variants += encoder.variants_of_length(declared)
    singles = encoder.results((each,) for each in encoder.variants)
    found = singles if declared is None else [declared, *singles]
    if not found:
        return False, None, []
    before = np.inf if declared is None else declared.distance
    limit = max(EQUAL, min(EXPLAINED * before, CLOSE))
    best = nearest(found)
    of_weights = bool(best.variants) and best.variants[0].kind == "weights"
    if best.distance <= limit or (of_weights and best.distance <= ROUNDED * before):
        return True, best, found
    by_kind = dict[str, Result]()
    for each in sorted(singles, key=lambda each: each.distance):
        if each.distance < before:
            by_kind.setdefault(each.variants[0].kind, each)
    pairs = dict[frozenset[str], tuple[Variant, ...]]()
    for base in [result.variants[0] for result in by_kind.values()][:BASES]:
        for other in encoder.variants:
            if other.kind != base.kind:
                pairs.setdefault(frozenset((base.name, other.name)), (base, other))
    found += encoder.results(pairs.values())
    best = nearest(found)
    return best.distance <= limit, best, found


def nearest(results: Sequence[Result]) -> Result:
    """The result with the least distance; if rounding decides, the first one without a factor."""
    return min(results, key=lambda result: (round(result.distance / EQUAL), result.factor is not None))


class VariantEncoder:
    """Encodes the texts under variants, and compares the vectors with the given ones."""

    def __init__(self, model: CheckpointModel, texts: Sequence[str], given: Float32) -> None:
        self.texts, self.given = texts, given
        self.checkpoint, self.reading = model.checkpoint, model.reading
        encoder = TransformerEncoder(self.checkpoint, self.reading, device="cpu", precision="fp32")
        self.body, self.steps, self.threads = encoder.body, encoder.steps, encoder.threads
        self.bodies = lru_cache(1)(self.rounded_body)
        self.tokens = cache(self.tokenized)
        unit = any(isinstance(step, Normalize) for step in self.steps)
        self.base = Settings(self.reading.readouts[0].name, unit)
        self.variants = [*self.variants_of_readout(), *self.variants_of_vectors(), *self.variants_of_texts()]
        self.variants += self.variants_of_network()

    def variants_of_readout(self) -> Iterator[Variant]:
        declared, depth = self.reading.readouts[0], self.body.depth
        names = [name for name in NAMED if name not in ("prompt", "pooler:cls", CONV, *WK)]
        names += [f"L{layer}:{name}" for layer in range(depth) for name in ("mean", "cls")]
        for each in map(parse_readout, names):
            if not same(each, declared, depth) and (self.body.has_pooler or not each.pooled):
                yield Variant(f"readout {each.name} instead of {declared.name}", {"readout": each.name})

    def variants_of_vectors(self) -> Iterator[Variant]:
        yield Variant("no unit length" if self.base.unit else "unit length", {"unit": not self.base.unit})
        if any(isinstance(step, Linear | Norm) for step in self.steps):
            yield Variant("no layers behind the readout", {"dense": False})
        if any(isinstance(step, Truncate) for step in self.steps):
            yield Variant("all numbers", {"dim": 0})
        dim, width = self.given.shape[1], width_of_vectors(self.body, self.reading.readouts)
        if dim < width_behind(self.steps, width):
            name, again = f"the first {dim} numbers", ", at unit length again" * self.base.unit
            yield Variant(name + again, {"dim": dim})
            if self.base.unit:
                yield Variant(f"{name}, not at unit length again", {"dim": dim, "again": False})

    def variants_of_texts(self) -> Iterator[Variant]:
        """Changes of the tokens that change those of these texts."""
        tokenizer, declared = self.reading.tokenizer, self.checkpoint.declared
        most, prompt = tokenizer.max_length, tokenizer.prompt
        instead = f" instead of {shown(prompt)}" if prompt else ""
        prompts = [each for each in dict.fromkeys([*declared.prompts.values(), *PROMPTS]) if each != prompt]
        possible = [Variant(f"prompt {shown(each)}{instead}", {"prompt": each}) for each in prompts if each]
        possible += [Variant(f"no prompt{instead}", {"prompt": ""})]
        possible += [Variant(f"at most {n} tokens instead of {most}", {"max_length": n}) for n in LENGTHS]
        possible += [Variant("lower case", {"case": "lower"}), Variant("no lower case", {"case": "cased"})]
        possible += [Variant("no special tokens", {"special": "absent"})]
        return self.that_change_tokens(possible)

    def variants_of_length(self, declared: Result) -> Iterator[Variant]:
        """Limits of the length with which exactly those texts change that differ as declared."""
        tokenizer = self.reading.tokenizer
        lengths = self.tokens(*self.base.of_texts).lengths
        is_equal = 1.0 - declared.cosines <= CLOSE  # the factor of the lengths is one of the longer texts
        if is_equal.all() or not is_equal.any():
            return iter(())
        longest_equal = int(lengths[is_equal].max())
        shortest_other = int(lengths[~is_equal].min())
        limits = range(longest_equal, min(shortest_other, longest_equal + MOST_LENGTHS))
        known = {variant.name for variant in self.variants}
        possible = [
            Variant(f"at most {n} tokens instead of {tokenizer.max_length}", {"max_length": n})
            for n in limits
        ]
        return self.that_change_tokens([variant for variant in possible if variant.name not in known])

    def that_change_tokens(self, possible: Sequence[Variant]) -> Iterator[Variant]:
        """The variants that the model has, and under which these texts have other tokens."""
        own = self.tokens(*self.base.of_texts).ids
        for variant in possible:
            try:
                ids = self.tokens(*replace(self.base, **variant.changes).of_texts).ids
            except SentkitError:  # such as a length that the model does not have
                continue
            if not np.array_equal(ids, own):
                yield variant

    def variants_of_network(self) -> Iterator[Variant]:
        yield Variant("special tokens left out of the readout", {"special": "unread"})
        if isinstance(self.body, Bert) and self.body.positions is not None:
            offset = self.body.architecture.position_offset
            shifts = [n for n in (1, -1, -2) if n + offset >= 0]
            yield from (Variant(f"positions shifted by {n:+}", {"shift": n}) for n in shifts)
        for weights, name in WEIGHTS.items():
            yield Variant(name, {"weights": weights})

    def results(self, combinations: Iterable[tuple[Variant, ...]]) -> list[Result]:
        """The results in the same order, without variants that are impossible or give another width."""
        passes = dict[str, list[tuple[int, tuple[Variant, ...], Settings]]]()
        for number, variants in enumerate(combinations):
            changes = {name: value for each in variants for name, value in each.changes.items()}
            settings = replace(self.base, **changes)
            # What determines the states of the network, which have several readouts.
            of_states = repr([settings.weights, settings.of_texts, settings.special, settings.shift])
            passes.setdefault(of_states, []).append((number, variants, settings))
        found = dict[int, Result]()
        for _, own in sorted(passes.items()):  # passes with the same weights after each other
            states = self.states(own[0][2], dict.fromkeys(settings.readout for _, _, settings in own))
            for number, variants, settings in own:
                vectors = self.vectors(states[settings.readout], settings)
                if vectors is not None:
                    found[number] = compared(variants, self.given, vectors)
        return [found[number] for number in sorted(found)]

    def vectors(self, readout: Float32, settings: Settings) -> Float32 | None:
        """The vectors (n, d) of a readout, or None if they have another width than the given ones."""
        steps = self.steps_of(settings)
        try:
            if width_behind(steps, readout.shape[1]) != self.given.shape[1]:
                return None
        except UsageError:
            return None
        for step in steps:
            readout = applied(step, readout)
        return readout

    def steps_of(self, settings: Settings) -> list[Step]:
        left: tuple[type, ...] = () if settings.dense else (Linear, Norm)
        left += () if settings.unit else (Normalize,)
        left += (Truncate,) if settings.dim == 0 else ()
        steps = [step for step in self.steps if not isinstance(step, left)]
        if settings.unit and not self.base.unit:
            steps.append(Normalize())
        if not settings.again:
            return [*steps, Truncate(settings.dim or 0)]
        return all_steps(steps, ReadingOptions(dim=settings.dim or None))

    def tokenized(
        self, prompt: str | None, max_length: int | None, case: str | None, special: str, in_template: bool
    ) -> TokenBlock:
        options = ReadingOptions(None if in_template else "mean", prompt=prompt, max_length=max_length)
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
        own = own_tokens(tokens.lengths, tokenizer.before, tokenizer.after)
        counts = np.add.reduceat(own, tokens.starts, dtype=np.int64)
        at, skip = (
            None if column is None else np.maximum(column - tokenizer.before, 0)
            for column in (tokens.at, tokens.skip)
        )
        return TokenBlock(tokens.ids[own], counts, counts, at=at, skip=skip)

    def states(self, settings: Settings, names: Collection[str]) -> dict[str, Float32]:
        """The readouts (n, d) of one pass through the network."""
        tokens, body = self.tokens(*settings.of_texts), self.bodies(settings.weights)
        readouts = list(map(parse_readout, names))
        batches = np.array_split(np.argsort(tokens.lengths, kind="stable"), min(BATCHES, len(tokens)))

        def run(batch: Any) -> list[Float32]:
            with torch.inference_mode():
                vectors = self.read(body, tokens.take(batch), readouts, settings)
                return [each.float().numpy() for each in vectors]

        mapped = one_thread_each(self.threads).map if self.threads else map
        columns = zip(*mapped(run, batches), strict=True)
        back = np.argsort(np.concatenate(batches))
        arrays = [np.concatenate(column)[back] for column in columns]
        return dict(zip(names, arrays, strict=True))

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
            before, after = self.reading.tokenizer.before, self.reading.tokenizer.after
            packed = replace(packed, read=own_tokens(tokens.lengths, max(before, packed.skip), after))
        return apply_readouts(body, packed, readouts)

    def rounded_body(self, weights: str) -> Network:
        """The network with weights of fewer bits."""
        if weights == "fp32":
            return self.body
        body = deepcopy(self.body)
        for value in body.parameters() if weights == "bf16" else ():
            value.data = value.bfloat16().float()
        layers = body.named_modules() if weights != "bf16" else ()
        for name, layer in ((name, layer) for name, layer in layers if isinstance(layer, nn.Linear)):
            parts, rows = [], [len(layer.weight)]
            if isinstance(body, Bert) and name.endswith((".qkv", ".up")):
                rows = body.architecture.matrices(name.rpartition(".")[2])
            for part in layer.weight.data.split(rows):
                largest = part.abs().amax(1, keepdim=True) if weights == "int8 by row" else part.abs().max()
                scale = largest.clamp_min(1e-12) / 127
                parts.append((part / scale).round() * scale)
            layer.weight.data = torch.cat(parts)
        return body


def own_tokens(lengths: NDArray[np.int64], before: int, after: int) -> NDArray[np.bool_]:
    """Whether each token is a token of its text; all tokens of a text that has no others."""
    places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    counts = np.repeat(lengths, lengths)
    return (places >= before) & (places < counts - after) | (counts <= before + after)


def cased(step: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A normalizer of a tokenizer without its lower case."""
    if step is None or step["type"] == "Lowercase":
        return None
    if "normalizers" in step:
        inner = map(cased, step["normalizers"])
        return {**step, "normalizers": [each for each in inner if each is not None]}
    return {**step, "lowercase": False} if "lowercase" in step else dict(step)


def shown(prompt: str) -> str:
    text = prompt if len(prompt) <= 40 else f"{prompt[:37]}..."
    return json.dumps(text, ensure_ascii=False)
