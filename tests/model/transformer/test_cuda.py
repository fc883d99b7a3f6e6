"""Encoding on a GPU. The tests without the mark `gpu` run on a CPU and replace what only a
GPU has.
"""

import gc
from copy import deepcopy
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import sentkit
from flash_kernel import kernel_on_cpu
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.model.text.tokens import TokenBlock
from sentkit.model.transformer import encoder
from sentkit.model.transformer.bert import Block
from sentkit.model.transformer.device import to_device, to_host
from sentkit.model.transformer.kernels import gpu_kernels, inference
from sentkit.model.transformer.kernels.gpu_kernels import add_norm_for, adds_right
from sentkit.model.transformer.kernels.inference import CudaBlock, prepare_for_cuda
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import apply_readouts

LENGTHS = [1, 64, 7, 7, 2, 33, 1, 20]
TEXTS = [
    "a cat",
    "a dog sleeps on the warm floor",
    "rain",
    "two men talk about the weather",
    "a cat!",
]


@pytest.fixture
def kernel():
    with kernel_on_cpu() as kernel_calls:
        yield kernel_calls


@pytest.fixture
def exact(kernel, monkeypatch):
    """The kernel also computes in float64, to compare with other attention without rounding."""
    kernel.refuses = False
    monkeypatch.setattr(inference, "HALF", (torch.float64,))
    monkeypatch.setattr(inference, "kernel_is_right", lambda *arguments, **more: True)
    return kernel


def prepared(bert):
    return prepare_for_cuda(deepcopy(bert))


@pytest.mark.parametrize("lengths", [LENGTHS, [9, 9, 9], [1], [1, 1]], ids=str)
def test_states_equal_those_of_padded_attention(bert, sentences, exact, lengths, states):
    packed = pack(sentences(lengths))

    packed_states = states(prepared(bert.double()), packed)

    assert exact.calls == bert.depth
    for actual, expected in zip(packed_states, states(bert, packed), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ["bert", "modernbert", "llama", "mistral", "qwen3"])
@pytest.mark.parametrize(
    "readout", ["cls", "mean", "max", "last", "L1:cls", "L2:cls", "mean-first-last"]
)
def test_readouts_equal_those_of_padded_attention(
    make, load, tmp_path, sentences, exact, family, readout
):
    """The last block can be local or causal. For one query of a sentence, the kernel is not
    used.
    """
    make(family).save_pretrained(tmp_path)
    bert = load(tmp_path).double()
    packed = pack(sentences(LENGTHS))
    readouts = [parse_readout(readout)]
    with torch.no_grad():
        [vectors] = apply_readouts(prepared(bert), packed, readouts)
        [expected] = apply_readouts(bert, packed, readouts)

    assert exact.calls
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("family", "kind"), [("mpnet", Block), ("modernbert", CudaBlock), ("mistral", CudaBlock)]
)
def test_the_kernel_is_used_for_windows_and_not_for_a_bias(
    make, load, tmp_path, kernel, family, kind
):
    make(family).save_pretrained(tmp_path)

    assert {type(block) for block in prepared(load(tmp_path).bfloat16()).blocks} == {kind}


def test_a_kernel_of_sums_and_norms_replaces_both_of_each_block(
    bert, sentences, exact, monkeypatch, states
):
    """The kernel is that of `gpu_kernels.py` on a GPU, and here the operations that it replaces."""
    widths = []

    def add_norm(change, rows, norm):
        widths.append(rows.shape)
        return norm(change + rows)

    monkeypatch.setattr(inference, "add_norm_for", lambda *size: add_norm)
    packed = pack(sentences(LENGTHS))
    expected = states(bert.double(), packed)
    actual = states(prepared(bert), packed)

    assert widths == [expected[0].shape] * (2 * bert.depth)
    for layer, expected_layer in zip(actual, expected, strict=True):
        torch.testing.assert_close(layer, expected_layer)


@pytest.mark.parametrize("fault", [1.5, float("nan")])
def test_a_kernel_of_sums_and_norms_with_a_wrong_result_is_not_used(fault):
    right = lambda change, rows, norm: norm(change + rows)  # noqa: E731
    cpu = torch.device("cpu")

    assert adds_right(right, 40, 1e-5, cpu)
    assert not adds_right(lambda *values: right(*values) * fault, 40, 1e-5, cpu)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("width", [8, 40, 384, 768, 1024, 4096])
