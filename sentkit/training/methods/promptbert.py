"""PromptBERT (arXiv 2201.04337) and SNCSE (arXiv 2201.05979): contrasts of [MASK] states in two
templates.

The state of a template without a sentence is its bias. Template denoising of PromptBERT subtracts
it before the contrast. With objective=triplets, a positive is contrasted with negatives, and all
texts have the same template.

SNCSE has the negation of a sentence as soft negative: its cosine must be lower than that with the
same sentence, by at least `margin` and at most `margin_high`. The negation is not a negative of the
contrast.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.readout import TEMPLATES
from sentkit.formats.rows.kinds import PAIR, SENTENCE, TRIPLET
from sentkit.model.checkpoint.heads import LanguageHead
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import at_least_float32
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch, Ids
from sentkit.training.data.examples import Reads
from sentkit.training.losses import in_batch_contrast, triplet_contrast, unit
from sentkit.training.method import Method, Needs, Outputs, Term, mean_of
from sentkit.training.methods import recipes
from sentkit.training.methods.mlm import head_of, head_of_base

PROMPT = "prompt"  # the only readout
VIEWS = ("one", "other", "negative")  # outputs of PromptBERT


class Transform(nn.Module):
    """The part of a language model's head that has no vocabulary: a layer, its activation and a
    LayerNorm.
    """

    def __init__(self, head: LanguageHead) -> None:
        super().__init__()
        self.dense = head.dense
        self.activation = head.activation
        self.norm = head.norm

    def forward(self, states: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(states)))


class Prompted(Method):
    """A method that trains the [MASK] state in the template `template`; a second view has
    `template_b`.
    """

    needs: ClassVar = Needs(reductions=("token",))
    head: nn.Module
    mask: int

    @classmethod
    def check(cls, base: Base, settings: Any) -> None:
        for name in ("template", "template_b"):
            if not getattr(settings, name).strip():
                named = ", ".join(TEMPLATES)
                raise UsageError(f"{name} is empty", advice=f"named templates: {named}")
            base.training_tokenizer_with(getattr(settings, name))

    @classmethod
    def build(cls, base: Base, settings: Any) -> Self:
        method = super().build(base, settings)
        method.head = nn.Linear(method.body.width, method.body.width)
        method.mask = base.training_tokenizer_with(settings.template).mask_id
        return method

    @classmethod
    def readouts(cls, settings: Any) -> tuple[str, ...]:
        return (PROMPT,)

    def mask_states(
        self, texts: Sequence[Ids], positions: Sequence[np.ndarray] | None = None
    ) -> Tensor:
        """Return the states of the mask tokens, (b, d). The positions are 0, 1, 2, ... if not
        given.
        """
        mask_indices = [int(np.flatnonzero(ids == self.mask)[0]) for ids in texts]
        packed = pack(texts, self.device, readout_token_indices=mask_indices)
        if positions is not None:
            packed = replace(packed, positions=packed.to_device(np.concatenate(positions)))
        return self.vectors(packed, PROMPT)

    def projected(self, states: Tensor) -> Tensor:
        vectors: Tensor = self.head(states)
        if isinstance(self.head, Transform):
            return vectors
        return torch.tanh(vectors)


class PromptBERT(Prompted):
    Settings: ClassVar = recipes.PromptBERT
    # of each column: the template before and after the sentence
    frames: list[tuple[list[int], list[int]]]

    @classmethod
    def check(cls, base: Base, settings: recipes.PromptBERT) -> None:
        super().check(base, settings)
        if settings.head == "fresh":
            return
        if why := base.why_no_head:
            raise UsageError(
                f"head=own: not supported, because {why}", advice="use --set head=fresh"
            )
        head_of_base(base)

    @classmethod
    def build(cls, base: Base, settings: recipes.PromptBERT) -> Self:
        method = super().build(base, settings)
        if settings.head == "own":
            method.head = Transform(head_of(base, "own"))
        method.frames = [
            tokenizer.around_text() for _, tokenizer in cls.reads(base, settings).columns
        ]
        return method

    @classmethod
    def reads(cls, base: Base, settings: recipes.PromptBERT) -> Reads:
        first, second = tokenizers_of(base, settings)
        if settings.objective == "triplets":
            return Reads((TRIPLET,), columns=((0, first), (1, first), (2, first)))
        return Reads((SENTENCE,), columns=((0, first), (0, second)))

    def encode(self, batch: Batch) -> Outputs:
        """Encode all texts. As in the released code, only a fresh head comes after the
        subtraction.
        """
        vectors = self.mask_states([text for texts in batch.texts for text in texts])
        has_own_head = self.settings.head == "own"
        if has_own_head:
            vectors = self.projected(vectors)
        if self.settings.denoise:
            with torch.set_grad_enabled(
                torch.is_grad_enabled() and not self.settings.freeze_denoise
            ):
                biases = self.biases(batch)
                if has_own_head:
                    biases = self.projected(biases)
            vectors = vectors - biases
        if not has_own_head:
            vectors = self.projected(vectors)
        names = VIEWS[: len(batch.texts)]
        return dict(zip(names, vectors.chunk(len(names)), strict=True))

    def biases(self, batch: Batch) -> Tensor:
        """Return for each text the state of its template around an empty sentence of the same
        length.
        """
        # Texts of one column with sentences of the same length have the same bias.
        cases: list[tuple[int, int]] = []  # the column of each text, and the length of its sentence
        for column, texts in enumerate(batch.texts):
            before, after = self.frames[column]
            for text in texts:
                # A tokenizer may join a character of the sentence with one of the template.
                cases.append((column, max(len(text) - len(before) - len(after), 0)))
        row_of_case = {case: row for row, case in enumerate(dict.fromkeys(cases))}

        # The template of each case; the positions after the sentence are those with a sentence.
        templates: list[Ids] = []
        positions: list[np.ndarray] = []
        for column, sentence_length in row_of_case:
            before, after = self.frames[column]
            template = np.array([*before, *after], np.int32)
            indices = np.arange(len(template))
            templates.append(template)
            positions.append(indices + sentence_length * (indices >= len(before)))
        states = self.mask_states(templates, positions)
        rows = np.array([row_of_case[case] for case in cases])
        return states[to_device(rows, self.device)]

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        temperature = self.settings.temperature
        one = outputs["one"]
        other = outputs["other"]
        if "negative" in outputs:
            return {
                "contrast": mean_of(triplet_contrast(one, other, outputs["negative"], temperature))
            }
        return {"contrast": mean_of(in_batch_contrast(one, other, temperature))}


def tokenizers_of(base: Base, settings: Any) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of both templates."""
    first = base.training_tokenizer_with(settings.template)
    second = base.training_tokenizer_with(settings.template_b)
    return first, second


