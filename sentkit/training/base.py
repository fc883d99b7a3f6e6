"""The base of a run: tensors and tokenizer of a checkpoint, encoders built from them, and entries.

An encoder of the base is a copy of its transformer, also with low-rank updates (LoRA), or its table
of token vectors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import Checkpoint, read_checkpoint
from sentkit.formats.checkpoints.readout import Readout
from sentkit.formats.lexicons.model2vec import Table
from sentkit.formats.vectors.fingerprint import digest
from sentkit.model.checkpoint_reading import declared_steps, plan_reading, position_limit
from sentkit.model.mteb import NAMES_OF_SIDE
from sentkit.model.reading import ReadingOptions
from sentkit.model.static.models import WordTable, read_static_folder
from sentkit.model.static.tokenizers import WordPieces
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.architecture import (
    Architecture,
    UnsupportedArchitecture,
    architecture_of,
)
from sentkit.model.transformer.bert import Bert, load_bert
from sentkit.model.transformer.encoder import add_convolution, hashed_values_of, read_layer
from sentkit.model.transformer.families import WITH_POOLER
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.transformers_model import (
    TransformersModel,
    load_transformers_model,
    vocabulary_size,
)
from sentkit.model.transformer.weights import canonical, fit, read_weights, weights_hash
from sentkit.training.lora import add_lora
from sentkit.training.recipe import Recipe
from sentkit.training.static_body import TokenTable
from sentkit.transforms.steps import Normalize, Step, Truncate

Body = Bert | TransformersModel | TokenTable
TRIAL_LENGTH = 12  # tokens of the texts of `first_state_is_fixed`
# In names of dropouts in a config: of heads, and of whole layers, for all texts of a pass at once.
NOT_OF_STATES = ("classif", "qa_", "summary", "pooler", "layer")
ROUNDING = 1e-5  # of a state, relative to its largest number


@dataclass(frozen=True, slots=True)
class Base:
    checkpoint: Checkpoint
    # of weights, tokenizer, convolution, and the values of the config that change the training
    hash: str
    training_tokenizer: Tokenizer | WordPieces  # truncates to the length used in training
    final_tokenizer: Tokenizer | WordPieces  # truncates to the length of the finished checkpoint
    why_not_packed: str  # why sentkit cannot run this encoder itself; "" if it can
    parents: tuple[str, ...]  # this checkpoint and its ancestors
    # The tensors of the checkpoint, with the names of its files; empty without an architecture.
    stored: Mapping[str, Tensor] = field(default_factory=dict)
    # None for a static model, and if transformers runs the model
    architecture: Architecture | None = None
    # of a model that transformers runs: whether a token attends only to itself and those before it
    is_causal_in_transformers: bool = False
    has_own_dropout: bool = False  # by its config, between the token vectors and the last states
    # prompts of sides; none: that of the tokenizers
    prompt_of_side: Mapping[str, str] = field(default_factory=dict)
    # declared steps after the readout; the new checkpoint does not have them
    dropped_steps: str = ""
    # Prediction targets, as `needs.entries` of the method reads them: with the hash that must be
    # equal to resume a run, the lineage for the checkpoint, and `mismatch(tokenizer, family)`, a
    # warning or "".
    entries: Any = None
    # prediction targets, for methods that classify by the labels of the rows
    labels: tuple[str, ...] = ()
    table: Table | None = None  # the token vectors of a static model; None for a transformer
    normalize: bool = False  # of a static model: the vector of a text has unit length

    @property
    def is_static(self) -> bool:
        return self.table is not None

    @property
    def is_causal(self) -> bool:
        """Whether a token attends only to itself and the tokens before it."""
        if self.architecture is None:
            return self.is_causal_in_transformers
        return self.architecture.causal

    def has_dropout(self, settings: Recipe) -> bool:
        """Whether two passes of a text differ in training."""
        if settings.dropout is None:
            return self.has_own_dropout
        return settings.dropout > 0

    @property
    def declared(self) -> Readout | None:
        return self.checkpoint.declaration.readout

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts that the new checkpoint declares by name, with new ones by side."""
        prompts = dict(self.checkpoint.declaration.prompts)
        for name, sides in {"query": ("anchor", "a"), "document": ("positive", "b")}.items():
            trained_prompts = [
                self.prompt_of_side[side] for side in sides if side in self.prompt_of_side
            ]
            declared_prompts = [prompts[other] for other in NAMES_OF_SIDE[name] if other in prompts]
            if trained_prompts and declared_prompts[:1] != trained_prompts[:1]:
                prompts[name] = trained_prompts[0]
        return prompts

    @property
    def packed(self) -> Architecture:
        """The architecture of an encoder that sentkit runs itself."""
        assert self.architecture is not None, "needs.packed is refused before"
        return self.architecture

    @property
    def transformer_tokenizer(self) -> Tokenizer:
        """The training tokenizer of a base that is not static."""
        assert isinstance(self.training_tokenizer, Tokenizer), (
            "methods that use it refuse static models"
        )
        return self.training_tokenizer

    @property
    def why_no_head(self) -> str:
        """Why methods can use no head or pooler of this base, or an empty string."""
        if self.architecture is None:
            return f"transformers runs this model ({self.why_not_packed})"
        if self.architecture.family_traits.decoder:
            return f'"{self.architecture.family}" is a decoder'
        return ""

    def read_steps(self) -> list[Step]:
        """Read the declared steps after the readout of a transformer, as `encode` applies them."""
        if self.is_static or self.declared is None:
            return []
        reading = plan_reading(self.checkpoint, ReadingOptions())
        return declared_steps(self.checkpoint, reading, read_layer)

    def check_settings(self, settings: Recipe) -> None:
        """Raise a UsageError for settings that a static model, or a model of transformers, does not
        support.
        """
        if self.table is not None:
            check_settings_of_static(settings, self.checkpoint.name)
            return
        if self.architecture is not None:
            return
        for name in ("dropout", "lora"):
            if getattr(settings, name) is not None:
                problem = (
                    f"not supported, because transformers runs this model ({self.why_not_packed})"
                )
                raise UsageError(f"{name}: {problem}", advice=f"use {name}=none")

    def body(self, settings: Recipe | None) -> Body:
        """Return a new encoder with a copy of the base's weights, and with the LoRA of the
        settings.
        """
        if self.table is not None:
            return TokenTable(self.table, normalize=self.normalize)
        if self.architecture is None:
            model = load_transformers_model(self.checkpoint.transformer_folder)
            add_convolution(model, self.checkpoint)
            return model
        architecture = self.architecture
        if settings is not None and settings.dropout is not None:
            dropout = settings.dropout
            architecture = replace(architecture, dropout=dropout, attention_dropout=dropout)
        weights = canonical(self.stored, architecture)
        body = load_bert({name: tensor.clone() for name, tensor in weights.items()}, architecture)
        if settings is not None and settings.lora is not None:
            add_lora(body, settings)
        add_convolution(body, self.checkpoint)
        return body

    def check_pooler(self) -> None:
        """Raise a UsageError if the family of this base has no pooler, which would store a method's
        head.
        """
        if self.architecture is None:
            reason = self.why_not_packed
        elif self.architecture.family not in WITH_POOLER:
            reason = f'"{self.architecture.family}"'
        else:
            return
        raise UsageError(f"the trained head is saved as the pooler, but {reason} has no pooler")

    def training_tokenizer_with(self, template: str) -> Tokenizer:
        return self.final_tokenizer_with(template, self.transformer_tokenizer.max_length)

    def final_tokenizer_with(
        self, template: str | None, max_length: int | None = None
    ) -> Tokenizer:
        """Return the tokenizer with this template; None: that of the checkpoint."""
        prompt = self.transformer_tokenizer.prompt
        options = ReadingOptions(
            readout="prompt", template=template, max_length=max_length, prompt=prompt
        )
        return plan_reading(self.checkpoint, options).tokenizer


