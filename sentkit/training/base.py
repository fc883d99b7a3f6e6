"""The base of a run: tensors and tokenizer of a checkpoint, encoders built from them, and entries."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import (
    WORD_SETS,
    Checkpoint,
    find_model,
    is_static,
    read_checkpoint,
)
from sentkit.formats.checkpoints.readout import Readout
from sentkit.formats.lexicons.model2vec import Table
from sentkit.formats.vectors.fingerprint import digest
from sentkit.model.reading import ReadingOptions, most_tokens, plan_reading
from sentkit.model.static.models import WordTable, read_folder
from sentkit.model.static.tokenizers import WordPieces
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.architecture import (
    WITH_POOLER,
    Architecture,
    UnsupportedArchitecture,
    architecture_of,
)
from sentkit.model.transformer.bert import Bert, load_bert
from sentkit.model.transformer.encoder import add_convolution, rules_of
from sentkit.model.transformer.transformers_model import TransformersModel, load_transformers_model
from sentkit.model.transformer.weights import canonical, fit, read_weights, weights_hash
from sentkit.training.lora import add_lora
from sentkit.training.recipe import Recipe
from sentkit.training.token_table import KnownTexts, TokenTable
from sentkit.transforms.steps import Normalize, Truncate

Body = Bert | TransformersModel | TokenTable


class Entries(Protocol):
    """What a method reads from the file of --entries."""

    @property
    def hash(self) -> str:
        """The hash that must be equal to resume a run."""

    @property
    def lineage(self) -> dict[str, Any]:
        """The origin, for the record of the checkpoint."""

    def mismatch(self, tokenizer: str, family: object) -> str:
        """Return why they probably belong to a different kind of model, or an empty string."""


@dataclass(frozen=True, slots=True)
class Base:
    checkpoint: Checkpoint
    stored: Mapping[str, Tensor]  # names as in the files; empty without an architecture
    architecture: Architecture | None  # None for a static model, and if transformers runs the model
    why_not_packed: str
    hash: str  # of weights, tokenizer, convolution, and the values of the config that change the training
    training_tokenizer: Tokenizer | KnownTexts  # truncates to the length used in training
    final_tokenizer: Tokenizer | KnownTexts  # truncates to the length of the finished checkpoint
    sides: Mapping[str, str]  # the prompt of each side; empty: all texts have that of the tokenizers
    dropped_steps: str  # declared steps after the readout; the new checkpoint does not have them
    parents: tuple[str, ...]  # this checkpoint and its ancestors; empty for random weights
    entries: Entries | None = None  # prediction targets, for methods that read --entries
    labels: tuple[str, ...] = ()  # prediction targets, for methods that classify by the labels of the rows

    @property
    def declared(self) -> Readout | None:
        return self.checkpoint.declared.readout

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts that the new checkpoint declares by name, with new ones by side."""
        prompts = dict(self.checkpoint.declared.prompts)
        for name, sides in {"query": ("anchor", "a"), "document": ("positive", "b")}.items():
            prompt = next((self.sides[side] for side in sides if side in self.sides), None)
            if prompt is not None and prompt not in prompts.values():
                prompts[name] = prompt
        return prompts

    @property
    def packed(self) -> Architecture:
        """The architecture of an encoder that sentkit runs itself."""
        assert self.architecture is not None, "needs.packed is refused before"
        return self.architecture

    @property
    def transformer_tokenizer(self) -> Tokenizer:
        """The training tokenizer of a base that is not static."""
        assert isinstance(self.training_tokenizer, Tokenizer), "methods that use it refuse static models"
        return self.training_tokenizer

    def check_settings(self, settings: Recipe) -> None:
        """Raise a UsageError for settings that models of transformers do not support."""
        for name in ("dropout", "lora"):
            if self.architecture is None and getattr(settings, name) is not None:
                problem = f"not supported, because transformers runs this model ({self.why_not_packed})"
                raise UsageError(f"{name}: {problem}", advice=f"use {name}=none")

    def body(self, settings: Recipe | None) -> Body:
        """Return a new encoder with a copy of the base's weights, and with the LoRA of the settings."""
        if self.architecture is None:
            adapter = load_transformers_model(self.checkpoint.transformer)
            add_convolution(adapter, self.checkpoint)
            return adapter
        wanted, dropout = self.architecture, None if settings is None else settings.dropout
        if dropout is not None:
            wanted = replace(wanted, dropout=dropout, attention_dropout=dropout)
        named = canonical(self.stored, wanted)
        body = load_bert({name: tensor.clone() for name, tensor in named.items()}, wanted)
        if settings is not None and settings.lora is not None:
            add_lora(body, settings)
        add_convolution(body, self.checkpoint)
        return body

    def check_pooler(self) -> None:
        """Raise a UsageError if the family of this base has no pooler, which would store a method's head."""
        if self.architecture is None or self.architecture.family not in WITH_POOLER:
            kind = self.why_not_packed or f'"{self.architecture and self.architecture.family}"'
            raise UsageError(f"the trained head is saved as the pooler, but {kind} has no pooler")

    def training_tokenizer_with(self, template: str) -> Tokenizer:
        return self.final_tokenizer_with(template, self.transformer_tokenizer.max_length)

    def final_tokenizer_with(self, template: str | None, max_length: int | None = None) -> Tokenizer:
        """Return the tokenizer with this template; None: that of the checkpoint."""
        prompt = self.transformer_tokenizer.prompt
        options = ReadingOptions(readout="prompt", template=template, max_length=max_length, prompt=prompt)
        return plan_reading(self.checkpoint, options).tokenizer


