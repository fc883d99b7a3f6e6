"""`sentkit distill-static`: a static model from the token vectors of an encoder."""

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sentkit.commands.export import NewFolderFlags
from sentkit.console import Console, RowProgress, TaskProgress
from sentkit.errors import DataError, UsageError
from sentkit.flags import Range, options
from sentkit.flags.rows import RowFlags
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
    model: str = "nano",
    readout: str | None = None,
    weights: Literal["zipf", "sif", "none"] = "zipf",
    dim: Annotated[int | None, Range(min=1)] = None,
    machine: options.ExactMachineFlags,
    output: NewFolderFlags,
    row_flags: RowFlags,
    console: Console,
) -> None:
    """Make a static model from the token vectors of an encoder.

    Flags:
      --weights: Weights of the tokens: by place in the vocabulary, by frequency in FILE, or none.
      --dim K: Numbers of a vector. [default: 256, or those of the model]
    """
    import numpy as np

    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.formats.checkpoints.writing import new_folder
    from sentkit.formats.files import json_line, readable
    from sentkit.formats.lexicons.model2vec import write_model2vec
    from sentkit.formats.outputs.outputs import open_output
    from sentkit.formats.rows.kinds import FIELDS
    from sentkit.model.static.distillation import sif_weights, token_table, vocabulary_size, zipf_weights
    from sentkit.model.transformer.encoder import TransformerEncoder

    checkpoint = read_checkpoint(model)
    plan = reading_of_tokens(checkpoint, readout)
    console.loading(checkpoint.name, plan.notes(checkpoint.name))
    tokenizer, reads = plan.tokenizer, {"-m": options.model_paths(model)}
    record: dict[str, Any] = {"method": "distill-static", "parents": [checkpoint.name, *checkpoint.parents]}
    if weights == "sif":
        with row_flags.open(console, output, known=FIELDS, reads=reads) as inputs:
            record["rows"], counts = count_tokens(inputs, tokenizer, RowProgress(console))
        factors = sif_weights(counts)
    else:
        if row_flags != RowFlags():
            raise UsageError("FILE and the flags of rows need --weights sif")
        options.check_paths(console, {"-o": output.path}, reads)
        factors = zipf_weights(tokenizer) if weights == "zipf" else np.ones(vocabulary_size(tokenizer))
    with new_folder(Path(output.path), force=output.force) as part:
        encoder = TransformerEncoder(checkpoint, plan, device=machine.device, precision=machine.precision)
        console.loaded(encoder)
        if dim is not None and dim > encoder.width:
            raise UsageError(f"--dim {dim}: the vectors have only {encoder.width} numbers")
        vectors = encode_vocabulary(encoder, tokenizer, TaskProgress(console, "batches"))
        table, warnings = token_table(vectors, factors, dim or min(USUAL_DIM, encoder.width))
        console.warn(*(warnings if dim is not None else ()))
        record |= {"weights": weights, "tokens": len(table), "dim": table.shape[1]}
        write_model2vec(part, table, tokenizer.rules(), record | made_by(checkpoint, row_flags.files))
    with open_output("-", force=False) as out:
        out.write(json_line({"model": readable(output.path), **record}))


def reading_of_tokens(checkpoint: "Checkpoint", readout: str | None) -> "Reading":
    """How single tokens are read: by one readout, without a template, and with vectors of any length."""
    from sentkit.model.checkpoint_reading import plan_reading
    from sentkit.model.reading import ReadingOptions

    plan = plan_reading(checkpoint, ReadingOptions(readout=readout))
    if plan.tokenizer.template is not None:
        problem = "the readout prompt needs a text in a template, and distill-static encodes single tokens"
        raise UsageError(problem, advice="use another --readout")
    if len(plan.readouts) > 1:
        raise UsageError("distill-static accepts only one readout; --readout has several")
    if plan.steps[-1:] == ("normalise",):
        plan = replace(plan, steps=plan.steps[:-1])
    return plan


def made_by(checkpoint: "Checkpoint", texts: list[str] | None) -> dict[str, Any]:
    """The command for sentkit.json, with the versions."""
    from sentkit.formats.checkpoints.command_record import command_record, inputs_of

    inputs = inputs_of({"FILE": texts, "-m": checkpoint.name})
    versions = {"sentkit": version_of("sentkit"), "torch": version_of("torch")}
    return {**command_record(typed_words(), inputs, checkpoint), "made_with": versions}


def count_tokens(
    inputs: "Inputs", tokenizer: "Tokenizer", progress: RowProgress
) -> "tuple[int, NDArray[np.int64]]":
    """Return the number of rows, and how often each token occurs in their texts, (v,)."""
    import numpy as np

    from sentkit.formats.files import together
    from sentkit.formats.rows.kinds import TextParser
    from sentkit.formats.rows.rows import blocks
    from sentkit.formats.vectors.store import common_fields
    from sentkit.model.static.distillation import vocabulary_size

    rows, size, progress.share = 0, vocabulary_size(tokenizer), inputs.counter.share
    counts = np.zeros(size, np.int64)
    for block in blocks(inputs.read(TextParser(common_fields(inputs))), ROWS_PER_BLOCK):
        ids = tokenizer.alone([text for _, texts in block for text in texts])
        numbers = np.fromiter(chain.from_iterable(ids), np.int64)
        counts += np.bincount(numbers, minlength=size)
        rows += len(block)
        progress.add(len(block), len(numbers))
    if not counts.any():
        raise DataError("the texts have no tokens", source=together(inputs.paths))
    return rows, counts


def encode_vocabulary(
    encoder: "TransformerEncoder", tokenizer: "Tokenizer", progress: TaskProgress
) -> "NDArray[np.float32]":
    """Return the vector of each token alone, (v, d)."""
    import numpy as np

    from sentkit.model.encoding import finish
    from sentkit.model.static.distillation import token_batches

    batches = list(token_batches(tokenizer))
    progress.begin(len(batches))
    vectors = []
    for arrays in encoder.encode(batches):
        vectors += finish(arrays, encoder.steps)
        progress.add()
    whole = np.concatenate(vectors)
    if not np.isfinite(whole).all():
        raise DataError("the vectors of tokens contain NaN or infinity", source=encoder.checkpoint.name)
    return whole
