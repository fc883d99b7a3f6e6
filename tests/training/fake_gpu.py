"""Encode, train, search with tensors of a GPU that have no values: python fake_gpu.py GUARD.so BASE FOLDER.

`FakeTensorMode` of torch computes only devices, dtypes and shapes. An operation on tensors of two devices is
an error, as on a GPU. Numbers that the host reads are 0.5 or 1, and all values of a mask are true. There is
no backward pass, and no kernel runs. An operation of a step for which the host waits is an error too.
"""

import ctypes
import sys
import traceback
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import torch
from together import run_of
from torch import nn
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from sentkit.metrics import device as search_device
from sentkit.model import find_encoder
from sentkit.model.reading import ReadingOptions
from sentkit.model.transformer import bert, gpu_kernels, inference
from sentkit.training.catalogue import METHODS
from sentkit.training.loop import optimizers
from sentkit.training.loop.gradient import Gradient
from sentkit.training.loop.processes import Processes
from sentkit.training.loop.state import Keeper
from sentkit.training.loop.trainer import BEHIND, Trainer
from sentkit.training.method import trained

GPU = torch.device("cuda:0")
READOUTS = ("cls", "mean", "max", "last", "weighted-mean", "mean-sqrt", "mean-first-last")
SETTINGS = {  # the rows of a test are few; a mask of which some values are false would have another size
    "ct": ["negatives=2"],
    "esimcse": ["queue_size=6", "mlm_weight=0.1"],
    "rank-encoder": ["rank_corpus=8"],
    "sg-bert": ["objective=base"],
}
VARIANTS = [
    ("classify", ["objective=regression"]),
    ("consert", ["mode=joint", "view_b=adversarial"]),
    ("contrast", ["form=full"]),
    ("cosent", ["dims=8,2"]),
    ("cosent", ["lora=2", "lora_layers=all"]),
    ("promptbert", ["objective=triplets"]),
]
TEXTS = ["a cat", "two men sleep on the warm floor today", "rain"]


# Methods for which the host waits: for the length of a queue, or the number of tokens or pairs of a loss.
WAITING = {"esimcse", "is-bert", "rank-encoder"}


