"""`sentkit build-entries`: a vector for every entry of a dictionary."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from sentkit.console import Console, RowProgress
from sentkit.errors import NoRowsError, UsageError
from sentkit.flags import options
from sentkit.flags.outputs import Output, model_paths
from sentkit.flags.rows import RowSource, input_paths

if TYPE_CHECKING:
    from sentkit.formats.rows.kinds import EntryParser
    from sentkit.formats.rows.rows import Rejects
    from sentkit.model.groups import RowGroup

ENTRIES_PER_BLOCK = 1024


def build_entries(
    *,
    model: options.Model = "nano",
    readout: options.Readout = None,
    max_length: options.MaxLength = None,
    words_only: Annotated[
        bool,
        Option("--words-only", help="Leave out entries that are not a single token of the model."),
    ] = False,
    on_truncate: options.OnTruncate = "warn",
    precision: options.PrecisionOfFloats = "fp32",
    device: options.Device = "auto",
    output_path: options.Output = "-",
    force: options.Force = False,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.Files = None,
    console: Console,
) -> None:
    """Average the vectors of the definitions of each entry."""
    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.formats.files import shown_path
    from sentkit.formats.rows.kinds import EntryParser
    from sentkit.formats.vectors.store import common_field_names
    from sentkit.model.checkpoint_reading import most_tokens, plan_reading
    from sentkit.model.encoding import encode_groups
    from sentkit.model.groups import EncodeStats, tokenized_groups
    from sentkit.model.reading import ReadingOptions
    from sentkit.model.text.tokenizer import OneToken
    from sentkit.model.transformer.encoder import TransformerEncoder

    output = Output(output_path, force)
    checkpoint = read_checkpoint(model)
    # The default length is the maximum of the encoder, not that of the checkpoint.
    length = max_length or most_tokens(checkpoint.config, checkpoint.config_file)
    plan = plan_reading(checkpoint, ReadingOptions(readout=readout, max_length=length))
    if len(plan.readouts) > 1:
        raise UsageError("build-entries accepts only one readout; --readout has several")
    console.loading(checkpoint.name, plan.notes(checkpoint.name))
    output.vectors().check(output.path)
    output.check_creatable()

    rows = RowSource(input_paths(files), field, rejects)
    reads = {"-m": model_paths(model)}
    with rows.open(console, output, field_names=EntryParser.FIELDS, reads=reads) as inputs:
        # Rows of definitions, then their tokens.
        progress = RowProgress(console, inputs=inputs)
        parser = EntryParser(common_field_names(inputs))
        blocks = inputs.blocks(parser)
        words = OneToken(plan.tokenizer, parser.entry)
        if words_only:
            blocks = words.among(blocks)
        groups = tokenized_groups(blocks, plan.tokenizer, inputs.rejects, on_truncate=on_truncate)

        # The sum of the vectors of each entry.
        encoder = TransformerEncoder(checkpoint, plan, device=device, precision=precision)
        console.loaded(encoder)
        stats = EncodeStats(truncation_advice="--on-truncate error refuses them")
        sums = dict[str, Any]()
        counts = Counter[str]()
        for group in encode_groups(groups, encoder, encoder.tokens_per_batch):
            add_vectors(group, parser, sums, counts, inputs.rejects)
            progress.skipped = words.left_out
            progress.add(len(group.rows), stats.add(group))
        if words.left_out:
            problem = f"{words.left_out} of {words.rows} rows skipped"
            console.warn(f"{problem}: the entry is not a single token")
        if not sums:
            raise NoRowsError(inputs.paths)
    progress.encoded(stats, encoder)

    note = {  # for the training of another model on the entries
        "definitions": counts.total(),
        "words_only": words_only,
        "family": checkpoint.config.get("model_type"),
        "parents": [shown_path(name) for name in (checkpoint.name, *checkpoint.parents)],
    }
    write_entries(
        sums, counts, output, {**encoder.spaces[0].full_metadata, "entries": note}, encoder.width
    )


def add_vectors(
    group: "RowGroup",
    parser: "EntryParser",
    sums: dict[str, Any],
    counts: Counter[str],
    rejects: "Rejects",
) -> None:
    """Add the vector of each definition to the sum of its entry, in float64."""
    from sentkit.formats.vectors.vectors import refuse_not_finite

    [vectors] = group.vectors  # (n, 1, d), of the only readout
    refuse_not_finite(group.rows, vectors)
    for indices in rejects.good_indices(group.rows):
        good = group.take(indices)
        for row, vector in zip(good.rows, good.vectors[0], strict=True):
            entry = parser.entry(row)
            sums[entry] = sums.get(entry, 0.0) + vector[0].astype("f8")
            counts[entry] += 1


def write_entries(
    sums: dict[str, Any], counts: Counter[str], output: Output, spec: Any, width: int
) -> None:
    """Write the average of each entry, in the order of first occurrence."""
    import numpy as np

    from sentkit.formats.rows.block import block_of_values
    from sentkit.formats.rows.kinds import SENTENCE
    from sentkit.formats.rows.rows import lists_of_size
    from sentkit.formats.vectors.writers import open_writers

    first_number = 1
    with open_writers([output.path], [spec], SENTENCE.vector_names, width, output.vectors()) as [
        sink
    ]:
        for entries in lists_of_size(sums.items(), ENTRIES_PER_BLOCK):
            values = [{"entry": name, "definitions": counts[name]} for name, _ in entries]
            numbers = list(range(first_number, first_number + len(entries)))
            rows = block_of_values(values, output.path, numbers, [b""] * len(entries))
            means = np.stack([total / counts[name] for name, total in entries])  # (n, d)
            sink.put(rows, means.astype(np.float32)[:, None])
            first_number += len(entries)
        sink.flush()
