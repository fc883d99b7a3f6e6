"""Other runtimes of all-MiniLM-L6-v2: functions from texts to unit vectors.

All of them get the same tokens and the same batches: sorted by length, 32 texts, padded to the
longest. sentence-transformers and fastembed do this themselves.
"""

import shutil
from functools import partial

import numpy as np
from timing import sentence_transformers

BATCH = 32
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def export(model, folder):
    """Write the model as ONNX: the states of the last layer, for any number of texts and tokens."""
    import torch
    from transformers import AutoModel

    path = folder / "onnx" / "model.onnx"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    for file in model.glob("*.json"):
        shutil.copy(file, folder)
    network = AutoModel.from_pretrained(model, attn_implementation="eager").eval()

    class States(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, ids, mask, types):
            named = dict(zip(INPUTS, (ids, mask, types), strict=True))
            return self.network(**named).last_hidden_state

    ones = torch.ones(2, 8, dtype=torch.long)
    axes = {name: {0: "texts", 1: "tokens"} for name in (*INPUTS, "last_hidden_state")}
    torch.onnx.export(
        *(States(), (ones, ones, 0 * ones), str(path.with_suffix(".part"))),
        input_names=list(INPUTS),
        output_names=["last_hidden_state"],
        dynamic_axes=axes,
        dynamo=False,
    )
    path.with_suffix(".part").rename(path)
    return path


def batched(tokenizer_file, run):
    """`run` returns the states (b, t, d) of ids, mask and types (b, t)."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)

    def encode(texts):
        ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]
        longest_first = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
        vectors = np.empty((len(ids), 384), np.float32)
        for start in range(0, len(ids), BATCH):
            indices = longest_first[start : start + BATCH]
            inputs = padded([ids[index] for index in indices])
            mask = inputs["attention_mask"][..., None].astype(np.float32)
            means = (run(inputs) * mask).sum(1) / mask.sum(1)
            vectors[indices] = means / np.linalg.norm(means, axis=1, keepdims=True)
        return vectors

    return encode


def padded(ids):
    """The inputs of an exported model; the first row is the longest."""
    input_ids = np.zeros((len(ids), len(ids[0])), np.int64)
    mask = np.zeros_like(input_ids)
    for row, ids_of_text in enumerate(ids):
        input_ids[row, : len(ids_of_text)] = ids_of_text
        mask[row, : len(ids_of_text)] = 1
    return dict(zip(INPUTS, (input_ids, mask, np.zeros_like(mask)), strict=True))


def onnx_runtime(onnx, precision, threads):
    """ONNX Runtime after its optimizer for BERT; int8 is its dynamic quantization, by columns."""
    import onnxruntime
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model

    path = onnx.with_name(f"fused-{precision}.onnx")
    if not path.exists():
        fused = onnx.with_name("fused-fp32.onnx")
        if not fused.exists():
            optimized = optimize_model(str(onnx), model_type="bert", num_heads=12, hidden_size=384)
            optimized.save_model_to_file(str(fused))
        if precision == "int8":
            floats = {"DefaultTensorType": TensorProto.FLOAT}  # of the fused operations
            kind = QuantType.QInt8
            quantize_dynamic(fused, path, per_channel=True, weight_type=kind, extra_options=floats)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)[0]


def openvino(onnx, precision, threads, calibration):
    """OpenVINO; int8 is the quantization of NNCF for transformers, from the calibration batches."""
    import openvino

    core = openvino.Core()
    path = onnx
    if precision == "int8":
        path = onnx.with_name("openvino-int8.xml")
        if not path.exists():
            import nncf

            network = nncf.quantize(
                core.read_model(onnx),
                nncf.Dataset(list(calibration)),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(calibration),
            )
            openvino.save_model(network, path, compress_to_fp16=False)
    hint = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}[precision]
    settings = {
        "INFERENCE_PRECISION_HINT": hint,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
    }
    compiled = core.compile_model(path, "CPU", settings)
    return lambda inputs: compiled(inputs)[0]


def ctranslate2(model, folder, precision, threads):
    import ctranslate2 as library
    from ctranslate2.converters import TransformersConverter

    if not folder.exists():
        TransformersConverter(str(model)).convert(str(folder))
    kind = {"fp32": "float32", "int8": "int8"}[precision]
    encoder = library.Encoder(str(folder), device="cpu", compute_type=kind, intra_threads=threads)

    def run(inputs):
        lengths = inputs["attention_mask"].sum(1)
        ids = [
            row[:length].tolist() for row, length in zip(inputs["input_ids"], lengths, strict=True)
        ]
        return np.array(encoder.forward_batch(ids).last_hidden_state)

    return run


def fastembed(folder, threads):
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    name = "local/all-MiniLM-L6-v2"
    source = ModelSource(hf=name)
    TextEmbedding.add_custom_model(
        name,
        PoolingType.MEAN,
        normalization=True,
        sources=source,
        dim=384,
        model_file="onnx/model.onnx",
    )
    loaded = TextEmbedding(name, specific_model_path=str(folder), threads=threads)
    return lambda texts: np.array(list(loaded.embed(texts, batch_size=BATCH)))


def makers(model, folder, calibration, threads):
    """A function for each runtime and precision that loads it. Exported models are kept in the
    folder.
    """
    tokenizer_file = model / "tokenizer.json"

    def with_openvino(precision):
        batches = []

        def keep(inputs):
            batches.append(inputs)
            return np.ones((*inputs["input_ids"].shape, 384), np.float32)

        batched(tokenizer_file, keep)(calibration)
        return batched(tokenizer_file, openvino(export(model, folder), precision, threads, batches))

    def with_onnx_runtime(precision):
        return batched(tokenizer_file, onnx_runtime(export(model, folder), precision, threads))

    def with_ctranslate2(precision):
        return batched(
            tokenizer_file, ctranslate2(model, folder / "ctranslate2", precision, threads)
        )

    def with_fastembed():
        export(model, folder)
        return fastembed(folder, threads)

    ways = {
        "sentence-transformers": (
            partial(sentence_transformers, model, batch_size=BATCH),
            ("fp32", "bf16"),
        ),
        "OpenVINO": (with_openvino, ("fp32", "bf16", "int8")),
        "ONNX Runtime": (with_onnx_runtime, ("fp32", "int8")),
        "CTranslate2": (with_ctranslate2, ("fp32", "int8")),
    }
    functions = {"fastembed fp32": with_fastembed}
    for name, (make, precisions) in ways.items():
        for precision in precisions:
            functions[f"{name} {precision}"] = partial(make, precision)
    return functions
