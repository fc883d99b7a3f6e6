"""`sentkit encode`: a vector for every row."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sentkit.console import Console, RowProgress
from sentkit.flags import options
from sentkit.flags.encode import FolderFlags, LongTextFlags, ReuseFlags, recorded_threads, repeated
from sentkit.flags.rows import TextFlags
from sentkit.process import limit_threads, typed_words

if TYPE_CHECKING:
    from sentkit.formats.rows.rows import Inputs
    from sentkit.model.encoding import RowGroup, Tally
    from sentkit.model.writing import Encoding


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
    made = folder.made(output)
    # Each thread computes batches of its own, so an operation of numpy or torch has one thread.
    limit_threads(threads or recorded_threads(made), of_libraries=1)
    from sentkit.formats.rows.kinds import FIELDS, TextParser
    from sentkit.formats.vectors.sinks import output_paths
    from sentkit.formats.vectors.store import Store, common_fields, is_store
    from sentkit.model import find_encoder
    from sentkit.model.encoding import tokenized_groups, whole_if_small
    from sentkit.model.writing import Encoding

    in_folder = folder.applies_to(output)
    shard = folder.parsed_shard()
    with folder.stopping(console, output.path, active=in_folder and not dry_run) as check_stop:
        device, of_old = shard.device(machine.device), repeated(made or reuse.made(), machine.precision)
        found = find_encoder(model, reading.options(), device=device, precision=machine.precision, **of_old)
        console.loading(found.name, found.notes)
        in_folder = in_folder and not folder.is_sweep(output, found)
        form, paths = output.vectors(replace=replace), [output.path]
        if not in_folder:
            paths = output_paths(output.path, found.readouts, form, force=form.force or dry_run)
        tokenizer, windows = long_texts.tokenizer_of(found)
        reads = {"-m": options.model_paths(model), "--reuse": reuse.others(output)}
        with row_flags.open(
            console, output, known=FIELDS, reads=reads, writes={"-o": paths}, append=in_folder
        ) as inputs:
            one_text = "a chunk" if windows.get("chunks") else None
            texts = TextParser(common_fields(inputs), one_text=one_text, prompts=found.sides)
            groups: Iterator[RowGroup] = iter(())
            tokens, rows, on_truncate = None, inputs.blocks(texts), long_texts.on_truncate
            if not (in_folder or dry_run):  # these read the rows themselves
                groups = tokenized_groups(rows, tokenizer, inputs.rejects, on_truncate=on_truncate)
                if not reuse.reuse:  # old and new vectors have the same precision
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
                encoded={path for path in inputs.paths if is_store(path) and Store(path).emb},
                old=reuse.open(found, encoder, windows, output, console),
            )
            progress = RowProgress(console, inputs=inputs)
            if dry_run:
                print_plan(folder if in_folder else None, output.path, encoding, inputs, progress)
                return
            console.loaded(encoder)
            if in_folder:
                work = encoding, inputs, progress, check_stop
                tally = write_folder(folder, output.path, *work, update=reuse.updates(output))
            else:
                tally = encoding.to_outputs(groups, paths, progress.add, inputs.rejects)
    progress.done()
    if tally.rows or not in_folder:
        progress.encoded(tally, encoder)
        console.report(*encoding.counts(tally))


def print_plan(
    folder: FolderFlags | None, path: str, encoding: "Encoding", inputs: "Inputs", progress: RowProgress
) -> None:
    """Print the plan of --dry-run: a JSON object, or a table on a terminal."""
    from sentkit.model.writing import plan_of

    texts = encoding.texts
    parts = [inputs.blocks(texts)] if folder is None else folder.parts(inputs, texts, path)
    plan = plan_of(parts, encoding, inputs.rejects, path, progress.add)
    progress.done()
    if folder is None:
        del plan["blocks"]
    options.ReportFlags().write(plan)


def write_folder(
    flags: FolderFlags,
    path: str,
    encoding: "Encoding",
    inputs: "Inputs",
    progress: RowProgress,
    check_stop: Callable[[], None],
    *,
    update: bool,
) -> "Tally":
    """Write the blocks of a shard, and return the counts of the rows that were written.

    With `update`, the folder exists and gets other inputs.
    """
    from sentkit.formats.outputs.uploads import open_outbox
    from sentkit.formats.vectors.folder_check import publish_update, write_card
    from sentkit.model.blocks import BlockWriter

    console, shard, name = progress.console, flags.parsed_shard(), path.rstrip("/") or "/"
    with open_outbox(name, shard.count) as outbox:
        wanted, how = shard.has if flags.shard else None, {"update": update, "resume": flags.resume}
        writer = BlockWriter(name, encoding, inputs, wanted, outbox, block_bytes=flags.size, **how)
        if outbox is not None and outbox.is_new:
            console.report(f"{name} is a new private repository")
        progress.share = writer.share
        writer.run(progress.add, check_stop)
    console.report(writer.counts(f"shard {shard}: " if shard.count > 1 else ""))
    if encoding.old is not None and shard.count == 1 and not writer.kept:
        encoding.old.count_unneeded()  # before the old folder is replaced
    if update and writer.folder.path != name and not publish_update(writer.folder, name):
        console.report(f"{name} is replaced by {writer.folder.path} when the other shards are complete")
    if outbox is not None and write_card(name, typed_words()):
        console.report(f"{name} is complete")
    return writer.tally
