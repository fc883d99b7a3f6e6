"""`sentkit distill-static`: a static model from the token vectors of an encoder."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from sentkit.console import Console, RowProgress, TaskProgress
from sentkit.errors import DataError, UsageError
from sentkit.flags import options
from sentkit.flags.outputs import Output, check_paths, model_paths
from sentkit.flags.rows import RowSource, input_paths
from sentkit.process import typed_words, version_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sentkit.formats.checkpoints.folders import Checkpoint
    from sentkit.formats.rows.rows import Inputs
    from sentkit.model.checkpoint_reading import Reading
    from sentkit.model.text.tokenizer import Tokenizer
    from sentkit.model.transformer.encoder import TransformerEncoder

USUAL_DIM = 256
ROWS_PER_BLOCK = 1024


def distill_static(
    *,
    model: options.Model = "nano",
    readout: options.Readout = None,
    weights: Annotated[
        Literal["zipf", "sif", "none"],
        Option(
            "--weights",
            help="Weights of the tokens: by place in the vocabulary, by frequency in FILE, or "
            "none.",
        ),
    ] = "zipf",
    dim: Annotated[
        int | None,
        Option(
            "--dim",
            metavar="K",
            min=1,
            help="Numbers of a vector; fewer if the model uses fewer directions. "
            "[default: 256, or those of the model]",
        ),
    ] = None,
    precision: options.PrecisionOfFloats = "fp32",
    device: options.Device = "auto",
    output_path: options.NewFolder,
    force: options.Force = False,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.Files = None,
    console: Console,
) -> None:
    """Make a static model from the token vectors of an encoder."""
    output = Output(output_path, force)
    if weights != "sif" and (files or field or rejects is not None):
        raise UsageError("FILE and the flags of rows need --weights sif")
    import numpy as np

    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.formats.checkpoints.writing import new_folder
    from sentkit.formats.files import json_line, shown_path
    from sentkit.formats.lexicons.model2vec import write_model2vec
    from sentkit.formats.outputs.outputs import open_output
    from sentkit.formats.rows.kinds import FIELDS
    from sentkit.model.static.distillation import (
        sif_weights,
        token_table,
        vocabulary_size,
        zipf_weights,
    )
    from sentkit.model.transformer.encoder import TransformerEncoder

    checkpoint = read_checkpoint(model)
    plan = reading_of_tokens(checkpoint, readout)
    console.loading(checkpoint.name, plan.notes(checkpoint.name))
    tokenizer = plan.tokenizer
    reads = {"-m": model_paths(model)}
    record: dict[str, Any] = {
        "method": "distill-static",
        "parents": [checkpoint.name, *checkpoint.parents],
    }

    # The factor of the vector of each token of the vocabulary, (v,).
    paths: Sequence[str] = ()  # of the texts
    if weights == "sif":
        rows = RowSource(input_paths(files), field, rejects)
        with rows.open(console, output, field_names=FIELDS, reads=reads) as inputs:
            record["rows"], counts = count_tokens(inputs, tokenizer, RowProgress(console))
        paths = rows.paths
        factors = sif_weights(counts)
    else:
        check_paths(console, {"-o": output.path}, reads)  # as `rows.open` does
        factors = np.ones(vocabulary_size(tokenizer))
        if weights == "zipf":
            factors = zipf_weights(tokenizer)

    with new_folder(output.path, force=force) as folder:
        encoder = TransformerEncoder(checkpoint, plan, device=device, precision=precision)
        console.loaded(encoder)
        if dim is not None and dim > encoder.width:
            raise UsageError(f"--dim {dim}: the vectors have only {encoder.width} numbers")
        vectors = encode_vocabulary(encoder, tokenizer, TaskProgress(console, "batches"))
        table, warnings = token_table(vectors, factors, dim or min(USUAL_DIM, encoder.width))
        # Fewer numbers than the default need no message: "dim" of the result has their number.
        if dim is not None:
            console.warn(*warnings)
        record |= {"weights": weights, "tokens": len(table), "dim": table.shape[1]}
        write_model2vec(folder, table, tokenizer.rules(), record | made_by(checkpoint, paths))
    with open_output("-", force=False) as file:
        file.write(json_line({"model": shown_path(output.path), **record}))


def reading_of_tokens(checkpoint: "Checkpoint", readout: str | None) -> "Reading":
    """How single tokens are read: by one readout, without a template, and with vectors of any
    length.
    """
    from sentkit.model.checkpoint_reading import plan_reading
    from sentkit.model.reading import ReadingOptions

    plan = plan_reading(checkpoint, ReadingOptions(readout=readout))
    if plan.tokenizer.template is not None:
        problem = (
            "the readout prompt needs a text in a template, and distill-static encodes "
            "single tokens"
        )
        raise UsageError(problem, advice="use another --readout")
    if len(plan.readouts) > 1:
        raise UsageError("distill-static accepts only one readout; --readout has several")
    if plan.declared_steps[-1:] == ("normalise",):
        plan = replace(plan, declared_steps=plan.declared_steps[:-1])
    return plan


def made_by(checkpoint: "Checkpoint", paths: Sequence[str]) -> dict[str, Any]:
    """The command for sentkit.json, with the files of its texts and the versions."""
    from sentkit.formats.checkpoints.command_record import command_record, inputs_of

    inputs = inputs_of({"FILE": paths, "-m": checkpoint.name})
    versions = {"sentkit": version_of("sentkit"), "torch": version_of("torch")}
    return {**command_record(typed_words(), inputs, checkpoint), "made_with": versions}


def count_tokens(
    inputs: "Inputs", tokenizer: "Tokenizer", progress: RowProgress
) -> "tuple[int, NDArray[np.int64]]":
    """Return the number of rows, and how often each token occurs in their texts, (v,)."""
    import numpy as np

    from sentkit.formats.files import text_of_paths
    from sentkit.formats.rows.kinds import TextParser
    from sentkit.formats.rows.rows import lists_of_size
    from sentkit.formats.vectors.store import common_field_names
    from sentkit.model.static.distillation import vocabulary_size

    size = vocabulary_size(tokenizer)
    counts = np.zeros(size, np.int64)
    rows = 0
    progress.share = inputs.counter.share
    texts_of_rows = inputs.read(TextParser(common_field_names(inputs)))
    for block in lists_of_size(texts_of_rows, ROWS_PER_BLOCK):
        ids_of_texts = tokenizer.alone([text for texts in block for text in texts])
        ids = np.fromiter(chain.from_iterable(ids_of_texts), np.int64)
        counts += np.bincount(ids, minlength=size)
        rows += len(block)
        progress.add(len(block), len(ids))
    if not counts.any():
        raise DataError("the texts have no tokens", source=text_of_paths(inputs.paths))
    return rows, counts


def encode_vocabulary(
    encoder: "TransformerEncoder", tokenizer: "Tokenizer", progress: TaskProgress
) -> "NDArray[np.float32]":
    """Return the vector of each token alone, (v, d)."""
    import numpy as np

    from sentkit.model.encoding import apply_steps
    from sentkit.model.static.distillation import token_batches

    batches = list(token_batches(tokenizer))
    progress.begin(len(batches))
    vectors_of_batches = []
    for arrays in encoder.encode(batches):
        [vectors_of_batch] = apply_steps(arrays, encoder.steps)  # of the one readout
        vectors_of_batches.append(vectors_of_batch)
        progress.add()
    vectors = np.concatenate(vectors_of_batches)
    if not np.isfinite(vectors).all():
        raise DataError(
            "the vectors of tokens contain NaN or infinity", source=encoder.checkpoint.name
        )
    return vectors