def open_base(
    checkpoint: Checkpoint, max_length: int, prompt: str | None = None, prompt_name: str | None = None
) -> Base:
    most = most_tokens(checkpoint.config, checkpoint.config_file)
    if most is not None and max_length > most:
        problem = f"max_length={max_length}: the maximum of this encoder is {most}"
        raise UsageError(problem, advice=f"use --set max_length={most}")
    options = ReadingOptions(readout="mean", prompt=prompt, prompt_name=prompt_name, by_side=True)
    reading = plan_reading(checkpoint, replace(options, max_length=max_length))
    training, final, sides = reading.tokenizer, plan_reading(checkpoint, options).tokenizer, reading.sides
    if not final.reads_prompt and (final.prompt or any(sides.values())):
        problem = "training does not support checkpoints with include_prompt=false"
        raise UsageError(f"{checkpoint.name}: {problem}")
    why_not, stored, architecture = "", dict[str, Tensor](), None
    rules: list[Any]  # values of config.json that change the training for equal weights
    try:
        architecture = architecture_of(checkpoint)
    except UnsupportedArchitecture as reason:
        why_not, adapter = str(reason), load_transformers_model(checkpoint.transformer)
        weights = weights_hash(adapter.tensors(), with_pooler=True)
        config = adapter.model.config.to_dict()
        rules = [rules_of(adapter), {name: value for name, value in config.items() if "drop" in name}]
    else:
        stored = read_weights(checkpoint.transformer, checkpoint.name)
        named = canonical(stored, architecture)
        fit(named, architecture, source=checkpoint.name)
        weights = weights_hash(stored, with_pooler=True)  # with heads, which methods may train
        rules = [*architecture.rules, architecture.dropout, architecture.attention_dropout]
        rules.append(architecture.pooler_activation)
    parts = [weights, training.hash, rules]
    if (place := checkpoint.declared.convolution) is not None:
        parts.append(weights_hash(read_weights(place, str(place)), with_pooler=True))
    hash = digest(parts)
    parents = (checkpoint.name, *checkpoint.parents)
    steps = ", ".join(checkpoint.declared.steps)
    return Base(checkpoint, stored, architecture, why_not, hash, training, final, sides, steps, parents)


# The only values of settings about the layers of an encoder.
ONLY = {"readout": "mean", "dropout": None, "lora": None, "mlm_weight": 0.0, "precision": "fp32"}
ONLY |= {"prompt": None, "prompt_name": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBase(Base):
    table: Table
    normalize: bool  # the vector of a text has unit length

    def check_settings(self, settings: Recipe) -> None:
        for name, value in ONLY.items():
            if getattr(settings, name, value) != value:
                word = "none" if value is None else value
                problem = f"{name}={getattr(settings, name)}: {self.checkpoint.name} is a static model"
                raise UsageError(f"{problem}, which has only {name}={word}")

    def body(self, settings: Recipe | None) -> TokenTable:
        return TokenTable(self.table, normalize=self.normalize)


def open_named(name: str, max_length: int, *prompts: str | None) -> Base:
    """Return the base of this name: a transformer with these prompts, or a static model."""
    if name == WORD_SETS or not is_static(folder := find_model(name)):
        return open_base(read_checkpoint(name), max_length, *prompts)
    return open_static(folder, name, max_length)


def open_static(folder: Path, name: str, max_length: int) -> StaticBase:
    """Read a static model. `max_length` is the length of the texts in training."""
    training, finished = (
        read_folder(folder, name, ReadingOptions(max_length=length)) for length in (max_length, None)
    )
    vectors = finished.open_vectors()
    assert isinstance(vectors, WordTable), "a folder has a table"
    assert isinstance(training.tokenizer, WordPieces), "a folder has word pieces"
    assert isinstance(finished.tokenizer, WordPieces), "a folder has word pieces"
    if any(isinstance(step, Truncate) for step in finished.steps):
        raise UsageError(f"{name}: training does not support a static model that declares truncate_dim")
    normalize = any(isinstance(step, Normalize) for step in finished.steps)
    checkpoint = read_checkpoint(name, static=True)
    return StaticBase(
        checkpoint=checkpoint,
        stored={},
        architecture=None,
        why_not_packed="a static model",
        hash=digest([vectors.hash, training.tokenizer.hash, normalize]),
        training_tokenizer=KnownTexts(training.tokenizer),
        final_tokenizer=KnownTexts(finished.tokenizer),
        sides={},
        dropped_steps="",
        parents=(name, *checkpoint.parents),
        table=vectors.table,
        normalize=normalize,
    )
