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
from sentkit.model.checkpoint_reading import most_tokens
from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.packed import Packed
from sentkit.model.transformer.readouts import apply_readouts
from sentkit.training.base import Base, Body, open_base
from sentkit.training.data.corpus import Batch, Ids
from sentkit.training.data.examples import Reads
from sentkit.training.losses import Filter, Texts, candidate_contrast
from sentkit.training.method import Method, Needs, Outputs, Term, mean_of, readout_of
from sentkit.training.methods import recipes

KEEP_ALL, ITSELF = recipes.KEEP_ALL, "self"
ROLES = ("anchor", "positive", "negatives")
MISSING = 0  # the number of a negative that a row does not have
MEAN = parse_readout("mean")
STEPS_OF_COSINE = ("normalise",)  # declared steps that do not change cosines


class Guided(Method):
    """A method with a frozen encoder, its guide, if the setting `guide` is the name of a checkpoint."""

    usual: ClassVar[Readout | None] = None  # the readout of a guide that declares none; None: the method's
    guide: Body | None
    guide_readout: Readout

    @classmethod
    def build(cls, base: Base, settings: Any) -> Self:
        method, guide = super().build(base, settings), guide_of(settings)
        declared = None if guide is None else guide.declared
        method.guide_readout = declared or cls.usual or parse_readout(readout_of(method))
        method.guide = None if guide is None else guide.body(None).requires_grad_(False)
        return method

    @classmethod
    def check(cls, base: Base, settings: Any) -> None:
        super().check(base, settings)
        guide = guide_of(settings)
        if guide is None:
            return
        dropped = [step for step in guide.checkpoint.declared.steps if step not in STEPS_OF_COSINE]
        if dropped:
            problem = f"has the step {dropped[0]}, which training does not support"
            raise UsageError(f"guide={settings.guide}: {problem}")
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
        return {"guide_hash": guide.hash, "guide_readout": readout.name if readout else None}

    @torch.no_grad()
    def guide_vectors(self, packed: Packed) -> Tensor:
        assert self.guide is not None, "only called with a guide"
        return apply_readouts(self.guide, packed, [self.guide_readout])[0]


class Contrast(Guided):
    Settings: ClassVar = recipes.Contrast
    needs: ClassVar = Needs(static=True, vectors=ROLES, constant=("guide.",))
    usual: ClassVar = MEAN

    @classmethod
    def reads(cls, base: Base, settings: recipes.Contrast) -> Reads:
        guide = guide_of(settings)
        second = None if guide is None else guide.training_tokenizer
        return Reads((TRIPLET, NEGATIVES, POSITIVE, PAIR), second=second)

    def encode(self, batch: Batch) -> Outputs:
        """Return anchors and positives (b, d), negatives (b, k, d) and the ids of all texts (b, 2 + k)."""
        texts = batch.texts if self.guide is None else batch.texts[::2]
        outputs = self.by_role("", texts, self.vectors)
        ids = np.array([[number_of(text) for text in column] for column in texts]).T  # (b, 2 + k)
        outputs["ids"] = torch.from_numpy(ids)  # on the host, as `role` counts negatives
        if self.guide is not None:
            outputs |= self.by_role("guide_", batch.texts[1::2], self.guide_vectors)
        return outputs

    def by_role(
        self, prefix: str, texts: Sequence[Sequence[Ids]], vectors_of: Callable[[Packed], Tensor]
    ) -> Outputs:
        columns, rows = len(texts), len(texts[0])
        flat = [text for column in texts for text in column]
        places = [place for place, text in enumerate(flat) if len(text)]
        found = vectors_of(self.pack([flat[place] for place in places]))
        room = found.new_zeros(len(flat), found.shape[1])
        room = room.index_copy(0, to_device(np.array(places), self.device), found)
        anchors, positives, *negatives = room.view(columns, rows, -1)
        outputs = {f"{prefix}anchor": anchors, f"{prefix}positive": positives}
        if negatives:
            outputs[f"{prefix}negatives"] = torch.stack(negatives, 1)
        return outputs

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        settings = self.settings
        drop = Filter(settings.equal_texts, settings.margin, settings.margin_kind == "relative")
        anchors, positives = (self.role(outputs, name, place) for place, name in enumerate(ROLES[:2]))
        negatives = self.role(outputs, "negatives", 2) if "negatives" in outputs else None
        values = candidate_contrast(anchors, positives, negatives, settings.temperature, settings.form, drop)
        return {"contrast": mean_of(values)}

    def role(self, outputs: Outputs, name: str, place: int) -> Texts:
        """Return the texts of a role. The negatives of the batch are one list, each with its row."""
        vectors, ids = outputs[name], outputs["ids"]
        guide = vectors.detach() if self.settings.guide == ITSELF else outputs.get(f"guide_{name}")
        if name != "negatives":
            own, rows = ids[:, place].numpy(), np.arange(len(ids))
            return Texts(vectors, to_device(own, vectors.device), to_device(rows, vectors.device), guide)
        own = ids[:, place:].numpy()
        kept = [to_device(each, vectors.device) for each in np.nonzero(own != MISSING)]  # rows and columns
        numbers = to_device(own[own != MISSING], vectors.device)
        guide = None if guide is None else guide[kept[0], kept[1]]
        return Texts(vectors[kept[0], kept[1]], numbers, kept[0], guide)


@lru_cache(2)
def open_guide(name: str, max_length: int) -> Base:
    """Return the guide. It truncates texts to its own positions if it has fewer than the encoder."""
    checkpoint = read_checkpoint(name)
    most = most_tokens(checkpoint.config, checkpoint.config_file) or max_length
    return open_base(checkpoint, min(max_length, most))


def name_of_guide(settings: Any) -> str | None:
    return None if settings.guide in (KEEP_ALL, ITSELF, recipes.COPY) else settings.guide


def guide_of(settings: Any) -> Base | None:
    """Return the checkpoint that is the guide, if there is one."""
    name = name_of_guide(settings)
    return None if name is None else open_guide(name, settings.max_length)


def number_of(text: Ids) -> int:
    """Hash token ids to a number, so that equal texts are found in the batch of all processes."""
    if not len(text):
        return MISSING
    return int.from_bytes(hashlib.blake2b(text.tobytes(), digest_size=8).digest(), "big", signed=True)
