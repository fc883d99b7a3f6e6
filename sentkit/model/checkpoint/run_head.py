"""Runs a classification head: packed families with the kernels of `encode`, others through transformers."""

import inspect
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import Checkpoint, weight_files
from sentkit.model.checkpoint.heads import LAYOUTS
from sentkit.model.encoding import BUDGETS, Arrays, Tally, TokenEncoder
from sentkit.model.reading import Reading
from sentkit.model.text.tokens import TokenBlock, check_ids
from sentkit.model.transformer.architecture import Architecture, read_architecture
from sentkit.model.transformer.device import halve_to_fit_memory, padded_parts, pick_device, pick_precision
from sentkit.model.transformer.encoder import INT8, TransformerEncoder
from sentkit.model.transformer.packed import pack_ids
from sentkit.model.transformer.transformers_model import load_classifier, padding_id_of
from sentkit.model.transformer.weights import check_tensors, read_tensors
from sentkit.process import threads_of_command
from sentkit.transforms.steps import Linear, Norm, Step


class PackedClassifier(TransformerEncoder):
    """An encoder of the vector that the head reads, with the head as the operations after the readout."""

    def __init__(self, checkpoint: Checkpoint, reading: Reading, *, device: str, precision: str) -> None:
        super().__init__(checkpoint, reading, device=device, precision=precision)
        self.steps = head_of(checkpoint, read_architecture(checkpoint.config, checkpoint.config_file))
        self.width = self.steps[-1].width(self.body.width)


def head_of(checkpoint: Checkpoint, architecture: Architecture) -> list[Step]:
    """Read the layers of a head, as transformers names them for each family."""
    layout, width = LAYOUTS[architecture.family], architecture.width
    tensors = read_tensors(weight_files(checkpoint.transformer, checkpoint.name))
    out = tensors.get(f"{layout.out}.weight")
    outputs = len(out) if out is not None and out.ndim else 1
    shapes: dict[str, tuple[int, ...]] = {f"{layout.dense}.weight": (width, width)}
    shapes |= {f"{layout.dense}.bias": (width,)} if architecture.head_bias else {}
    shapes |= {f"{layout.norm}.weight": (width,)} if layout.norm else {}
    shapes |= {f"{layout.out}.weight": (outputs, width), f"{layout.out}.bias": (outputs,)}
    check_tensors(tensors, shapes, source=checkpoint.name, what="weights of the classification head")
    arrays = {name: tensors[name].float().numpy() for name in shapes}
    zeros = np.zeros(width, np.float32)
    steps: list[Step] = [
        Linear(arrays[f"{layout.dense}.weight"], arrays.get(f"{layout.dense}.bias", zeros), layout.activation)
    ]
    if layout.norm:
        steps.append(Norm(arrays[f"{layout.norm}.weight"], zeros, architecture.norm_epsilon))
    return [*steps, Linear(arrays[f"{layout.out}.weight"], arrays[f"{layout.out}.bias"])]


class TransformersClassifier(TokenEncoder):
    """A model of transformers for sequence classification, with the interface of an encoder."""

    def __init__(self, checkpoint: Checkpoint, reading: Reading, *, device: str, precision: str) -> None:
        if precision == INT8:
            problem = f"--precision {INT8}: {checkpoint.name} runs through transformers"
            raise UsageError(problem, advice="use bf16 or fp32")
        self.checkpoint, self.reading = checkpoint, reading
        self.device = pick_device(device)
        dtype = pick_precision(precision, self.device)
        self.budget, self.precision = BUDGETS[self.device.type], "bf16" if dtype == torch.bfloat16 else "fp32"
        if self.device.type == "cpu":
            torch.set_num_threads(threads_of_command() or torch.get_num_threads())
        self.model = load_classifier(checkpoint.transformer).to(self.device, dtype)
        self.notes = [f"{checkpoint.name}: run through transformers"]
        self.specs, self.steps = [], []
        self.width = int(self.model.config.num_labels)

    def encode(self, batches: Iterable[TokenBlock]) -> Iterator[Arrays]:
        for batch in batches:
            check_ids(batch, self.model.config.vocab_size, self.checkpoint.name)
            outputs = list[np.ndarray]()
            for part in padded_parts(batch, self.device):
                outputs += halve_to_fit_memory(self.outputs, part, advice="use --max-length, or --device cpu")
            yield [np.concatenate(outputs)]

    def outputs(self, batch: TokenBlock) -> np.ndarray:
        second = None if batch.second is None else np.where(batch.second > 0, batch.second, batch.lengths)
        packed = pack_ids(batch.ids.astype(np.int64), batch.lengths.tolist(), self.device, second=second)
        given = {
            "input_ids": packed.pad(packed.ids, fill=padding_id_of(self.model)),
            "attention_mask": packed.pad(torch.ones_like(packed.ids)),
        }
        if packed.types is not None and "token_type_ids" in inspect.signature(self.model.forward).parameters:
            given["token_type_ids"] = packed.pad(packed.types)
        with torch.inference_mode():
            logits: Tensor = self.model(**given).logits
        return logits.float().cpu().numpy()

    def remarks(self, tally: Tally) -> list[str]:
        return tally.truncation(self.reading.tokenizer.max_length, "tokens")
