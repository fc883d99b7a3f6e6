"""The transformer encoder: loads the weights, runs a batch, applies readouts and steps, names the spaces."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sentkit.errors import UsageError, declared_in
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.formats.checkpoints.lora import is_adapter
from sentkit.formats.checkpoints.readout import Readout
from sentkit.formats.vectors.fingerprint import INT8_LOSS, Spec
from sentkit.model.post_steps import (
    place_of_declaration,
    spec_behind,
    spec_of_readout,
    steps_of_checkpoint,
    width_behind,
)
from sentkit.model.reading import Reading
from sentkit.model.text.batching import Arrays, default_budget, encode_texts
from sentkit.model.text.stream import Tally
from sentkit.model.text.tokens import Tokens, check_ids
from sentkit.model.transformer.adapter import ENCODER_HALVES, Adapter, load_adapter
from sentkit.model.transformer.architecture import UnsupportedArchitecture, architecture_of
from sentkit.model.transformer.bert import Bert, load_bert
from sentkit.model.transformer.device import halve_to_fit_memory, pick_device, pick_precision, to_host
from sentkit.model.transformer.inference import filler, prepare_for_cpu, prepare_for_cuda
from sentkit.model.transformer.int8.calibration import WARN_BELOW, calibrate, check_finite, losses, usable
from sentkit.model.transformer.int8.products import instructions, int8_products_work
from sentkit.model.transformer.lora import read_weights
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.post_layers import add_convolution, read_layer
from sentkit.model.transformer.readouts import check_layers, read, width_of_vectors
from sentkit.model.transformer.weights import canonical, fit, weights_hash
from sentkit.process import threads_of_command

INT8 = "int8"


class TransformerEncoder:
    """Converts tokens to vectors for each readout; `specs` records the origin of the vectors."""

    def __init__(self, checkpoint: Checkpoint, reading: Reading, *, device: str, precision: str) -> None:
        self.checkpoint, self.reading = checkpoint, reading
        self.device = pick_device(device)
        self.notes: list[str] = []  # messages for the user
        self.integers = precision == INT8
        if self.integers and self.device.type != "cpu":
            raise UsageError(f"--precision {INT8} needs --device cpu", advice="use bf16 on a GPU")
        self.dtype = pick_precision("auto" if self.integers else precision, self.device)
        self.preparing, self.prepared = Lock(), False  # see `network`
        self.halved = 0  # number of times that a batch was halved to fit into memory
        self.pool: ThreadPoolExecutor | None = None  # computes several batches at once
        with ThreadPoolExecutor(1) as pool:
            body, weights = self._load(pool)
            self._divide_cpu(body)
            if self.integers and not int8_products_work():
                self.integers = False
                problem = "no fast products of integers on this CPU or in this torch"
                self.notes.append(f"--precision {INT8}: {problem}; {self.precision} is used")
            add_convolution(body, checkpoint)
            self.kernels = ""  # the hash of the convolution
            if body.convolution is not None:
                self.kernels = weights_hash(body.convolution.state_dict(), with_pooler=True)
            self.body = body.to(self.device, torch.float32 if self.integers else self.dtype).eval()
            with declared_in(place_of_declaration(checkpoint), unless=reading.chosen):
                check_layers(self.body, reading.readouts)
            before = width_of_vectors(self.body, reading.readouts)
            self.steps = steps_of_checkpoint(checkpoint, reading, before, read_layer)
            lost = self._use_integers() if self.integers else []
            self.specs = [
                self._spec(readout, weights.result()[readout.pooled], loss)
                for readout, loss in zip_longest(reading.readouts, lost)
            ]
        self.width = width_behind(self.steps, before)

    @property
    def budget(self) -> int:
        return default_budget(self.device.type)

    @property
    def groups_at_once(self) -> int:
        """1: copies from a GPU overlap with its work. 2: no thread waits at the end of a group."""
        return 1 if self.device.type != "cpu" else 2 if self.pool is not None else 0

    @property
    def precision(self) -> str:
        if self.integers:
            return INT8
        return "bf16" if self.dtype == torch.bfloat16 else "fp32"

    def _load(self, pool: ThreadPoolExecutor) -> tuple[Bert | Adapter, "Future[dict[bool, str]]"]:
        """Return the body and the hashes of its tensors, which a thread computes in parallel."""
        if is_adapter(self.checkpoint.transformer):
            self.notes.append(f"{self.checkpoint.name}: its LoRA adapter is added to the weights")
        try:
            architecture = architecture_of(self.checkpoint)
        except UnsupportedArchitecture as reason:
            if self.integers:
                problem = f"--precision {INT8}: {self.checkpoint.name} runs through transformers"
                raise UsageError(f"{problem} ({reason})", advice="use bf16 or fp32") from reason
            self.notes.append(f"{self.checkpoint.name}: {reason}: run through transformers")
            adapter = load_adapter(self.checkpoint.transformer)
            return adapter, pool.submit(self._hashes, adapter.tensors())
        named = canonical(read_weights(self.checkpoint.transformer, self.checkpoint.name), architecture)
        fit(named, architecture, source=self.checkpoint.name)
        return load_bert(named, architecture), pool.submit(self._hashes, named)

    def _divide_cpu(self, body: Bert | Adapter) -> None:
        """In a command, let each thread of a CPU compute batches of its own.

        So the vectors do not depend on the number of threads, and no thread waits for another one within a
        layer, which takes much time on a busy machine. Modules of transformers cannot run in several threads.
        """
        threads = threads_of_command()
        if self.device.type != "cpu" or threads is None:
            return
        alone = isinstance(body, Bert)
        torch.set_num_threads(1 if alone else threads)
        if alone and threads > 1:
            self.pool = ThreadPoolExecutor(threads)

    def _use_integers(self) -> list[dict[str, float]]:
        """Replace the blocks by those of int8 and return their loss for each readout."""
        assert isinstance(self.body, Bert), "other models are refused"
        tokens = usable(self.reading.tokenizer)
        exact = encode_texts(tokens, self, self.budget)
        check_finite([torch.from_numpy(vectors) for vectors in exact], self.checkpoint.name)
        calibrate(self.body, self.checkpoint, self.dtype)
        found = losses(exact, encode_texts(tokens, self, self.budget))
        lowest = min(each["lowest"] for each in found)
        if not lowest >= WARN_BELOW:
            problem = f"the lowest cosine with fp32 on {len(tokens)} texts is {lowest:.4f}"
            self.notes.append(f"--precision {INT8}: {problem}; bf16 and fp32 are more precise")
        elif "amx_int8" in instructions() and self.dtype == torch.bfloat16:
            self.notes.append(f"--precision {INT8}: on this CPU, bf16 is faster and more precise")
        return found

    def _hashes(self, tensors: Mapping[str, Tensor]) -> dict[bool, str]:
        """Return the weight hashes with and without the pooler, as the readouts require."""
        wanted = {readout.pooled for readout in self.reading.readouts}
        return {pooled: weights_hash(tensors, with_pooler=pooled) for pooled in wanted}

    def _spec(self, readout: Readout, weights: str, loss: Mapping[str, float] | None) -> Spec:
        machine: dict[str, Any] = {"precision": self.precision}
        if loss:
            machine[INT8_LOSS] = loss
        if self.device.type == "cpu" and isinstance(self.body, Adapter):
            machine["threads"] = torch.get_num_threads()  # the number of threads changes rounding
        spec = spec_of_readout(
            *(self.checkpoint, self.reading, readout, weights, rules_of(self.body)),
            layers=readout.resolved(self.body.depth),
            kernels=self.kernels,
            machine=machine,
        )
        return spec_behind(self.steps, spec, self.reading.transform)

    def remarks(self, tally: Tally) -> list[str]:
        messages = tally.truncation(self.reading.tokenizer.max_length, "tokens")
        if self.halved:
            halved = f"batches were split in two {self.halved} times because of the memory of the device"
            messages.append(f"{halved}; to avoid this, use a smaller --batch-tokens")
        return messages

    @property
    def network(self) -> Bert | Adapter:
        """The body, prepared at the first use: its own blocks and their weights are then gone."""
        with self.preparing:  # a thread does not see blocks of which another has replaced only some
            if not self.prepared and isinstance(self.body, Bert) and not self.integers:
                on_cpu = self.device.type == "cpu"
                self.body = prepare_for_cpu(self.body) if on_cpu else prepare_for_cuda(self.body)
            self.prepared = True
        return self.body

    def read(self, batches: Iterable[Sequence[Tokens]]) -> Iterator[Arrays]:
        """Yield the token states of each batch, reduced to one array for each readout.

        A GPU gets the next batch before this function waits for the vectors of the current one.
        """
        if self.pool is not None:
            yield from self._read_in(self.pool, batches)
            return
        wait: Callable[[], Arrays] | None = None
        for batch in batches:
            following = self._start(batch)
            if wait is not None:
                yield wait()
            wait = following
        if wait is not None:
            yield wait()

    def _read_in(self, pool: ThreadPoolExecutor, batches: Iterable[Sequence[Tokens]]) -> Iterator[Arrays]:
        started = deque(pool.submit(lambda batch: self._start(batch)(), batch) for batch in batches)
        try:
            while started:
                yield started.popleft().result()
        finally:
            for each in started:
                each.cancel()

    def _start(self, batch: Sequence[Tokens]) -> Callable[[], Arrays]:
        """Start to compute a batch. The returned function waits for its vectors."""
        vocabulary = self.checkpoint.config.get("vocab_size")
        if isinstance(vocabulary, int):
            check_ids(batch, vocabulary, self.checkpoint.name)
        parts = halve_to_fit_memory(self._start_part, batch, advice="use --max-length, or --device cpu")
        self.halved += len(parts) - 1
        return (
            parts[0]
            if len(parts) == 1
            else lambda: [np.concatenate(each) for each in zip(*(wait() for wait in parts), strict=True)]
        )

    def _start_part(self, batch: Sequence[Tokens]) -> Callable[[], Arrays]:
        ids, skip = [tokens.ids for tokens in batch], self.reading.tokenizer.skip
        pooled = [tokens.windows.pooled if tokens.windows else () for tokens in batch]
        spare = []
        if isinstance(self.network, Bert) and self.device.type == "cpu" and not skip and not any(pooled):
            spare = filler([len(each) for each in ids])  # their vectors are dropped
        packed = pack(
            [*ids, *(np.full(length, ids[0][0]) for length in spare)],
            self.device,
            at=[tokens.at for tokens in batch] + [0] * len(spare),
            skip=skip,
            pooled=pooled,
            left_out=self.reading.left_out,
        )
        with torch.inference_mode():
            vectors = read(self.network, packed, self.reading.readouts)
        return to_host([each[: len(each) - len(spare)] for each in vectors])

    def finish(self, vectors: Arrays) -> Arrays:
        """Apply the operations after the readout; return (b, width) arrays."""
        for step in self.steps:
            vectors = [step(each) for each in vectors]
        return vectors


def rules_of(body: Bert | Adapter) -> list[Any]:
    """Return the config values that change the vectors for equal tensors, such as the number of heads."""
    if isinstance(body, Bert):
        return body.architecture.rules
    config = body.model.config
    names = ["num_attention_heads", "hidden_act", "layer_norm_eps"]
    if config.model_type in ENCODER_HALVES:
        names += ["dense_act_fn", "is_gated_act", "layer_norm_epsilon", "relative_attention_max_distance"]
    rules = [getattr(config, name, None) for name in names]
    more = {name: value for name in DECODER_RULES if (value := getattr(config, name, None)) is not None}
    return [*rules, more] if more else rules


DECODER_RULES = (
    *(
        "hidden_activation",
        "rms_norm_eps",
        "norm_eps",
        "num_key_value_heads",
        "rope_parameters",
        "rope_theta",
    ),
    *("layer_types", "sliding_window", "use_bidirectional_attention", "is_causal"),
    *("query_pre_attn_scalar", "attn_logit_softcapping"),
)
