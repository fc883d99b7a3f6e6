"""SG-BERT (arXiv 2106.07345): contrasts the encoder's output with layers of a frozen copy.

There are two copies of the encoder. The tuned copy is trained, and its [CLS] state is the sentence
vector. The guide is frozen. Each layer of the guide, pooled over the tokens, is a view of the
sentence. Axes: b sentences, l layers of the guide, d dimensions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.formats.rows.kinds import PAIR, SENTENCE
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.kernels.cuda_operations import multiply_all, norms_of, subtract_all
from sentkit.model.transformer.readouts import at_least_float32, reduce_layers
from sentkit.papers.sg_bert import paper
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch, Ids
from sentkit.training.data.examples import Reads
from sentkit.training.losses import (
    cosines,
    diagonal_cross_entropy,
    diagonal_mask,
    in_batch_contrast,
    negative_log_share,
    paired_contrast,
)
from sentkit.training.method import (
    Draw,
    Needs,
    Outputs,
    PackedMethod,
    Term,
    embedding_modules,
    mean_of,
    readout_of,
)


def guided_opt1(queries: Tensor, views: Tensor, temperature: float) -> Tensor:
    """Contrast of query i with view i against all views and the other queries: (b, d), (b, d) ->
    (b,).

    SG-BERT's opt1, arXiv 2106.07345.
    """
    across = cosines(queries, views) / temperature  # (b, b)
    among = cosines(queries, queries) / temperature
    among_others = among.masked_fill(diagonal_mask(among), -torch.inf)
    return diagonal_cross_entropy(torch.cat([across, among_others], 1))


def guided_opt2_released(queries: Tensor, views: Tensor, temperature: float) -> Tensor:
    """Opt2 as in the released code of SG-BERT, which differs from the paper: (b, d), (b, d) ->
    (b,).

    The slice of the negatives starts one column late, so each query ignores its first negative. The
    loss of two sentences is therefore always 0.
    """
    similarities = cosines(queries, views) / temperature  # (b, b)
    is_ignored = torch.zeros_like(similarities, dtype=torch.bool)
    is_ignored[:1, 1:2] = True
    is_ignored[1:, :1] = True
    return diagonal_cross_entropy(similarities.masked_fill(is_ignored, -torch.inf))


def guided_opt3(queries: Tensor, layer_views: Tensor, temperature: float) -> Tensor:
    """Contrast of query i with each view of i against all views of others: (b, d), (b, l, d) -> (b,
    l).

    SG-BERT's opt3, arXiv 2106.07345. The other views of the same sentence are not negatives.
    """
    count, layers, _ = layer_views.shape
    similarities = (
        cosines(queries, layer_views.flatten(0, 1)).view(count, count, layers) / temperature
    )
    is_same_sentence = diagonal_mask(similarities[:, :, 0])
    of_others = similarities[~is_same_sentence].view(count, (count - 1) * layers)
    return negative_log_share(similarities[is_same_sentence], of_others.logsumexp(1, keepdim=True))


def squared_distance(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the sum of all squared differences. Only the first tensor of a pair has a gradient.

    The regulariser of SG-BERT, arXiv 2106.07345: the distance of an encoder from its initial
    weights.
    """
    tuned: list[Tensor] = []
    initial: list[Tensor] = []
    for weight, initial_weight in pairs:
        tuned.append(at_least_float32(weight))
        initial.append(at_least_float32(initial_weight.detach()))
    if tuned[0].is_cuda:
        result: Tensor = SquaredDistance.apply(len(tuned), *tuned, *initial)
        return result
    # mse_loss stores no differences for the backward pass, which saves the memory of one encoder.
    total = torch.zeros(())
    for weight, initial_weight in zip(tuned, initial, strict=True):
        total = total + F.mse_loss(weight, initial_weight, reduction="sum")
    return total


class SquaredDistance(torch.autograd.Function):
    """The same with few kernels, because a GPU waits for the launch of each."""

    @staticmethod
    def forward(context: Any, count: int, *tensors: Tensor) -> Tensor:
        context.count = count
        context.save_for_backward(*tensors)
        norms = norms_of(subtract_all(tensors[:count], tensors[count:]))
        return torch.stack(list(norms)).square().sum()

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        count = context.count
        tensors = context.saved_tensors
        differences = subtract_all(tensors[:count], tensors[count:])
        multiply_all(differences, 2 * slope)
        return None, *differences, *(None for _ in range(count))


# (b, d), the views, temperature -> one value per anchor
Contrast = Callable[[Tensor, Tensor, float], Tensor]

CONTRASTS: dict[str, Contrast] = {
    "base": paired_contrast,
    "opt1": guided_opt1,
    "opt2": in_batch_contrast,
    "opt3": guided_opt3,
}
WEIGHTS: dict[str, Callable[[int], np.ndarray]] = {  # number of layers -> their weights
    "uniform": np.ones,
    "upper": lambda count: np.arange(1, count + 1),
    "lower": lambda count: np.arange(count, 0, -1),
}
Layers = Mapping[tuple[int, str], Tensor]  # layer and pooling -> (b, d)
SPREAD = 0.02  # standard deviation of the head's weights, as in BERT


