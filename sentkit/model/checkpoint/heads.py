"""The heads of each packed family, as transformers computes and names them: masked words and
classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.model.transformer.architecture import (
    PREFIXES,
    Architecture,
    modern,
    read_fraction,
    words_name,
)
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.families import ROBERTA
from sentkit.model.transformer.layers import ACTIVATIONS, make_norm
from sentkit.model.transformer.weights import check_tensors


@dataclass(frozen=True, slots=True)
class Head:
    kind: str  # the classes of transformers begin with this word
    encoder: str  # prefix of the encoder names in a file with the head
    dense: str
    norm: str
    bias: str
    decoder: str  # tied: its weight is the word table, its bias is `bias`
    activation: str | None = None  # None: the activation of the architecture


def roberta_head(kind: str, encoder: str = "roberta.") -> Head:
    return Head(
        kind,
        encoder,
        dense="lm_head.dense",
        norm="lm_head.layer_norm",
        bias="lm_head.bias",
        decoder="lm_head.decoder",
        activation="gelu",
    )


DECODERS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
HEADS = {
    "bert": Head(
        "Bert",
        "bert.",
        dense="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
        bias="cls.predictions.bias",
        decoder="cls.predictions.decoder",
    ),
    "roberta": roberta_head("Roberta"),
    "xlm-roberta": roberta_head("XLMRoberta"),
    "camembert": roberta_head("Camembert"),
    "mpnet": roberta_head("MPNet", "mpnet."),
    "modernbert": Head(
        "ModernBert",
        "model.",
        dense="head.dense",
        norm="head.norm",
        bias="decoder.bias",
        decoder="decoder",
        activation="gelu",
    ),
    "distilbert": Head(
        "DistilBert",
        "distilbert.",
        dense="vocab_transform",
        norm="vocab_layer_norm",
        bias="vocab_projector.bias",
        decoder="vocab_projector",
    ),
    "electra": Head(
        "Electra",
        "electra.",
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
        bias="generator_lm_head.bias",
        decoder="generator_lm_head",
        activation="gelu",
    ),
    **{
        family: Head(kind, "model.", dense="", norm="", bias="", decoder="lm_head")
        for family, kind in DECODERS.items()
    },
}


class LanguageHead(nn.Module):
    """Converts token states to logits over the vocabulary; `read_head` and `fresh_head` set the
    weights.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        narrow = architecture.embedding_width  # e
        self.activation = ACTIVATIONS[
            HEADS[architecture.family].activation or architecture.activation
        ]
        self.dense = nn.Linear(architecture.width, narrow, bias=architecture.head_bias)
        self.norm = make_norm(architecture, narrow)
        self.bias = nn.Parameter(torch.zeros(architecture.vocabulary))

    def forward(self, states: Tensor, words: Tensor) -> Tensor:
        """Return logits (m, v) of states (m, d); `words` is the word table of the encoder,
        (v, e).
        """
        projected = self.norm(self.activation(self.dense(states)))  # (m, e)
        return F.linear(projected, words, self.bias)


