"""DefSent+ (arXiv 2405.16153): predicts the entry of a definition by products with all entry
vectors.

`sentkit build-entries` writes the entries, with one vector each. The products are those of a
trainable layer: a checkpoint's pooler, or the first layer of its head.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.checkpoints.modules import Pooler
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.formats.files import shown_path
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import ENTRY, filled_string, string_value
from sentkit.formats.vectors.fingerprint import digest, space_of
from sentkit.formats.vectors.store import open_inputs
from sentkit.formats.vectors.vector_file import BLOCK
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, one_vector
from sentkit.model.checkpoint.heads import HEADS, read_head
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.families import ROBERTA
from sentkit.model.transformer.layers import ACTIVATIONS
from sentkit.model.transformer.readouts import at_least_float32
from sentkit.model.transformer.weights import aligned, canonical
from sentkit.papers.defsent import paper
from sentkit.training.base import Base, open_base
from sentkit.training.data.corpus import Batch
from sentkit.training.data.examples import Reads
from sentkit.training.method import (
    Finished,
    Needs,
    Outputs,
    PackedMethod,
    Term,
    mean_of,
    tensors_of_heads,
)
from sentkit.training.recipe import SHORTEST
from sentkit.training.settings import with_readout_of_base


@dataclass(frozen=True, slots=True)
class Entries:
    path: str
    vectors: NDArray[np.float32]  # (n, d)
    row_of_name: Mapping[str, int]
    spec: Mapping[str, Any]  # `_emb` and the origin of the vectors, as recorded in the file
    hash: str  # hash of names, vectors and their space

    @property
    def space(self) -> str:
        """The hash of the vectors' space, or an empty string if the file does not record it."""
        return recorded_space(self.spec)

    @property
    def lineage(self) -> dict[str, Any]:
        names = ("_emb", "model", "weights", "readout", "steps", "entries")
        recorded = {name: self.spec[name] for name in names if self.spec.get(name)}
        return {
            "file": shown_path(self.path),
            "hash": self.hash,
            "count": len(self.row_of_name),
            **recorded,
        }

    def mismatch(self, tokenizer: str, family: object) -> str:
        """Return why the entries probably belong to a different kind of model, or an empty
        string.
        """
        made_by = self.spec.get("model", "another model")
        problem = f"{self.path}: the entries were made with {made_by}"
        origin = self.spec.get("entries")
        family_of_entries = None
        if isinstance(origin, dict):
            family_of_entries = origin.get("family")
        if family_of_entries and family_of_entries != family:
            return f"{problem} ({family_of_entries}), but the base is {family}"
        if self.spec.get("tokenizer", tokenizer) != tokenizer:
            return f"{problem}, which has another tokenizer than the base"
        return ""


def read_entries(path: str) -> Entries:
    """Read all entries. The vectors of a vector file are memory-mapped, other vectors are copied
    once.
    """
    inputs = open_inputs([path])
    store = inputs.open_vector_file(path)
    reader = VectorReader(inputs)
    row_of_name: dict[str, int] = {}
    copied = bytearray()  # the vectors, if they are not in a vector file
    for block in reader.blocks(named):
        for row, name in zip(block.rows, block.rows.parsed, strict=True):
            if name in row_of_name:
                raise row.error(f'the entry "{name:.80}" occurs twice')
            row_of_name[name] = len(row_of_name)
        if store is None:
            copied += block.vectors.astype("<f4", copy=False).tobytes()
    if not row_of_name:
        raise DataError("no entries", source=path)
    if store is not None:
        matrix = store.memory_mapped()[:, 0]
        spec = dict(store.metadata)
    else:
        matrix = np.frombuffer(copied, "<f4").reshape(len(row_of_name), reader.width)
        spec = {}
        if reader.space_name:
            spec["_emb"] = reader.space_name
    # here, so that the methods of all seeds share it
    matrix = aligned(torch.from_numpy(matrix)).numpy()
    digest_of_all = hash_of(row_of_name, matrix, recorded_space(spec))
    return Entries(path, matrix, row_of_name, spec, digest_of_all)


def recorded_space(spec: Mapping[str, Any]) -> str:
    emb = spec.get("_emb")
    if not emb:
        return ""
    return space_of(emb)


