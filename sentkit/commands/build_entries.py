"""`sentkit build-entries`: a vector for every entry of a dictionary."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sentkit.console import Console, RowProgress
from sentkit.errors import NoRowsError, UsageError
from sentkit.flags import options
from sentkit.flags.rows import RowFlags

if TYPE_CHECKING:
    from sentkit.formats.rows.kinds import EntryParser
    from sentkit.formats.rows.rows import Rejects
    from sentkit.model.encoding import RowGroup


def build_entries(
    *,
    model: str = "nano",
    reading: options.ReadoutFlags,
    words_only: bool = False,
    on_truncate: options.OnTruncate = "warn",
    machine: options.ExactMachineFlags,
    output: options.OutputFlags,
    row_flags: RowFlags,
    console: Console,
) -> None:
    """Average the vectors of the definitions of each entry.

    Flags:
      --words-only: Leave out entries that are not a single token of the model.
    """
    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.formats.files import readable
    from sentkit.formats.rows.kinds import EntryParser
    from sentkit.formats.vectors.store import common_fields
    from sentkit.model.checkpoint_reading import most_tokens, plan_reading
    from sentkit.model.encoding import Tally, encode_groups, tokenized_groups
    from sentkit.model.text.tokenizer import OneToken
    from sentkit.model.transformer.encoder import TransformerEncoder

    tally = Tally()
    checkpoint = read_checkpoint(model)
    # The default length is the maximum of the encoder, not that of the checkpoint.
    length = reading.max_length or most_tokens(checkpoint.config, checkpoint.config_file)
    plan = plan_reading(checkpoint, replace(reading, max_length=length).options())
    if len(plan.readouts) > 1:
        raise UsageError("build-entries accepts only one readout; --readout has several")
    console.loading(checkpoint.name, plan.notes(checkpoint.name))
    output.vectors().check(output.path)
    output.check_creatable()
    with row_flags.open(
        console, output, known=EntryParser.FIELDS, reads={"-m": options.model_paths(model)}
    ) as inputs:
        progress = RowProgress(console, inputs=inputs)
        parser = EntryParser(common_fields(inputs))
        rows, words = inputs.blocks(parser), OneToken(plan.tokenizer, parser.entry)
        groups = tokenized_groups(
            words.among(rows) if words_only else rows, plan.tokenizer, inputs.rejects, on_truncate=on_truncate
        )
        encoder = TransformerEncoder(checkpoint, plan, device=machine.device, precision=machine.precision)
        console.loaded(encoder)
        sums, counts = dict[str, Any](), Counter[str]()
        for group in encode_groups(groups, encoder, encoder.budget):
            add(group, parser, sums, counts, inputs.rejects)
            progress.skipped = words.left_out
            progress.add(len(group.rows), tally.add(group))
        if words.left_out:
            problem = f"{words.left_out} of {words.rows} rows skipped"
            console.warn(f"{problem}: the entry is not a single token")
        if not sums:
            raise NoRowsError(inputs.paths)
    progress.encoded(tally, encoder)
    note = {  # for the training of another model on the entries
        "definitions": tally.rows,
        "words_only": words_only,
        "family": checkpoint.config.get("model_type"),
        "parents": [readable(name) for name in (checkpoint.name, *checkpoint.parents)],
    }
    write_entries(sums, counts, output, {**encoder.specs[0].full, "entries": note}, encoder.width)


def add(
    group: "RowGroup", parser: "EntryParser", sums: dict[str, Any], counts: Counter[str], rejects: "Rejects"
) -> None:
    """Add the vector of each definition to the sum of its entry, in float64."""
    from sentkit.formats.vectors.vectors import refuse_not_finite

    [vectors] = group.vectors  # (n, 1, d), of the only readout
    refuse_not_finite(group.rows, vectors)
    for places in rejects.good_places(group.rows):
        own = group.take(places)
        for row, vector in zip(own.rows, own.vectors[0], strict=True):
            name = parser.entry(row)
            sums[name] = sums.get(name, 0.0) + vector[0].astype("f8")
            counts[name] += 1


def write_entries(
    sums: dict[str, Any], counts: Counter[str], output: options.OutputFlags, spec: Any, width: int
) -> None:
    """Write the average of each entry, in the order of first occurrence."""
    import numpy as np

    from sentkit.formats.rows.block import made_block
    from sentkit.formats.rows.kinds import SENTENCE
    from sentkit.formats.rows.rows import blocks
    from sentkit.formats.vectors.writers import open_writers

    number = 1
    with open_writers([output.path], [spec], SENTENCE.vectors, width, output.vectors()) as [sink]:
        for part in blocks(sums.items(), 1024):
            values = [{"entry": name, "definitions": counts[name]} for name, _ in part]
            rows = made_block(values, output.path, [*range(number, number + len(part))], [b""] * len(part))
            means = np.stack([total / counts[name] for name, total in part])
            sink.put(rows, means.astype(np.float32)[:, None])
            number += len(part)
        sink.flush()
