"""The transformer encoder: weights, batches, readouts, steps and the names of the spaces.

Dense and LayerNorm layers after a readout, and convolutions before it, are those of
sentence-transformers.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sentkit.arrays import Float32
from sentkit.errors import DataError, UsageError, declared_in
from sentkit.formats.checkpoints.folders import Checkpoint, is_adapter
from sentkit.formats.checkpoints.modules import DENSE_ACTIVATIONS
from sentkit.formats.checkpoints.readout import Readout
from sentkit.formats.files import read_object
from sentkit.formats.vectors.fingerprint import INT8_LOSS, Space
from sentkit.model.checkpoint_reading import (
    Reading,
    file_of_declaration,
    space_of_readout,
    steps_of_checkpoint,
)
from sentkit.model.encoding import BUDGETS, FasterPrecision, TokenEncoder, encode_texts
from sentkit.model.forks import PREPARING, ForkLock, without_fork
from sentkit.model.groups import Arrays, EncodeStats
from sentkit.model.reading import width_after_steps
from sentkit.model.text.tokens import TokenBlock, check_ids
from sentkit.model.transformer.architecture import UnsupportedArchitecture, architecture_of
from sentkit.model.transformer.bert import Bert, load_bert
from sentkit.model.transformer.device import (
    gain_of_bf16,
    halve_to_fit_memory,
    one_thread_each,
    padded_parts,
    pick_device,
    pick_precision,
    run_all,
    to_host,
)
from sentkit.model.transformer.kernels.inference import prepare_for_cpu, prepare_for_cuda, use_int8
from sentkit.model.transformer.kernels.matmul import (
    FASTER_INT8,
    LARGEST_WEIGHTS,
    gain_of_int8,
    largest_weight,
)
from sentkit.model.transformer.kernels.precision_gain import faster_to_encode
from sentkit.model.transformer.packed import TILE, Packed, filler, pack_block, spare_tokens
from sentkit.model.transformer.readouts import (
    Convolution,
    apply_readouts,
    check_layers,
    width_of_vectors,
)
from sentkit.model.transformer.transformers_model import TransformersModel, load_transformers_model
from sentkit.model.transformer.weights import canonical, fit, read_weights, weights_hash
from sentkit.process import threads_of_command
from sentkit.transforms.steps import Linear, Norm

ACTIVATION_NAMES = {path.rpartition(".")[2]: word for word, path in DENSE_ACTIVATIONS.items()}


def read_layer(folder: Path) -> Linear | Norm:
    """Read a LayerNorm or a dense layer after the readout."""
    source = str(folder)
    config = read_object(folder / "config.json")
    tensors = read_weights(folder, source)
    if tensors.keys() == {"norm.weight", "norm.bias"}:
        return Norm(*layer_arrays(tensors, "norm", axes=1, source=source))
    # default of the library
    path = str(config.get("activation_function", DENSE_ACTIVATIONS["tanh"]))
    class_name = path.rpartition(".")[2]
    activation = ACTIVATION_NAMES.get(class_name) if path.startswith("torch.") else None
    if activation is None:
        problem = f"a dense layer with activation {class_name:.80} is not supported"
        raise DataError(problem, source=source)
    if "linear.weight" not in tensors or not tensors.keys() <= {"linear.weight", "linear.bias"}:
        raise DataError("these are not the tensors of a dense layer", source=source)
    return Linear(*layer_arrays(tensors, "linear", axes=2, source=source), activation)


def layer_arrays(
    tensors: Mapping[str, Tensor], name: str, *, axes: int, source: str
) -> tuple[Float32, Float32]:
    """Return the weight and the bias of a layer; without a bias, zeros."""
    weight = tensors[f"{name}.weight"]
    bias = tensors.get(f"{name}.bias", torch.zeros(weight.shape[:1]))
    fits = weight.ndim == axes and 0 not in weight.shape and bias.shape == weight.shape[:1]
    check_layer(fits, (weight, bias), source)
    return weight.float().numpy(), bias.float().numpy()


def check_layer(fits: bool, tensors: Iterable[Tensor], source: str) -> None:
    if not fits:
        raise DataError("the weight or the bias has a wrong shape", source=source)
    if not all(tensor.is_floating_point() for tensor in tensors):
        raise DataError(
            "the weight or the bias has another type than floating point", source=source
        )


def add_convolution(body: Bert | TransformersModel, checkpoint: Checkpoint) -> None:
    """Set `body.convolution` to that of the checkpoint, if the checkpoint has one."""
    folder = checkpoint.declaration.convolution
    if folder is None:
        return
    source = str(folder)

    # The tensors of m convolutions, each with a weight (channels, width, kernel) and a bias.
    config = read_object(folder / "cnn_config.json")
    tensors = read_weights(folder, source)
    numbers = range(len(tensors) // 2)
    expected_names = {f"convs.{k}.{name}" for k in numbers for name in ("weight", "bias")}
    if not tensors or tensors.keys() != expected_names:
        raise DataError("these are not the tensors of a convolution", source=source)
    if config.get("stride_sizes") not in (None, [1] * len(numbers)):
        raise DataError("a convolution with strides is not supported", source=source)

    # The shapes. A tensor without axes gets a kernel of size 1, and is refused below. With a kernel
    # of even size, the padding would not give one state for each token.
    kernels = [tensors[f"convs.{k}.weight"].shape[-1:].numel() for k in numbers]
    channels = tensors["convs.0.bias"].numel()
    expected_shapes = {}
    for k, kernel in enumerate(kernels):
        expected_shapes[f"convs.{k}.weight"] = [channels, body.width, kernel]
        expected_shapes[f"convs.{k}.bias"] = [channels]
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    check_layer(shapes == expected_shapes and channels > 0, tensors.values(), source)
    if not all(kernel % 2 for kernel in kernels):
        raise DataError("a convolution of even size is not supported", source=source)
    body.convolution = Convolution(body.width, channels, kernels)
    body.convolution.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})


INT8 = "int8"
WARN_BELOW = 0.99  # the lowest cosine


class TransformerEncoder(TokenEncoder):
    """Converts tokens to vectors for each readout; `spaces` are those of the vectors."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        reading: Reading,
        *,
        device: str,
        precision: str,
        own_threads: int | None = None,
    ) -> None:
        """With `own_threads`, a CPU computes in so many threads of this class; the number of the
        calling thread has no effect.
        """
        # The device and the numbers in which it computes.
        self.checkpoint = checkpoint
        self.reading = reading
        self.device = pick_device(device)
        self.tokens_per_batch = BUDGETS[self.device.type]
        self.notes = []  # messages for the user
        self.choices: list[str] = []  # measurements, and the choices that follow from them
        self.integers = precision == INT8
        if self.integers and self.device.type != "cpu":
            raise UsageError(f"--precision {INT8} needs --device cpu", advice="use bf16 on a GPU")
        self.has_default_precision = precision == "auto"
        if self.integers:
            precision = "fp32"  # of all that is not computed with integers
        self.dtype = pick_precision(precision, self.device)

        # The state of the computation.
        self.preparing = ForkLock(PREPARING)  # see `network`
        self.prepared = False
        self.halved = 0  # number of times that a batch was halved to fit into memory
        self.own_threads = own_threads
        self.threads = 0  # that compute a batch each
        # The weights. A thread hashes them until `weights.result` waits for it.
        with ThreadPoolExecutor(1) as pool:
            body, weights = self._load(pool)
            if self.device.type == "cpu":
                self._divide_cpu(body)
                if isinstance(body, Bert):
                    self.smallest_batch = smallest_batch(body)
            if self.integers and gain_of_int8() < FASTER_INT8:
                self.integers = False
                problem = "no fast products of integers on this CPU or in this torch"
                self.notes.append(f"--precision {INT8}: {problem}; fp32 is used")
            self.precision = "fp32"
            if self.integers:
                self.precision = INT8
                bits = largest_weight().bit_length() + 1
                gain = gain_of_int8()
                self.choices.append(
                    f"products of integers, weights of {bits} bits: {gain:.2f} x as fast as fp32"
                )
            elif self.dtype == torch.bfloat16:
                self.precision = "bf16"

            # Additions before the body moves to the device.
            add_convolution(body, checkpoint)
            self.kernels = ""  # the hash of the convolution
            if body.convolution is not None:
                self.kernels = weights_hash(body.convolution.state_dict(), with_pooler=True)
            self.body = body.to(self.device, self.dtype).eval()
            if self.device.type == "cuda":  # compile and check kernels while the hash is computed
                Thread(target=lambda: self.network, daemon=True).start()

            # The steps after the readouts, and the space of each readout.
            with declared_in(
                file_of_declaration(checkpoint), unless=reading.options.readout is not None
            ):
                check_layers(self.body, reading.readouts)
            width_of_readout = width_of_vectors(self.body, reading.readouts)
            self.steps = steps_of_checkpoint(checkpoint, reading, width_of_readout, read_layer)
            losses: list[dict[str, float]] = []
            if self.integers:
                losses = self._use_integers()
            self.spaces = [
                self._space(readout, weights.result()[readout.pooled], loss)
                for readout, loss in zip_longest(reading.readouts, losses)
            ]
        self.width = width_after_steps(self.steps, width_of_readout)

    @property
    def batches_at_once(self) -> int:
        return max(1, self.threads)

    @property
    def groups_at_once(self) -> int:
        """The number of groups of rows that threads encode while the caller writes; 0: the caller
        encodes them itself.

        In a command, threads that finish a group early start on the next one, and a GPU has work
        while the vectors of a group are read. In a program on a CPU, the caller encodes, because
        Ctrl-C interrupts the caller and not a thread.
        """
        on_gpu = self.device.type != "cpu"
        in_program = self.own_threads or not threads_of_command()
        if in_program:
            return 1 if on_gpu else 0
        if on_gpu:
            return 2
        # The last batches of a group have work for about 16 threads.
        if self.threads:
            return 2 + self.threads // THREADS_OF_GROUP
        return 0

    def _load(
        self, pool: ThreadPoolExecutor
    ) -> tuple[Bert | TransformersModel, "Future[dict[bool, str]]"]:
        """Return the body and the hashes of its tensors, which a thread computes in parallel."""
        if is_adapter(self.checkpoint.transformer_folder):
            self.notes.append(f"{self.checkpoint.name}: its LoRA adapter is added to the weights")
        try:
            architecture = architecture_of(self.checkpoint)
        except UnsupportedArchitecture as reason:
            if self.integers:
                problem = f"--precision {INT8}: {self.checkpoint.name} runs through transformers"
                raise UsageError(f"{problem} ({reason})", advice="use bf16 or fp32") from reason
            self.notes.append(f"{self.checkpoint.name}: {reason}: run through transformers")
            adapter = load_transformers_model(self.checkpoint.transformer_folder)
            return adapter, pool.submit(self._hashes, adapter.tensors())
        stored_tensors = read_weights(self.checkpoint.transformer_folder, self.checkpoint.name)
        tensors = canonical(stored_tensors, architecture)
        fit(tensors, architecture, source=self.checkpoint.name)
        return load_bert(tensors, architecture), pool.submit(self._hashes, tensors)

    def _divide_cpu(self, body: Bert | TransformersModel) -> None:
        """Let each thread of a CPU compute whole batches.

        So the vectors do not depend on the number of threads, and no thread waits for another one
        within a layer, which takes much time on a busy machine. Modules of transformers cannot run
        in several threads. A program in Python keeps the number of threads that torch has.
        """
        if self.own_threads:
            return
        computes_alone = isinstance(body, Bert)
        threads = threads_of_command() or torch.get_num_threads()
        if computes_alone and threads > 1:
            self.threads = threads
        if threads_of_command() is not None:
            torch.set_num_threads(1 if computes_alone else threads)

    def _use_integers(self) -> list[dict[str, float]]:
        """Replace the blocks by those of int8 and return their loss for each readout."""
        assert isinstance(self.body, Bert), "other models are refused"
        run = partial(encode_texts, encoder=self, budget=self.tokens_per_batch)
        losses, texts = use_int8(self.body, self.checkpoint, self.reading.tokenizer, run)
        lowest = min(loss["lowest"] for loss in losses)
        if not lowest >= WARN_BELOW:
            problem = f"the lowest cosine with fp32 on {texts} texts is {lowest:.4f}"
            self.notes.append(f"--precision {INT8}: {problem}; bf16 and fp32 are more precise")
        elif gain_of_bf16() > gain_of_int8():
            self.notes.append(f"--precision {INT8}: on this CPU, bf16 is faster and more precise")
        return losses

    def _hashes(self, tensors: Mapping[str, Tensor]) -> dict[bool, str]:
        """Return the weight hashes with and without the pooler, as the readouts require."""
        hashes = {}
        for pooled in {readout.pooled for readout in self.reading.readouts}:
            hashes[pooled] = weights_hash(tensors, with_pooler=pooled)
        return hashes

    def _space(self, readout: Readout, weights: str, loss: Mapping[str, float] | None) -> Space:
        machine: dict[str, Any] = {"precision": self.precision}
        if loss:
            machine[INT8_LOSS] = loss
            if largest_weight() != max(LARGEST_WEIGHTS):
                machine["largest_weight"] = largest_weight()
        if self.device.type == "cpu" and isinstance(self.body, TransformersModel):
            machine["threads"] = self.own_threads or torch.get_num_threads()  # they change rounding
        return space_of_readout(
            self.checkpoint,
            self.reading,
            readout,
            weights,
            hashed_values_of(self.body),
            self.steps,
            layers=readout.layers_in(self.body.depth),
            kernels=self.kernels,
            machine=machine,
        )

    def faster_precision(self) -> FasterPrecision | None:
        has_choice = self.precision == "bf16" or self.has_default_precision
        on_cpu = self.device.type == "cpu"
        if not (on_cpu and has_choice and isinstance(self.body, Bert)):
            return None
        return faster_to_encode(self.body.architecture, self.precision)

    def read_of(self, packed: Packed) -> Packed:
        """The batch as readouts reduce it, for classes that change `is_read`."""
        return packed

    def warnings(self, stats: EncodeStats) -> list[str]:
        messages = super().warnings(stats)
        if self.halved:
            halved = f"batches were split in two {self.halved} times"
            reason = "because of the memory of the device"
            messages.append(f"{halved} {reason}; to avoid this, use a smaller --batch-tokens")
        return messages

    @property
    def network(self) -> Bert | TransformersModel:
        """The body, prepared at the first use: its own blocks and their weights are then gone."""
        if self.prepared:
            return self.body
        with self.preparing:  # a thread does not see blocks of which another has replaced only some
            if not self.prepared and isinstance(self.body, Bert) and not self.integers:
                if self.device.type == "cpu":
                    self.body = prepare_for_cpu(self.body)
                else:
                    self.body = prepare_for_cuda(self.body)
            self.prepared = True
        return self.body

    def encode(self, batches: Iterable[TokenBlock]) -> Iterator[Arrays]:
        """Yield the vectors of each batch. A GPU gets the next batch before the last one is read.

        Each thread of a CPU computes a batch.
        """
        if self.own_threads and self.device.type == "cpu":
            yield from self._encode_in_own_threads(list(batches), self.own_threads)
            return
        if self.threads:
            yield from one_thread_each(self.threads).map(
                lambda batch: self._start(batch)(), list(batches)
            )
            return
        # `pairwise` starts a batch before the vectors of the batch before it are awaited; `list`
        # stands for the batch after the last one.
        started = chain(map(self._start, batches), [list])
        for wait, _ in pairwise(started):
            yield wait()

    def _encode_in_own_threads(
        self, batches: Sequence[TokenBlock], threads: int
    ) -> Iterator[Arrays]:
        """Yield the vectors of each batch, when all of them are computed."""
        # A thread of transformers has all threads.
        computes_alone = isinstance(self.body, Bert)
        pool = one_thread_each(threads) if computes_alone else one_thread_each(1, threads)

        def vectors_of(batch: TokenBlock) -> Arrays:
            _ = self.network  # it waits for the thread that prepares it
            with without_fork():
                return self._start(batch)()

        yield from run_all(vectors_of, batches, pool)

    @classmethod
    def free_network(cls) -> None:
        """Replace the network by vectors of ones from now on, to measure the other work."""

        def start(self: TransformerEncoder, batch: TokenBlock) -> Callable[[], Arrays]:
            shape = len(batch), width_of_vectors(self.body, self.reading.readouts)
            return lambda: [np.ones(shape, np.float32) for _ in self.reading.readouts]

        cls._start = start  # type: ignore[method-assign]

    def _start(self, batch: TokenBlock) -> Callable[[], Arrays]:
        """Start to compute a batch. The returned function waits for its vectors.

        A GPU computes meanwhile: the caller starts the next batch before it waits for this one.
        """
        vocabulary = self.checkpoint.config.get("vocab_size")
        if isinstance(vocabulary, int):
            check_ids(batch, vocabulary, self.checkpoint.name)

        # The batch in chunks, each of which is halved until it fits into the memory of the GPU.
        chunks = [batch]
        if isinstance(self.body, TransformersModel):
            chunks = padded_parts(batch, self.device, of_one_length=self.body.reads_padding)
        waits: list[Callable[[], Arrays]] = []
        for chunk in chunks:
            started = halve_to_fit_memory(
                self._start_chunk, chunk, advice="use --max-length, or --device cpu"
            )
            self.halved += len(started) - 1
            waits += started

        def wait() -> Arrays:
            arrays_of_chunks = [wait_for_chunk() for wait_for_chunk in waits]
            return [np.concatenate(arrays) for arrays in zip(*arrays_of_chunks, strict=True)]

        return wait

    def _start_chunk(self, batch: TokenBlock) -> Callable[[], Arrays]:
        # All texts of a batch have the same `prompt_length`, see `plan_batches`.
        skips_tokens = batch.prompt_length is not None and batch.prompt_length[0]

        # Spare sentences fill the batch up to one of few numbers of tokens; no vectors of them.
        spare_lengths: list[int] = []
        if isinstance(self.network, Bert) and not skips_tokens:
            tokens = len(batch.ids)
            count = spare_tokens(tokens) if self.device.type == "cpu" else -tokens % TILE
            spare_lengths = filler(batch.lengths.tolist(), count)
        if batch.readout_token_index is None:
            batch = replace(batch, readout_token_index=np.zeros(len(batch), np.int64))
        packed = pack_block(batch, self.device, spare_lengths)
        with torch.inference_mode():
            vectors = apply_readouts(self.network, self.read_of(packed), self.reading.readouts)
        return to_host([tensor[: len(batch)] for tensor in vectors])


