"""The flow of BERT-flow against plain loops, a network of torch, and worked arithmetic."""

import math

import numpy as np
import pytest
import torch

from sentkit.transforms.flow import (
    Flow,
    blocks_of,
    fit_parameters,
    initialise,
    loss,
    parameter_count,
    run,
    shapes,
    widths_of,
)
from sentkit.transforms.kinds import FitOptions


@pytest.fixture
def random():
    return np.random.default_rng(0)


@pytest.fixture
def skewed(random):
    """400 vectors of 8 numbers that depend on each other, far from a normal distribution."""
    source = np.exp(random.normal(size=(400, 8)) / 2)
    return (source @ random.normal(size=(8, 8)) + 3).astype(np.float32)


def drawn(random, width):
    """Parameters of every kind, none of them 0."""
    return random.normal(scale=0.2, size=parameter_count(width))


def through_torch(parameters, x):
    """The results of the flow with torch, which finds the gradient."""
    width = x.shape[1]
    finished = []
    for number, block in enumerate(blocks_of(parameters, width), 1):
        half = x.shape[1] // 2
        y = ((x + block["shift"]) * (3 * block["scale"]).exp()).flip(1)
        hidden = y[:, :half]
        for layer in "123":
            output = hidden @ block[f"weight{layer}"] + block[f"shift{layer}"]
            output = output * (3 * block[f"scale{layer}"]).exp()
            hidden = output.relu()
        x = torch.cat([y[:, :half], y[:, half:] + output], dim=1)
        if number in (3, 6):
            finished.append(x[:, half:])
            x = x[:, :half]
    return torch.cat([*finished, x], dim=1)


def loss_of_torch(parameters, x):
    """The determinant is that of the Jacobian, which is the same for all vectors."""
    width = x.shape[1]
    jacobian = torch.autograd.functional.jacobian(
        lambda row: through_torch(parameters, row[None])[0], x[0], create_graph=True
    )
    squares = through_torch(parameters, x).square().sum(1).mean()
    nats = squares / 2 + width / 2 * math.log(2 * math.pi) - torch.linalg.slogdet(jacobian)[1]
    return nats / (width * math.log(2))


@pytest.mark.parametrize("width", [1, 4, 7, 16])
def test_the_flow_is_that_of_a_reference_with_torch(random, width):
    parameters = drawn(random, width)
    x = random.normal(size=(3, width))
    torch_parameters = torch.tensor(parameters)
    torch_x = torch.tensor(x)

    expected = through_torch(torch_parameters, torch_x).numpy()
    assert run(parameters, x)[1] == pytest.approx(expected, rel=1e-9)
    expected_loss = loss_of_torch(torch_parameters, torch_x).item()
    assert loss(parameters, x) == pytest.approx(expected_loss, rel=1e-9)


def test_the_loss_of_no_flow_worked_by_hand():
    """x = (1, -1, 0, 2): 6 / 2 + 2 ln 2 pi = 6.675754 nats, over 4 ln 2."""
    bits = loss(np.zeros(parameter_count(4)), np.array([[1.0, -1, 0, 2]]))
    assert bits == pytest.approx(2.407769, abs=1e-6)


def test_the_network_has_the_size_of_the_paper():
    """Three steps of 25,600, 13,312 and 7,168 weights for vectors of 768 numbers."""
    weights = [
        sum(math.prod(shape) for name, shape in shapes(w).items() if "weight" in name)
        for w in widths_of(768)
    ]

    assert widths_of(768) == [768] * 3 + [384] * 3 + [192] * 3
    assert weights[::3] == [25_600, 13_312, 7_168]


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_the_gradient_is_that_of_differences(random, width):
    parameters = drawn(random, width) / 2
    x = random.normal(size=(4, width))
    gradient = np.empty_like(parameters)
    loss(parameters, x, gradient)
    for index in random.choice(len(parameters), min(300, len(parameters)), replace=False):
        step = np.zeros_like(parameters)
        step[index] = 1e-6
        slope = (loss(parameters + step, x) - loss(parameters - step, x)) / 2e-6
        assert gradient[index] == pytest.approx(slope, rel=1e-5, abs=1e-6)


def test_steps_are_those_of_a_reference_with_torch(skewed):
    """Six steps from the same start: clipping, Adam without bias correction, decay of all
    parameters.
    """
    options = FitOptions(batch=64, lr=0.01, seed=3)
    fit = fit_parameters(skewed[:384], options, "x")
    random = np.random.default_rng(3)
    order = random.permutation(384)
    start = np.zeros(parameter_count(8))
    initialise(start, skewed[order[:64]].astype(np.float64), random)
    torch_parameters = torch.tensor(start, requires_grad=True)
    first = torch.zeros_like(torch_parameters)
    second = torch.zeros_like(torch_parameters)
    for begin in range(0, 384, 64):
        batch = torch.tensor(skewed[order[begin : begin + 64]]).double()
        loss_of_batch = loss_of_torch(torch_parameters, batch)
        [gradient] = torch.autograd.grad(loss_of_batch, torch_parameters)
        gradient = gradient / max(1.0, float(gradient.norm()))
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        with torch.no_grad():
            torch_parameters -= 0.01 * (first / (second.sqrt() + 1e-6) + 0.01 * torch_parameters)

    assert fit.parameters == pytest.approx(torch_parameters.detach().numpy(), rel=1e-9, abs=1e-8)
    vectors = torch.tensor(skewed[:384]).double()
    bits = loss_of_torch(torch_parameters.detach(), vectors).item()
    assert fit.record["bits"] == pytest.approx(bits, rel=1e-6)


def test_the_first_batch_has_mean_0_and_variance_1_after_each_norm(random, skewed):
    parameters = np.zeros(parameter_count(8))
    initialise(parameters, skewed.astype(np.float64), random)
    passes, _ = run(parameters, skewed.astype(np.float64))

    assert len(passes) == 9
    for layer_pass in passes:
        assert layer_pass.normed.mean(axis=0) == pytest.approx(0, abs=1e-9)
        assert layer_pass.normed.std(axis=0) == pytest.approx(1, abs=1e-9)
        assert layer_pass.outputs[0].std(axis=0) == pytest.approx(1, abs=1e-9)
        assert not layer_pass.outputs[2].any()


def test_numbers_that_vary_by_rounding_are_not_scaled(skewed):
    """By 1 / deviation, any later change would be huge. Some numbers of real encoders are nearly
    constant.
    """
    noise = np.random.default_rng(1).normal(size=(400, 2)) * [1e-33, 1e-9]
    vectors = np.column_stack([skewed, np.full(400, 0.1), noise]).astype(np.float32)
    fit = fit_parameters(vectors, FitOptions(), "x")
    flow = Flow(fit.parameters.astype(np.float32), 11)
    other = vectors.copy()
    other[:, 8:] += 0.01

    assert np.abs(flow(vectors)).max() < 100
    assert np.abs(flow(other) - flow(vectors)).max() < 1


def test_more_epochs_come_nearer_to_a_normal_distribution(skewed):
    """The loss falls below that of the best affine map, which leaves the skewness."""
    spread = np.linalg.slogdet(np.cov(skewed.T, ddof=0))[1]
    affine = 0.5 * math.log2(2 * math.pi * math.e) + spread / 16 / math.log(2)
    bits = [
        fit_parameters(skewed, FitOptions(epochs=epochs), "x").record["bits"]
        for epochs in (1, 6, 20)
    ]

    assert bits[0] > bits[1] > bits[2]
    assert bits[2] < affine
