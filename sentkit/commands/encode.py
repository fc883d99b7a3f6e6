"""`sentkit encode`: a vector for every row."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sentkit.console import Console, RowProgress, in_byte_units, in_clock_time, in_words
from sentkit.flags import options
from sentkit.flags.encode import (
    FolderFlags,
    LongTextFlags,
    ReuseFlags,
    old_vectors,
    recorded_threads,
    repeated,
)
from sentkit.flags.rows import TextFlags
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.vectors.folders import VectorFolder
    from sentkit.model.encoding import RowGroup, Tally
    from sentkit.model.writing import Encoding


# The names of a plan on a terminal, if those of the JSON differ. A useful task writes one block or more.
PLAN_NAMES = {
    "bytes_estimate": "disk",
    "seconds_estimate": "time",
    "memory_estimate": "memory",
    "blocks": "blocks to write",
    "all_blocks": "blocks (useful tasks)",
}


def encode(
    *,
    model: str = "nano",
    reading: options.ReadingFlags,
    long_texts: LongTextFlags,
    machine: options.MachineFlags,
    threads: options.Count = None,
    batch_tokens: options.Count = None,
    dry_run: bool = False,
    output: options.VectorOutputFlags,
    folder: FolderFlags,
    reuse: ReuseFlags,
    replace: bool = False,
    row_flags: TextFlags,
    console: Console,
) -> None:
    """Add a vector to every row.

    Flags:
      --batch-tokens N: Tokens per batch. [default: by device]
      -n, --dry-run: Only count rows; estimate tokens, bytes, time and memory.
    """
    settings = folder.settings(output)
    # Each thread computes batches of its own, so an operation of numpy or torch has one thread.
    limit_threads(threads or recorded_threads(settings), of_libraries=1)
    from sentkit.formats.rows.kinds import FIELDS, TextParser
    from sentkit.formats.vectors.sinks import output_paths
    from sentkit.formats.vectors.store import common_fields, encoded_files
    from sentkit.model import find_encoder
    from sentkit.model.encoding import tokenized_groups, whole_if_small
    from sentkit.model.writing import Encoding

    existing = folder.existing(output, settings)
    in_folder = existing is not None or output.path.endswith("/")
    with folder.stopping(console, output.path, active=in_folder and not dry_run) as check_stop:
        stores = reuse.open(output, row_flags.vector_file)
        found = find_encoder(
            model,
            reading.options(),
            device=folder.parsed_shard().device(machine.device),
            precision=machine.precision,
            **repeated(settings, stores, machine.precision),
        )
        console.loading(found.name, found.notes)
        in_folder = in_folder and not folder.is_sweep(existing, found)
        form, paths = output.vectors(replace=replace), [output.path]
        if not in_folder:
            paths = output_paths(output.path, found.readouts, form, force=form.force or dry_run)
        tokenizer, windows = long_texts.tokenizer_of(found)
        reads = {"-m": options.model_paths(model), "--reuse": reuse.reuse}
        with row_flags.open(
            console, output, known=FIELDS, reads=reads, writes={"-o": paths}, append=in_folder
        ) as inputs:
            one_text = "a chunk" if windows.get("chunks") else None
            texts = TextParser(common_fields(inputs), one_text=one_text, prompts=found.sides)
            groups: Iterator[RowGroup] = iter(())
            tokens, rows, on_truncate = None, inputs.blocks(texts), long_texts.on_truncate
            if not (in_folder or dry_run):  # these read the rows themselves
                groups = tokenized_groups(rows, tokenizer, inputs.rejects, on_truncate=on_truncate)
                if not stores:  # old and new vectors have the same precision
                    groups, tokens = whole_if_small(groups)
            encoder = found.encoder(tokens)
            encoding = Encoding(
                encoder,
                tokenizer,
                texts,
                form,
                batch_tokens=batch_tokens,
                on_truncate=on_truncate,
                windows=windows,
                encoded=encoded_files(inputs),
                old=old_vectors(stores, found, encoder, windows, folder.store(output, existing), console),
            )
            progress = RowProgress(console, inputs=inputs)
            if dry_run:
                print_plan(folder if in_folder else None, existing, output.path, encoding, inputs, progress)
                return
            console.loaded(encoder)
            if in_folder:
                tally = write_folder(folder, output.path, existing, encoding, inputs, progress, check_stop)
            else:
                tally = encoding.to_outputs(groups, paths, progress.add, inputs.rejects)
    progress.done()
    if tally.rows or not in_folder:
        progress.encoded(tally, encoder)
        console.report(*encoding.counts(tally))


def print_plan(
    folder: FolderFlags | None,
    existing: "VectorFolder | None",
    path: str,
    encoding: "Encoding",
    inputs: "Inputs",
    progress: RowProgress,
) -> None:
    """Print the plan of --dry-run: a JSON object, or a table on a terminal.

    `folder` are the flags of a vector folder, and `existing` is this folder if it exists.
    """
    from sentkit.errors import NoRowsError
    from sentkit.model.writing import plan_of

    if folder is None:
        blocks = [inputs.blocks(encoding.texts)]
        plan = plan_of(blocks, encoding, inputs.rejects, path, progress.add)
        del plan["blocks"], plan["all_blocks"]
    else:
        parts = folder.parts(inputs, encoding.texts, existing)
        plan = plan_of(parts, encoding, inputs.rejects, f"{path}/", progress.add)
        whole = not (folder.shard or folder.resume)
        if not plan["all_blocks"] or (whole and not plan["rows"]):
            raise NoRowsError(inputs.paths)
        warn_of_empty_shards(progress.console, plan["all_blocks"], folder.parsed_shard().count)
    progress.done()
    units: dict[str, Callable[[Any], str]] = {
        "bytes_estimate": in_byte_units,
        "memory_estimate": in_byte_units,
        "seconds_estimate": in_clock_time,
    }
    pairs = list[tuple[str, str]]()
    for name, value in plan.items():
        write = units.get(name) if value is not None else None
        shown_name = PLAN_NAMES.get(name, name.replace("_", " "))
        pairs.append((shown_name, write(value) if write else in_words(value, "unknown")))
    options.ReportFlags().write(plan, pairs)


def warn_of_empty_shards(console: Console, blocks: int, shards: int) -> None:
    if blocks < shards:
        have = "has" if shards - blocks == 1 else "have"
        console.warn(f"{shards - blocks} of {shards} shards {have} no block: {few_blocks(blocks)}")


def few_blocks(blocks: int) -> str:
    """The number of blocks, which is too small for the shards, with advice."""
    there = "is" if blocks == 1 else "are"
    return f"there {there} {blocks} (use --shard I/{blocks}, or smaller --block-bytes)"


def write_folder(
    flags: FolderFlags,
    path: str,
    existing: "VectorFolder | None",
    encoding: "Encoding",
    inputs: "Inputs",
    progress: RowProgress,
    check_stop: Callable[[], None],
) -> "Tally":
    """Write the blocks of a shard, and return the counts of the rows that were written.

    `existing` is the folder if it was there when the command began.
    """
    from sentkit.model.blocks import BlockWriter

    shard = flags.parsed_shard()
    writer = BlockWriter(
        path.rstrip("/") or "/",
        encoding,
        inputs,
        shard.has if flags.shard else None,
        block_bytes=flags.size,
        resume=flags.resume,
        existing=existing,
    )
    progress.share = writer.share
    if writer.folder.offsets[-1] == 1 and not writer.existing:
        stopped = f"the input is one block, of up to {in_byte_units(writer.folder.block_bytes)}, so a stop"
        progress.console.note(f"{stopped} loses all of its rows; a smaller --block-bytes keeps more")
    writer.run(progress.add, check_stop)
    counts = writer.counts(f"shard {shard}: " if shard.count > 1 else "")
    if writer.count == 0:
        counts += f": {few_blocks(writer.folder.offsets[-1])}"
    progress.console.report(counts)
    if encoding.old is not None and shard.count == 1 and not writer.kept:
        encoding.old.count_unneeded()
    return writer.tally