def open_base(
    checkpoint: Checkpoint,
    max_length: int,
    prompt: str | None = None,
    prompt_name: str | None = None,
) -> Base:
    """Read a transformer. `max_length` is that of texts in training."""
    longest = position_limit(checkpoint)
    if longest is not None and max_length > longest:
        problem = f"max_length={max_length}: the maximum of this encoder is {longest}"
        raise UsageError(problem, advice=f"use --set max_length={longest}")

    # The tokenizers of training and of the finished checkpoint.
    options = ReadingOptions(readout="mean", prompt=prompt, prompt_name=prompt_name, by_side=True)
    reading = plan_reading(checkpoint, replace(options, max_length=max_length))
    training_tokenizer = reading.tokenizer
    final_tokenizer = plan_reading(checkpoint, options).tokenizer
    has_prompt = bool(final_tokenizer.prompt) or any(reading.prompt_of_side.values())
    if has_prompt and not final_tokenizer.reads_prompt:
        problem = "training does not support checkpoints with include_prompt=false"
        raise UsageError(f"{checkpoint.name}: {problem}")

    # The weights, and the values of config.json that change the training for equal weights.
    why_not_packed = ""
    stored: dict[str, Tensor] = {}
    architecture: Architecture | None = None
    is_causal_in_transformers = False
    hashed_values: list[Any]
    try:
        architecture = architecture_of(checkpoint)
    except UnsupportedArchitecture as reason:
        why_not_packed = str(reason)
        model = load_transformers_model(checkpoint.transformer_folder)
        tensors = model.tensors()
        check_finite(tensors, checkpoint.name)
        is_causal_in_transformers = first_state_is_fixed(model)
        hash_of_weights = weights_hash(tensors, with_pooler=True)
        config = model.model.config.to_dict()
        dropouts = {name: value for name, value in config.items() if "drop" in name}
        hashed_values = [hashed_values_of(model), dropouts]
        has_own_dropout = any(
            value
            for name, value in dropouts.items()
            if not any(word in name for word in NOT_OF_STATES)
        )
    else:
        stored = read_weights(checkpoint.transformer_folder, checkpoint.name)
        check_weights(stored, architecture, checkpoint.name)
        # with heads, which methods may train
        hash_of_weights = weights_hash(stored, with_pooler=True)
        hashed_values = [
            *architecture.hashed_values,
            architecture.dropout,
            architecture.attention_dropout,
            architecture.pooler_activation,
        ]
        has_own_dropout = max(architecture.dropout, architecture.attention_dropout) > 0
    hashed = [hash_of_weights, training_tokenizer.hash, hashed_values]
    convolution = checkpoint.declaration.convolution
    if convolution is not None:
        hashed.append(weights_hash(read_weights(convolution, str(convolution)), with_pooler=True))
    return Base(
        checkpoint=checkpoint,
        hash=digest(hashed),
        training_tokenizer=training_tokenizer,
        final_tokenizer=final_tokenizer,
        why_not_packed=why_not_packed,
        parents=(checkpoint.name, *checkpoint.parents),
        stored=stored,
        architecture=architecture,
        is_causal_in_transformers=is_causal_in_transformers,
        has_own_dropout=has_own_dropout,
        prompt_of_side=reading.prompt_of_side,
        dropped_steps=", ".join(steps_after_readout(checkpoint)),
    )


