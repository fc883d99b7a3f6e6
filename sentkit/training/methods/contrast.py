"""InfoNCE over pairs or triplets with any number of hard negatives, without false negatives."""

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.checkpoints.readout import Readout, parse_readout
from sentkit.formats.rows.kinds import NEGATIVES, PAIR, POSITIVE, TRIPLET
from sentkit.model.checkpoint_reading import position_limit
from sentkit.model.text.tokens import TextTokenizer
from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.packed import Packed
from sentkit.model.transformer.readouts import apply_readouts
from sentkit.training.base import Base, Body, open_base
from sentkit.training.data.corpus import Batch, Ids
from sentkit.training.data.examples import Reads
from sentkit.training.losses import Filter, Texts, candidate_contrast
from sentkit.training.method import Method, Needs, Outputs, Term, mean_of, readout_of
from sentkit.training.methods import recipes

ROLES = ("anchor", "positive", "negatives")
MISSING = 0  # the number of a negative that a row does not have
MEAN = parse_readout("mean")
STEPS_OF_COSINE = ("normalise",)  # declared steps that do not change cosines


class Guided(Method):
    """A method with a frozen encoder, its guide, if the setting `guide` is the name of a
    checkpoint.
    """

    # the readout of a guide that declares none; None: the method's
    usual: ClassVar[Readout | None] = None
    guide: Body | None
    guide_readout: Readout

    @classmethod
    def build(cls, base: Base, settings: Any) -> Self:
        method = super().build(base, settings)
        guide = guide_of(settings)
        method.guide = None
        method.guide_readout = cls.usual or parse_readout(readout_of(method))
        if guide is not None:
            method.guide = guide.body(None).requires_grad_(False)
            method.guide_readout = guide.declared or method.guide_readout
        return method

    @classmethod
    def check(cls, base: Base, settings: Any) -> None:
        super().check(base, settings)
        guide = guide_of(settings)
        if guide is None:
            return
        declaration = guide.checkpoint.declaration
        dropped = [step for step in declaration.step_names if step not in STEPS_OF_COSINE]
        problem = ""
        if dropped:
            problem = f"has the step {dropped[0]}"
        elif declaration.dim is not None:
            problem = f"declares truncate_dim={declaration.dim}"
        elif guide.declared is not None and guide.declared.reduction == "token":
            problem = "has the readout prompt, with a template around each text"
        if problem:
            raise UsageError(f"guide={settings.guide}: {problem}, which training does not support")
        for name, values in guide.body(None).state_dict().items():
            if not bool(values.isfinite().all()):
                raise DataError(f'"{name}" contains NaN or infinity', source=settings.guide)

    @classmethod
    def other_checkpoints(cls, settings: Any) -> dict[str, str | None]:
        return {"guide": name_of_guide(settings)}

    @classmethod
    def identity(cls, base: Base, settings: Any) -> dict[str, Any]:
        guide = guide_of(settings)
        if guide is None:
            return {}
        readout = guide.declared or cls.usual
        name = None if readout is None else readout.name
        return {"guide_hash": guide.hash, "guide_readout": name}

    @torch.no_grad()
    def guide_vectors(self, packed: Packed) -> Tensor:
        assert self.guide is not None, "only called with a guide"
        return apply_readouts(self.guide, packed, [self.guide_readout])[0]


