"""The interface between a method and the trainer.

A method implements one paper. It defines the rows to read, the modules that exist only in training (heads,
a frozen guide), the outputs for each row and the loss of the whole batch. The trainer sums the terms of the
loss. It has no code for any particular method.

- `draw` generates all random numbers except dropout, on the CPU, for the whole batch of all processes.
- `encode` computes output i from row i alone and uses all parameters. The trainer can therefore encode in
  chunks and on several processes, and then concatenate the outputs.
- `loss` takes the outputs of the whole batch and uses no parameters.
- `penalty` depends only on parameters and is added once per step.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sentkit.formats.checkpoints.modules import Pooler
from sentkit.formats.checkpoints.readout import Readout, parse_readout
from sentkit.model.transformer.packed import Packed, pack
from sentkit.model.transformer.readouts import read
from sentkit.training.base import Base, Body
from sentkit.training.data.batches import Batch
from sentkit.training.data.corpus import Corpus
from sentkit.training.data.examples import Reads
from sentkit.training.dims import check_widths, widths_of
from sentkit.training.loop.optimizers import NamedGroup
from sentkit.training.lora import constant_tensors
from sentkit.training.recipe import Recipe
from sentkit.training.settings import AS_BASE, usual_readout
from sentkit.transforms.steps import Step

Outputs = dict[str, Tensor]  # each (b, ...)
Draw = Callable[[str], np.random.Generator]  # purpose -> generator


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a loss: `factor` times the mean of `weight` values. `sum` is their sum.

    It stores a sum and a weight because a mean of means is wrong for parts of unequal size.
    """

    sum: Tensor
    weight: float
    factor: float = 1.0

    @property
    def value(self) -> Tensor:
        return self.sum * (self.factor / max(self.weight, 1.0))  # without values the sum is 0


def mean_of(values: Tensor, factor: float = 1.0) -> Term:
    return Term(values.sum(), float(values.numel()), factor)


def chosen_readout(settings: Any) -> str:
    """Return the setting `readout`. Replace `base` by the method's usual readout."""
    name: str = settings.readout
    return usual_readout(type(settings)).name if name == AS_BASE else name


