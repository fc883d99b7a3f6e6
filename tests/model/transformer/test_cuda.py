"""Encoding on a GPU. The tests without the mark `gpu` run on a CPU and replace what only a GPU has."""

import sys
from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch

import sentkit
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.model.text.tokens import TokenBlock
from sentkit.model.transformer import encoder, inference
from sentkit.model.transformer.bert import Block
from sentkit.model.transformer.device import to_device, to_host
from sentkit.model.transformer.inference import CudaBlock, prepare_for_cuda
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import apply_readouts

LENGTHS = [1, 64, 7, 7, 2, 33, 1, 20]
TEXTS = ["a cat", "a dog sleeps on the warm floor", "rain", "two men talk about the weather", "a cat!"]


class Kernel:
    """The kernel of `varlen_attn` for a CPU: softmax in float64 in each sentence, and the checks of CUDA."""

    def __init__(self):
        self.calls, self.refuses, self.error = 0, True, 0.0

    def __call__(self, query, key, value, starts, key_starts, longest, longest_key, *rest, **options):
        if self.refuses and (query.dtype != torch.bfloat16 or query.shape[-1] % 8 or query.shape[-1] > 256):
            raise RuntimeError("FlashAttention does not support this")
        for each in (query, key, value):
            assert each.stride(-1) == 1
            assert each.data_ptr() % 16 == 0
        for rows, bounds, most in ((query, starts, longest), (key, key_starts, longest_key)):
            assert bounds.dtype == torch.int32
            assert bounds.is_contiguous()
            assert bounds[0] == 0
            assert bounds[-1] == len(rows)
            assert bounds.diff().max() == most
        assert rest == (0.0, False, False)  # dropout, causal, a mask for debugging
        window = options["window_size_left"]  # -1: none
        assert options == {"window_size_left": window, "window_size_right": window}
        self.calls += 1
        mixed = torch.empty_like(query)
        for (start, end), (first, after) in zip(pairwise(starts), pairwise(key_starts), strict=True):
            q, k, v = query[start:end].double(), key[first:after].double(), value[first:after].double()
            scores = torch.einsum("qhe,khe->hqk", q, k) / q.shape[-1] ** 0.5
            if window >= 0:
                assert len(q) == len(k)
                apart = torch.arange(len(q))[:, None] - torch.arange(len(k))
                scores = scores.masked_fill(apart.abs() > window, -torch.inf)
            mixed[start:end] = torch.einsum("hqk,khe->qhe", scores.softmax(-1), v) + self.error
        return mixed, *(torch.empty(0) for _ in range(4))


@pytest.fixture
def kernel():
    library, made = torch.library.Library("aten", "IMPL", "CPU"), Kernel()
    library.impl("_flash_attention_forward", made)
    yield made
    library._destroy()


@pytest.fixture
def exact(kernel, monkeypatch):
    """The kernel also computes in float64, to compare with other attention without rounding."""
    kernel.refuses = False
    monkeypatch.setattr(inference, "packed_attention_works", lambda *arguments: True)
    return kernel


def prepared(bert):
    return prepare_for_cuda(deepcopy(bert))


@torch.no_grad()
def states(bert, packed):
    return list(bert.states(packed))


