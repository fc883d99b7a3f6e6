"""The heads of each packed family, as transformers computes and names them: masked words and classes.

The last classes run a classification head: with the kernels of `encode`, or through transformers.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.arrays import Float32
from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import Checkpoint, weight_files
from sentkit.model.checkpoint_reading import Reading
from sentkit.model.encoding import BUDGETS, Arrays, Tally, TokenEncoder
from sentkit.model.text.tokens import TokenBlock, check_ids
from sentkit.model.transformer.architecture import (
    PREFIXES,
    ROBERTA,
    Architecture,
    modern,
    read_architecture,
    read_fraction,
    words_name,
)
from sentkit.model.transformer.bert import ACTIVATIONS, Bert, make_norm
from sentkit.model.transformer.device import halve_to_fit_memory, padded_parts, pick_device, pick_precision
from sentkit.model.transformer.encoder import INT8, TransformerEncoder
from sentkit.model.transformer.packed import pack_block
from sentkit.model.transformer.transformers_model import load_classifier, padding_id_of
from sentkit.model.transformer.weights import check_tensors, read_tensors
from sentkit.process import threads_of_command
from sentkit.transforms.steps import Linear, Norm


@dataclass(frozen=True, slots=True)
class Head:
    kind: str  # the classes of transformers begin with this word
    encoder: str  # prefix of the encoder names in a file with the head
    dense: str
    norm: str
    bias: str
    decoder: str  # tied: its weight is the word table, its bias is `bias`
    activation: str | None = None  # None: the activation of the architecture


ROBERTA_HEAD = "roberta.", "lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder", "gelu"
MASKED_WORDS = "cls.predictions"
DECODERS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
HEADS = {
    "bert": Head(
        *("Bert", "bert."),
        *(f"{MASKED_WORDS}.transform.dense", f"{MASKED_WORDS}.transform.LayerNorm"),
        *(f"{MASKED_WORDS}.bias", f"{MASKED_WORDS}.decoder"),
    ),
    "roberta": Head("Roberta", *ROBERTA_HEAD),
    "xlm-roberta": Head("XLMRoberta", *ROBERTA_HEAD),
    "camembert": Head("Camembert", *ROBERTA_HEAD),
    "mpnet": Head("MPNet", "mpnet.", *ROBERTA_HEAD[1:]),
    "modernbert": Head("ModernBert", "model.", "head.dense", "head.norm", "decoder.bias", "decoder", "gelu"),
    "distilbert": Head(
        *("DistilBert", "distilbert.", "vocab_transform", "vocab_layer_norm"),
        *("vocab_projector.bias", "vocab_projector"),
    ),
    "electra": Head(
        *("Electra", "electra.", "generator_predictions.dense", "generator_predictions.LayerNorm"),
        *("generator_lm_head.bias", "generator_lm_head"),
        activation="gelu",
    ),
    **{family: Head(kind, "model.", "", "", "", "lm_head") for family, kind in DECODERS.items()},
}


class LanguageHead(nn.Module):
    """Converts token states to logits over the vocabulary; `read_head` and `fresh_head` set the weights."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        narrow = architecture.embedding_width  # e
        self.activation = ACTIVATIONS[HEADS[architecture.family].activation or architecture.activation]
        self.dense = nn.Linear(architecture.width, narrow, bias=architecture.head_bias)
        self.norm = make_norm(architecture, narrow)
        self.bias = nn.Parameter(torch.zeros(architecture.vocabulary))

    def forward(self, states: Tensor, words: Tensor) -> Tensor:
        """Return logits (m, v) of states (m, d); `words` is the word table of the encoder, (v, e)."""
        projected = self.norm(self.activation(self.dense(states)))  # (m, e)
        return F.linear(projected, words, self.bias)