class Method(nn.Module):
    Settings: ClassVar[type[Recipe]] = Recipe
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    row_wise: ClassVar[bool] = False  # each row has a separate loss: one term, nothing is gathered
    needs_packed: ClassVar[str] = ""  # required feature that models of transformers lack
    static: ClassVar[bool] = False  # needs only the vectors of texts, so it can train a static model
    from_nothing: ClassVar[bool] = False  # can train an encoder with random weights
    takes_entries: ClassVar[bool] = False  # trains vectors to predict the base's `entries`
    reductions: ClassVar[Collection[str]] = ("cls", "mean", "max", "last")  # of readouts that it can train
    classifies: ClassVar[bool] = False  # --dev and --test are rows with the target of training, not STS pairs
    encoders: ClassVar[int] = 1  # number of trained encoders; --dev selects one, else the first is kept
    sentence_vectors: ClassVar[tuple[str, ...]] = ()  # outputs (b, ..., d) that the setting `dims` truncates
    fixed: ClassVar[tuple[str, ...]] = ()  # prefixes of constant modules: not saved, built again

    def __init__(self, body: Body, settings: Any) -> None:
        super().__init__()
        check_widths(settings, body.width)
        self.body = body
        self.settings = settings

    @classmethod
    def build(cls, base: Base, settings: Any) -> "Method":
        """Build the method on a copy of the base's encoder. Override it to use other parts of the base."""
        return cls(base.body(settings), settings)

    @classmethod
    def check(cls, base: Base, settings: Any) -> None:
        """Raise an error for an unsuitable base, before any row is read."""

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: Any, source: str) -> None:
        """Raise a DataError for rows that this method cannot learn from. `source` names their files."""

    @classmethod
    def identity(cls, base: Base, settings: Any) -> dict[str, Any]:
        """Return further fields that must be equal to resume a run, such as the hash of a second model."""
        return {}

    @classmethod
    @abstractmethod
    def reads(cls, base: Base, settings: Any) -> Reads:
        """Return the kinds of rows and the target to train on."""

    @classmethod
    def readout(cls, settings: Any) -> str:
        """Return the readout of the finished checkpoint."""
        return cls.readouts(settings)[0]

    @classmethod
    def readouts(cls, settings: Any) -> tuple[str, ...]:
        """Return the candidate readouts. --dev selects one; without --dev it is the first."""
        return (chosen_readout(settings),)

    @classmethod
    def settled(cls, settings: Any, base: Base) -> Any:
        """Return the settings, with other settings that depend on the base's readout filled in."""
        return settings

    @classmethod
    def other_checkpoints(cls, settings: Any) -> dict[str, str | None]:
        """Return the checkpoints that the settings name: setting -> name."""
        return {}

    @classmethod
    def template(cls, settings: Any) -> str | None:
        """Return the template of the readout `prompt`."""
        return None

    @classmethod
    def dev_readout(cls, settings: Any) -> str:
        """Return the readout for --dev during training."""
        return cls.readout(settings)

    def begin(self, corpus: Corpus) -> None:
        """Run once before the optimizer is made, for methods that draw other rows or add a layer."""

    def before_training(self, corpus: Corpus) -> None:
        """Run once before the first step, with the number of threads that a resumed run restores."""

    @contextmanager
    def encoder(self, place: int) -> Iterator[None]:
        """Use this encoder of several as `body` in the context."""
        yield

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch off dropout and gradients in the context."""
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train(training)

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        """Return the random values for these rows: for each name, one value per row."""
        return {}

    @abstractmethod
    def encode(self, batch: Batch) -> Outputs: ...

    @abstractmethod
    def loss(self, outputs: Outputs) -> dict[str, Term]: ...

    def loss_of_vectors(self, outputs: Outputs) -> dict[str, Term]:
        """Return the terms of the loss that depend on `sentence_vectors`."""
        return self.loss(outputs)

    def terms(self, outputs: Outputs) -> dict[str, Term]:
        """Return the terms of the loss, and those at each width of the setting `dims`."""
        terms = self.loss(outputs)
        for width in widths_of(self.settings):
            cut = outputs | {
                name: outputs[name][..., :width] for name in self.sentence_vectors if name in outputs
            }
            terms |= {f"{name}_{width}": term for name, term in self.loss_of_vectors(cut).items()}
        return terms

    def penalty(self) -> dict[str, Tensor]:
        return {}

    def before_step(self) -> None: ...

    def after_step(self, outputs: Outputs) -> None:
        """Run after the optimizer's step.

        `outputs` are those of the whole batch, without gradient. They are empty for row-wise methods.
        """

    def groups(self) -> list[NamedGroup]:
        return [{"params": list(self.trained()), "lr": self.settings.lr}]

    def trained(self, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
        return ((n, p) for n, p in self.named_parameters() if p.requires_grad and n.startswith(prefix))

    def changing(self) -> dict[str, Tensor]:
        """Return all tensors that training can change. These are saved in the state."""
        constant = constant_tensors(self)
        return {
            name: value
            for name, value in self.state_dict().items()
            if not name.startswith(self.fixed) and name not in constant
        }

    def restore(self, changing: Mapping[str, Tensor]) -> None:
        missing, unknown = self.load_state_dict(dict(changing), strict=False)
        assert not unknown, unknown
        constant = constant_tensors(self)
        assert all(name.startswith(self.fixed) or name in constant for name in missing), missing

    def pooler(self) -> nn.Linear | None:
        """Return the layer to save as the checkpoint's pooler, if the method trains one."""
        return None

    def pooler_note(self) -> Pooler:
        """Return the checkpoint's description of that layer."""
        return Pooler(readout="pooler:cls")

    def steps(self) -> Sequence[Step]:
        """Return the steps after the readout in the checkpoint."""
        return ()

    def heads(self) -> dict[str, Tensor]:
        """Return the tensors that exist only in training. They are saved in a separate file."""
        apart = ("body.", *self.fixed)
        return {name: value for name, value in self.state_dict().items() if not name.startswith(apart)}

    def own_tensors(self) -> dict[str, Tensor]:
        """Return additional tensors of the checkpoint, with its names, for example a language model head."""
        return {}

    def whole_model(self) -> dict[str, Tensor]:
        """Return all tensors of the checkpoint, if they are not those of the base with trained values."""
        return {}

    def own_config(self) -> dict[str, Any]:
        """Return the fields of config.json that differ from the base."""
        return {}

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def pack(self, texts: Sequence[np.ndarray]) -> Packed:
        return pack(texts, self.device)

    def trained_vectors(self, packed: Packed, **more: Any) -> Tensor:
        """Return vectors (b, d) with the readout of the finished checkpoint."""
        return self.vectors(packed, self.readout(self.settings), **more)

    def vectors(self, packed: Packed, name: str, **more: Any) -> Tensor:
        """Return vectors (b, d) of the encoder in training with the named readout."""
        return read(self.body, packed, [parse_readout(name)], **more)[0]

    def dev_vectors(self, packed: Packed) -> Tensor:
        """Return vectors (b, d) with the readout for --dev during training."""
        name = self.dev_readout(self.settings)
        if name == self.readout(self.settings):
            return self.trained_vectors(packed)
        return self.vectors(packed, name)

    def dev_parsed(self) -> Readout:
        return parse_readout(self.dev_readout(self.settings))