class Contrast(Guided):
    Settings: ClassVar = recipes.Contrast
    needs: ClassVar = Needs(static=True, vectors=ROLES, constant=("guide.",))
    usual: ClassVar = MEAN
    has_prompts_by_side: bool

    @classmethod
    def reads(cls, base: Base, settings: recipes.Contrast) -> Reads:
        kinds = (TRIPLET, NEGATIVES, POSITIVE, PAIR)
        return Reads(kinds, second_tokenizer=cls.second_tokenizer(base, settings))

    @classmethod
    def second_tokenizer(cls, base: Base, settings: recipes.Contrast) -> TextTokenizer | None:
        """Return the tokenizer of the guide, or one without prompts by side, under which equal
        texts have other tokens.
        """
        guide = guide_of(settings)
        if guide is not None:
            return guide.training_tokenizer
        if base.prompt_of_side and settings.equal_texts:
            return base.training_tokenizer.with_prompt("")
        return None

    @classmethod
    def build(cls, base: Base, settings: recipes.Contrast) -> Self:
        method = super().build(base, settings)
        method.has_prompts_by_side = bool(base.prompt_of_side)
        return method

    def encode(self, batch: Batch) -> Outputs:
        """Return anchors and positives (b, d), negatives (b, k, d) and the ids of all texts (b, 2 +
        k).
        """
        texts = batch.texts
        compared_texts = texts
        if batch.second_texts and self.has_prompts_by_side:
            compared_texts = batch.second_texts
        outputs = self.by_role("", texts, self.vectors)
        ids_of_columns = [[number_of(text) for text in column] for column in compared_texts]
        ids = np.array(ids_of_columns).T  # (b, 2 + k)
        is_missing = np.array([[len(text) == 0 for text in column] for column in texts]).T
        ids[is_missing] = MISSING
        outputs["ids"] = torch.from_numpy(ids)  # on the host, as `role` counts negatives
        if self.guide is not None:
            outputs |= self.by_role("guide_", batch.second_texts, self.guide_vectors)
        return outputs

    def by_role(
        self, prefix: str, texts: Sequence[Sequence[Ids]], vectors_of: Callable[[Packed], Tensor]
    ) -> Outputs:
        """Return the vectors of each role; a missing text has the vector 0."""
        flat_texts = [text for column in texts for text in column]
        indices = [index for index, text in enumerate(flat_texts) if len(text)]
        of_texts = vectors_of(self.pack([flat_texts[index] for index in indices]))
        vectors = of_texts.new_zeros(len(flat_texts), of_texts.shape[1])
        vectors = vectors.index_copy(0, to_device(np.array(indices), self.device), of_texts)
        anchors, positives, *negatives = vectors.view(len(texts), len(texts[0]), -1)
        outputs = {f"{prefix}anchor": anchors, f"{prefix}positive": positives}
        if negatives:
            outputs[f"{prefix}negatives"] = torch.stack(negatives, 1)
        return outputs

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        settings = self.settings
        drop = Filter(settings.equal_texts, settings.margin, settings.margin_kind == "relative")
        anchors = self.texts_of(outputs, "anchor", column=0)
        positives = self.texts_of(outputs, "positive", column=1)
        negatives = None
        if "negatives" in outputs:
            negatives = self.negatives_of(outputs)
        values = candidate_contrast(
            anchors, positives, negatives, settings.temperature, settings.form, drop
        )
        return {"contrast": mean_of(values)}

    def texts_of(self, outputs: Outputs, role: str, column: int) -> Texts:
        """Return the anchors or the positives, one in each row."""
        vectors = outputs[role]
        ids = outputs["ids"][:, column].numpy()
        rows = np.arange(len(ids))
        return Texts(
            vectors,
            to_device(ids, vectors.device),
            to_device(rows, vectors.device),
            self.seen_by_guide(outputs, role),
        )

    def negatives_of(self, outputs: Outputs) -> Texts:
        """Return the negatives of all rows as one list, each with its row."""
        vectors = outputs["negatives"]
        ids = outputs["ids"][:, 2:].numpy()
        exists = ids != MISSING
        rows, columns = (to_device(indices, vectors.device) for indices in np.nonzero(exists))
        guide = self.seen_by_guide(outputs, "negatives")
        if guide is not None:
            guide = guide[rows, columns]
        return Texts(vectors[rows, columns], to_device(ids[exists], vectors.device), rows, guide)

    def seen_by_guide(self, outputs: Outputs, role: str) -> Tensor | None:
        """Return the vectors that decide which texts are false negatives."""
        if self.settings.guide == recipes.ITSELF:
            return outputs[role].detach()
        return outputs.get(f"guide_{role}")


@lru_cache(2)
def open_guide(name: str, max_length: int) -> Base:
    """Return the guide. It truncates texts to its own positions if it has fewer than the
    encoder.
    """
    checkpoint = read_checkpoint(name)
    positions = position_limit(checkpoint) or max_length
    return open_base(checkpoint, min(max_length, positions))


def name_of_guide(settings: Any) -> str | None:
    if settings.guide in settings.guides:
        return None
    return str(settings.guide)


def guide_of(settings: Any) -> Base | None:
    """Return the checkpoint that is the guide, if there is one."""
    name = name_of_guide(settings)
    if name is None:
        return None
    return open_guide(name, settings.max_length)


def number_of(text: Ids) -> int:
    """Hash token ids to a number, so that equal texts are found in the batch of all processes."""
    if not len(text):
        return MISSING
    digest = hashlib.blake2b(text.tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
