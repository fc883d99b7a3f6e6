"""`sentkit build-entries`: a vector for every entry of a dictionary."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sentkit.commands.encode import report_loading, report_spaces, report_work
from sentkit.console import Console, RowProgress
from sentkit.errors import NoRowsError, UsageError
from sentkit.flags import options
from sentkit.flags.rows import RowFlags

if TYPE_CHECKING:
    from sentkit.formats.rows.kinds import EntryParser
    from sentkit.formats.rows.rows import Rejects
    from sentkit.model.text.groups import Done
    from sentkit.model.text.tokenizer import OneToken
    from sentkit.transforms.averages import Averages


def build_entries(
    *,
    model: str = "nano",
    reading: options.ReadoutFlags,
    words_only: bool = False,
    on_truncate: options.OnTruncate = "warn",
    machine: options.ExactMachineFlags,
    output: options.VectorOutputFlags,
    row_flags: RowFlags,
    run: options.RunFlags,
) -> None:
    """Average the vectors of the definitions of each entry.

    Flags:
      --words-only: Leave out entries that are not a single token of the model.
    """
    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.formats.files import readable
    from sentkit.formats.rows.kinds import EntryParser
    from sentkit.formats.vectors.store import common_fields
    from sentkit.model.encoding import encode_groups
    from sentkit.model.reading import most_tokens, plan_reading
    from sentkit.model.text.groups import Tally, prepare
    from sentkit.model.text.tokenizer import OneToken
    from sentkit.model.transformer.encoder import TransformerEncoder
    from sentkit.transforms.averages import Averages

    console = run.console("build-entries")
    tally = Tally()
    checkpoint = read_checkpoint(model)
    # The default length is the maximum of the encoder, not that of the checkpoint.
    length = reading.max_length or most_tokens(checkpoint.config, checkpoint.config_file)
    plan = plan_reading(checkpoint, replace(reading, max_length=length).options())
    if len(plan.readouts) > 1:
        raise UsageError("build-entries accepts only one readout; --readout has several")
    report_loading(checkpoint.name, plan.notes(checkpoint.name), console)
    output.form().check(output.path)
    output.check_creatable()
    with row_flags.open(
        console, output, known=EntryParser.FIELDS, reads={"-m": options.model_paths(model)}
    ) as inputs:
        progress = RowProgress(console, inputs=inputs)
        parser = EntryParser(common_fields(inputs))
        rows, words = inputs.blocks(parser), OneToken(plan.tokenizer, parser.entry)
        groups = prepare(
            words.among(rows) if words_only else rows,
            plan.tokenizer,
            inputs.rejects,
            refuse_truncation=on_truncate == "error",
        )
        encoder = TransformerEncoder(checkpoint, plan, device=machine.device, precision=machine.precision)
        report_spaces(encoder, console)
        averages = Averages(encoder.width)
        for group in encode_groups(groups, encoder, encoder.budget):
            add(group, parser, averages, inputs.rejects)
            progress.skipped = words.left_out
            progress.add(len(group.rows), tally.add(group))
        if not averages:
            warn_left_out(words, console)
            raise NoRowsError(inputs.paths)
    warn_left_out(words, console)
    report_work(tally, encoder, progress)
    note = {  # for the training of another model on the entries
        "definitions": tally.rows,
        "words_only": words_only,
        "family": checkpoint.config.get("model_type"),
        "parents": [readable(name) for name in (checkpoint.name, *checkpoint.parents)],
    }
    write_entries(averages, output, {**encoder.specs[0].full, "entries": note})


def add(group: "Done", parser: "EntryParser", averages: "Averages", rejects: "Rejects") -> None:
    """Add the vector of each definition to the average of its entry."""
    from sentkit.formats.vectors.sinks import refuse_not_finite

    [vectors] = group.vectors  # (n, 1, d), of the only readout
    refuse_not_finite(group.rows, vectors)
    for places in rejects.sift(group.rows):
        own = group.take(places)
        for row, vector in zip(own.rows, own.vectors[0], strict=True):
            averages.add(parser.entry(row), vector[0])


def warn_left_out(words: "OneToken", console: Console) -> None:
    if words.left_out:
        console.warn(f"{words.left_out} of {words.rows} rows skipped: the entry is not a single token")


def write_entries(averages: "Averages", output: options.VectorOutputFlags, spec: Mapping[str, Any]) -> None:
    import numpy as np

    from sentkit.formats.rows.block import made_block
    from sentkit.formats.rows.kinds import SENTENCE
    from sentkit.formats.rows.rows import blocks
    from sentkit.formats.vectors.sinks import open_sinks

    names, width = SENTENCE.vectors, averages.width
    with open_sinks([output.path], [spec], names, width, output.form()) as [sink]:
        number = 1
        for part in blocks(averages, 1024):
            values = [{"entry": name, "definitions": count} for name, count, _ in part]
            numbers = [*range(number, number + len(part))]
            rows = made_block(values, output.path, numbers, [b""] * len(part))
            sink.put(rows, np.stack([mean for *_, mean in part])[:, None])
            number += len(part)
        sink.flush()