def head_layout(architecture: Architecture) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the checkpoint name and the shape of each head parameter."""
    head, narrow = HEADS[architecture.family], architecture.embedding_width
    layout = {
        "dense.weight": (f"{head.dense}.weight", (narrow, architecture.width)),
        "dense.bias": (f"{head.dense}.bias", (narrow,)),
        "norm.weight": (f"{head.norm}.weight", (narrow,)),
        "norm.bias": (f"{head.norm}.bias", (narrow,)),
        "bias": (head.bias, (architecture.vocabulary,)),
    }
    biases = {"dense.bias": architecture.head_bias, "norm.bias": architecture.kind.has_bias("norm")}
    return {ours: theirs for ours, theirs in layout.items() if biases.get(ours, True)}


def read_head(
    tensors: Mapping[str, Tensor], architecture: Architecture, *, source: str
) -> LanguageHead | None:
    """Return the head from the tensors of a file, in evaluation mode, or None if the file has no head."""
    head = HEADS[architecture.family]
    if not head.dense:
        return None
    stored = {modern(name): tensor for name, tensor in tensors.items()}
    alias = f"{head.decoder}.bias"
    if alias in stored:
        stored.setdefault(head.bias, stored[alias])
    layout = head_layout(architecture)
    if not any(name in stored for name in (f"{head.decoder}.weight", *(name for name, _ in layout.values()))):
        return None
    if head.bias not in stored and f"{LAYOUTS[architecture.family].out}.weight" in stored:
        return None  # a classifier, whose layers can have the same names
    check_tensors(stored, dict(layout.values()), source=source, what="weights of the language model head")
    words = words_name(architecture)
    table = next((prefix + words for prefix in PREFIXES if prefix + words in stored), words)
    for own, tied in ((alias, head.bias), (f"{head.decoder}.weight", table)):
        if own in stored and not (tied in stored and torch.equal(stored[own].float(), stored[tied].float())):
            problem = f'not tied to the word embeddings: "{own}" differs from "{tied}"'
            advice = "sentkit can only use a head that shares the word table of the encoder"
            raise DataError(f"the language model head is {problem}", source=source, advice=advice)
    return load_head({ours: stored[theirs].float() for ours, (theirs, _) in layout.items()}, architecture)


def load_head(state: Mapping[str, Tensor], architecture: Architecture) -> LanguageHead:
    with torch.device("meta"):  # the real weights follow, so skip random initialisation
        head = LanguageHead(architecture)
    head.load_state_dict(state, assign=True)
    return head.requires_grad_().eval()


def fresh_head(architecture: Architecture, generator: torch.Generator) -> LanguageHead:
    """Return an untrained head in evaluation mode, with the initial distribution of transformers."""
    state = {ours: torch.zeros(shape) for ours, (_, shape) in head_layout(architecture).items()}
    state["dense.weight"].normal_(0, 0.02, generator=generator)
    state["norm.weight"].fill_(1)
    return load_head(state, architecture)


def head_tensors(head: LanguageHead, architecture: Architecture) -> dict[str, Tensor]:
    """Return copies of the weights under the Hugging Face names of the family.

    As in the files of transformers, the result has no tied tensors (decoder weight and aliased bias). The
    ForMaskedLM class of the family reads a file with these tensors and the encoder tensors. Names of encoder
    tensors need the prefix `HEADS[family].encoder`.
    """
    state = head.state_dict()
    return {theirs: state[ours].clone() for ours, (theirs, _) in head_layout(architecture).items()}


@dataclass(frozen=True, slots=True)
class Layout:
    dense: str
    out: str
    activation: str
    dropout_before: bool = False  # dropout also before `dense`
    dropout: str = "classifier_dropout"  # key in config.json
    usual_dropout: float | None = None  # without this key; None: the dropout of the encoder
    norm: str = ""  # after the activation


WITH_PROJECTION = "classifier.dense", "classifier.out_proj"
LAYOUTS = {
    "bert": Layout("bert.pooler.dense", "classifier", "tanh"),
    **{family: Layout(*WITH_PROJECTION, "tanh", dropout_before=True) for family in ROBERTA},
    "electra": Layout(*WITH_PROJECTION, "gelu", dropout_before=True),
    "mpnet": Layout(*WITH_PROJECTION, "tanh", dropout_before=True, dropout="hidden_dropout_prob"),
    "distilbert": Layout(
        "pre_classifier", "classifier", "relu", dropout="seq_classif_dropout", usual_dropout=0.2
    ),
    "modernbert": Layout("head.dense", "classifier", "gelu", usual_dropout=0.0, norm="head.norm"),
}


class ClassifierHead(nn.Module):
    """Converts vectors (b, d), with the readout `pooling` of the architecture, to logits (b, k)."""

    def __init__(self, architecture: Architecture, outputs: int, dropout: float, scale: float) -> None:
        """Draw random weights with the standard deviation `scale`; biases are 0."""
        super().__init__()
        self.layout = LAYOUTS[architecture.family]
        self.activation = ACTIVATIONS[self.layout.activation]
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(architecture.width, architecture.width, bias=architecture.head_bias)
        self.norm = make_norm(architecture, architecture.width) if self.layout.norm else nn.Identity()
        self.out = nn.Linear(architecture.width, outputs)
        for layer in (self.dense, self.out):
            nn.init.normal_(layer.weight, std=scale)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        if self.layout.dropout_before:
            vectors = self.dropout(vectors)
        logits: Tensor = self.out(self.dropout(self.norm(self.activation(self.dense(vectors)))))
        return logits

    def weights(self) -> dict[str, nn.Parameter]:
        """Return the weights by the names of transformers."""
        layout = self.layout
        layers = ((layout.dense, self.dense), (layout.norm, self.norm), (layout.out, self.out))
        return {f"{name}.{kind}": value for name, layer in layers for kind, value in layer.named_parameters()}


def move_to_head(
    body: Bert, outputs: int, checkpoint: Checkpoint, stored: Mapping[str, Tensor], dropout: float | None
) -> ClassifierHead:
    """Return a new head for this encoder. The pooler of a BERT becomes a layer of the head.

    Other families have no pooler below a classifier, so it is removed. If the language model head of the
    base has the names of layers of a classifier, these have its weights, as in transformers.
    """
    architecture, layout = body.architecture, LAYOUTS[body.architecture.family]
    config, source = checkpoint.config, checkpoint.config_file
    usual = architecture.dropout if layout.usual_dropout is None else layout.usual_dropout
    rate = read_fraction(config, source, layout.dropout, usual) if dropout is None else dropout
    scale = read_fraction(config, source, "initializer_range", 0.02)
    head = ClassifierHead(architecture, outputs, rate, scale)
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
    tensors = {prefix + name: value for name, value in body.tensors().items()} | head.weights()
    return {name: value.detach().float() for name, value in tensors.items()}


def classifier_config(architecture: Architecture, labels: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of config.json. Without labels the model predicts one number."""
    return {
        "architectures": [f"{HEADS[architecture.family].kind}ForSequenceClassification"],
        "problem_type": "single_label_classification" if labels else "regression",
        "id2label": {str(number): label for number, label in enumerate(labels or ("score",))},
        "label2id": {label: number for number, label in enumerate(labels or ("score",))},
    }


