"""Vectors that are read from the padding of a batch of unknown length.

Other programs fill the texts of a batch up to the longest one, and hide this padding from the
attention. If a readout is then wrong, it includes states of the padding. For a text of n tokens,
all lengths T of a batch are tried, and the length that fits best is taken. T has a few hundred
values and a vector has more numbers, so no T fits by chance.

Axes: n tokens of a text, t lengths of a batch, d the width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from sentkit.arrays import Float32
from sentkit.formats.files import read_object_if_there
from sentkit.model.causes.compared import Result, compare
from sentkit.model.causes.passes import VariantEncoder
from sentkit.model.causes.settings import Settings, Variant
from sentkit.model.text.tokens import TokenBlock
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.packed import pack_block

LONGEST = 512  # tokens of a batch
TEXTS = 4  # that are tried, the shortest ones
SPREAD_TEXTS = 12  # that are tried, if batches of long texts cannot be: of different batches
MOST_TOKENS = 4000  # of the batches of one text

# (ids of a text, settings) -> states (t, d), one for each length or token that is tried
States = Callable[[NDArray[np.int32], Settings], Float32]


@dataclass(frozen=True, slots=True)
class PaddingReader:
    """Reads the states of padding for one text after the other."""

    encoder: VariantEncoder
    body: Bert

    @property
    def longest(self) -> int:
        """The longest batch. Farther than a window, programs differ in what padding attends to."""
        architecture = self.body.architecture
        longest = min(LONGEST, architecture.max_tokens)
        for window in architecture.attention_windows:
            if window:
                longest = min(longest, window + 1)
        return longest

    @property
    def padding_id(self) -> int:
        checkpoint = self.encoder.checkpoint
        config = read_object_if_there(checkpoint.transformer_folder / "tokenizer_config.json")
        token = config.get("pad_token")
        if isinstance(token, Mapping):
            token = token.get("content")
        if isinstance(token, str):
            number = self.encoder.reading.tokenizer.backend.token_to_id(token)
            if number is not None:
                return number
        declared = checkpoint.config.get("pad_token_id")
        return declared if isinstance(declared, int) else 0

    def means(self, ids: NDArray[np.int32], settings: Settings) -> Float32:
        """The means (t, d) of the states of a text and of the padding after it."""
        states = self.with_padding_after(ids, settings)
        sums = np.cumsum(states, axis=0, dtype=np.float64)
        counts = np.arange(1, len(states) + 1)[:, None]
        return (sums / counts)[len(ids) :].astype(np.float32)

    def last_states(self, ids: NDArray[np.int32], settings: Settings) -> Float32:
        """The states (t, d) of the last token of the padding after a text."""
        return self.with_padding_after(ids, settings)[len(ids) :]

    def with_padding_after(self, ids: NDArray[np.int32], settings: Settings) -> Float32:
        """The states of a text and of the padding after it, (longest, d)."""
        count = max(0, self.longest - len(ids))
        padded = np.append(ids, np.full(count, self.padding_id, np.int32))
        is_padding = np.arange(len(padded)) >= len(ids)
        positions = np.arange(len(padded))
        return self.states([padded], is_padding, positions, settings)

    def first_states(self, ids: NDArray[np.int32], settings: Settings) -> Float32:
        """The states (t, d) of the first token of the padding before a text; t is 0 for a text
        that is as long as the longest batch.
        """
        longest = min(self.longest, len(ids) + MOST_TOKENS // (len(ids) + 1))
        lengths = range(len(ids) + 1, longest + 1)
        if not lengths:
            return np.empty((0, self.body.width), np.float32)
        # Tokens of the padding do not attend to each other, so one is enough.
        sequence = np.append(np.int32(self.padding_id), ids)
        positions = np.concatenate(
            [np.append(0, np.arange(length - len(ids), length)) for length in lengths]
        )
        is_padding = np.tile(np.arange(len(sequence)) == 0, len(lengths))
        states = self.states([sequence] * len(lengths), is_padding, positions, settings)
        return states[:: len(sequence)]

    def all_states(self, ids: NDArray[np.int32], settings: Settings) -> Float32:
        """The states (n, d) of the tokens of a text."""
        return self.states([ids], np.zeros(len(ids), bool), np.arange(len(ids)), settings)

    def states(
        self,
        sequences: list[NDArray[np.int32]],
        is_padding: NDArray[np.bool_],
        positions: NDArray[np.int64],
        settings: Settings,
    ) -> Float32:
        """The last states of all tokens of these sequences."""
        lengths = np.array([*map(len, sequences)], np.int64)
        block = TokenBlock(np.concatenate(sequences), lengths, lengths)
        packed = replace(
            pack_block(block, torch.device("cpu")),
            positions=torch.from_numpy(positions),
            is_hidden=is_padding,
        )
        body = self.encoder.network(settings)
        assert isinstance(body, Bert)
        with torch.inference_mode():
            *_, states = body.states(packed)
        return states.float().numpy()


def padded_results(
    encoder: VariantEncoder,
    bases: list[tuple[Variant, ...]],
    target: Float32,
    indices: NDArray[np.int64],
) -> list[Result]:
    """The agreement of these texts with vectors that are read from padding, for each base."""
    body = encoder.body
    if not isinstance(body, Bert) or not len(indices):
        return []
    reader = PaddingReader(encoder, body)
    texts = chosen_texts(indices, encoder.lengths()[indices], reader.longest)
    if not len(texts):
        return []
    results = []
    for base in bases:
        settings = encoder.declared.changed_by(base)
        for name, states_of_text in wrong_readings(reader, settings.readout).items():
            vectors = nearest_vectors(encoder, settings, states_of_text, target, texts)
            if vectors is not None:
                variants = (*base, Variant(name, {"padding": name}))
                results.append(compare(variants, target[texts], vectors))
    return results


def chosen_texts(
    indices: NDArray[np.int64], lengths: NDArray[np.int64], longest: int
) -> NDArray[np.int64]:
    """The shortest of the texts with these indices. If the longest batch is short, texts from
    all over the input, of which some were in such a batch.
    """
    if longest >= LONGEST:
        return indices[np.argsort(lengths, kind="stable")][:TEXTS]
    short = indices[lengths <= longest // 2]
    step = max(1, len(short) // SPREAD_TEXTS)
    return short[::step][:SPREAD_TEXTS]


def wrong_readings(reader: PaddingReader, readout: str) -> dict[str, States]:
    """The states that a program can take for this readout by mistake, by the name of the cause."""
    if readout == "mean":
        return {"a mean that includes the padding of a batch": reader.means}
    if readout == "last":
        return {
            "the last token of a padded batch": reader.last_states,
            "another token, as in a batch with padding on the other side": reader.all_states,
        }
    if readout == "cls":
        name = "the first token of a batch with padding on the left side"
        return {name: reader.first_states}
    return {}


def nearest_vectors(
    encoder: VariantEncoder,
    settings: Settings,
    states_of_text: States,
    target: Float32,
    indices: NDArray[np.int64],
) -> Float32 | None:
    """The vector of each text with these indices that is nearest to its target, (len(indices), d):
    of one vector for each length of a batch, or token, that is tried.

    `target` (n, d) has a row for each text of the encoder. None if a text has nothing to try, or
    if the vectors have another width than the target.
    """
    tokens = encoder.tokens(settings.of_texts)
    vectors = []
    for index in indices.tolist():
        ids = np.array(tokens[index].ids, np.int32)
        states = states_of_text(ids, settings)
        if not len(states):
            return None
        candidates = encoder.finished(states, settings, target.shape[1])
        if candidates is None:
            return None
        # The cosines times the norm of the target, which does not change their order.
        norms = np.maximum(np.linalg.norm(candidates, axis=1), 1e-12)
        scaled_cosines = candidates @ target[index] / norms
        vectors.append(candidates[scaled_cosines.argmax()])
    return np.array(vectors)