@pytest.mark.parametrize("lengths", [LENGTHS, [9, 9, 9], [1], [1, 1]], ids=str)
def test_states_equal_those_of_padded_attention(bert, sentences, exact, lengths):
    packed = pack(sentences(lengths))

    found = states(prepared(bert.double()), packed)

    assert exact.calls == bert.depth
    for ours, theirs in zip(found, states(bert, packed), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("readout", ["cls", "mean", "max", "last", "L1:cls", "mean-first-last"])
def test_readouts_equal_those_of_padded_attention(bert, sentences, exact, readout):
    """`cls` and `last` have one query for each sentence in the last block."""
    packed, readouts = pack(sentences(LENGTHS)), [parse_readout(readout)]
    with torch.no_grad():
        [found] = apply_readouts(prepared(bert.double()), packed, readouts)
        [expected] = apply_readouts(bert, packed, readouts)

    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("readout", ["cls", "mean", "last", "L2:cls"])
def test_windows_and_rotary_positions_equal_those_of_padded_attention(
    make, load, tmp_path, sentences, exact, readout
):
    """The last block is local. For one query of a sentence, the kernel is not used."""
    make("modernbert").save_pretrained(tmp_path)
    bert, packed, readouts = load(tmp_path).double(), pack(sentences(LENGTHS)), [parse_readout(readout)]
    with torch.no_grad():
        [found] = apply_readouts(prepared(bert), packed, readouts)
        [expected] = apply_readouts(bert, packed, readouts)

    assert exact.calls
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("family", "kind"), [("mpnet", Block), ("modernbert", CudaBlock)])
def test_the_kernel_is_used_for_windows_and_not_for_a_bias(make, load, tmp_path, kernel, family, kind):
    make(family).save_pretrained(tmp_path)

    assert {type(block) for block in prepared(load(tmp_path).bfloat16()).blocks} == {kind}


def test_bfloat16_is_as_near_to_float32_as_padded_attention(bert, sentences, kernel):
    packed = pack(sentences(LENGTHS))
    exact, half = states(bert, packed)[-1], deepcopy(bert).bfloat16()
    ours, theirs = states(prepared(half), packed)[-1], states(half, packed)[-1]

    assert kernel.calls == 2 + bert.depth  # two calls compare the kernel with plain products
    assert ours.dtype == torch.bfloat16
    assert (ours.float() - exact).norm() < 1.5 * (theirs.float() - exact).norm()


def test_vectors_of_encode_are_those_of_a_cpu(kernel, monkeypatch):
    """The whole path from texts to vectors, with the blocks for a GPU on a CPU."""
    expected = sentkit.Encoder("nano", device="cpu", precision="fp32").encode(TEXTS)
    monkeypatch.setattr(encoder, "prepare_for_cpu", lambda body, products: prepare_for_cuda(body))

    found = sentkit.Encoder("nano", device="cpu", precision="bf16").encode(TEXTS)

    assert kernel.calls
    assert (found * expected).sum(1).min() > 0.999


class TestWithoutTheKernel:
    """`Block` runs, and the states are the same."""

    @pytest.fixture
    def refused(self, bert):
        def check(changed=None):
            half = (changed or bert).bfloat16()
            assert {type(block) for block in prepared(half).blocks} == {Block}

        return check

    def test_on_a_gpu_that_it_does_not_support(self, refused):
        refused()  # a CPU has no such kernel, and torch raises the error of an old GPU

    def test_in_a_torch_without_the_module(self, refused, kernel, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
        refused()
        assert not kernel.calls

    def test_for_heads_of_14_numbers(self, refused, kernel, make, load, tmp_path):
        make("bert", hidden_size=42, num_attention_heads=3).save_pretrained(tmp_path / "odd")
        refused(load(tmp_path / "odd"))
        assert not kernel.calls

    def test_if_its_result_is_wrong(self, refused, kernel):
        kernel.error = 0.2
        refused()
        assert kernel.calls == 1

    def test_in_float32(self, bert, kernel):
        kernel.refuses = False

        assert {type(block) for block in prepared(bert).blocks} == {Block}
        assert not kernel.calls


class Stream:
    """A stream of a GPU: the event of a copy is recorded before the copy is read."""

    def __init__(self, log):
        self.log = log

    def record_event(self):
        self.log.append("record")
        return self

    def synchronize(self):
        self.log.append("wait")


class OnDevice:
    """A tensor of a GPU, as far as `to_host` uses it."""

    def __init__(self, values, log):
        self.values, self.log, self.device = values, log, torch.device("cuda:1")

    def to(self, place, non_blocking):
        assert (place, non_blocking) == ("cpu", True)
        self.log.append("copy")
        return self.values


def test_copies_to_the_host_are_read_after_one_event(monkeypatch):
    log: list[object] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: log.append(device) or Stream(log))
    wait = to_host([OnDevice(torch.ones(2), log), OnDevice(torch.zeros(2), log)])

    assert log == ["copy", "copy", torch.device("cuda:1"), "record"]
    assert [values.tolist() for values in wait()] == [[1, 1], [0, 0]]
    assert log[4:] == ["wait"]


