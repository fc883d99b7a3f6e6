"""The interface between a method and the trainer. `man 7 sentkit-method` explains it with an
example.

A method implements one paper. It defines the rows to read, the modules that exist only in training
(heads, a frozen guide), the outputs for each row and the loss of the whole batch. The trainer sums
the terms of the loss. It has no code for any particular method.

- `draw` generates all random numbers except dropout, on the CPU, for the whole batch of all
  processes.
- `encode` computes output i from row i alone and uses all parameters. The trainer can therefore
  encode in chunks and on several processes, and then concatenate the outputs.
- `loss` takes the outputs of the whole batch and uses no parameters.
- `penalty` depends only on parameters and is added once per step.
"""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from sentkit.errors import DataError
from sentkit.formats.checkpoints.modules import Pooler
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.formats.rows.kinds import SENTENCE
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.packed import Packed, pack
from sentkit.model.transformer.readouts import apply_readouts
from sentkit.training.base import Base, Body
from sentkit.training.data.corpus import Batch, Corpus
from sentkit.training.data.examples import Reads
from sentkit.training.loop.optimizers import Group
from sentkit.training.lora import constant_tensors
from sentkit.training.recipe import Recipe, check_widths, widths_of
from sentkit.training.settings import MANUAL, chosen_readout
from sentkit.transforms.steps import Step

# What the hooks of a method return, for messages.
OF_LOSS = 'a dictionary of terms, such as {"contrast": mean_of(values)}'
OF_TERM = "mean_of(values) of a value for each row, or Term(sum, number, factor)"
OF_SUM = "mean_of(values) of a value for each row; the sum of a Term is a tensor without dimensions"
OF_ENCODE = (
    'a dictionary of tensors with a row for each row of the batch, such as {"vectors": vectors}'
)
OF_PENALTY = 'a dictionary of tensors without dimensions, such as {"decay": weights.square().sum()}'
OF_READS = "Reads((SENTENCE,)), or with other kinds of rows"
OF_DRAW = 'a dictionary of lists with a value for each row of the batch, such as {"masks": masks}'
OF_FINISHED = "Finished(heads=tensors)"
OF_ROW_WISE = "terms of the same number of values, because row_wise divides all of them at once"

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
    of_vectors: bool = True  # whether the setting `dims` adds the term for shorter vectors

    @property
    def value(self) -> Tensor:
        return self.sum * (self.factor / max(self.weight, 1.0))  # without values the sum is 0


