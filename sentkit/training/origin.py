"""The checkpoint a run starts from: its tensors, its tokenizer, and encoders made of them to train."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from sentkit.errors import UsageError
from sentkit.formats.checkpoints import Checkpoint
from sentkit.formats.fingerprint import digest
from sentkit.model.adapter import Adapter, load_adapter
from sentkit.model.architecture import Architecture, NotPacked, read_architecture
from sentkit.model.bert import Bert, load_bert
from sentkit.model.reading import Wishes, most_tokens, plan_reading
from sentkit.model.tokens import Tokenizer
from sentkit.model.weights import canonical, fit, read_tensors, weights_hash


@dataclass(frozen=True, slots=True)
class Base:
    checkpoint: Checkpoint
    stored: Mapping[str, Tensor]  # as the files hold them; empty where transformers reads them
    architecture: Architecture | None  # None: a model that runs through transformers
    why_not_packed: str
    hash: str  # of the weights and the tokenizer
    tokenizer: Tokenizer  # cuts where training cuts
    reading: Tokenizer  # cuts where the finished checkpoint will
    left_behind: str  # steps that it declares behind its readout, and the new checkpoint will not
    parents: tuple[str, ...]  # itself and what it was made from; none where it was made from nothing

    def body(self, dropout: float | None) -> Bert | Adapter:
        """A new encoder with the base's weights, which a run may change."""
        if self.architecture is None:
            if dropout is not None:
                raise UsageError(f"dropout cannot be set: {self.why_not_packed} runs through transformers")
            return load_adapter(self.checkpoint.transformer)
        wanted = self.architecture
        if dropout is not None:
            wanted = replace(wanted, dropout=dropout, attention_dropout=dropout)
        named = canonical(self.stored, wanted)
        return load_bert({name: tensor.clone() for name, tensor in named.items()}, wanted)


def open_base(checkpoint: Checkpoint, max_length: int) -> Base:
    most = most_tokens(checkpoint.config)
    if most is not None and max_length > most:
        problem = f"max_length={max_length}: this encoder has {most} positions"
        raise UsageError(problem, advice=f"use --max-length {most}")
    tokenizer = plan_reading(checkpoint, Wishes(readout="mean", max_length=max_length)).tokenizer
    reading = plan_reading(checkpoint, Wishes(readout="mean")).tokenizer
    why_not, stored, architecture = "", dict[str, Tensor](), None
    try:
        architecture = read_architecture(checkpoint.config)
    except NotPacked as reason:
        why_not = str(reason)
        weights = weights_hash(load_adapter(checkpoint.transformer).tensors(), with_pooler=True)
    else:
        stored = read_tensors(checkpoint.weights())
        named = canonical(stored, architecture)
        fit(named, architecture, source=checkpoint.name)
        weights = weights_hash(stored, with_pooler=True)  # with its heads, which some methods go on from
    hash = digest([weights, tokenizer.hash])
    parents = (checkpoint.name, *checkpoint.parents)
    steps = ", ".join(checkpoint.declared.steps)
    return Base(checkpoint, stored, architecture, why_not, hash, tokenizer, reading, steps, parents)