class SelfGuided(PackedMethod):
    Settings: ClassVar = paper.Settings
    needs: ClassVar = Needs(
        packed="an encoder whose embeddings it can freeze", constant=("guide.",)
    )
    guide: Bert

    def __init__(self, body: Bert, settings: paper.Settings) -> None:
        super().__init__(body, settings)
        self.layers = kept_layers(settings.guide_layers, body.depth)
        self.guide = deepcopy(body).requires_grad_(False)
        self.head: nn.Module = nn.Identity()
        if settings.head == "gelu":
            self.head = gelu_head(body.width, settings.head_width)
        if settings.freeze_embeddings:
            for module in embedding_modules(body):
                module.requires_grad_(False)

    @classmethod
    def check(cls, base: Base, settings: paper.Settings) -> None:
        kept_layers(settings.guide_layers, base.packed.depth)

    @classmethod
    def reads(cls, base: Base, settings: paper.Settings) -> Reads:
        """Return the kinds of rows. A pair is a sentence and its paraphrase, such as a
        back-translation.
        """
        if settings.second_text is None:
            return Reads((SENTENCE,))
        return Reads((PAIR,))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        # module.train() also changes the guide
        self.guide.train(mode and self.settings.guide_dropout)
        return self

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        """Draw one layer per sentence as its view. opt3 uses all layers, and second_text=tuned uses
        none.
        """
        if self.settings.objective == "opt3" or self.settings.second_text == "tuned":
            return {}
        generator = random("layer")
        sampler = self.settings.layer_sampler
        if sampler == "uniform":
            layers = generator.integers(self.layers.start, self.layers.stop, len(batch))
        else:
            weights = WEIGHTS[sampler](len(self.layers))
            layers = generator.choice(self.layers, len(batch), p=weights / weights.sum())
        return {"layer": layers.tolist()}

    def encode(self, batch: Batch) -> Outputs:
        texts = batch.texts[0]
        second_texts = batch.texts[-1]  # of a sentence, the same texts
        drawn_layers = batch.draws.get("layer")
        if self.settings.second_text == "tuned":
            vectors = self.vectors(self.pack([*texts, *second_texts]))
            queries, views = self.head(vectors).chunk(2)
        elif self.settings.guide == "self" and self.settings.second_text is None:
            vectors, states = self.vectors_and_layers(texts)
            queries = self.head(vectors)
            views = self.head(self.selected(states, drawn_layers))
        else:
            queries = self.head(self.vectors(self.pack(texts)))
            views = self.head(self.views(second_texts, drawn_layers))
        return {"queries": queries, "views": views}

    def vectors_and_layers(self, texts: Sequence[Ids]) -> tuple[Tensor, Layers]:
        """Return the sentence vectors and the pooled layers of the tuned encoder, from one pass."""
        readout = parse_readout(readout_of(self))
        readout_layers = readout.layers_in(self.body.depth)
        poolings = {layer: {self.settings.guide_pool} for layer in self.layers}
        for layer in readout_layers:
            poolings.setdefault(layer, set()).add(readout.reduction)
        sorted_poolings = {layer: sorted(names) for layer, names in poolings.items()}
        states = reduce_layers(self.body, self.pack(texts), sorted_poolings)
        vectors = torch.stack([states[layer, readout.reduction] for layer in readout_layers]).mean(
            0
        )
        return vectors, states

    def views(self, texts: Sequence[Ids], drawn_layers: Sequence[int] | None) -> Tensor:
        """Return the views of the texts from the guide, or with guide=self from the tuned
        encoder.
        """
        poolings = {layer: [self.settings.guide_pool] for layer in self.layers}
        if self.settings.guide == "self":
            return self.selected(reduce_layers(self.body, self.pack(texts), poolings), drawn_layers)
        with torch.no_grad():
            return self.selected(
                reduce_layers(self.guide, self.pack(texts), poolings), drawn_layers
            )

    def selected(self, states: Layers, drawn_layers: Sequence[int] | None) -> Tensor:
        """Return the drawn layer of each text (b, d), or all selected layers (b, l, d)."""
        pool = self.settings.guide_pool
        if drawn_layers is None:
            return torch.stack([states[layer, pool] for layer in self.layers], 1)
        return torch.stack([states[layer, pool][row] for row, layer in enumerate(drawn_layers)])

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        """Return the mean over all anchors: 2b for base, b * l for opt3, b for the others."""
        settings = self.settings
        contrast = CONTRASTS[settings.objective]
        if settings.objective == "opt2" and settings.compat_opt2_slice:
            contrast = guided_opt2_released
        values = contrast(outputs["queries"], outputs["views"], settings.temperature)
        return {"contrast": mean_of(values)}

    def penalty(self) -> dict[str, Tensor]:
        """Return the squared distance between the tuned copy and the guide. It includes a
        pooler.
        """
        if not self.settings.drift_weight:
            return {}
        tuned = dict(self.body.weights()).values()
        initial = dict(self.guide.weights()).values()
        distance = squared_distance(zip(tuned, initial, strict=True))
        return {"drift": self.settings.drift_weight * distance}


def gelu_head(width: int, head_width: int) -> nn.Sequential:
    """Return two layers, each followed by the exact GELU. The minimum output is therefore about
    -0.17.
    """
    head = nn.Sequential(
        nn.Linear(width, head_width), nn.GELU(), nn.Linear(head_width, head_width), nn.GELU()
    )
    for name, values in head.named_parameters():
        if name.endswith("weight"):
            nn.init.normal_(values, std=SPREAD)
        else:
            nn.init.zeros_(values)
    return head


def kept_layers(text: str, depth: int) -> range:
    """Return the selected layers of an encoder. Raise a UsageError if it has fewer layers."""
    first, last = paper.layer_bounds(text)
    if last is None:
        last = depth
    if max(first, last) > depth:
        raise UsageError(f"guide_layers={text}: the encoder's layers are 0 to {depth}")
    return range(first, last + 1)