def mean_of(values: Tensor, factor: float = 1.0) -> Term:
    return Term(values.sum(), float(values.numel()), factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a method needs and can train."""

    packed: str = ""  # a feature that models of transformers lack
    head: bool = False  # this feature is a head or a pooler, so decoders lack it too
    # of the readouts that it can train
    reductions: Collection[str] = (
        "cls",
        "mean",
        "max",
        "last",
    )
    row_wise: bool = False  # each row has a separate loss: one term, nothing is gathered
    static: bool = False  # needs only the vectors of texts, so it can train a static model
    entries: Callable[[str], Any] | None = None  # reads the file of --entries
    labels: bool = False  # --dev and --test are rows with the target of training, not STS pairs
    vectors: tuple[str, ...] = ()  # outputs (b, ..., d) that the setting `dims` truncates
    constant: tuple[str, ...] = ()  # prefixes of constant modules: not saved, built again


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The parts of a finished checkpoint besides the trained encoder."""

    # tensors that exist only in training; they are saved in a separate file
    heads: dict[str, Tensor]
    tensors: dict[str, Tensor] = field(default_factory=dict)  # more tensors of the checkpoint
    # `tensors` are all tensors, and those of the encoder and the base are not added
    whole: bool = False
    # fields of config.json that differ from the base
    config: dict[str, Any] = field(default_factory=dict)
    pooler: nn.Linear | None = None  # the layer to save as the pooler
    # the description of this layer in the checkpoint
    pooler_note: Pooler = field(default_factory=lambda: Pooler(readout="pooler:cls"))
    steps: Sequence[Step] = ()  # steps after the readout


class Method(nn.Module):
    Settings: ClassVar[type[Recipe]] = Recipe
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # by default those of `Settings`
    needs: ClassVar[Needs] = Needs()
    body: Body

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "Settings" in vars(cls) and "presets" not in vars(cls):
            cls.presets = cls.Settings.presets

    def __init__(self, body: Body, settings: Any) -> None:
        super().__init__()
        check_widths(settings, body.width)
        self.body = body
        self.settings = settings

    @classmethod
    def build(cls, base: Base, settings: Any) -> Self:
        """Build the method on a copy of the base's encoder. Override it to use other parts of the
        base.
        """
        return cls(base.body(settings), settings)

    @classmethod
    def check(cls, base: Base, settings: Any) -> None:
        """Raise an error for an unsuitable base, before any row is read."""

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: Any, source: str) -> None:
        """Raise a DataError for rows that this method cannot learn from. `source` names their
        files.
        """

    @classmethod
    def identity(cls, base: Base, settings: Any) -> dict[str, Any]:
        """Return further fields that must be equal to resume a run, such as the hash of a second
        model.
        """
        return {}

    @classmethod
    def reads(cls, base: Base, settings: Any) -> Reads:
        """Return the kinds of rows and the target to train on; by default sentences."""
        return Reads((SENTENCE,))

    @classmethod
    def readouts(cls, settings: Any) -> tuple[str, ...]:
        """Return the candidate readouts of the checkpoint. --dev selects one, else it is
        the first.
        """
        return (chosen_readout(settings),)

    @classmethod
    def dev_readout(cls, settings: Any) -> str:
        """Return the readout for --dev during training."""
        return cls.readouts(settings)[0]

    @classmethod
    def other_checkpoints(cls, settings: Any) -> dict[str, str | None]:
        """Return the checkpoints that the settings name: setting -> name."""
        return {}

    def train(self, mode: bool = True) -> Self:
        """Change the mode of all modules, except those without trained weights, such as a guide."""
        super().train(mode)
        for module in self.children():
            weights = list(module.parameters())
            if weights and not any(weight.requires_grad for weight in weights):
                module.eval()
        return self

    def prepare(self, corpus: Corpus) -> None:
        """Run once before the optimizer is made, for methods that draw other rows or add a layer,
        whose random weights are equal in all processes.
        """

    def encoders(self) -> Sequence[Body]:
        """Return the trained encoders. --dev selects one of several, else the checkpoint has the
        first.
        """
        return (self.body,)

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        """Return the random values for these rows: for each name, one value per row."""
        return {}

    @abstractmethod
    def encode(self, batch: Batch) -> Outputs: ...

    @abstractmethod
    def loss(self, outputs: Outputs) -> dict[str, Term]: ...

    def penalty(self) -> dict[str, Tensor]:
        return {}

    def after_step(self, outputs: Outputs) -> None:
        """Run after the optimizer's step.

        `outputs` are those of the whole batch, without gradient. They are empty for row-wise
        methods.
        """

    def groups(self) -> list[Group]:
        """Return the trained parameters with their learning rates."""
        return [{"params": list(trained_parameters(self)), "lr": self.settings.lr}]

    def finished(self) -> Finished:
        """Return the parts of the checkpoint besides the encoder. By default, new modules are
        heads.
        """
        return Finished(heads=tensors_of_heads(self))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def pack(self, texts: Sequence[np.ndarray]) -> Packed:
        return pack(texts, self.device)

    def vectors(self, packed: Packed, readout: str | None = None, **more: Any) -> Tensor:
        """Return vectors (b, d) of the encoder in training, by default with the checkpoint's
        readout.
        """
        name = readout or self.readouts(self.settings)[0]
        return apply_readouts(self.body, packed, [parse_readout(name)], **more)[0]