def test_copies_to_a_gpu_are_pinned_and_do_not_wait(monkeypatch):
    log = []

    def to(tensor, place, *, non_blocking):
        log.append((place, non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: log.append("pinned") or tensor)
    monkeypatch.setattr(torch.Tensor, "to", to)

    assert to_device(np.arange(3), torch.device("cuda")).tolist() == [0, 1, 2]
    assert log == ["pinned", (torch.device("cuda"), True)]


@pytest.fixture
def nano():
    """The bundled encoder on a CPU, and a batch for each text."""
    model = sentkit.Encoder("nano", device="cpu", precision="fp32", readout="cls")
    return model.loaded, [TokenBlock.of([each]) for each in model.tokenizer(TEXTS)]


def test_a_batch_starts_before_the_vectors_of_the_last_one_are_read(nano, monkeypatch):
    loaded, batches = nano
    expected = [arrays[0] for arrays in loaded.encode(batches)]
    log: list[str] = []

    def logged(tensors):
        log.append(f"start {sum(what.startswith('start') for what in log)}")
        number = log[-1].split()[1]
        return lambda: log.append(f"read {number}") or [tensor.numpy() for tensor in tensors]

    monkeypatch.setattr(encoder, "to_host", logged)

    found = [arrays[0] for arrays in loaded.encode(batches[:3])]

    assert log == ["start 0", "start 1", "read 0", "start 2", "read 1", "read 2"]
    assert all(np.array_equal(*pair) for pair in zip(found, expected[:3], strict=True))
    assert list(loaded.encode([])) == []


def test_parts_of_a_batch_without_memory_are_joined_in_order(nano, monkeypatch):
    loaded, batches = nano
    expected = np.concatenate([arrays[0] for arrays in loaded.encode(batches)])
    start = loaded._start_part

    def limited(batch):
        if len(batch) > 2:
            raise torch.cuda.OutOfMemoryError
        return start(batch)

    monkeypatch.setattr(loaded, "_start_part", limited)
    [[found]] = loaded.encode([TokenBlock.of([each for batch in batches for each in batch])])

    assert loaded.halved == 2  # 5 texts are 2 and 3, and 3 are 1 and 2
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnAGpu:
    @pytest.mark.parametrize("readout", ["cls", "mean", "max", "last"])
    def test_bf16_without_padding_is_near_fp32(self, readout):
        exact = sentkit.Encoder("nano", device="cuda", precision="fp32", readout=readout).encode(TEXTS)
        model = sentkit.Encoder("nano", device="cuda", precision="bf16", readout=readout)
        found = model.encode(TEXTS)

        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(exact, axis=1)
        assert ((found * exact).sum(1) / lengths).min() > 0.999

    def test_the_kernel_works(self, bert):
        half = bert.to("cuda", torch.bfloat16)

        assert {type(block) for block in prepare_for_cuda(half).blocks} == {CudaBlock}

    def test_vectors_of_many_batches_in_a_row_are_those_of_a_cpu(self):
        """A copy to the host that is read too early has other numbers."""
        here, there = (sentkit.Encoder("nano", device=name, precision="fp32") for name in ("cpu", "cuda"))
        tokens = here.tokenizer([f"{TEXTS[number % 5]} {number}" for number in range(300)])
        batches = [tokens[start : start + 3] for start in range(0, 300, 3)]

        pairs = zip(here.loaded.encode(batches), there.loaded.encode(batches), strict=True)

        assert max(np.abs(ours[0] - theirs[0]).max() for ours, theirs in pairs) < 1e-3
