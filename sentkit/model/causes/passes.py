"""Encodes texts under other settings than those of their checkpoint, on the CPU in float32.

Axes: n texts, b texts of a batch, d the width.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sentkit.arrays import Float32
from sentkit.errors import SentkitError, UsageError
from sentkit.formats.checkpoints.readout import Readout, parse_readout
from sentkit.model.causes.settings import Settings, TextSettings
from sentkit.model.checkpoint_model import CheckpointModel
from sentkit.model.checkpoint_reading import max_length, plan_reading
from sentkit.model.encoding import encode_texts
from sentkit.model.reading import ReadingOptions, all_steps, width_after_steps
from sentkit.model.text.rules import backend_of
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.text.tokens import TokenBlock
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.device import one_thread_each
from sentkit.model.transformer.encoder import TransformerEncoder
from sentkit.model.transformer.packed import Packed, pack_block
from sentkit.model.transformer.readouts import apply_readouts
from sentkit.model.transformer.transformers_model import TransformersModel
from sentkit.transforms.steps import Linear, Norm, Normalize, Step, Truncate, apply_step

Network = Bert | TransformersModel
BATCHES = 4
BATCH_TOKENS = 512  # fewer tokens are not divided among batches
# The 16 values of a weight in the format NF4 (arXiv 2305.14314, appendix E), with the largest 1.
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


class VariantEncoder:
    """Encodes texts under settings. Tokens and networks of the last settings stay in memory."""

    def __init__(self, model: CheckpointModel, texts: Sequence[str]) -> None:
        self.texts = texts
        self.checkpoint = model.checkpoint
        self.reading = model.reading
        encoder = TransformerEncoder(self.checkpoint, self.reading, device="cpu", precision="fp32")
        self.body = encoder.body
        self.steps = encoder.steps
        self.threads = encoder.threads
        self.rounded = lru_cache(1)(self.rounded_body)
        self.tokens = cache(self.tokenized)
        unit = any(isinstance(step, Normalize) for step in self.steps)
        self.declared = Settings(self.reading.readouts[0].name, unit)

    def lengths(self) -> NDArray[np.int64]:
        """(n,): the numbers of tokens as declared."""
        return self.tokens(self.declared.of_texts).lengths

    def encode(
        self, settings_list: Sequence[Settings], indices: NDArray[np.int64], width: int
    ) -> list[Float32 | None]:
        """The vectors of these texts under each of the settings; None if these are impossible or
        give another width.

        One pass through the network has several readouts.
        """
        passes: dict[Any, list[int]] = {}
        for number, settings in enumerate(settings_list):
            unread = settings.special == "unread"
            of_pass = (settings.of_network, settings.of_texts, unread, settings.shift)
            passes.setdefault(of_pass, []).append(number)

        vectors: list[Float32 | None] = [None] * len(settings_list)
        for _, numbers in sorted(passes.items(), key=repr):  # the same weights after each other
            readouts = dict.fromkeys(settings_list[number].readout for number in numbers)
            states = self.states(settings_list[numbers[0]], readouts, indices)
            for number in numbers:
                settings = settings_list[number]
                vectors[number] = self.finished(states[settings.readout], settings, width)
        return vectors

    def finished(self, readout: Float32, settings: Settings, width: int) -> Float32 | None:
        """The vectors (n, d) of a readout, or None if they have another width."""
        steps = self.steps_of(settings)
        try:
            if width_after_steps(steps, readout.shape[1]) != width:
                return None
        except UsageError:
            return None
        for step in steps:
            readout = apply_step(step, readout)
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

    def rounding(self, indices: NDArray[np.int64]) -> Float32:
        """The vectors of these texts as declared, computed in bf16."""
        encoder = TransformerEncoder(self.checkpoint, self.reading, device="cpu", precision="bf16")
        tokens = self.tokens(self.declared.of_texts).take(indices)
        return encode_texts(tokens, encoder, encoder.tokens_per_batch)[0]

    def tokenized(self, settings: TextSettings) -> TokenBlock:
        tokenizer = self.tokenizer(settings)
        before = tokenizer.before
        after = tokenizer.after
        # The special tokens at the begin and at the end of a text that are doubled, or left out.
        doubled = {"twice": (before, after), "begin twice": (before, 0), "end twice": (0, after)}
        removed = {"absent": (before, after), "no begin": (before, 0), "no end": (0, after)}
        if settings.special in doubled:
            tokenizer.max_length -= sum(doubled[settings.special])
            tokens = tokenizer(self.texts)
            return with_doubled(tokens, before, after, *doubled[settings.special])
        if settings.special in removed:
            tokens = tokenizer(self.texts)
            return without_ends(tokens, *removed[settings.special])
        return tokenizer(self.texts)

    def tokenizer(self, settings: TextSettings) -> Tokenizer:
        """The tokenizer under these settings: a copy, because a new one is slow to read."""
        # The tokenizer of the checkpoint, with a template if the readout needs one.
        original = self.reading.tokenizer
        has_template = original.template is not None
        if settings.in_template != has_template:
            readout = None if settings.in_template else "mean"  # None: as the checkpoint declares
            original = plan_reading(self.checkpoint, ReadingOptions(readout)).tokenizer
        tokenizer = copy(original)

        # The prompt, the length limit, and the end that a long text loses.
        if settings.prompt is not None:
            tokenizer = tokenizer.with_prompt(settings.prompt)
        if settings.max_length is not None:
            tokenizer.max_length = max_length(self.checkpoint, settings.max_length)
            tokenizer.head_length = None  # that of the declared limit can be too short
            if tokenizer.max_length <= tokenizer.before + tokenizer.after:
                raise UsageError("the special tokens use all of this length")
        if settings.other_end:
            tokenizer.truncates_start = not tokenizer.truncates_start

        # Lower case and accents. `lowercase` adds lower case to the rules; without it, and for
        # accents, the rules themselves change.
        if settings.lower is not None:
            tokenizer.lowercase = settings.lower
        if settings.lower is False or settings.strip is not None:
            rules = original.rules()
            normalizer = rules.get("normalizer")
            if settings.lower is False:
                normalizer = cased(normalizer)
            if settings.strip is not None:
                normalizer = with_accents(normalizer, strip=settings.strip)
            rules["normalizer"] = normalizer
            tokenizer.backend = backend_of(rules, str(self.checkpoint.folder))
            tokenizer.words = None  # their ids are those of the original rules
        return tokenizer

    def changes_tokens(self, settings: Settings) -> bool:
        """Whether these settings are possible and give the texts other tokens."""
        try:
            ids = self.tokens(settings.of_texts).ids
        except SentkitError:  # such as a length that the model does not have
            return False
        return not np.array_equal(ids, self.tokens(self.declared.of_texts).ids)

    def states(
        self, settings: Settings, names: Collection[str], indices: NDArray[np.int64]
    ) -> dict[str, Float32]:
        """The readouts (n, d) of one pass through the network."""
        tokens = self.tokens(settings.of_texts).take(indices)
        body = self.network(settings)
        readouts = [parse_readout(name) for name in names]
        count = min(BATCHES, len(tokens), 1 + len(tokens.ids) // BATCH_TOKENS)
        batches = np.array_split(np.argsort(tokens.lengths, kind="stable"), count)

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
        packed = self.packed(tokens, settings)
        if settings.special == "unread":
            tokenizer = self.reading.tokenizer
            before = max(tokenizer.before, packed.prompt_length)
            packed = replace(
                packed, is_read=tokens_of_texts(tokens.lengths, before, tokenizer.after)
            )
        return apply_readouts(body, packed, readouts)

    def packed(self, tokens: TokenBlock, settings: Settings) -> Packed:
        """The batch of these tokens, with the positions and the attention of the settings."""
        packed = pack_block(tokens, torch.device("cpu"))
        if settings.causal:
            packed = replace(packed, causal=True)
        if settings.shift:
            assert isinstance(self.body, Bert), "others have no such variant"
            assert self.body.positions is not None, "rotary positions have no such variant"
            last = self.body.positions.num_embeddings - 1 - self.body.architecture.position_offset
            packed = replace(packed, positions=(packed.positions + settings.shift).clamp(max=last))
        return packed

    def network(self, settings: Settings) -> Network:
        """The network with other weights, attention or norms."""
        body = self.rounded(settings.weights)
        if not isinstance(body, Bert) or (settings.causal is not False and settings.last_norm):
            return body
        body = copy(body)  # modules are shared with the declared network
        if settings.causal is False:
            body.architecture = replace(body.architecture, causal=False)
        if not settings.last_norm:
            *blocks, last_block = body.blocks
            last_block = copy(last_block)
            last_block._modules = {**last_block._modules, "norm": nn.Identity()}
            body._modules = {**body._modules, "blocks": nn.ModuleList([*blocks, last_block])}
        return body

    def rounded_body(self, weights: str) -> Network:
        """The network with weights of fewer bits."""
        if weights == "fp32":
            return self.body
        body = deepcopy(self.body)
        for name, layer in body.named_modules():
            if isinstance(layer, nn.Linear):
                rows = [len(layer.weight)]
                if isinstance(body, Bert) and name.endswith((".qkv", ".up")):
                    rows = body.architecture.matrices(name.rpartition(".")[2])
                matrices = [rounded(matrix, weights) for matrix in layer.weight.data.split(rows)]
                layer.weight.data = torch.cat(matrices)
        return body


def rounded(matrix: Tensor, weights: str) -> Tensor:
    """The values of a matrix (m, k) in fewer bits, with a scale for all, a row or a block of it."""
    if weights == "int8":
        return in_steps(matrix, matrix.abs().max())
    if weights == "int8 by row":
        return in_steps(matrix, matrix.abs().amax(1, keepdim=True))
    size = 64 if weights == "nf4 by block" else 32
    if matrix.shape[1] % size:
        return matrix
    blocks = matrix.reshape(-1, size)
    largest = blocks.abs().amax(1, keepdim=True)
    if weights == "int8 by block":
        blocks = in_steps(blocks, largest)
    elif weights == "int4 by block":  # q4_0: the number with the largest magnitude becomes -8
        signed = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
        step = signed / -8
        step = torch.where(step == 0, 1.0, step)
        blocks = (blocks / step + 8.5).floor().clamp(0, 15).sub(8) * step
    else:
        values = torch.tensor(NF4)
        scaled = blocks / largest.clamp_min(1e-12)
        blocks = values[torch.bucketize(scaled, (values[1:] + values[:-1]) / 2)] * largest
    return blocks.reshape(matrix.shape)


def in_steps(values: Tensor, largest: Tensor) -> Tensor:
    """The values in int8: multiples of a step, of which the largest value has 127."""
    step = largest.clamp_min(1e-12) / 127
    return (values / step).round() * step


def tokens_of_texts(lengths: NDArray[np.int64], before: int, after: int) -> NDArray[np.bool_]:
    """Whether each token is a token of its text; all tokens of a text that has no others."""
    positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    counts = np.repeat(lengths, lengths)
    return (positions >= before) & (positions < counts - after) | (counts <= before + after)


def without_ends(tokens: TokenBlock, before: int, after: int) -> TokenBlock:
    """The tokens without the first and the last ones of each text."""
    is_kept = tokens_of_texts(tokens.lengths, before, after)
    counts = np.add.reduceat(is_kept, tokens.starts, dtype=np.int64)
    return TokenBlock(
        tokens.ids[is_kept],
        counts,
        counts,
        readout_token_index=moved(tokens.readout_token_index, -before),
        prompt_length=moved(tokens.prompt_length, -before),
    )


def with_doubled(tokens: TokenBlock, before: int, after: int, first: int, last: int) -> TokenBlock:
    """The tokens with the `first` ones and the `last` ones of each text twice.

    `before` and `after` are the numbers of special tokens of a text.
    """
    new_ids = list[NDArray[np.int32]]()
    for text in tokens:
        ids = np.array(text.ids, np.int32)
        new_ids.append(np.concatenate([ids[:first], ids, ids[len(ids) - last :]]))
    counts = np.array([*map(len, new_ids)], np.int64)
    return TokenBlock(
        np.concatenate(new_ids),
        counts,
        counts,
        readout_token_index=moved(tokens.readout_token_index, first),
        prompt_length=moved(tokens.prompt_length, first),
    )


def moved(column: NDArray[np.int64] | None, count: int) -> NDArray[np.int64] | None:
    """A column of indices of tokens after `count` tokens were added before them."""
    if column is None:
        return None
    return np.maximum(column + count, 0)


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


def with_accents(step: Mapping[str, Any] | None, *, strip: bool) -> dict[str, Any] | None:
    """A normalizer of a tokenizer that removes accents, or that keeps them."""
    if strip:
        removing: list[Any] = [{"type": "NFD"}, {"type": "StripAccents"}]
        if step is not None:
            removing.append(dict(step))
        return {"type": "Sequence", "normalizers": removing}
    if step is None or step["type"] == "StripAccents":
        return None
    if "normalizers" in step:
        inner = [with_accents(normalizer, strip=False) for normalizer in step["normalizers"]]
        return {**step, "normalizers": [normalizer for normalizer in inner if normalizer]}
    if "strip_accents" in step:
        return {**step, "strip_accents": False}
    return dict(step)