class PackedMethod(Method):
    """A method for the encoders that sentkit runs itself. `needs.packed` names the reason."""

    body: Bert

    @classmethod
    def build(cls, base: Base, settings: Any) -> Self:
        return cls(cls.bert(base, settings), settings)

    @staticmethod
    def bert(base: Base, settings: Any) -> Bert:
        """Return a copy of the base's encoder."""
        body = base.body(settings)
        assert isinstance(body, Bert), "needs.packed is refused before"
        return body


def readout_of(method: Method) -> str:
    """Return the readout of the finished checkpoint."""
    return method.readouts(method.settings)[0]


def first_readout(kind: type[Method], base: Base, settings: Any) -> str:
    """Return the readout of a checkpoint, unless --dev selects one. A classifier has that of its
    base.
    """
    if kind.needs.labels:
        return base.packed.pooling
    return kind.readouts(settings)[0]


def template_of(settings: Any) -> str | None:
    """Return the template of the readout `prompt`."""
    return getattr(settings, "template", None)


def dev_vectors(method: Method, packed: Packed) -> Tensor:
    """Return vectors (b, d) with the readout for --dev during training."""
    name = method.dev_readout(method.settings)
    if name == readout_of(method):
        return method.vectors(packed)
    return method.vectors(packed, name)


@contextmanager
def evaluating(method: Method) -> Iterator[None]:
    """Switch off dropout and gradients in the context."""
    training = method.training
    method.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        method.train(training)


@contextmanager
def using(method: Method, body: Body) -> Iterator[None]:
    """Use one of the method's encoders as its `body` in the context."""
    first = method.body
    method.body = body
    try:
        yield
    finally:
        method.body = first


def terms_of(method: Method, outputs: Outputs) -> dict[str, Term]:
    """Return the terms of the loss, and those at each width of the setting `dims`."""
    terms = checked_terms(method, method.loss(outputs))
    for width in widths_of(method.settings):
        cut = outputs | {
            name: outputs[name][..., :width] for name in method.needs.vectors if name in outputs
        }
        terms |= {
            f"{name}_{width}": term for name, term in method.loss(cut).items() if term.of_vectors
        }
    return terms


def checked_terms(method: Method, terms: Any) -> dict[str, Term]:
    """Return what `loss` returns. Raise a DataError if that is not a dictionary of terms."""
    if not isinstance(terms, dict) or not terms:
        raise wrong_result(method.loss, f"loss() returns {named_type(terms)}", OF_LOSS)
    for name, term in terms.items():
        if not isinstance(term, Term):
            raise wrong_result(
                method.loss, f'the term "{name}" of loss() is {named_type(term)}', OF_TERM
            )
        if not isinstance(term.sum, Tensor) or term.sum.dim():
            problem = f'the sum of the term "{name}" of loss() is {named_type(term.sum)}'
            raise wrong_result(method.loss, problem, OF_SUM)
    return terms


def checked_outputs(method: Method, outputs: Any) -> Outputs:
    """Return what `encode` returns. Raise a DataError if that is not a dictionary of tensors."""
    if not isinstance(outputs, dict) or not outputs:
        raise wrong_result(method.encode, f"encode() returns {named_type(outputs)}", OF_ENCODE)
    for name, value in outputs.items():
        if not isinstance(value, Tensor) or not value.dim():
            problem = f'the output "{name}" of encode() is {named_type(value)}'
            raise wrong_result(method.encode, problem, OF_ENCODE)
    return outputs


def checked_penalties(method: Method, penalties: Any) -> dict[str, Tensor]:
    """Return what `penalty` returns. Raise a DataError if that is not a dictionary of numbers."""
    if not isinstance(penalties, dict):
        raise wrong_result(method.penalty, f"penalty() returns {named_type(penalties)}", OF_PENALTY)
    for name, value in penalties.items():
        if not isinstance(value, Tensor) or value.dim():
            problem = f'the penalty "{name}" is {named_type(value)}'
            raise wrong_result(method.penalty, problem, OF_PENALTY)
    return penalties


