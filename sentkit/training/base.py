"""The base of a run: tensors and tokenizer of a checkpoint, encoders built from them, and entries.

An encoder of the base is a copy of its transformer, also with low-rank updates (LoRA), or its table of token
vectors. LoRA (arXiv 2106.09685) trains low-rank updates of linear layers and no other weights of the encoder.
The weight of a layer is W + scale * B A. W is constant, and B is 0 at the start. The checkpoint contains the
sums, so it is an ordinary checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import (
    Checkpoint,
    read_checkpoint,
)
from sentkit.formats.checkpoints.readout import Readout
from sentkit.formats.lexicons.model2vec import Table
from sentkit.formats.vectors.fingerprint import digest
from sentkit.model.checkpoint_reading import most_tokens, plan_reading
from sentkit.model.reading import ReadingOptions
from sentkit.model.static.models import WordTable, read_folder
from sentkit.model.static.tokenizers import WordPieces
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.text.tokens import TextTokenizer, TokenBlock
from sentkit.model.transformer.architecture import Architecture, UnsupportedArchitecture, architecture_of
from sentkit.model.transformer.bert import Bert, load_bert
from sentkit.model.transformer.encoder import add_convolution, rules_of
from sentkit.model.transformer.families import QKV, WITH_POOLER
from sentkit.model.transformer.packed import Packed
from sentkit.model.transformer.readouts import Convolution, Disturb, mean
from sentkit.model.transformer.transformers_model import TransformersModel, load_transformers_model
from sentkit.model.transformer.weights import as_float32, canonical, fit, read_weights, weights_hash
from sentkit.training.settings import LORA_LAYERS, Recipe
from sentkit.transforms.steps import Normalize, Truncate

TRAINED = ("lora_a", "lora_b")


class LowRank(nn.Module):
    """A linear layer with low-rank updates of some of the matrices that it joins, which have these rows.

    Axes: p updated matrices, r the rank, i inputs, o most rows of a matrix.
    """

    def __init__(
        self, layer: nn.Linear, rank: int, scale: float, parts: Sequence[int], rows: Sequence[int]
    ) -> None:
        super().__init__()
        self.constant, self.bias = layer.weight, layer.bias
        self.scale, self.parts, self.rows = scale, parts, [*rows]
        most = max(rows[part] for part in parts)
        self.lora_a = nn.Parameter(torch.empty(len(parts), rank, layer.in_features))  # (p, r, i)
        self.lora_b = nn.Parameter(torch.zeros(len(parts), most, rank))  # (p, o, r), with unused rows
        limit = layer.in_features**-0.5  # as in the released code
        nn.init.uniform_(self.lora_a, -limit, limit)

    @property
    def weight(self) -> Tensor:
        with torch.autocast(self.lora_a.device.type, enabled=False):  # the checkpoint has the exact sum
            change = self.scale * (self.lora_b @ self.lora_a)
        matrices = [*self.constant.split(self.rows)]
        for part, own in zip(self.parts, change, strict=True):
            matrices[part] = matrices[part] + own[: self.rows[part]]
        return torch.cat(matrices)

    def forward(self, states: Tensor) -> Tensor:
        return nn.functional.linear(states, self.weight, self.bias)


def add_lora(body: Bert, settings: Recipe) -> None:
    """Freeze the weights of an encoder and add low-rank updates to the layers of the settings."""
    assert settings.lora is not None, "only called with lora"
    body.requires_grad_(False)
    rank = settings.lora
    scale = (rank if settings.lora_alpha is None else settings.lora_alpha) / rank
    names = LORA_LAYERS[settings.lora_layers]
    changed = [place for place, name in enumerate(QKV) if name in names]
    for block in body.blocks:
        for module in ("qkv", *(name for name in names if name not in QKV)):
            rows = body.architecture.matrices(module)
            parts = changed if module == "qkv" else range(len(rows))
            setattr(block, module, LowRank(getattr(block, module), rank, scale, parts, rows))


def constant_tensors(module: nn.Module) -> set[str]:
    """Return the names of all tensors of encoders with LoRA that training does not change."""
    names = set[str]()
    for prefix, part in module.named_modules():
        if isinstance(part, Bert) and any(isinstance(each, LowRank) for each in part.modules()):
            names |= {
                f"{prefix}.{name}"
                for name in part.state_dict()
                if not (name.endswith(TRAINED) or name.startswith("convolution."))
            }
    return names


EMPTY = "the text has no known tokens"


class TokenTable(nn.Module):
    """Returns the vector of each token, with the interface of `Bert`. It has no layers after X(0).

    With `normalize`, the vectors of a text are divided by the length of their mean. The readout `mean` is
    then the vector of unit length that `encode` writes.
    """

    depth = 0
    has_pooler = False
    convolution: Convolution | None = None

    def __init__(self, table: Table, *, normalize: bool) -> None:
        super().__init__()
        rows = scaled(table) if normalize else table.rows
        weights, places = table.weights, table.places
        self.width, self.normalize = rows.shape[1], normalize
        self.rows = nn.Parameter(torch.tensor(rows))
        self.weights = None if weights is None else nn.Parameter(torch.tensor(weights))
        self.register_buffer("places", None if places is None else torch.tensor(places), persistent=False)

    def states(
        self,
        packed: Packed,
        *,
        deepest: int | None = None,
        disturb: Disturb | None = None,
        only: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """Yield X(0), (n, d)."""
        assert disturb is None, "no method for static models changes X(0)"
        assert only is None, "no readout of X(0) reads single rows"
        places = self.get_buffer("places") if self.places is not None else None
        vectors = nn.functional.embedding(packed.ids if places is None else places[packed.ids], self.rows)
        if self.weights is not None:
            vectors = vectors * self.weights[packed.ids, None]
        if self.normalize:
            lengths = torch.linalg.vector_norm(mean(vectors, packed), dim=1)  # (b,)
            lengths = torch.where(lengths == 0, 1.0, lengths)
            vectors = vectors / lengths.repeat_interleave(packed.counts)[:, None]
        yield vectors

    def pooled(self, vectors: Tensor) -> Tensor:
        raise AssertionError("a static model has no pooler")

    def table(self) -> Table:
        weights = None if self.weights is None else as_float32(self.weights)
        places = None if self.places is None else self.get_buffer("places").cpu().numpy()
        return Table(as_float32(self.rows), places, weights)


@dataclass(frozen=True, slots=True)
class KnownTexts(TextTokenizer):
    """The tokenizer of a static model. A text without known tokens is a problem: its vector is always 0."""

    pieces: WordPieces

    @property
    def hash(self) -> str:
        return self.pieces.hash

    @property
    def max_length(self) -> int | None:
        return self.pieces.max_length

    def with_prompt(self, prompt: str) -> "KnownTexts":
        return KnownTexts(self.pieces.with_prompt(prompt))

    def __call__(self, texts: Sequence[str]) -> TokenBlock:
        tokens = self.pieces(texts)
        return replace(tokens, problems=dict.fromkeys(np.flatnonzero(tokens.lengths == 0).tolist(), EMPTY))


def scaled(table: Table) -> np.ndarray:
    """Return the rows divided by a power of two, so that the vectors of tokens have a length of about 1.

    This changes no vector of unit length, not even its last bit. Tables of different models have lengths from
    0.1 to 1000, and a learning rate is then right for all of them.
    """
    vectors = table.rows if table.places is None else table.rows[table.places]
    if table.weights is not None:
        vectors = vectors * table.weights[:, None]
    length = np.sqrt(np.mean(np.square(vectors, dtype=np.float64).sum(1)))
    return np.ldexp(table.rows, -round(np.log2(length))) if length else table.rows


Body = Bert | TransformersModel | TokenTable


@dataclass(frozen=True, slots=True)
class Base:
    checkpoint: Checkpoint
    hash: str  # of weights, tokenizer, convolution, and the values of the config that change the training
    training_tokenizer: Tokenizer | KnownTexts  # truncates to the length used in training
    final_tokenizer: Tokenizer | KnownTexts  # truncates to the length of the finished checkpoint
    why_not_packed: str
    parents: tuple[str, ...]  # this checkpoint and its ancestors
    stored: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # names as in the files; with architecture only
    architecture: Architecture | None = None  # None for a static model, and if transformers runs the model
    sides: Mapping[str, str] = field(default_factory=dict)  # prompts of sides; none: that of the tokenizers
    dropped_steps: str = ""  # declared steps after the readout; the new checkpoint does not have them
    # Prediction targets, as `needs.entries` of the method reads them: with the hash that must be equal to
    # resume a run, the lineage for the checkpoint, and `mismatch(tokenizer, family)`, a warning or "".
    entries: Any = None
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

    @property
    def why_no_head(self) -> str:
        """Why methods can use no head or pooler of this base, or an empty string."""
        if self.architecture is None:
            return f"transformers runs this model ({self.why_not_packed})"
        return f'"{self.architecture.family}" is a decoder' if self.architecture.kind.decoder else ""

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
    parents = (checkpoint.name, *checkpoint.parents)
    own = (checkpoint, digest(parts), training, final, why_not, parents)
    return Base(*own, stored, architecture, sides, ", ".join(checkpoint.declared.steps))


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
    """Read a transformer with these prompts, or a static model. `max_length` is that of texts in training."""
    checkpoint = read_checkpoint(name, static=True)
    if not checkpoint.declared.static:
        return open_base(checkpoint, max_length, *prompts)
    training, finished = (
        read_folder(checkpoint, ReadingOptions(max_length=length)) for length in (max_length, None)
    )
    vectors = finished.open_vectors()
    assert isinstance(vectors, WordTable), "a folder has a table"
    assert isinstance(training.tokenizer, WordPieces), "a folder has word pieces"
    assert isinstance(finished.tokenizer, WordPieces), "a folder has word pieces"
    if any(isinstance(step, Truncate) for step in finished.steps):
        raise UsageError(f"{name}: training does not support a static model that declares truncate_dim")
    normalize = any(isinstance(step, Normalize) for step in finished.steps)
    return StaticBase(
        checkpoint=checkpoint,
        why_not_packed="a static model",
        hash=digest([vectors.hash, training.tokenizer.hash, normalize]),
        training_tokenizer=KnownTexts(training.tokenizer),
        final_tokenizer=KnownTexts(finished.tokenizer),
        parents=(name, *checkpoint.parents),
        table=vectors.table,
        normalize=normalize,
    )
