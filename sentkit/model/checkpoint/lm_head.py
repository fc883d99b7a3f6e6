"""The head with which a packed family predicts masked words: where it lies in a checkpoint, as data."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.errors import DataError
from sentkit.model.transformer.architecture import Architecture
from sentkit.model.transformer.bert import ACTIVATIONS
from sentkit.model.transformer.weight_names import EMBEDDINGS
from sentkit.model.transformer.weights import PREFIXES, by, form, listed, modern


@dataclass(frozen=True, slots=True)
class Head:
    encoder: str  # what stands before the encoder's names in a file that has the head
    dense: str
    norm: str
    bias: str
    decoder: str  # its weight is the word table, its bias the bias above
    activation: str | None = None  # None is the architecture's own


ROBERTA = Head(
    "roberta.", "lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder", activation="gelu"
)
HEADS = {
    "bert": Head(
        "bert.",
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
        "cls.predictions.decoder",
    ),
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "distilbert": Head(
        "distilbert.", "vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector"
    ),
    "electra": Head(
        "electra.",
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head.bias",
        "generator_lm_head",
        activation="gelu",
    ),
}


class LanguageHead(nn.Module):
    """From token states to a logit for each word; `read_head` or `fresh_head` gives it weights."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        narrow = architecture.embedding_width  # e
        self.activation = ACTIVATIONS[HEADS[architecture.family].activation or architecture.activation]
        self.dense = nn.Linear(architecture.width, narrow)
        self.norm = nn.LayerNorm(narrow, architecture.norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(architecture.vocabulary))

    def forward(self, states: Tensor, words: Tensor) -> Tensor:
        """Logits (m, v) of states (m, d), where `words` is the encoder's word table (v, e)."""
        return F.linear(self.transform(states), words, self.bias)

    def transform(self, states: Tensor) -> Tensor:
        """The states as the word table is compared with them, (m, d) -> (m, e)."""
        return self.norm(self.activation(self.dense(states)))


def head_places(architecture: Architecture) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name in a checkpoint and shape, by our name."""
    head, narrow = HEADS[architecture.family], architecture.embedding_width
    return {
        "dense.weight": (f"{head.dense}.weight", (narrow, architecture.width)),
        "dense.bias": (f"{head.dense}.bias", (narrow,)),
        "norm.weight": (f"{head.norm}.weight", (narrow,)),
        "norm.bias": (f"{head.norm}.bias", (narrow,)),
        "bias": (head.bias, (architecture.vocabulary,)),
    }


def read_head(
    tensors: Mapping[str, Tensor], architecture: Architecture, *, source: str
) -> LanguageHead | None:
    """The head among the tensors of a file, in evaluation mode; None if the file has none of it."""
    head = HEADS[architecture.family]
    stored = {modern(name): tensor for name, tensor in tensors.items()}
    alias = f"{head.decoder}.bias"
    if alias in stored:
        stored.setdefault(head.bias, stored[alias])
    places = head_places(architecture)
    if not any(name in stored for name in (f"{head.decoder}.weight", *(name for name, _ in places.values()))):
        return None
    fit_head(stored, architecture, source=source)
    refuse_untied(stored, alias, head.bias, source=source)
    words = EMBEDDINGS["words"] + ".weight"
    table = next((prefix + words for prefix in PREFIXES if prefix + words in stored), words)
    refuse_untied(stored, f"{head.decoder}.weight", table, source=source)
    return load_head({ours: stored[theirs].float() for ours, (theirs, _) in places.items()}, architecture)


def fit_head(stored: Mapping[str, Tensor], architecture: Architecture, *, source: str) -> None:
    """A DataError unless the head is whole, and of the architecture's shapes."""
    places = head_places(architecture).values()
    missing = [f'"{name}"' for name, _ in places if name not in stored]
    if missing:
        raise DataError(f"the language head is not whole: missing {listed(missing)}", source=source)
    wrong = [
        f'"{name}" is {form(stored[name])}, expected {by(shape)}'
        for name, shape in places
        if tuple(stored[name].shape) != shape or not stored[name].is_floating_point()
    ]
    if wrong:
        raise DataError(f"the language head does not fit config.json: {listed(wrong)}", source=source)


def refuse_untied(stored: Mapping[str, Tensor], copy: str, original: str, *, source: str) -> None:
    """A DataError if the copy is there and is another tensor than the original."""
    if copy not in stored:
        return
    if original not in stored or not torch.equal(stored[copy].float(), stored[original].float()):
        raise DataError(
            f'the language head is untied: "{copy}" is not "{original}"',
            source=source,
            advice="only a head that shares the word table of the encoder can be used",
        )


def load_head(state: Mapping[str, Tensor], architecture: Architecture) -> LanguageHead:
    with torch.device("meta"):  # no random numbers for weights that are replaced at once
        head = LanguageHead(architecture)
    head.load_state_dict(state, assign=True)
    return head.requires_grad_().eval()


def fresh_head(architecture: Architecture, generator: torch.Generator) -> LanguageHead:
    """A head that has learned nothing, drawn as transformers draws one; in evaluation mode."""
    state = {ours: torch.zeros(shape) for ours, (_, shape) in head_places(architecture).items()}
    state["dense.weight"].normal_(0, 0.02, generator=generator)
    state["norm.weight"].fill_(1)
    return load_head(state, architecture)


def head_tensors(head: LanguageHead, architecture: Architecture) -> dict[str, Tensor]:
    """Copies of the weights under Hugging Face's names of the family.

    As in the files of transformers, what is tied is left out: the decoder's weight, and its bias where that
    is an alias. The family's ForMaskedLM reads a file of these and of the encoder's tensors, each name of
    which needs the prefix `HEADS[family].encoder`.
    """
    state = head.state_dict()
    return {theirs: state[ours].clone() for ours, (theirs, _) in head_places(architecture).items()}
