"""LoRA (arXiv 2106.09685): trains low-rank updates of linear layers and no other weights of the encoder.

The weight of a layer is W + scale * B A. W is constant, and B is 0 at the start.
The checkpoint contains the sums, so it is an ordinary checkpoint.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sentkit.model.transformer.bert import FUSED, Bert
from sentkit.training.settings import LORA_LAYERS, Recipe

TRAINED = ("lora_a", "lora_b")


class LowRank(nn.Module):
    """A linear layer with low-rank updates of some of the equal parts of its output.

    Axes: p updated parts, r the rank, i inputs, o outputs of a part.
    """

    def __init__(self, layer: nn.Linear, rank: int, scale: float, parts: Sequence[int], of: int) -> None:
        super().__init__()
        self.constant, self.bias = layer.weight, layer.bias
        self.scale, self.of = scale, of
        self.lora_a = nn.Parameter(torch.empty(len(parts), rank, layer.in_features))  # (p, r, i)
        self.lora_b = nn.Parameter(torch.zeros(len(parts), layer.out_features // of, rank))  # (p, o, r)
        self.register_buffer("parts", torch.tensor(parts), persistent=False)
        limit = layer.in_features**-0.5  # as in the released code
        nn.init.uniform_(self.lora_a, -limit, limit)

    @property
    def weight(self) -> Tensor:
        with torch.autocast(self.lora_a.device.type, enabled=False):  # the checkpoint has the exact sum
            change = self.scale * (self.lora_b @ self.lora_a)
        rows = self.constant.unflatten(0, (self.of, -1))
        return rows.index_add(0, self.get_buffer("parts"), change).flatten(0, 1)

    def forward(self, states: Tensor) -> Tensor:
        return nn.functional.linear(states, self.weight, self.bias)


def add_lora(body: Bert, settings: Recipe) -> None:
    """Freeze the weights of an encoder and add low-rank updates to the layers of the settings."""
    assert settings.lora is not None, "only called with lora"
    body.requires_grad_(False)
    rank = settings.lora
    scale = (rank if settings.lora_alpha is None else settings.lora_alpha) / rank
    names = LORA_LAYERS[settings.lora_layers]
    fused = [place for place, name in enumerate(FUSED) if name in names]
    places = {"qkv": fused} | {name: [0] for name in names if name not in FUSED}
    for block in body.blocks:
        for name, parts in places.items():
            layer = getattr(block, name)
            of = len(FUSED) if name == "qkv" else 1
            setattr(block, name, LowRank(layer, rank, scale, parts, of))


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
