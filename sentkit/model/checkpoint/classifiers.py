"""Runs a classification head: with the kernels of `encode`, or through transformers."""

import inspect
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from sentkit.arrays import Float32
from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import Checkpoint, weight_files
from sentkit.model.checkpoint.heads import LAYOUTS, ClassifierHead
from sentkit.model.checkpoint_reading import Reading
from sentkit.model.encoding import BUDGETS, TokenEncoder
from sentkit.model.groups import Arrays, EncodeStats
from sentkit.model.text.token_types import NAME
from sentkit.model.text.tokens import TokenBlock, check_ids
from sentkit.model.transformer.architecture import read_architecture
from sentkit.model.transformer.device import (
    halve_to_fit_memory,
    padded_parts,
    pick_device,
    pick_precision,
)
from sentkit.model.transformer.encoder import INT8, TransformerEncoder
from sentkit.model.transformer.packed import pack_block
from sentkit.model.transformer.transformers_model import (
    load_classifier,
    padding_id_of,
    reads_padding,
    restore_attention,
    text_types_of,
    transformers_errors,
)
from sentkit.model.transformer.weights import check_tensors, read_tensors
from sentkit.process import threads_of_command
from sentkit.transforms.steps import Linear, Norm, Step


class PackedClassifier(TransformerEncoder):
    """An encoder of the vector that the head reads, with the head as the operations after the
    readout.
    """

    def __init__(
        self, checkpoint: Checkpoint, reading: Reading, *, device: str, precision: str
    ) -> None:
        super().__init__(checkpoint, reading, device=device, precision=precision)

        # The tensors of the head, compared with those of an empty one for as many outputs.
        architecture = read_architecture(checkpoint.config, checkpoint.config_file)
        layout = LAYOUTS[architecture.family]
        tensors = read_tensors(weight_files(checkpoint.transformer_folder, checkpoint.name))
        out_weight = tensors.get(f"{layout.out}.weight")  # (k, d)
        self.width = 1
        if out_weight is not None and out_weight.ndim > 0:
            self.width = len(out_weight)
        with torch.device("meta"):
            head = ClassifierHead(architecture, self.width, dropout=0.0, scale=0.0)
        shapes = {name: tuple(weight.shape) for name, weight in head.weights().items()}
        check_tensors(
            tensors, shapes, source=checkpoint.name, what="weights of the classification head"
        )

        # The head as operations after the readout, in place of those of an encoder. Layers of
        # some families have no bias.
        arrays = {name: tensors[name].float().numpy() for name in shapes}
        zeros = np.zeros(architecture.width, np.float32)

        def weight_and_bias(layer: str) -> tuple[Float32, Float32]:
            return arrays[f"{layer}.weight"], arrays.get(f"{layer}.bias", zeros)

        steps: list[Step] = [Linear(*weight_and_bias(layout.dense), layout.activation)]
        if layout.norm:
            steps.append(Norm(*weight_and_bias(layout.norm), architecture.norm_epsilon))
        steps.append(Linear(*weight_and_bias(layout.out)))
        self.steps = steps


class TransformersClassifier(TokenEncoder):
    """A model of transformers for sequence classification, with the interface of an encoder."""

    def __init__(
        self, checkpoint: Checkpoint, reading: Reading, *, device: str, precision: str
    ) -> None:
        if precision == INT8:
            problem = f"--precision {INT8}: {checkpoint.name} runs through transformers"
            raise UsageError(problem, advice="use bf16 or fp32")
        self.checkpoint = checkpoint
        self.reading = reading
        self.device = pick_device(device)
        dtype = pick_precision(precision, self.device)
        self.tokens_per_batch = BUDGETS[self.device.type]
        self.precision = "bf16" if dtype == torch.bfloat16 else "fp32"
        if self.device.type == "cpu":
            torch.set_num_threads(threads_of_command() or torch.get_num_threads())
        model = load_classifier(checkpoint.transformer_folder)
        with transformers_errors(str(checkpoint.transformer_folder), "run"):
            self.reads_padding = reads_padding(model.base_model, reading.tokenizer.max_length)
        if text_types_of(model, checkpoint.transformer_folder) is not None:
            problem = "its tokenizer gives other token types than 0 to the tokens of a single text"
            raise DataError(f"a classifier is not supported if {problem}", source=checkpoint.name)
        self.model = model.to(self.device, dtype)
        self.notes = [f"{checkpoint.name}: run through transformers"]
        self.spaces = []
        self.steps = []
        self.width = int(self.model.config.num_labels)

    def encode(self, batches: Iterable[TokenBlock]) -> Iterator[Arrays]:
        for batch in batches:
            check_ids(batch, self.model.config.vocab_size, self.checkpoint.name)
            outputs: list[np.ndarray] = []
            for chunk in padded_parts(batch, self.device, of_one_length=self.reads_padding):
                outputs += halve_to_fit_memory(
                    self.outputs, chunk, advice="use --max-length, or --device cpu"
                )
            yield [np.concatenate(outputs)]

    def outputs(self, batch: TokenBlock) -> np.ndarray:
        """Return the logits (b, k) of a batch."""
        packed = pack_block(batch, self.device)
        arguments = {
            "input_ids": packed.pad(packed.ids, fill=padding_id_of(self.model)),
            "attention_mask": packed.pad(torch.ones_like(packed.ids)),
        }
        if (
            packed.segment_ids is not None
            and NAME in inspect.signature(self.model.forward).parameters
        ):
            arguments[NAME] = packed.pad(packed.segment_ids)
        source = str(self.checkpoint.transformer_folder)
        restore_attention(self.model.base_model)
        with torch.inference_mode(), transformers_errors(source, "run"):
            logits: Tensor = self.model(**arguments).logits
        return logits.float().cpu().numpy()

    def warnings(self, stats: EncodeStats) -> list[str]:
        return stats.truncation(self.reading.tokenizer.max_length, "tokens")
