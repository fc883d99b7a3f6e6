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
    from sentkit.formats.checkpoints.folders import Checkpoint
    from sentkit.formats.rows.kinds import EntryParser
    from sentkit.formats.rows.rows import Rejects
    from sentkit.model.encoding import RowGroup
    from sentkit.model.reading import Reading
    from sentkit.model.text.tokenizer import OneToken
    from sentkit.model.transformer.encoder import TransformerEncoder
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

    \b
    Examples:
      sentkit build-entries words.tsv -m BASE --readout cls -o entries.safetensors
      sentkit build-entries dict.jsonl --field entry=word --words-only -o w.jsonl

    Most used: [FILE]... -m --readout --words-only --field -o

    A row has "entry", a word or a phrase, and "definition". Other fields are dropped.
    The rows of an entry may be anywhere in the files. The output has one row per entry,
    in the order of their first rows, with "entry", "definitions" (their number) and
    "embedding", the average of the vectors of its definitions. Every definition counts
    the same, regardless of length. --max-length is that of the model by default. The
    vectors are of the space of `sentkit encode` with the same readout, so the averages
    can be compared with its vectors.

    The command needs 8 bytes of memory for each number of each entry (0.9 GB for
    150,000 entries of 768 numbers), regardless of the number of definitions.

    Flags:
      --words-only: Leave out entries that are not a single token of the model.
    """
    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.formats.rows.kinds import EntryParser
    from sentkit.formats.vectors.store import common_fields
    from sentkit.model.encoding import Tally, encode_groups, tokenized_groups
    from sentkit.model.text.tokenizer import OneToken
    from sentkit.model.transformer.encoder import TransformerEncoder
    from sentkit.transforms.averages import Averages

    console = run.console("build-entries")
    progress, tally = RowProgress(console), Tally()
    checkpoint = read_checkpoint(model)
    plan = plan_entries(checkpoint, reading)
    report_loading(checkpoint.name, plan.notes(checkpoint.name), console)
    output.form().check(output.path)
    output.check_creatable()
    with row_flags.open(
        console, output, known=EntryParser.FIELDS, reads={"-m": options.model_paths(model)}
    ) as inputs:
        progress.share = inputs.meter.share
        parser = EntryParser(common_fields(inputs))
        rows, words = inputs.blocks(parser), OneToken(plan.tokenizer, parser.entry)
        groups = tokenized_groups(
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
    progress.done()
    warn_left_out(words, console)
    report_work(tally, encoder, progress)
    write_entries(
        averages,
        output,
        spec_of(encoder, definitions=tally.rows, words_only=words_only),
    )


def plan_entries(checkpoint: "Checkpoint", flags: options.ReadoutFlags) -> "Reading":
    """Plan a single readout. The default length is the maximum of the encoder, not that of the checkpoint."""
    from sentkit.model.reading import most_tokens, plan_reading

    length = flags.max_length or most_tokens(checkpoint.config, checkpoint.config_file)
    reading = plan_reading(checkpoint, replace(flags, max_length=length).options())
    if len(reading.readouts) > 1:
        raise UsageError("build-entries accepts only one readout; --readout has several")
    return reading


def add(group: "RowGroup", parser: "EntryParser", averages: "Averages", rejects: "Rejects") -> None:
    """Add the vector of each definition to the average of its entry."""
    from sentkit.formats.vectors.sinks import refuse_not_finite

    [vectors] = group.vectors  # (n, 1, d), of the only readout
    refuse_not_finite(group.rows, vectors)
    for places in rejects.good_places(group.rows):
        own = group.take(places)
        for row, vector in zip(own.rows, own.vectors[0], strict=True):
            averages.add(parser.entry(row), vector[0])


def warn_left_out(words: "OneToken", console: Console) -> None:
    if words.left_out:
        console.warn(f"{words.left_out} of {words.rows} rows skipped: the entry is not a single token")


def spec_of(encoder: "TransformerEncoder", *, definitions: int, words_only: bool) -> dict[str, Any]:
    """The origin of the entries, for the training of another model on them."""
    from sentkit.formats.files import readable

    checkpoint = encoder.checkpoint
    note = {
        "definitions": definitions,
        "words_only": words_only,
        "family": checkpoint.config.get("model_type"),
        "parents": [readable(name) for name in (checkpoint.name, *checkpoint.parents)],
    }
    return {**encoder.specs[0].full, "entries": note}


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