def checked_reads(kind: type[Method], reads: Any) -> Reads:
    """Return what `reads` returns. Raise a DataError if that is not a record Reads."""
    if not isinstance(reads, Reads):
        raise wrong_result(kind.reads, f"reads() returns {named_type(reads)}", OF_READS)
    return reads


def checked_draws(method: Method, draws: Any, rows: int) -> Mapping[str, Sequence[Any]]:
    """Return what `draw` returns. Raise a DataError if that is not a value for each row, by
    name.
    """
    if not isinstance(draws, Mapping):
        raise wrong_result(method.draw, f"draw() returns {named_type(draws)}", OF_DRAW)
    for name, values in draws.items():
        if not hasattr(values, "__len__"):
            raise wrong_result(method.draw, f'"{name}" of draw() is {named_type(values)}', OF_DRAW)
        if len(values) != rows:
            problem = f'"{name}" of draw() has {len(values)} values, expected {rows}'
            raise wrong_result(method.draw, problem, OF_DRAW)
    return draws


def checked_finished(method: Method, finished: Any) -> Finished:
    """Return what `finished` returns. Raise a DataError if that is not a record Finished."""
    if not isinstance(finished, Finished):
        raise wrong_result(
            method.finished, f"finished() returns {named_type(finished)}", OF_FINISHED
        )
    return finished


def wrong_result(hook: Callable[..., Any], problem: str, expected: str) -> DataError:
    """The error of a hook of a user that returns something else than the trainer expects."""
    function = inspect.unwrap(hook)
    source = inspect.getsourcefile(function) or function.__module__
    line = function.__code__.co_firstlineno
    return DataError(problem, source=source, line=line, advice=f"return {expected}; {MANUAL}")


def named_type(value: Any) -> str:
    """The type of a value for a message, and the shape of a tensor."""
    if isinstance(value, Tensor):
        return f"a tensor of the shape {tuple(value.shape)}"
    if value is None:
        return "nothing (None)"
    if value == {}:
        return "an empty dictionary"
    return f"a value of the type {type(value).__name__}"


def trained_parameters(method: Method, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the trained parameters whose names have this prefix."""
    for name, parameter in method.named_parameters():
        if parameter.requires_grad and name.startswith(prefix):
            yield name, parameter


def tensors_of_heads(method: Method, prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors outside of the encoder and of constant modules."""
    not_heads = ("body.", *method.needs.constant)
    return {
        name: value
        for name, value in method.state_dict().items()
        if name.startswith(prefix) and not name.startswith(not_heads)
    }


def changing_tensors(method: Method) -> dict[str, Tensor]:
    """Return all tensors that training can change. These are saved in the state."""
    constant = constant_tensors(method)
    return {
        name: value
        for name, value in method.state_dict().items()
        if not name.startswith(method.needs.constant) and name not in constant
    }


def restore(method: Method, tensors: Mapping[str, Tensor]) -> None:
    """Set the tensors of `changing_tensors`."""
    missing, unknown = method.load_state_dict(dict(tensors), strict=False)
    assert not unknown, unknown
    constant = constant_tensors(method)
    assert all(name.startswith(method.needs.constant) or name in constant for name in missing), (
        missing
    )


def embedding_modules(body: Bert, *, projection: bool = True) -> list[nn.Module]:
    """Return the modules before the first block, with or without ELECTRA's projection."""
    modules = [body.words, body.positions, body.types, body.norm]
    if projection:
        modules.append(body.projection)
    return [module for module in modules if module is not None]


def share(rate: float, count: int) -> int:
    """Return floor(rate * count) in decimal arithmetic: 0.29 * 100 is 29, but 28 with floats."""
    return int(Decimal(str(rate)) * count)
