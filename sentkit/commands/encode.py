"""`sentkit encode`: a vector for every row."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sentkit.console import Console, RowProgress
from sentkit.flags import options, words_of
from sentkit.flags.encode import FolderFlags, LongTextFlags, ReuseFlags
from sentkit.flags.rows import TextFlags
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from sentkit.formats.rows.kinds import TextParser
    from sentkit.formats.rows.rows import Inputs
    from sentkit.model.encoding import RowGroup, Tally, TokenEncoder
    from sentkit.model.writing import Encoding

GRACE = 10.0  # seconds to finish a block after a signal


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
    run: options.RunFlags,
) -> None:
    """Add a vector to every row.

    Flags:
      --batch-tokens N: Tokens per batch. [default: by device]
      -n, --dry-run: Only count rows; estimate tokens, bytes, time and memory.
    """
    # Each thread computes batches of its own, so an operation of numpy or torch has one thread.
    own_threads, precision, products = folder.recorded(output, machine.precision)
    limit_threads(threads or own_threads, of_libraries=1)
    from sentkit.formats.rows.kinds import FIELDS, TextParser
    from sentkit.formats.vectors.sinks import output_paths
    from sentkit.formats.vectors.store import Store, common_fields, is_store
    from sentkit.model import find_encoder
    from sentkit.model.encoding import tokenized_groups, whole_if_small
    from sentkit.model.writing import Encoding

    console = run.console("encode")
    in_folder = folder.applies_to(output)
    with stopping(console, output, active=in_folder and not dry_run) as check_stop:
        text_model = find_encoder(
            model,
            reading.options(),
            device=folder.parsed_shard().device(machine.device),
            precision=machine.precision,
            **reuse.recorded(precision, products),
        )
        report_loading(text_model.name, text_model.notes, console)
        to_folder = in_folder and not folder.is_sweep(output, text_model)
        form = output.form(replace=replace)
        paths = [output.path]
        if not to_folder:
            paths = output_paths(output.path, text_model.readouts, form, force=form.force or dry_run)
        plain_tokenizer, windows = long_texts.tokenizer_of(text_model)
        with row_flags.open(
            console,
            output,
            known=FIELDS,
            reads={"-m": options.model_paths(model), "--reuse": reuse.others(output)},
            writes={"-o": paths},
            append=to_folder,
        ) as inputs:
            texts = TextParser(
                common_fields(inputs),
                one_text="a chunk" if long_texts.chunks else None,
                prompts=text_model.sides,
            )
            old, encoder, tokenizer = reuse.open(text_model, plain_tokenizer, windows, output, console)
            groups: Iterator[RowGroup] = iter(())
            tokens = None
            if not (to_folder or dry_run):  # these read the rows themselves
                refuses = long_texts.refuses
                groups = tokenized_groups(
                    inputs.blocks(texts), tokenizer, inputs.rejects, refuse_truncation=refuses
                )
                if encoder is None:  # old and new vectors have the same precision
                    groups, tokens = whole_if_small(groups)
            encoder = encoder or text_model.encoder(tokens)
            encoding = Encoding(
                encoder,
                tokenizer,
                fields=texts.fields,
                budget=batch_tokens or encoder.budget,
                form=form,
                refuse_truncation=long_texts.refuses,
                marks=long_texts.marks,
                windows=windows,
                sides=text_model.sides,
                encoded={path for path in inputs.paths if is_store(path) and Store(path).emb},
                old=old,
            )
            progress = RowProgress(console, inputs=inputs)
            if dry_run:
                print_plan(inputs, texts, encoding, output.path, folder if to_folder else None, progress)
                return
            report_spaces(encoder, console)
            if to_folder:
                work = output.path, encoding, inputs, batch_tokens, progress, check_stop
                command = ["-m", model, *words_of(reading), *words_of(long_texts)]
                tally = write_folder(folder, *work, row_flags, command, update=reuse.updates(output))
            else:
                tally = encoding.to_outputs(groups, texts, paths, progress.add, inputs.rejects)
    progress.done()
    if tally.rows or not to_folder:
        report_totals(tally, encoding, progress)


@contextmanager
def stopping(console: Console, output: options.OutputFlags, *, active: bool) -> Iterator[Callable[[], None]]:
    """Yield a function that stops the command after a signal. A slow block is dropped.

    Without a vector folder (`active`), the message about the signal names it as a way to keep the work.
    """
    if not active:
        try:
            yield lambda: None
        except (KeyboardInterrupt, SystemExit) as error:
            if output.path != "-":
                error.add_note("with -o DIR/, complete blocks are kept, and --resume continues")
            raise
        return
    from sentkit.process import RESUME, Interrupted, Stopped, handle_signals

    def check() -> None:
        if stop.requested:
            raise Stopped("stopped by a signal", advice=RESUME)

    with handle_signals(
        lambda: console.say("finishing the block; Ctrl-C again to exit at once"), GRACE
    ) as stop:
        try:
            yield check
        except Interrupted as error:
            raise Stopped("stopped by a signal; an incomplete block is lost", advice=RESUME) from error


def write_folder(
    flags: FolderFlags,
    path: str,
    encoding: "Encoding",
    inputs: "Inputs",
    batch_tokens: int | None,
    progress: RowProgress,
    check_stop: Callable[[], None],
    row_flags: TextFlags,
    words: Sequence[str],
    *,
    update: bool,
) -> "Tally":
    """Write the blocks of a shard, and return the counts of the rows that were written.

    With `update`, the folder exists and gets other inputs. `words` are flags that the card shows.
    """
    from sentkit.formats.outputs.uploads import open_outbox
    from sentkit.formats.vectors.folder_check import publish_update, write_card
    from sentkit.model.writing import BlockWriter

    console, shard, name = progress.console, flags.parsed_shard(), path.rstrip("/") or "/"
    with open_outbox(name, shard.count) as outbox:
        writer = BlockWriter(
            name,
            encoding,
            inputs,
            shard.has,
            block_bytes=flags.size,
            batch_tokens=batch_tokens,
            update=update,
            resume=flags.resume,
            shared=flags.shard is not None,
            outbox=outbox,
        )
        console.warn(*writer.warnings())
        if outbox is not None and outbox.is_new:
            console.report(f"{name} is a new private repository")
        total, old, folder = writer.count(), encoding.old, writer.folder
        progress.share = lambda rows: writer.done / total if total else None
        writer.run(progress.add, check_stop)
    part = f"shard {shard}: " if shard.count > 1 else ""
    copied = "" if old is None else f", copied: {writer.copied}"
    counts = f"blocks written: {writer.written}{copied}, already complete: {writer.kept}"
    console.report(part + ("no block belongs to it" if total == 0 and part else counts))
    if old is not None and not part and not writer.kept:
        old.count_unneeded()  # before the old folder is replaced
    if update and folder.path != name and not publish_update(folder, name):
        console.report(f"{name} is replaced by {folder.path} when the other shards are complete")
    files = row_flags.files or ["-"]
    fields = [*words_of(row_flags, but=("files", "rejects")), *words_of(flags, but=("resume", "shard"))]
    command = ["encode", *files[:4], *["..."] * (len(files) > 4), *words, *fields, "-o", path]
    if outbox is not None and write_card(name, command):
        console.report(f"{name} is complete")
    return writer.tally


def print_plan(
    inputs: "Inputs",
    texts: "TextParser",
    encoding: "Encoding",
    path: str,
    folder: FolderFlags | None,
    progress: RowProgress,
) -> None:
    """Print the plan of --dry-run: a JSON object, or a table on a terminal."""
    from sentkit.model.encoding_plan import plan_of, rows_of_blocks

    blocks: list[Any] | None = None
    rows = inputs.blocks(texts)
    if folder is not None:
        own = folder.size, folder.parsed_shard().has, folder.resume
        rows, blocks = rows_of_blocks(inputs, texts, path, *own)
    record = plan_of(rows, encoding, inputs.rejects, path, progress.add)
    progress.done()
    if blocks is not None:
        record["blocks"] = len(blocks)
    pairs = [(name, "unknown" if value is None else f"{value:,}") for name, value in record.items()]
    options.ReportFlags().write(record, pairs)


def report_loading(name: str, notes: Iterable[str], console: Console) -> None:
    """Print notes before torch is imported, which takes one or two seconds."""
    console.note(f"loading {name}")
    console.warn(*notes)


def report_spaces(encoder: "TokenEncoder", console: Console) -> None:
    console.warn(*encoder.notes)
    spaces = ", ".join(spec.emb for spec in encoder.specs[:3]) + (" ..." if len(encoder.specs) > 3 else "")
    console.note(f"{spaces}: {encoder.width} numbers, {encoder.device}, {encoder.precision}")
    for choice in getattr(encoder, "choices", ()):
        console.note(choice)


def report_totals(tally: "Tally", encoding: "Encoding", progress: RowProgress) -> None:
    """Print the counts of rows."""
    console, windows, old = progress.console, encoding.windows, encoding.old
    if windows:
        split = f"{tally.split} of {tally.rows} rows were split"
        if tally.windows:
            split += f" into {tally.windows} windows"
        if windows["chunks"]:
            split += f", {tally.texts} rows were written"
        console.report(f"{split} (--window {windows['window']}:{windows['stride']})")
    report_work(tally, encoding.encoder, progress)
    if old is not None:
        unneeded = "" if old.unneeded is None else f", no longer needed: {old.unneeded:,}"
        encoded = tally.rows - tally.reused
        console.report(f"reused rows: {tally.reused:,}, encoded: {encoded:,}{unneeded}")


def report_work(tally: "Tally", encoder: "TokenEncoder", progress: RowProgress) -> None:
    """Print the remarks of the encoder, and with -v the share of the time in which it worked."""
    progress.console.warn(*encoder.remarks(tally))
    seconds = max(progress.clock() - progress.start, 1e-9)
    busy = tally.seconds / (seconds * max(1, encoder.groups_at_once))
    progress.console.note(f"the model worked {100 * min(1.0, busy):.0f} % of {seconds:.1f} s")
