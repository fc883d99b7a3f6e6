"""Steps of optimizers, for tests that repeat a training with transformers, plain loops and
torch.
"""

import math

import torch


def loss_of(method, batch):
    """The loss of a method with one term."""
    [term] = method.loss(method.encode(batch)).values()
    return term.value


def take_step(optimizer, loss, rate=None):
    """Take a step with this learning rate, and return the loss."""
    if rate is not None:
        for group in optimizer.param_groups:
            group["lr"] = rate
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def adamw(named, decay):
    """torch's AdamW without decay of biases and norms."""
    steady = [value for name, value in named.items() if "LayerNorm" in name or "bias" in name]
    decayed = [
        value for name, value in named.items() if not ("LayerNorm" in name or "bias" in name)
    ]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": decay}, {"params": steady, "weight_decay": 0.0}]
    )


class PlainAdamW:
    """One weight after the other: transformers' AdamW before version 5, with a clipped gradient."""

    def __init__(self, named, *, beta2, decay=0.0):
        self.named = named
        self.beta2 = beta2
        self.decay = decay
        self.count = 0
        self.means = [torch.zeros_like(weight) for _, weight in named]
        self.squares = [torch.zeros_like(weight) for _, weight in named]

    def step(self, loss, rate):
        """Take a step, and return the loss."""
        weights = [weight for _, weight in self.named]
        for weight in weights:
            weight.grad = None
        loss.backward()
        squares = [(weight.grad**2).sum().item() for weight in weights]
        norm = math.sqrt(sum(squares))
        for weight in weights:
            weight.grad *= min(1.0, 1.0 / (norm + 1e-6))
        self.update(rate)
        return loss.item()

    @torch.no_grad()
    def update(self, rate):
        self.count += 1
        correction = math.sqrt(1 - self.beta2**self.count) / (1 - 0.9**self.count)
        for (name, weight), mean, square in zip(self.named, self.means, self.squares, strict=True):
            mean.mul_(0.9).add_(0.1 * weight.grad)
            square.mul_(self.beta2).add_((1 - self.beta2) * weight.grad**2)
            weight -= rate * correction * mean / (square.sqrt() + 1e-6)
            if "bias" not in name and "LayerNorm" not in name:
                weight -= rate * self.decay * weight