def named(block: VectorBlock) -> VectorBlock:
    """Read the entry of each row."""
    block.rows.parse(lambda row: string_value(row, "entry"))
    return one_vector(block)


def hash_of(names: Iterable[str], vectors: NDArray[np.float32], space: str) -> str:
    """Hash names, vectors and space. The model label is excluded, because a folder can be
    renamed.
    """
    hash = hashlib.blake2b(orjson.dumps([space, *names]), digest_size=16)
    for start in range(0, len(vectors), BLOCK):
        hash.update(vectors[start : start + BLOCK].astype("<f4", copy=False).tobytes())
    return hash.hexdigest()


@dataclass(frozen=True, slots=True)
class EntryNames:
    """The field "entry", one of these names. Its number is the row of the entry."""

    row_of_name: Mapping[str, int]
    source: str
    why: str = ""  # no row is omitted

    def __call__(self, row: Row, name: str) -> float | None:
        word = filled_string(row, name)
        if word not in self.row_of_name:
            problem = f'the entry "{word:.80}" is not in {self.source}'
            raise row.error(
                problem, advice="run build-entries on these rows, or use --rejects FILE"
            )
        return float(self.row_of_name[word])


@dataclass(frozen=True, slots=True)
class Projection:
    layer: nn.Linear
    activation: str  # a key of ACTIVATIONS

    @property
    def hash(self) -> str:
        weights = [weight.detach().numpy().tobytes().hex() for weight in self.layer.parameters()]
        return digest([*weights, self.activation])


def projection_from(name: str, source: str) -> Projection:
    """Read a checkpoint and return its layer, like `projection_of`."""
    other = open_base(read_checkpoint(name), SHORTEST)
    if other.architecture is None:
        problem = f"{name}: sentkit runs {other.why_not_packed} through transformers"
        raise UsageError(
            problem, advice="projection_from needs a checkpoint that sentkit runs itself"
        )
    return projection_of(other, source)


def projection_of(base: Base, source: str) -> Projection:
    """Return a copy of a layer: `checkpoint` is the pooler, `lm-head` is the first layer of the
    head.

    `auto` is the pooler if it was trained, else the head. An untrained pooler has random weights.
    The pooler of RoBERTa is untrained unless the checkpoint declares a trained one.
    """
    name = base.checkpoint.name
    pooler = pooler_of(base)
    from_another = "to use the layer of another checkpoint, add --set projection_from=CHECKPOINT"
    if source == "checkpoint" or (source == "auto" and pooler is not None and was_trained(base)):
        if pooler is not None:
            return pooler
        advice = from_another
        if head_of(base) is not None:
            advice = "to use the language model head, add --set pooler=lm-head"
        raise UsageError(f"{name} has no pooler", advice=advice)

    head = head_of(base)
    if head is not None:
        return head
    if pooler is None:
        raise UsageError(f"{name} has no language model head", advice=from_another)
    problem = f"{name} has no language model head"
    if not was_trained(base):
        problem += ", and its pooler is probably not trained"
    raise UsageError(
        problem, advice=f"{from_another}; to use the pooler, add --set pooler=checkpoint"
    )


def was_trained(base: Base) -> bool:
    return base.packed.family not in ROBERTA or bool(base.checkpoint.declaration.pooler.readout)


def pooler_of(base: Base) -> Projection | None:
    named = canonical(base.stored, base.packed)
    if "pooler.dense.weight" not in named:
        return None
    layer = linear(named["pooler.dense.weight"], named["pooler.dense.bias"])
    return Projection(layer, base.packed.pooler_activation)