def load_for_program(
    checkpoint: Checkpoint,
    reading: Reading,
    *,
    device: str,
    precision: str,
    threads: int | None,
) -> TransformerEncoder:
    """Load an encoder for a program in Python, in a thread.

    The calling thread may be that of a forked child, which does not have the threads of OpenMP that
    its parent had.
    """
    load = partial(
        TransformerEncoder,
        checkpoint,
        reading,
        device=device,
        precision=precision,
        own_threads=threads or torch.get_num_threads(),
    )
    return one_thread_each(1, loads=True).submit(load).result()


# Products of a batch: below them, the calls of a batch take more than a tenth of its time.
PRODUCTS_OF_BATCH = 1 << 33
FEWEST_TOKENS = 512
THREADS_OF_GROUP = 16  # that the last batches of a group employ


def smallest_batch(body: Bert) -> int:
    """Return the tokens of a small batch: 512 for base size, 2,048 for nano."""
    weights = sum(weight.numel() for weight in body.blocks.parameters())
    tokens = PRODUCTS_OF_BATCH / max(1, weights)
    nearest_power_of_two = 2 ** round(math.log2(tokens))
    return min(max(nearest_power_of_two, FEWEST_TOKENS), BUDGETS["cpu"])


def hashed_values_of(body: Bert | TransformersModel) -> list[Any]:
    """Return the config values that change vectors for equal tensors, such as the heads."""
    if isinstance(body, Bert):
        return body.architecture.hashed_values
    return body.hashed_values