class PackedClassifier(TransformerEncoder):
    """An encoder of the vector that the head reads, with the head as the operations after the readout."""

    def __init__(self, checkpoint: Checkpoint, reading: Reading, *, device: str, precision: str) -> None:
        super().__init__(checkpoint, reading, device=device, precision=precision)
        architecture = read_architecture(checkpoint.config, checkpoint.config_file)
        layout = LAYOUTS[architecture.family]
        tensors = read_tensors(weight_files(checkpoint.transformer, checkpoint.name))
        out = tensors.get(f"{layout.out}.weight")
        self.width = len(out) if out is not None and out.ndim else 1
        with torch.device("meta"):
            head = ClassifierHead(architecture, self.width, dropout=0.0, scale=0.0)
        shapes = {name: tuple(weight.shape) for name, weight in head.weights().items()}
        check_tensors(tensors, shapes, source=checkpoint.name, what="weights of the classification head")
        arrays = {name: tensors[name].float().numpy() for name in shapes}
        zeros = np.zeros(architecture.width, np.float32)

        def parts(name: str) -> tuple[Float32, Float32]:
            return arrays[f"{name}.weight"], arrays.get(f"{name}.bias", zeros)

        norms = [Norm(*parts(layout.norm), architecture.norm_epsilon)] if layout.norm else []
        dense, out_layer = Linear(*parts(layout.dense), layout.activation), Linear(*parts(layout.out))
        self.steps = [dense, *norms, out_layer]


class TransformersClassifier(TokenEncoder):
    """A model of transformers for sequence classification, with the interface of an encoder."""

    def __init__(self, checkpoint: Checkpoint, reading: Reading, *, device: str, precision: str) -> None:
        if precision == INT8:
            problem = f"--precision {INT8}: {checkpoint.name} runs through transformers"
            raise UsageError(problem, advice="use bf16 or fp32")
        self.checkpoint, self.reading = checkpoint, reading
        self.device = pick_device(device)
        dtype = pick_precision(precision, self.device)
        self.budget, self.precision = BUDGETS[self.device.type], "bf16" if dtype == torch.bfloat16 else "fp32"
        if self.device.type == "cpu":
            torch.set_num_threads(threads_of_command() or torch.get_num_threads())
        self.model = load_classifier(checkpoint.transformer).to(self.device, dtype)
        self.notes = [f"{checkpoint.name}: run through transformers"]
        self.specs, self.steps = [], []
        self.width = int(self.model.config.num_labels)

    def encode(self, batches: Iterable[TokenBlock]) -> Iterator[Arrays]:
        for batch in batches:
            check_ids(batch, self.model.config.vocab_size, self.checkpoint.name)
            outputs = list[np.ndarray]()
            for part in padded_parts(batch, self.device):
                outputs += halve_to_fit_memory(self.outputs, part, advice="use --max-length, or --device cpu")
            yield [np.concatenate(outputs)]

    def outputs(self, batch: TokenBlock) -> np.ndarray:
        packed = pack_block(batch, self.device)
        given = {
            "input_ids": packed.pad(packed.ids, fill=padding_id_of(self.model)),
            "attention_mask": packed.pad(torch.ones_like(packed.ids)),
        }
        if packed.types is not None and "token_type_ids" in inspect.signature(self.model.forward).parameters:
            given["token_type_ids"] = packed.pad(packed.types)
        with torch.inference_mode():
            logits: Tensor = self.model(**given).logits
        return logits.float().cpu().numpy()

    def remarks(self, tally: Tally) -> list[str]:
        return tally.truncation(self.reading.tokenizer.max_length, "tokens")