@torch.no_grad()
def first_state_is_fixed(model: TransformersModel) -> bool:
    """Whether the last state of the first token stays the same if all other tokens change, as in a
    causal language model. The classes of these models have many names.
    """
    vocabulary = vocabulary_size(model.model) or 2 * TRIAL_LENGTH  # CANINE has no vocabulary
    length = min(TRIAL_LENGTH, model.max_tokens, vocabulary // 2)
    if length < 2:
        return False
    # From all of the vocabulary: reserved tokens, which are often the first ones, can be equal.
    ids = np.linspace(0, vocabulary - 1, 2 * length - 1).astype(np.int32)
    first_text = ids[:length]
    second_text = np.concatenate([ids[:1], ids[length:]])
    packed = pack([first_text, second_text], torch.device("cpu"))
    *_, states = model.states(packed)
    first_state, other_first_state = states[packed.starts]
    change = (first_state - other_first_state).abs().max()
    return bool(change <= ROUNDING * first_state.abs().max())


def check_weights(stored: Mapping[str, Tensor], architecture: Architecture, source: str) -> None:
    """Raise a DataError if weights do not fit the architecture, or are not finite."""
    tensors = canonical(stored, architecture)
    fit(tensors, architecture, source=source)
    check_finite(tensors, source)


def check_finite(tensors: Mapping[str, Tensor], source: str) -> None:
    """Raise a DataError if a weight is not finite. Few methods read the pooler, which may be."""
    for name, tensor in tensors.items():
        if not name.startswith("pooler.") and not bool(tensor.isfinite().all()):
            raise DataError(f'"{name}" contains NaN or infinity', source=source)


def steps_after_readout(checkpoint: Checkpoint) -> list[str]:
    """Return the declared steps after the readout, also a truncation."""
    steps = [*checkpoint.declaration.step_names]
    if checkpoint.declaration.dim is not None:
        steps.append(f"truncate_dim={checkpoint.declaration.dim}")
    return steps


# The only values of settings about the layers of an encoder, for a static model.
STATIC_SETTINGS = {
    "readout": "mean",
    "dropout": None,
    "lora": None,
    "mlm_weight": 0.0,
    "precision": "fp32",
    "prompt": None,
    "prompt_name": None,
}


def check_settings_of_static(settings: Recipe, model: str) -> None:
    """Raise a UsageError for settings about the layers of an encoder, which a static model has
    not.
    """
    for name, value in STATIC_SETTINGS.items():
        if getattr(settings, name, value) == value:
            continue
        problem = f"{name}={getattr(settings, name)}: {model} is a static model"
        only_value = "none" if value is None else value
        raise UsageError(f"{problem}, which has only {name}={only_value}")


def open_named(
    name: str, max_length: int, prompt: str | None = None, prompt_name: str | None = None
) -> Base:
    """Read a transformer with these prompts, or a static model. `max_length` is that of texts in
    training.
    """
    checkpoint = read_checkpoint(name, static=True)
    if checkpoint.declaration.is_static:
        return open_static(checkpoint, max_length)
    return open_base(checkpoint, max_length, prompt, prompt_name)


def open_static(checkpoint: Checkpoint, max_length: int) -> Base:
    in_training = read_static_folder(checkpoint, ReadingOptions(max_length=max_length))
    finished = read_static_folder(checkpoint, ReadingOptions(max_length=None))
    vectors = finished.open_vectors()
    assert isinstance(vectors, WordTable), "a folder has a table"
    assert isinstance(in_training.tokenizer, WordPieces), "a folder has word pieces"
    assert isinstance(finished.tokenizer, WordPieces), "a folder has word pieces"
    for name, array in vectors.table.arrays.items():
        if not np.isfinite(array).all():
            raise DataError(f'"{name}" contains NaN or infinity', source=checkpoint.name)
    if any(isinstance(step, Truncate) for step in finished.steps):
        problem = "training does not support a static model that declares truncate_dim"
        raise UsageError(f"{checkpoint.name}: {problem}")
    normalize = any(isinstance(step, Normalize) for step in finished.steps)
    return Base(
        checkpoint=checkpoint,
        hash=digest([vectors.hash, in_training.tokenizer.hash, normalize]),
        training_tokenizer=in_training.tokenizer.refusing_empty(),
        final_tokenizer=finished.tokenizer.refusing_empty(),
        why_not_packed="a static model",
        parents=(checkpoint.name, *checkpoint.parents),
        table=vectors.table,
        normalize=normalize,
    )
