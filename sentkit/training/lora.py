"""LoRA (arXiv 2106.09685): low-rank updates of linear layers, and no other trained weights of an
encoder.

The weight of a layer is W + scale * B A. W is constant, and B is 0 at the start. The checkpoint
contains the sums, so it is an ordinary checkpoint.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.families import QKV
from sentkit.training.recipe import LORA_LAYERS, Recipe

TRAINED = ("lora_a", "lora_b")


class LowRank(nn.Module):
    """A linear layer with low-rank updates of some of its matrices.

    The weight of the layer has several matrices, one below the other, such as those of queries,
    keys and values. `matrix_rows` are their numbers of rows, and `updated` the indices of those
    with an update.

    Axes: u updated matrices, r the rank, i inputs, o most rows of an updated matrix.
    """

    def __init__(
        self,
        layer: nn.Linear,
        rank: int,
        scale: float,
        updated: Sequence[int],
        matrix_rows: Sequence[int],
    ) -> None:
        super().__init__()
        self.constant = layer.weight
        self.bias = layer.bias
        self.scale = scale
        self.updated = updated
        self.matrix_rows = list(matrix_rows)
        most_rows = max(matrix_rows[index] for index in updated)
        self.lora_a = nn.Parameter(torch.empty(len(updated), rank, layer.in_features))  # (u, r, i)
        # (u, o, r), with unused rows
        self.lora_b = nn.Parameter(torch.zeros(len(updated), most_rows, rank))
        limit = layer.in_features**-0.5  # as in the released code
        nn.init.uniform_(self.lora_a, -limit, limit)

    @property
    def weight(self) -> Tensor:
        # Without autocast, because the checkpoint has the exact sum.
        with torch.autocast(self.lora_a.device.type, enabled=False):
            updates = self.scale * (self.lora_b @ self.lora_a)  # (u, o, i)
        matrices = list(self.constant.split(self.matrix_rows))
        for index, update in zip(self.updated, updates, strict=True):
            matrices[index] = matrices[index] + update[: self.matrix_rows[index]]
        return torch.cat(matrices)

    def forward(self, states: Tensor) -> Tensor:
        return nn.functional.linear(states, self.weight, self.bias)


def add_lora(body: Bert, settings: Recipe) -> None:
    """Freeze the weights of an encoder and add low-rank updates to the layers of the settings."""
    assert settings.lora is not None, "only called with lora"
    body.requires_grad_(False)
    rank = settings.lora
    alpha: float = rank
    if settings.lora_alpha is not None:
        alpha = settings.lora_alpha
    scale = alpha / rank

    # Queries, keys and values are matrices of one layer. All matrices of the other layers are
    # updated.
    names = LORA_LAYERS[settings.lora_layers]
    updated: dict[str, Sequence[int]] = {}  # layer -> indices of its matrices
    updated["qkv"] = [index for index, name in enumerate(QKV) if name in names]
    for name in names:
        if name not in QKV:
            updated[name] = range(len(body.architecture.matrices(name)))
    for block in body.blocks:
        for name, indices in updated.items():
            rows = body.architecture.matrices(name)
            layer = LowRank(getattr(block, name), rank, scale, indices, rows)
            setattr(block, name, layer)


def constant_tensors(module: nn.Module) -> set[str]:
    """Return the names of all tensors of encoders with LoRA that training does not change."""
    names: set[str] = set()
    for prefix, encoder in module.named_modules():
        if not isinstance(encoder, Bert):
            continue
        if not any(isinstance(layer, LowRank) for layer in encoder.modules()):
            continue
        for name in encoder.state_dict():
            if not (name.endswith(TRAINED) or name.startswith("convolution.")):
                names.add(f"{prefix}.{name}")
    return names