def head_of(base: Base) -> Projection | None:
    head = read_head(base.stored, base.packed, source=base.checkpoint.name)
    if head is None:
        return None
    activation = HEADS[base.packed.family].activation or base.packed.activation
    return Projection(linear(head.dense.weight, head.dense.bias), activation)


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a copy of a layer. A pooler has a bias, so one without it gets zeros."""
    if bias is None:  # ModernBERT
        bias = torch.zeros(len(weight))
    with torch.device("meta"):  # skip the random initialisation, because the weights are replaced
        layer = nn.Linear(weight.shape[1], weight.shape[0])
    state = {"weight": weight.detach().float().clone(), "bias": bias.detach().float().clone()}
    layer.load_state_dict(state, assign=True)
    return layer.requires_grad_()


class DefSentPlus(PackedMethod):
    Settings: ClassVar = paper.PlusSettings
    needs: ClassVar = Needs(
        packed="a pooler that it can train",
        head=True,
        reductions=("cls", "mean", "max", "token"),
        row_wise=True,
        entries=read_entries,
    )
    entries: Tensor  # (n, d)

    def __init__(
        self, body: Bert, settings: paper.PlusSettings, projection: Projection, entries: Entries
    ) -> None:
        super().__init__(body, with_readout_of_base(settings, None))
        self.projection = projection.layer
        self.activation = projection.activation
        self.space = entries.space
        # It is not a parameter and not in the state. A resumed run reads the file again.
        self.register_buffer(
            "entries", aligned(torch.from_numpy(entries.vectors)), persistent=False
        )

    @classmethod
    def build(cls, base: Base, settings: paper.PlusSettings) -> "DefSentPlus":
        projection = cls.first_projection(base, settings)
        return cls(cls.bert(base, settings), settings, projection, entries_of(base))

    @staticmethod
    def first_projection(base: Base, settings: paper.PlusSettings) -> Projection:
        if settings.projection_from is None:
            return projection_of(base, settings.pooler)
        return projection_from(settings.projection_from, settings.pooler)

    @classmethod
    def check(cls, base: Base, settings: paper.PlusSettings) -> None:
        entries = entries_of(base)
        projection = cls.first_projection(base, settings)
        if projection.layer.in_features != base.packed.width:
            problem = f"its layer takes {projection.layer.in_features} dimensions"
            problem += f", but the encoder has {base.packed.width}"
            raise UsageError(f"projection_from={settings.projection_from}: {problem}")
        width = entries.vectors.shape[1]
        if width != projection.layer.out_features:
            problem = (
                f"the entries have {width} numbers, but the pooler gives "
                f"{projection.layer.out_features}"
            )
            raise DataError(problem, source=entries.path)
        for name in cls.readouts(settings):
            parse_readout(name).layers_in(base.packed.depth)
        if "prompt" in cls.readouts(settings):
            base.final_tokenizer_with(settings.template)

    @classmethod
    def reads(cls, base: Base, settings: paper.PlusSettings) -> Reads:
        entries = base.entries
        if isinstance(entries, Entries):
            return Reads((ENTRY,), "entry", EntryNames(entries.row_of_name, entries.path))
        return Reads((ENTRY,), "entry", EntryNames({}, ""))  # only the kinds of rows are needed

    @classmethod
    def readouts(cls, settings: paper.PlusSettings) -> tuple[str, ...]:
        return paper.readouts_of(settings)

    @classmethod
    def other_checkpoints(cls, settings: paper.PlusSettings) -> dict[str, str | None]:
        return {"projection_from": settings.projection_from}

    @classmethod
    def identity(cls, base: Base, settings: paper.PlusSettings) -> dict[str, Any]:
        if settings.projection_from is None:
            return {}
        return {"projection_hash": projection_from(settings.projection_from, settings.pooler).hash}

    def encode(self, batch: Batch) -> Outputs:
        vectors = self.vectors(self.pack(batch.texts[0]), self.settings.pooling)
        projected = ACTIVATIONS[self.activation](self.projection(vectors))
        assert batch.targets is not None, "each definition has its entry"
        rows = to_device(batch.targets, self.device).long()
        # Autocast would copy all entries to bfloat16 in each step.
        with torch.autocast(self.device.type, enabled=False):
            products = at_least_float32(projected) @ self.entries.T  # (b, n)
            return {"nll": F.cross_entropy(products, rows, reduction="none")}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        return {"entry": mean_of(outputs["nll"])}

    def finished(self) -> Finished:
        note = Pooler(self.activation, f"pooler:{self.settings.pooling}", self.space)
        return Finished(heads=tensors_of_heads(self), pooler=self.projection, pooler_note=note)


def entries_of(base: Base) -> Entries:
    if not isinstance(base.entries, Entries):
        advice = "make the file with sentkit build-entries -o FILE, then add --entries FILE"
        raise UsageError("defsent-plus needs --entries", advice=advice)
    return base.entries
