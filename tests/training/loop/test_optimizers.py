"""Each optimizer against its formula in plain Python, or against torch where both say the same."""

from functools import partial
from math import sqrt

import pytest
import torch
from torch import nn

from sentkit.training.loop.optimizers import Adam, make_optimizer, name_decays, parameters_of_norms
from sentkit.training.recipe import Recipe

SHAPES = [(3,), (2, 5), (2, 1, 4), ()]
RATE = 1e-2


def parameters_of(dtype, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=random, dtype=dtype)) for shape in SHAPES]


def gradients_of(dtype, steps, seed=1):
    """By step, one for each parameter; step by step of another size."""
    random = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(shape, generator=random, dtype=dtype) * 10**-step for shape in SHAPES]
        for step in range(steps)
    ]


def numbers(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).tolist()


def run(optimizer, parameters, gradients):
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        optimizer.step()


def ours(parameters, betas=(0.9, 0.999), decay=0.0, **settings):
    group = {"params": parameters, "lr": RATE, "weight_decay": decay}
    return Adam(param_groups=[group], betas=betas, **{"epsilon": 1e-6, "late": True} | settings)


def named_optimizer(name, parameters, **settings):
    named = [(f"dense{number}.weight", parameter) for number, parameter in enumerate(parameters)]
    return make_optimizer(Recipe(optimizer=name, **settings), [{"params": named, "lr": RATE}])


def by_hand(start, gradients, *, betas, decay, corrected, epsilon=1e-6):
    """One coordinate, in Python's own floats."""
    beta1, beta2 = betas
    value = start
    mean = 0.0
    square = 0.0
    for step, gradient in enumerate(gradients, start=1):
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient * gradient
        size = RATE * sqrt(1 - beta2**step) / (1 - beta1**step) if corrected else RATE
        value -= size * mean / (sqrt(square) + epsilon)
        value -= RATE * decay * value
    return value


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-5)])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.9)])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize(("name", "corrected"), [("adamw-hf", True), ("adamw-bert", False)])
def test_five_steps_equal_the_formula(name, corrected, decay, betas, dtype, tolerance):
    parameters = parameters_of(dtype)
    gradients = gradients_of(dtype, steps=5)
    optimizer = named_optimizer(
        name, parameters, beta1=betas[0], beta2=betas[1], weight_decay=decay
    )
    run(optimizer, parameters, gradients)
    slopes = zip(*(numbers(step) for step in gradients), strict=True)
    for value, start, slopes_of_number in zip(
        numbers(parameters), numbers(parameters_of(dtype)), slopes, strict=True
    ):
        expected = by_hand(start, slopes_of_number, betas=betas, decay=decay, corrected=corrected)
        assert value == pytest.approx(expected, rel=tolerance, abs=tolerance)


def test_a_parameter_counts_its_own_steps():
    """One that had no gradient at first stays without decay, and is later corrected like one that
    starts.
    """
    late = gradients_of(torch.float64, steps=3)
    first, *other_parameters = parameters_of(torch.float64)
    start = first[0].item()
    steady = ours([first, *other_parameters], decay=0.1)
    run(steady, [first, *other_parameters], [[None] * len(SHAPES)])
    assert not steady.state
    assert all(map(torch.equal, [first, *other_parameters], parameters_of(torch.float64)))
    run(
        ours([first, *other_parameters]),
        [first, *other_parameters],
        [[None, *late[0][1:]], *late[1:]],
    )
    slopes = [step[0][0].item() for step in late[1:]]

    expected = by_hand(start, slopes, betas=(0.9, 0.999), decay=0.0, corrected=True)
    assert first[0].item() == pytest.approx(expected, rel=1e-13)


BETAS = {"betas": (0.9, 0.97)}


@pytest.mark.parametrize(
    ("name", "reference", "decay", "dtype"),
    [
        ("adam", partial(torch.optim.Adam, fused=True, **BETAS), 0, torch.float32),
        ("adamw", partial(torch.optim.AdamW, fused=True, **BETAS), 0.5, torch.float32),
        ("rmsprop", partial(torch.optim.RMSprop, alpha=0.97), 0, torch.float64),
    ],
)
def test_adam_and_rmsprop_are_those_of_torch(name, reference, decay, dtype):
    """To the last bit of the fused kernel. AdamW decays before the step. Epsilon is added to the
    root.
    """
    gradients = gradients_of(dtype, steps=6)
    parameters = parameters_of(dtype)
    torch_parameters = parameters_of(dtype)
    run(named_optimizer(name, parameters, weight_decay=decay, beta2=0.97), parameters, gradients)
    run(
        reference(torch_parameters, lr=RATE, eps=1e-8, weight_decay=decay),
        torch_parameters,
        gradients,
    )

    exact = 0 if dtype is torch.float32 else 1e-14
    for parameter, torch_parameter in zip(parameters, torch_parameters, strict=True):
        torch.testing.assert_close(parameter, torch_parameter, rtol=100 * exact, atol=exact)


def test_decay_cuts_each_group_in_two_and_leaves_none_empty():
    """Biases and norms do not decay."""
    without_decay = ("blocks.0.qkv.bias", "blocks.0.mix_norm.weight", "encoder.LayerNorm.weight")
    assert not any(map(name_decays, without_decay))
    assert all(map(name_decays, ("blocks.0.qkv.weight", "biases.weight")))
    a, b, c, d = (nn.Parameter(torch.zeros(1)) for _ in range(4))
    groups = [
        {"params": [("up.bias", a), ("up.weight", b), ("norm.weight", c)], "lr": 1.0},
        {"params": [("head.weight", d)], "lr": 2.0},
        {"params": [], "lr": 3.0},
    ]

    def split(named, decay):
        return make_optimizer(Recipe(weight_decay=decay), named).param_groups

    assert split(groups, 0.01) == [
        {"params": [b], "lr": 1.0, "weight_decay": 0.01},
        {"params": [a, c], "lr": 1.0, "weight_decay": 0.0},
        {"params": [d], "lr": 2.0, "weight_decay": 0.01},
    ]
    assert split(groups[:1], 0.0) == [{"params": [a, b, c], "lr": 1.0, "weight_decay": 0.0}]


class RootNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))


@pytest.mark.parametrize("norm", [nn.LayerNorm(4), nn.RMSNorm(4), RootNorm()])
def test_a_norm_of_any_name_does_not_decay(norm):
    """GPT-2 calls its norms ln_1, ln_2 and ln_f."""
    model = nn.ModuleDict({"ln_f": norm, "dense": nn.Linear(4, 4)})
    model.weights = nn.Parameter(torch.ones(4))  # of the tokens of a static model
    groups = [{"params": list(model.named_parameters()), "lr": RATE}]
    recipe = Recipe(weight_decay=0.01)
    with_decay, without_decay = make_optimizer(
        recipe, groups, parameters_of_norms(model)
    ).param_groups

    assert with_decay["params"] == [model.weights, model["dense"].weight]
    assert without_decay["params"] == [*norm.parameters(), model["dense"].bias]