class Waits(TorchDispatchMode):
    """Operations for which the host waits until the GPU has computed: it reads a number, or a copy blocks."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options, aten = options or {}, torch.ops.aten
        device = next((each.device.type for each in arguments if isinstance(each, torch.Tensor)), "cpu")
        blocks = False
        if function in (aten._to_copy.default, aten.to.dtype_layout):  # the second one in inference mode
            target = options.get("device")
            blocks = target is not None and target.type != device and not options.get("non_blocking")
        elif function == aten.copy_.default:
            blocks = arguments[1].device.type != device and not (arguments[2:] or options.get("non_blocking"))
        elif function == aten.index.Tensor:
            blocks = any(each is not None and each.dtype == torch.bool for each in arguments[1])
        elif function in (aten._local_scalar_dense.default, aten.item.default, aten.nonzero.default):
            blocks = device != "cpu"
        if blocks:
            lines = [f"{each.filename}:{each.lineno}" for each in traceback.extract_stack()]
            self.found.append((str(function), [line for line in lines if "sentkit/" in line][-1]))
        return function(*arguments, **options)


class Stream:
    def __init__(self, device=None):
        pass

    def record_event(self):
        return self

    def wait_event(self, event):
        pass

    def synchronize(self):
        pass


def number(mode, function, tensor):
    return 0.5 if tensor.is_floating_point() else tensor.dtype == torch.bool or 1


def array(tensor, force=False):
    if tensor.device.type != "cpu" and not force:
        raise TypeError("can't convert a cuda tensor to numpy")
    return np.zeros(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def all_true(mode, function, mask):
    with mode:
        return torch.empty((mask.numel(), mask.dim()), dtype=torch.int64, device=mask.device)


def for_fakes(name, function):
    """Replace a method of fake tensors."""
    usual = getattr(torch.Tensor, name)

    def method(tensor, *arguments, **options):
        return (function if isinstance(tensor, FakeTensor) else usual)(tensor, *arguments, **options)

    setattr(torch.Tensor, name, method)


def replace_what_needs_a_gpu():
    for_fakes("numpy", array)
    for_fakes("pin_memory", lambda tensor: tensor)
    for_fakes("record_stream", lambda tensor, stream: None)
    empty = torch.empty
    torch.empty = lambda *shape, pin_memory=False, **options: empty(*shape, **options)
    torch.cuda.Stream, torch.cuda.stream = Stream, nullcontext
    fake_impls.op_implementations_dict[torch.ops.aten.nonzero.default] = all_true
    fake_impls.op_implementations_dict[torch.ops.aten._local_scalar_dense.default] = number
    torch.cuda.current_stream = lambda device: Stream()
    torch.cuda.get_rng_state = lambda device: torch.zeros(16, dtype=torch.uint8)
    torch.cuda.set_rng_state = lambda state, device: None
    torch.cuda.is_bf16_supported = lambda including_emulation=True: True
    bert.kernel_for_training = lambda *arguments: gpu_kernels.flash
    optimizers.fused_adam_works = lambda device: True
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False  # autocast is on
    torch.Tensor.backward = torch.autograd.backward = lambda *arguments, **options: None
    torch.autograd.grad = lambda output, inputs, **options: [
        torch.zeros_like(each) for each in (inputs if isinstance(inputs, list | tuple) else [inputs])
    ]
    usual = Gradient.compute

    def compute(gradient, batch):
        terms = usual(gradient, batch)
        for _, parameter in trained(gradient.method):
            parameter.grad = torch.zeros_like(parameter)
        return terms

    Gradient.compute = compute


def move(module):
    """Replace the tensors of a module by fake ones on the GPU. A tensor of two layers stays one tensor."""
    moved = {}
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, value in tensors.items():
                if value is not None and id(value) not in moved:
                    fake = torch.empty(value.shape, dtype=value.dtype, device=GPU)
                    is_parameter = isinstance(value, nn.Parameter)
                    moved[id(value)] = nn.Parameter(fake, value.requires_grad) if is_parameter else fake
                if value is not None:
                    tensors[name] = moved[id(value)]


def encode(readout, *, packed):
    inference.kernel_for_encoding = lambda *arguments: gpu_kernels.flash if packed else None
    model = find_encoder("nano", ReadingOptions(readout=readout), device="cpu", precision="bf16")
    encoder, tokens = model.encoder(), model.tokenizer(TEXTS)
    encoder.device, encoder.threads = GPU, 0
    with FakeTensorMode():
        move(encoder.body)
        shapes = [arrays[0].shape for arrays in encoder.encode([tokens, tokens[:2]])]
    assert shapes == [(3, 256), (2, 256)], shapes


@contextmanager
def watched_steps():
    """Collect the operations of all steps for which the host waits."""
    usual, waits = Trainer._step, Waits()

    def step(trainer):
        with waits:
            usual(trainer)

    Trainer._step = step
    yield waits.found
    Trainer._step = usual


def train(base, folder, name, settings):
    run, method = run_of(base, folder, name, [*settings, "epochs=1", "precision=bf16", "dropout=0.1"])
    with FakeTensorMode(allow_non_fake_inputs=True):
        move(method)
        steps = []
        trainer = Trainer(run, method, Keeper(folder), Processes(device=GPU))
        trainer.reporter.step = steps.append
        with watched_steps() as found:
            trainer.train()
    assert len(steps) == 3, steps
    # A step that is not applied must not change the queue.
    assert trainer.behind == (0 if name == "esimcse" else BEHIND)
    assert bool(found) == (name in WAITING), (name, settings, sorted(set(found)))


def search(metric, room):
    """Compare rows in eight blocks, of which none, one or all stay. Nothing waits before the last one."""
    search_device.ROWS_PER_BLOCK, search_device.free_memory = 128, lambda device: 0
    rows, waits, calls, usual = np.ones((1000, 16), np.float32), Waits(), [], search_device.largest

    def largest(products, count):
        if not calls:
            waits.__enter__()
        calls.append(products.device)
        if len(calls) == 8:
            waits.__exit__(None, None, None)
        return usual(products, count)

    search_device.largest = largest
    device = search_device.Device(GPU)
    device.room = room
    with FakeTensorMode(allow_non_fake_inputs=True):
        corpus = device.corpus(rows, metric)
        for limits in (None, np.full(40, 0.5)):
            calls.clear()
            corpus.best(rows[:40], 5, limits)
            assert calls == [GPU] * 8, calls
            assert not waits.found, set(waits.found)
        corpus.reaching(rows[:40], 0.5, 3, None)
        labels, _ = device.points(rows, np.zeros(16)).nearest(np.ones((7, 16)))
        assert labels.shape == (1000,)
    search_device.largest = usual


def main():
    guard, base, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    ctypes.CDLL(guard)
    replace_what_needs_a_gpu()
    for readout in READOUTS:
        for packed in (False, True):
            encode(readout, packed=packed)
            sys.stdout.write(f"encode {readout} {packed}\n")
    for metric in ("cosine", "dot"):
        for room in (0, 5000, 1 << 30):
            search(metric, room)
            sys.stdout.write(f"search {metric} {room}\n")
    cases = [(name, SETTINGS.get(name, [])) for name in METHODS] + VARIANTS
    for place, (name, settings) in enumerate(cases):
        train(base, folder / str(place), name, settings)
        sys.stdout.write(f"train {name} {settings}\n")


if __name__ == "__main__":
    main()