class SNCSE(Prompted):
    Settings: ClassVar = recipes.SNCSE

    @classmethod
    def reads(cls, base: Base, settings: Any) -> Reads:
        """Return the kind of rows: a sentence and its negation, as from `sentkit augment --op
        negate`.
        """
        first, second = tokenizers_of(base, settings)
        return Reads((PAIR,), columns=((0, first), (0, second), (1, second)))

    def encode(self, batch: Batch) -> Outputs:
        states = self.mask_states([text for texts in batch.texts for text in texts])
        one, other, negation = self.projected(states).chunk(3)
        return {"one": one, "other": other, "negation": negation}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        settings = self.settings
        one, other, negation = (unit(outputs[name]) for name in ("one", "other", "negation"))
        differences: Tensor = (one * negation).sum(1) - (one * other).sum(1)
        contrast = in_batch_contrast(one, other, settings.temperature)
        negation_values = soft_negatives(differences, settings.margin, settings.margin_high)
        return {
            "contrast": mean_of(contrast),
            "negation": mean_of(negation_values, settings.margin_weight),
        }


def soft_negatives(differences: Tensor, low: float, high: float) -> Tensor:
    """Return max(0, difference + low) + max(0, -difference - high): (b,) -> (b,).

    SNCSE, arXiv 2201.05979: a difference is the cosine with a soft negative minus that with the
    positive. The loss is 0 from -high to -low.
    """
    differences = at_least_float32(differences)
    return F.relu(differences + low) + F.relu(-differences - high)