@pytest.mark.parametrize("rows", [1, 5, 4096])
def test_the_kernel_of_sums_and_norms_on_a_gpu(width, rows):
    device = torch.device("cuda")
    kernel = add_norm_for(width, 1e-12, device)
    if not hasattr(import_module("torch.cuda._utils"), "_cuda_load_module"):
        pytest.skip("this torch compiles no kernels")
    numbers = torch.randn(2 * rows + 2, width, generator=torch.Generator().manual_seed(1))
    change, residual, (weight, bias) = numbers.to(device, torch.bfloat16).split((rows, rows, 2))
    norm = torch.nn.LayerNorm(width, 1e-12, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        norm.weight.copy_(weight)
        norm.bias.copy_(bias)
        normed = kernel(change, residual, norm)
        exact = norm.double()((change + residual).double())

    assert (normed.double() - exact).abs().max() <= 2**-8 * exact.abs().max()
    change[0, 0] = float("nan")
    assert kernel(change, residual, norm.bfloat16())[0].isnan().all()


def test_bfloat16_is_as_near_to_float32_as_padded_attention(bert, sentences, kernel, states):
    packed = pack(sentences(LENGTHS))
    exact = states(bert, packed)[-1]
    half = deepcopy(bert).bfloat16()
    packed_states = states(prepared(half), packed)[-1]
    padded_states = states(half, packed)[-1]

    assert kernel.calls == 2 + bert.depth  # two calls compare the kernel with plain products
    assert packed_states.dtype == torch.bfloat16
    assert (packed_states.float() - exact).norm() < 1.5 * (padded_states.float() - exact).norm()


def test_vectors_of_encode_are_those_of_a_cpu(kernel, monkeypatch):
    """The whole path from texts to vectors, with the blocks for a GPU on a CPU."""
    expected = sentkit.Encoder("nano", device="cpu", precision="fp32").encode(TEXTS)
    monkeypatch.setattr(encoder, "prepare_for_cpu", prepare_for_cuda)

    vectors = sentkit.Encoder("nano", device="cpu", precision="bf16").encode(TEXTS)

    assert kernel.calls
    assert (vectors * expected).sum(1).min() > 0.999


class TestTheCheckForTraining:
    """The gradient of the kernel is compared with plain attention, and its dropout with the forward
    pass.
    """

    def found(self):
        state = torch.get_rng_state()
        is_right = gpu_kernels.kernel_is_right(
            (4, 2, 8), torch.device("cpu"), 0, [False, True], trains=True
        )
        # The draws of the run are those without a check.
        assert torch.equal(torch.get_rng_state(), state)
        return is_right

    def test_of_a_right_kernel(self, kernel):
        for seed in range(20):
            torch.manual_seed(seed)
            assert self.found()
        kernel.backward_calls = 0
        assert self.found()
        # Of all tokens with and without dropout, also causal, and of one.
        assert kernel.backward_calls == 5

    @pytest.mark.parametrize("fault", ["repeats", "drops"])
    def test_of_another_dropout_in_the_backward_pass_or_none(self, kernel, fault):
        setattr(kernel, fault, False)
        for seed in range(20):
            torch.manual_seed(seed)
            assert not self.found()

    def test_of_a_wrong_result(self, kernel):
        kernel.error = 0.2
        assert not self.found()

    def test_without_a_kernel(self):
        assert not self.found()  # a CPU has none


@pytest.mark.parametrize(
    ("reason", "calls"),
    [("no operation", 0), ("14 numbers", 0), ("wrong result", 1), ("float32", 0)],
)
def test_without_the_kernel_plain_blocks_run(
    make, load, tmp_path, kernel, monkeypatch, reason, calls
):
    sizes = {"hidden_size": 42, "num_attention_heads": 3} if reason == "14 numbers" else {}
    make("bert", **sizes).save_pretrained(tmp_path)
    bert = load(tmp_path).to(torch.float32 if reason == "float32" else torch.bfloat16)
    kernel.refuses = reason != "float32"
    kernel.error = 0.2 if reason == "wrong result" else kernel.error
    if reason == "no operation":
        absent = lambda *values, **options: torch.ops.aten.no_such_operation  # noqa: E731
        monkeypatch.setattr(gpu_kernels, "packed_attention", absent)

    assert {type(block) for block in prepared(bert).blocks} == {Block}
    assert kernel.calls == calls


def test_on_a_cpu_plain_blocks_run(bert):
    """torch raises the error of an old GPU."""
    assert {type(block) for block in prepared(bert.bfloat16()).blocks} == {Block}


def test_copies_to_the_host_are_read_after_one_event(monkeypatch):
    log = []
    event = SimpleNamespace(synchronize=lambda: log.append("wait"))
    stream = SimpleNamespace(record_event=lambda: log.append("record") or event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: log.append(device) or stream)

    def on_device(values):
        def to(target, non_blocking):
            log.append((target, non_blocking))
            return values

        return SimpleNamespace(to=to, device=torch.device("cuda:1"))

    wait = to_host([on_device(torch.ones(2)), on_device(torch.zeros(2))])

    assert log == [("cpu", True), ("cpu", True), torch.device("cuda:1"), "record"]
    assert [values.tolist() for values in wait()] == [[1, 1], [0, 0]]
    assert log[4:] == ["wait"]


def test_copies_to_a_gpu_are_pinned_and_do_not_wait(monkeypatch):
    log = []

    def to(tensor, device, *, non_blocking):
        log.append((device, non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: log.append("pinned") or tensor)
    monkeypatch.setattr(torch.Tensor, "to", to)

    assert to_device(np.arange(3), torch.device("cuda")).tolist() == [0, 1, 2]
    assert log == ["pinned", (torch.device("cuda"), True)]


@pytest.fixture
def nano():
    """The bundled encoder on a CPU, and a batch for each text."""
    model = sentkit.Encoder("nano", device="cpu", precision="fp32", readout="cls")
    model.loaded.own_threads = None  # the calling thread starts all batches, as on a GPU
    return model.loaded, [TokenBlock.of([tokens]) for tokens in model.tokenizer(TEXTS)]


def test_a_batch_starts_before_the_vectors_of_the_last_one_are_read(nano, monkeypatch):
    loaded, batches = nano
    expected = [arrays[0] for arrays in loaded.encode(batches)]
    log: list[str] = []

    def logged(tensors):
        log.append(f"start {sum(entry.startswith('start') for entry in log)}")
        number = log[-1].split()[1]
        return lambda: log.append(f"read {number}") or [tensor.numpy() for tensor in tensors]

    monkeypatch.setattr(encoder, "to_host", logged)

    vectors = [arrays[0] for arrays in loaded.encode(batches[:3])]

    assert log == ["start 0", "start 1", "read 0", "start 2", "read 1", "read 2"]
    assert all(np.array_equal(*pair) for pair in zip(vectors, expected[:3], strict=True))
    assert list(loaded.encode([])) == []


def test_parts_of_a_batch_without_memory_are_joined_in_order(nano, monkeypatch):
    loaded, batches = nano
    expected = np.concatenate([arrays[0] for arrays in loaded.encode(batches)])
    start = loaded._start_chunk

    def limited(batch):
        if len(batch) > 2:
            raise torch.cuda.OutOfMemoryError
        return start(batch)

    monkeypatch.setattr(loaded, "_start_chunk", limited)
    [[vectors]] = loaded.encode([TokenBlock.of([tokens for batch in batches for tokens in batch])])

    assert loaded.halved == 2  # 5 texts are 2 and 3, and 3 are 1 and 2
    assert np.abs(vectors - expected).max() < 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnAGpu:
    @pytest.mark.parametrize("readout", ["cls", "mean", "max", "last"])
    def test_bf16_without_padding_is_near_fp32(self, readout):
        exact = sentkit.Encoder("nano", device="cuda", precision="fp32", readout=readout).encode(
            TEXTS
        )
        model = sentkit.Encoder("nano", device="cuda", precision="bf16", readout=readout)
        vectors = model.encode(TEXTS)

        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(exact, axis=1)
        assert ((vectors * exact).sum(1) / lengths).min() > 0.999

    def test_the_kernel_works(self, bert):
        half = bert.to("cuda", torch.bfloat16)

        assert {type(block) for block in prepare_for_cuda(half).blocks} == {CudaBlock}

    def test_vectors_of_many_batches_in_a_row_are_those_of_a_cpu(self):
        """A copy to the host that is read too early has other numbers."""
        on_cpu, on_gpu = (
            sentkit.Encoder("nano", device=name, precision="fp32") for name in ("cpu", "cuda")
        )
        tokens = on_cpu.tokenizer([f"{TEXTS[number % 5]} {number}" for number in range(300)])
        batches = [tokens[start : start + 3] for start in range(0, 300, 3)]

        pairs = zip(on_cpu.loaded.encode(batches), on_gpu.loaded.encode(batches), strict=True)

        assert (
            max(np.abs(cpu_arrays[0] - gpu_arrays[0]).max() for cpu_arrays, gpu_arrays in pairs)
            < 1e-3
        )

    @pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-3), ("bf16", 0.1)])
    def test_states_of_each_family_are_those_of_a_cpu(
        self, checkpoint, load, sentences, tmp_path, precision, error, states
    ):
        """The checkpoints have all activations, embeddings and norms that the families
        differ in.
        """
        checkpoint.save_pretrained(tmp_path / "model")
        bert = load(tmp_path / "model")
        lengths = [1, 2, 7, 7, bert.max_tokens // 2]
        expected = states(bert, pack(sentences(lengths)))[-1]
        dtype = torch.float32 if precision == "fp32" else torch.bfloat16
        gpu_states = states(
            prepare_for_cuda(bert.to("cuda", dtype)), pack(sentences(lengths), "cuda")
        )[-1]

        difference = (gpu_states.float().cpu() - expected).norm() / expected.norm()
        assert difference < error

    def test_the_kernel_works_for_training(self):
        for shape in ((2, 2, 16), (4, 4, 64), (12, 12, 64), (6, 2, 64), (4, 1, 128)):
            assert gpu_kernels.kernel_is_right(
                shape, torch.device("cuda"), 0, [False, True], trains=True
            )

    def test_batches_without_memory_are_halved(self):
        """The memory of this process is limited to little more than the model."""
        model = sentkit.Encoder("nano", device="cuda", precision="fp32")
        tokens = model.tokenizer([f"{TEXTS[number % 5]} {number} " * 20 for number in range(3000)])
        batches = [tokens[start : start + 50] for start in range(0, 3000, 50)]
        expected = np.concatenate([arrays[0] for arrays in model.loaded.encode(batches)])
        assert model.loaded.halved == 0
        gc.collect()  # of other tests
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**28) / total)
        try:
            [[vectors]] = model.loaded.encode([tokens])
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

        assert model.loaded.halved
        assert np.abs(vectors - expected).max() < 1e-3
