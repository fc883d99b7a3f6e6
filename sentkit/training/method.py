"""The contract between a method and the trainer.

A method is one paper: which rows it reads, what exists only while it trains (heads, a frozen guide), what
its outputs are for each row, and what its loss makes of the whole batch. The trainer adds the terms up and
never asks which method it runs.

- `draw` takes every random number but dropout's, for the whole batch of all processes, on the CPU.
- `encode` is row by row: output i depends on row i alone. All parameters act here, so that the trainer may
  encode in chunks and on several processes, and bring the outputs together.
- `loss` has no parameters: it sees the outputs of the whole batch.
- `penalty` depends on parameters alone, and counts once a step.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sentkit.formats.checkpoints.modules import Pooler
from sentkit.formats.checkpoints.readout import Readout, parse_readout
from sentkit.model.transformer.adapter import Adapter
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.packed import Packed, pack
from sentkit.model.transformer.readouts import read
from sentkit.training.base import Base
from sentkit.training.data.batches import Batch
from sentkit.training.data.examples import Reads
from sentkit.training.loop.optimisers import NamedGroup
from sentkit.training.recipe import Recipe
from sentkit.training.settings import AS_BASE, usual_readout

Outputs = dict[str, Tensor]  # each (b, ...)
Draw = Callable[[str], np.random.Generator]  # a generator by its purpose


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a loss: `factor` times the mean of `weight` values whose sum this is.

    Sums and weights, and not means, because a mean of means is wrong where parts are of unequal size.
    """

    sum: Tensor
    weight: float
    factor: float = 1.0

    @property
    def value(self) -> Tensor:
        return self.sum * (self.factor / max(self.weight, 1.0))  # of no values the sum is 0


def mean_of(values: Tensor, factor: float = 1.0) -> Term:
    return Term(values.sum(), float(values.numel()), factor)


def chosen_readout(settings: Any) -> str:
    """What `readout` is set to; `base`, before a base is known, is what a base that declares none gets."""
    name: str = settings.readout
    return usual_readout(type(settings)).name if name == AS_BASE else name


class Method(nn.Module):
    Settings: ClassVar[type[Recipe]] = Recipe
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    row_wise: ClassVar[bool] = False  # each row's loss is its own: nothing is gathered; one term
    needs_packed: ClassVar[str] = ""  # what transformers' models cannot give it, if anything
    from_nothing: ClassVar[bool] = False  # it can teach an encoder of random weights
    takes_entries: ClassVar[bool] = False  # its vectors are to predict the base's `entries`
    reductions: ClassVar[Collection[str]] = ("cls", "mean", "max")  # of readouts that it can train through
    fixed: ClassVar[tuple[str, ...]] = ()  # modules that never change: read again, and not saved

    def __init__(self, body: Bert | Adapter, settings: Any) -> None:
        super().__init__()
        self.body = body
        self.settings = settings

    @classmethod
    def build(cls, base: Base, settings: Any) -> "Method":
        """The method on a fresh copy of the base's encoder; override it to take more of the base."""
        return cls(base.body(settings.dropout), settings)

    @classmethod
    def check(cls, base: Base, settings: Any) -> None:
        """Refuse a base that it cannot begin from, before any row is read."""

    @classmethod
    @abstractmethod
    def reads(cls, base: Base, settings: Any) -> Reads:
        """The rows it learns from."""

    @classmethod
    def readout(cls, settings: Any) -> str:
        """How the finished checkpoint is read."""
        return cls.readouts(settings)[0]

    @classmethod
    def readouts(cls, settings: Any) -> tuple[str, ...]:
        """Ways to read it of which --dev chooses; the first without."""
        return (chosen_readout(settings),)

    @classmethod
    def settled(cls, settings: Any, base: Base) -> Any:
        """The settings, with what else depends on the readout that the base declares."""
        return settings

    @classmethod
    def template(cls, settings: Any) -> str | None:
        """The words around a text where it is read by `prompt`."""
        return None

    @classmethod
    def dev_readout(cls, settings: Any) -> str:
        """How the encoder is read while it is trained."""
        return cls.readout(settings)

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        """What is drawn for these rows: under each name, one value a row."""
        return {}

    @abstractmethod
    def encode(self, batch: Batch) -> Outputs: ...

    @abstractmethod
    def loss(self, outputs: Outputs) -> dict[str, Term]: ...

    def penalty(self) -> dict[str, Tensor]:
        return {}

    def before_step(self) -> None: ...

    def after_step(self, outputs: Outputs) -> None:
        """After the optimiser's step. `outputs` are the whole batch's, without gradient; row-wise, none."""

    def groups(self) -> list[NamedGroup]:
        return [{"params": list(self.trained()), "lr": self.settings.lr}]

    def trained(self, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
        return ((n, p) for n, p in self.named_parameters() if p.requires_grad and n.startswith(prefix))

    def changing(self) -> dict[str, Tensor]:
        """All of it that a run may change: what a state holds."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith(self.fixed)}

    def restore(self, changing: Mapping[str, Tensor]) -> None:
        missing, unknown = self.load_state_dict(dict(changing), strict=False)
        assert not unknown, unknown
        assert all(name.startswith(self.fixed) for name in missing), missing

    def pooler(self) -> nn.Linear | None:
        """The layer that becomes the checkpoint's pooler, if the method trains one."""
        return None

    def pooler_note(self) -> Pooler:
        """What the checkpoint says of that layer."""
        return Pooler(readout="pooler:cls")

    def heads(self) -> dict[str, Tensor]:
        """What exists only in training, for the curious: it is saved apart."""
        apart = ("body.", *self.fixed)
        return {name: value for name, value in self.state_dict().items() if not name.startswith(apart)}

    def own_tensors(self) -> dict[str, Tensor]:
        """More tensors of the checkpoint itself, under its names: a language model's head, say."""
        return {}

    def own_config(self) -> dict[str, Any]:
        """What the checkpoint's config.json says otherwise than the base's."""
        return {}

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def pack(self, texts: Sequence[np.ndarray]) -> Packed:
        return pack(texts, self.device)

    def trained_vectors(self, packed: Packed, **more: Any) -> Tensor:
        """(b, d), as the finished checkpoint is read."""
        return self.vectors(packed, self.readout(self.settings), **more)

    def vectors(self, packed: Packed, name: str, **more: Any) -> Tensor:
        """(b, d), read from the encoder in training by the readout of that name."""
        return read(self.body, packed, [parse_readout(name)], **more)[0]

    def dev_vectors(self, packed: Packed) -> Tensor:
        """(b, d), as the encoder is judged while it is trained."""
        return read(self.body, packed, [self.dev_parsed()])[0]

    def dev_parsed(self) -> Readout:
        return parse_readout(self.dev_readout(self.settings))
