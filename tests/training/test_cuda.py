"""Training on a GPU: as on a CPU up to rounding, and with the same bytes on request."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from sentkit.training.catalogue import METHODS
from sentkit.training.loop.gradient import tokens_that_fit
from sentkit.training.loop.processes import SUM, Processes
from sentkit.training.loop.trainer import MAX_UNREAD
from sentkit.training.method import trained_parameters
from sentkit.training.methods.esimcse import ESimCSE
from sentkit.training.methods.simcse import SimCSE
from sentkit.training.methods.tsdae import TSDAE
from support import ROOT
from training.small import gradient_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture
def on_cuda(trainer_of, texts):
    """A trainer whose method is on the GPU."""

    def make(precision="fp32", kind=SimCSE, **settings):
        device = torch.device("cuda")
        all_settings = {"batch": 4, "epochs": 3, "lr": 1e-3, **settings}
        return trainer_of(
            kind, texts, processes=Processes(device=device), precision=precision, **all_settings
        )

    return make


def distance(gradient, expected):
    """Of two gradients, relative to the second."""
    squares = sum((gradient[name] - slope).square().sum() for name, slope in expected.items())
    expected_squares = sum(slope.square().sum() for slope in expected.values())
    return (squares / expected_squares).sqrt().item()


def test_losses_are_those_of_the_cpu(trainer_of, losses_of, texts, on_cuda):
    on_cpu = losses_of(
        trainer_of(SimCSE, texts, batch=4, epochs=3, lr=1e-3, dropout=0, precision="fp32")
    )
    on_gpu = losses_of(on_cuda(dropout=0))

    assert on_cpu == pytest.approx(on_gpu, rel=1e-3)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_its_tensors_on_the_gpu(small, losses_of, name):
    """An operation on tensors of the host and of the GPU is an error."""

    def losses_on(device):
        processes = Processes(device=torch.device(device))
        return losses_of(small(name, processes=processes, precision="fp32", epochs=2))

    on_cpu = losses_on("cpu")
    on_gpu = losses_on("cuda")

    assert len(on_gpu) == len(on_cpu)
    assert all(map(math.isfinite, on_gpu))


def test_bf16_is_near(losses_of, on_cuda):
    assert losses_of(on_cuda(dropout=0)) == pytest.approx(
        losses_of(on_cuda("bf16", dropout=0)), rel=0.1
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_chunks_repeat_their_dropout(on_cuda, precision):
    """One chunk's dropout is repeated from the state of the GPU's own generator."""
    trainer = on_cuda(precision, dropout=0.2, chunk=2)

    assert gradient_of(trainer)[0] == gradient_of(trainer)[0]


@pytest.mark.parametrize(("kind", "readout"), [(SimCSE, "cls"), (SimCSE, "mean"), (TSDAE, "cls")])
def test_losses_and_gradients_of_packed_attention_are_those_of_padded_attention(
    on_cuda, kind, readout
):
    """In bf16: as near to fp32 as those with padding."""
    exact_terms, exact = gradient_of(on_cuda(kind=kind, batch=12, dropout=0, readout=readout))
    packed = on_cuda("bf16", kind=kind, batch=12, dropout=0, readout=readout)
    kernels = {block.uses_packed_kernel for block in packed.method.body.blocks}
    packed_terms, packed_gradient = gradient_of(packed)
    for block in packed.method.body.blocks:
        block.uses_packed_kernel = False
    _, padded = gradient_of(packed)

    assert kernels == {True}
    assert packed_terms == pytest.approx(exact_terms, rel=0.05)
    assert distance(packed_gradient, exact) < 1.5 * distance(padded, exact) + 0.01


@pytest.mark.parametrize("readout", ["cls", "mean"])
def test_graphs_have_the_gradients_and_the_dropout_of_the_same_blocks_without(on_cuda, readout):
    trainer = on_cuda("bf16", batch=12, dropout=0.2, readout=readout)
    graphs = trainer.method.body.graphs
    first = gradient_of(trainer)
    second = gradient_of(trainer)
    after = torch.cuda.get_rng_state()
    assert graphs.enabled
    assert len(graphs.chains) == 1
    graphs.enabled = False
    without = gradient_of(trainer)

    assert first[0] == second[0] == without[0]
    for name, slope in first[1].items():
        assert torch.equal(slope, second[1][name])
        assert torch.equal(slope, without[1][name])
    assert torch.equal(after, torch.cuda.get_rng_state())


def test_graphs_of_passes_whose_backward_passes_come_later(on_cuda):
    """A second pass before the backward pass of the first must not change what that one reads."""
    trainer = on_cuda("bf16", batch=12, dropout=0.2)
    trainer.method.train()

    def gradients():
        torch.manual_seed(3)
        outputs = [trainer.gradient._encode(trainer.batch(step)) for step in (0, 0, 0)]
        trainer.method.zero_grad()
        for output in outputs:
            output["one"].square().sum().backward()
        return {
            name: weight.grad.clone()
            for name, weight in trained_parameters(trainer.method)
            if weight.grad is not None
        }

    with_graphs = gradients()
    trainer.method.body.graphs.enabled = False

    assert distance(with_graphs, gradients()) < 1e-3


@pytest.mark.parametrize("kind", [SimCSE, TSDAE])  # a contrast, and one loss for each row
def test_graphs_with_chunks_have_the_gradient_of_the_whole_batch(on_cuda, kind):
    """Each chunk runs twice with the same dropout for a contrast; its gradients are added."""
    settings = {"batch": 12, "dropout": 0, "kind": kind}
    trainer = on_cuda("bf16", chunk=5, **settings)
    _, of_chunks = gradient_of(trainer)
    _, whole = gradient_of(on_cuda("bf16", **settings))
    _, exact = gradient_of(on_cuda("fp32", **settings))

    assert trainer.method.body.graphs.enabled
    assert trainer.method.body.graphs.chains
    assert distance(of_chunks, exact) < 1.5 * distance(whole, exact) + 0.01


def test_dropout_of_packed_attention_is_drawn_anew_and_repeated_by_a_seed(on_cuda):
    trainer = on_cuda("bf16", batch=12, dropout=0.2)
    first = gradient_of(trainer)
    second = gradient_of(trainer)
    torch.manual_seed(6)
    other_seed = trainer.gradient.compute(trainer.batch(0))

    assert first[0] == second[0]
    assert {name: value.item() for name, value in other_seed.items()} != first[0]


def test_the_host_reads_the_values_of_a_step_later_and_the_run_is_the_same(on_cuda, losses_of):
    later = on_cuda()
    now = on_cuda()
    queue = on_cuda(kind=ESimCSE, queue_size=6)
    assert (later.max_unread, queue.max_unread) == (MAX_UNREAD, 0)
    now.max_unread = 0
    torch.manual_seed(5)
    first = losses_of(later)
    torch.manual_seed(5)

    assert losses_of(now) == pytest.approx(first, rel=1e-2)


def test_the_host_does_not_wait_within_a_step(on_cuda):
    """torch raises an error for an operation that waits. The first step makes the kernels and the
    moments.
    """
    trainer = on_cuda("bf16")
    trainer.method.train()
    trainer._step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer._step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trainer._step()  # reads the values of the first one

    assert len(trainer.unread) == MAX_UNREAD


def test_a_limit_of_tokens_is_measured_and_short_memory_halves_it(on_cuda, monkeypatch):
    trainer = on_cuda("bf16", batch=12, chunk_tokens="auto")
    trainer.method.train()
    fit = tokens_that_fit(trainer.gradient, trainer.batch(0), of_whole_memory=False)
    assert 10**4 < fit < 10**9  # the base is small
    of_whole_memory = tokens_that_fit(trainer.gradient, trainer.batch(0), of_whole_memory=True)
    assert of_whole_memory == tokens_that_fit(
        trainer.gradient, trainer.batch(0), of_whole_memory=True
    )
    encode = trainer.method.encode
    calls = []

    def short(batch):
        calls.append(batch.tokens)
        if batch.tokens > 30 and trainer.position.step:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")  # a real error of the allocator
        return encode(batch)

    monkeypatch.setattr(trainer.method, "encode", short)
    trainer.train()
    steps = [step for step, _ in trainer.position.limits]

    assert steps[0] == 0
    assert len(steps) > 1
    assert trainer.position.limits[-1][1] <= max(calls)


@pytest.fixture
def train(tmp_path, base_folder, texts):
    """`sentkit train simcse` in a process of its own."""
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts * 20))

    def start(output, *more):
        flags = [
            "--batch",
            "8",
            "--deterministic",
            "--epochs",
            "4",
            "--device",
            "cuda",
            "-q",
            *more,
        ]
        command = [
            sys.executable,
            "-m",
            "sentkit",
            "train",
            "simcse",
            "texts.txt",
            "-m",
            str(base_folder),
        ]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(
            [*command, "-o", output, *flags], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}
        )

    return start


def test_deterministic_runs_have_the_same_bytes_also_after_a_kill(train, tmp_path):
    more = ("--set", "chunk_tokens=auto", "--save-every", "5")
    assert [train(name, *more).wait(600) for name in ("one", "two")] == [0, 0]
    process = train("three", *more)
    partial_folder = tmp_path / "three.part"
    while process.poll() is None and not [*partial_folder.glob("state-*.pt")]:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = not (tmp_path / "three").exists()
    assert train("three", *more, "--resume").wait(600) == 0
    weights = [
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two", "three")
    ]
    record = json.loads((tmp_path / "one/sentkit.json").read_text())

    assert killed, "the run ended before it was killed: use more epochs"
    assert weights[0] == weights[1]
    assert weights[0] == weights[2]
    assert record["run"]["precision"] == ("bf16" if torch.cuda.is_bf16_supported(False) else "fp32")
    [[step, tokens]] = record["made_with"]["chunk_tokens"]
    assert (step, tokens > 0) == (0, True)


def test_nccl_has_the_tensors_of_a_gpu_and_gloo_those_of_the_host(tmp_path):
    """A group of one process, which is asked to gather and to sum as one of several."""
    where = f"file://{tmp_path}/group"
    processes = Processes(0, 2, torch.device("cuda"))
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=where, world_size=1, rank=0)
    try:
        for device in ("cuda", "cpu"):
            values = torch.arange(6.0).view(3, 2).to(device)
            assert torch.equal(processes._gathered(values, [slice(0, 3)]), values)
            assert torch.equal(processes.reduced(values.clone(), SUM), values)
        assert processes.any([True, False]) == [True, False]
        assert processes.on_host([0.5, 2.0], SUM) == [0.5, 2.0]
        weights = [torch.nn.Parameter(torch.ones(2, device="cuda")) for _ in range(2)]
        weights[0].grad = torch.full((2,), 3.0, device="cuda")
        processes.sum_gradients(weights)
        assert weights[0].grad.tolist() == [3.0, 3.0]
        assert weights[1].grad is None
    finally:
        dist.destroy_process_group()