def head_layout(architecture: Architecture) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the checkpoint name and the shape of each head parameter."""
    head = HEADS[architecture.family]
    embedding_width = architecture.embedding_width  # smaller than the states in some families
    layout = {
        "dense.weight": (f"{head.dense}.weight", (embedding_width, architecture.width)),
        "dense.bias": (f"{head.dense}.bias", (embedding_width,)),
        "norm.weight": (f"{head.norm}.weight", (embedding_width,)),
        "norm.bias": (f"{head.norm}.bias", (embedding_width,)),
        "bias": (head.bias, (architecture.vocabulary,)),
    }
    biases = {
        "dense.bias": architecture.head_bias,
        "norm.bias": architecture.family_traits.has_bias("norm"),
    }
    return {name: stored for name, stored in layout.items() if biases.get(name, True)}


def read_head(
    tensors: Mapping[str, Tensor], architecture: Architecture, *, source: str
) -> LanguageHead | None:
    """Return the head from the tensors of a file, in evaluation mode, or None if the file has no
    head.
    """
    head = HEADS[architecture.family]
    if not head.dense:
        return None

    # The tensors of the head, if the file has one. Its bias can have the name of the decoder's.
    stored = {modern(name): tensor for name, tensor in tensors.items()}
    decoder_weight = f"{head.decoder}.weight"
    decoder_bias = f"{head.decoder}.bias"
    if decoder_bias in stored:
        stored.setdefault(head.bias, stored[decoder_bias])
    layout = head_layout(architecture)
    names_of_head = [decoder_weight, *(name for name, _ in layout.values())]
    if not any(name in stored for name in names_of_head):
        return None
    if head.bias not in stored and f"{LAYOUTS[architecture.family].out}.weight" in stored:
        return None  # a classifier, whose layers can have the same names
    check_tensors(
        stored, dict(layout.values()), source=source, what="weights of the language model head"
    )

    # The decoder is the word table, and its bias that of the head: other ones are not supported.
    words = words_name(architecture)
    table = next((prefix + words for prefix in PREFIXES if prefix + words in stored), words)
    for name, tied_name in ((decoder_bias, head.bias), (decoder_weight, table)):
        if name not in stored:
            continue
        if tied_name not in stored or not torch.equal(
            stored[name].float(), stored[tied_name].float()
        ):
            problem = f'not tied to the word embeddings: "{name}" differs from "{tied_name}"'
            advice = "sentkit can only use a head that shares the word table of the encoder"
            raise DataError(f"the language model head is {problem}", source=source, advice=advice)
    state = {name: stored[stored_name].float() for name, (stored_name, _) in layout.items()}
    return load_head(state, architecture)


def load_head(state: Mapping[str, Tensor], architecture: Architecture) -> LanguageHead:
    with torch.device("meta"):  # the real weights follow, so skip random initialisation
        head = LanguageHead(architecture)
    head.load_state_dict(state, assign=True)
    return head.requires_grad_().eval()


def fresh_head(architecture: Architecture, generator: torch.Generator) -> LanguageHead:
    """Return an untrained head in evaluation mode, with the initial distribution of
    transformers.
    """
    state = {name: torch.zeros(shape) for name, (_, shape) in head_layout(architecture).items()}
    state["dense.weight"].normal_(0, 0.02, generator=generator)
    state["norm.weight"].fill_(1)
    return load_head(state, architecture)


def head_tensors(head: LanguageHead, architecture: Architecture) -> dict[str, Tensor]:
    """Return copies of the weights under the Hugging Face names of the family.

    As in the files of transformers, the result has no tied tensors (decoder weight and aliased
    bias). The ForMaskedLM class of the family reads a file with these tensors and the encoder
    tensors. Names of encoder tensors need the prefix `HEADS[family].encoder`.
    """
    state = head.state_dict()
    layout = head_layout(architecture)
    return {stored_name: state[name].clone() for name, (stored_name, _) in layout.items()}


@dataclass(frozen=True, slots=True)
class Layout:
    dense: str
    out: str
    activation: str
    dropout_before: bool = False  # dropout also before `dense`
    dropout: str = "classifier_dropout"  # key in config.json
    usual_dropout: float | None = None  # without this key; None: the dropout of the encoder
    norm: str = ""  # after the activation


ROBERTA_LAYOUT = Layout("classifier.dense", "classifier.out_proj", "tanh", dropout_before=True)
LAYOUTS = {
    "bert": Layout("bert.pooler.dense", "classifier", "tanh"),
    **dict.fromkeys(ROBERTA, ROBERTA_LAYOUT),
    "electra": replace(ROBERTA_LAYOUT, activation="gelu"),
    "mpnet": replace(ROBERTA_LAYOUT, dropout="hidden_dropout_prob"),
    "distilbert": Layout(
        "pre_classifier", "classifier", "relu", dropout="seq_classif_dropout", usual_dropout=0.2
    ),
    "modernbert": Layout("head.dense", "classifier", "gelu", usual_dropout=0.0, norm="head.norm"),
}


class ClassifierHead(nn.Module):
    """Converts vectors (b, d), with the readout `pooling` of the architecture, to logits (b, k)."""

    def __init__(
        self, architecture: Architecture, outputs: int, dropout: float, scale: float
    ) -> None:
        """Draw random weights with the standard deviation `scale`; biases are 0."""
        super().__init__()
        self.layout = LAYOUTS[architecture.family]
        self.activation = ACTIVATIONS[self.layout.activation]
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(architecture.width, architecture.width, bias=architecture.head_bias)
        self.norm = (
            make_norm(architecture, architecture.width) if self.layout.norm else nn.Identity()
        )
        self.out = nn.Linear(architecture.width, outputs)
        for layer in (self.dense, self.out):
            nn.init.normal_(layer.weight, std=scale)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        if self.layout.dropout_before:
            vectors = self.dropout(vectors)
        inner = self.norm(self.activation(self.dense(vectors)))
        logits: Tensor = self.out(self.dropout(inner))
        return logits

    def weights(self) -> dict[str, nn.Parameter]:
        """Return the weights by the names of transformers."""
        layout = self.layout
        weights = {}
        for name, layer in (
            (layout.dense, self.dense),
            (layout.norm, self.norm),
            (layout.out, self.out),
        ):
            for parameter_name, parameter in layer.named_parameters():
                weights[f"{name}.{parameter_name}"] = parameter
        return weights


def move_to_head(
    body: Bert,
    outputs: int,
    checkpoint: Checkpoint,
    stored: Mapping[str, Tensor],
    dropout: float | None,
) -> ClassifierHead:
    """Return a new head for this encoder. The pooler of a BERT becomes a layer of the head.

    Other families have no pooler below a classifier, so it is removed. If the language model head
    of the base has the names of layers of a classifier, these have its weights, as in transformers.
    """
    architecture = body.architecture
    layout = LAYOUTS[architecture.family]
    config = checkpoint.config
    source = checkpoint.config_file
    if dropout is None:
        usual = architecture.dropout if layout.usual_dropout is None else layout.usual_dropout
        dropout = read_fraction(config, source, layout.dropout, usual)
    scale = read_fraction(config, source, "initializer_range", 0.02)
    head = ClassifierHead(architecture, outputs, dropout, scale)

    # The weights that the base has for the head: of its pooler, or of its language model head.
    if body.pooler is not None and architecture.family == "bert":
        head.dense = body.pooler.requires_grad_()  # LoRA freezes only the encoder
    body.pooler = None
    language = HEADS[architecture.family]
    shared = {
        name: weight
        for name, weight in head.weights().items()
        if name in stored and name.rpartition(".")[0] in (language.dense, language.norm)
    }
    shapes = {name: tuple(weight.shape) for name, weight in shared.items()}
    check_tensors(stored, shapes, source=checkpoint.name, what="weights of the language model head")
    for name, weight in shared.items():
        weight.data.copy_(stored[name])
    return head


def classifier_tensors(body: Bert, head: ClassifierHead) -> dict[str, Tensor]:
    """Return the tensors of a sequence classification model of transformers, in float32."""
    prefix = HEADS[body.architecture.family].encoder
    tensors: dict[str, Tensor] = {prefix + name: tensor for name, tensor in body.tensors().items()}
    tensors |= head.weights()
    return {name: tensor.detach().float() for name, tensor in tensors.items()}


def classifier_config(architecture: Architecture, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of config.json. Without labels the model predicts one number."""
    return {
        "architectures": [f"{HEADS[architecture.family].kind}ForSequenceClassification"],
        "problem_type": "single_label_classification" if labels else "regression",
        "id2label": {str(number): label for number, label in enumerate(labels or ("score",))},
        "label2id": {label: number for number, label in enumerate(labels or ("score",))},
    }
