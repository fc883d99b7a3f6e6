"""`sentkit encode`: a vector for every row."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sentkit.console import Console, RowProgress
from sentkit.errors import UsageError
from sentkit.flag_values import Shard, parse_shard, size, window
from sentkit.flags import Needs, options, words_of
from sentkit.flags.rows import TextFlags
from sentkit.process import RESUME, Interrupted, Stopped, handle_signals, limit_threads, most_threads

if TYPE_CHECKING:
    from sentkit.formats.rows.block import RowBlock
    from sentkit.formats.rows.kinds import TextParser
    from sentkit.formats.rows.rows import Inputs
    from sentkit.model import Model
    from sentkit.model.encoding import RowGroup, Tally, TokenEncoder
    from sentkit.model.reuse import OldVectors
    from sentkit.model.text.tokens import TextTokenizer
    from sentkit.model.writing import Encoding

GRACE = 10.0  # seconds to finish a block after a signal


@dataclass(frozen=True)
class FolderFlags:
    """The blocks of a vector folder that a process writes, and earlier outputs whose vectors are copied.

    --resume: With -o DIR/: write only the missing blocks.
    --shard I/N|auto: With -o DIR/: part I of N; auto: of Slurm, torchrun.
    --block-bytes SIZE: With -o DIR/: input of a block. [default: 512K]
    --reuse OLD: Copy vectors of equal texts from a vector file or folder; repeatable. -o OLD/ updates it.
    """

    resume: bool = False
    shard: str | None = None
    block_bytes: str | None = None
    reuse: list[str] | None = None

    def others(self, output: options.OutputFlags) -> list[str]:
        """The paths of --reuse that are not the output."""
        return [path for path in self.reuse or () if not is_same(path, output.path)]

    @property
    def of_blocks(self) -> list[str]:
        """The given flags that need a vector folder."""
        given = {"--resume": self.resume, "--shard": self.shard, "--block-bytes": self.block_bytes}
        return [name for name, value in given.items() if value not in (None, False)]

    def applies_to(self, output: options.OutputFlags) -> bool:
        """Whether the output is a vector folder. Refuses flags that do not fit."""
        from sentkit.formats.urls import is_url
        from sentkit.formats.vectors.folders import is_vector_folder

        if not output.path.endswith("/") and not is_vector_folder(output.path):
            if self.of_blocks:
                raise UsageError(f"{self.of_blocks[0]} needs a vector folder", advice="use -o DIR/")
            return False
        if output.force:
            name = output.path.rstrip("/")
            advice = "--resume writes the missing blocks; to start again, remove it"
            advice += "" if is_url(name) else f": rm -r {quote(name)}"
            raise UsageError(f"--force does not work with a vector folder, {output.path}", advice=advice)
        return True

    def made(self, output: options.OutputFlags) -> Mapping[str, Any]:
        """The record of the encoder in run.json, if it is there. Imports no numpy.

        Other processes repeat what the first one measured, also where other products are faster.
        """
        from sentkit.formats.files import read_object, run_of

        run = run_of(output.path)
        encoder = None if run is None else read_object(run).get("encoder")
        return encoder if isinstance(encoder, dict) else {}

    def reused(self) -> Mapping[str, Any]:
        """The record of the first old vectors, or nothing."""
        from sentkit.formats.vectors.folders import VectorFolder, is_vector_folder
        from sentkit.formats.vectors.store import is_store
        from sentkit.formats.vectors.tensors import read_note

        path = self.reuse[0] if self.reuse else ""
        if not is_store(path):
            return {}
        return VectorFolder(path).settings["encoder"] if is_vector_folder(path) else read_note(path)

    def open_old(
        self,
        model: "Model",
        encoder: "TokenEncoder",
        windows: Mapping[str, Any],
        output: options.VectorOutputFlags,
        console: Console,
    ) -> "OldVectors | None":
        """Open the old vectors that can replace those of the encoder."""
        from sentkit.formats.vectors.folders import VectorFolder, is_vector_folder
        from sentkit.formats.vectors.store import take_snapshot
        from sentkit.model.reuse import OldVectors

        if self.reuse is None:
            return None
        if len(model.readouts) > 1 or model.tokenizer.whole:
            reason = "several readouts" if len(model.readouts) > 1 else model.name
            raise UsageError(f"--reuse cannot be used with {reason}")
        old = VectorFolder(output.path).store if is_vector_folder(output.path) else "float32"
        for path in self.reuse:
            if is_same(path, output.path):
                take_snapshot(path, partial=True)
        spec = {**encoder.specs[0].full, **windows}
        return OldVectors(self.reuse, spec, encoder.width, output.store or old, console.warn)

    @property
    def size(self) -> int | None:
        return None if self.block_bytes is None else size("--block-bytes", self.block_bytes)

    def parts(self, inputs: "Inputs", texts: "TextParser", path: str) -> "Iterator[Iterator[RowBlock]]":
        """The rows of each block that the command would write, of this size or as the folder has it."""
        from sentkit.formats.vectors.folder_check import describe_input
        from sentkit.formats.vectors.folders import BLOCK_BYTES, VectorFolder, is_vector_folder
        from sentkit.model.blocks import rows_of_part

        existing = VectorFolder(path) if is_vector_folder(path) else None
        size = self.size or (existing.block_bytes if existing else BLOCK_BYTES)
        folder = VectorFolder.planned(path, [describe_input(inputs, each) for each in inputs.paths], size)
        done = existing.existing()[0] if existing and self.resume else set()
        for number, each in enumerate(inputs.paths):
            for block, part in folder.parts(inputs, number, each):
                if self.parsed_shard().has(block.index) and block.name not in done:
                    yield rows_of_part(part, inputs, texts)

    def parsed_shard(self) -> Shard:
        return Shard() if self.shard is None else parse_shard(self.shard)

    def is_sweep(self, output: options.OutputFlags, model: "Model") -> bool:
        """Whether DIR/ gets a vector file for each of several readouts. Refuses flags of a vector folder."""
        from sentkit.formats.vectors.folders import is_vector_folder

        if len(model.readouts) > 1 and (self.of_blocks or is_vector_folder(output.path)):
            advice = "run the command once per readout, or use -o DIR"
            raise UsageError("a vector folder has one readout", advice=advice)
        if len(model.readouts) == 1 and model.tokenizer.whole:
            raise UsageError(f"{model.name} needs all rows at once, so it cannot write a vector folder")
        return len(model.readouts) > 1


@dataclass(frozen=True)
class LongTextFlags:
    """What happens to texts that are too long.

    --on-truncate: For too long texts: truncate and count them, also mark each row, fail, or encode
        overlapping windows (window: their mean; chunks: a row for each). late: chunks of the token states of
        the whole text.
    --window N[:STRIDE]: Tokens of a window, and to the next one. [default: the maximum length, half of its
        text]
    """

    on_truncate: Literal["warn", "mark", "error", "window", "chunks", "late"] = "warn"
    window: Annotated[str | None, Needs("--on-truncate window|chunks|late")] = None

    def __post_init__(self) -> None:
        if self.on_truncate == "late" and self.window is None:
            raise UsageError("--on-truncate late needs --window N")

    def tokenizer_of(self, model: "Model") -> "tuple[TextTokenizer, Mapping[str, Any]]":
        """Return the tokenizer of the model, with windows if there are any, and the settings of windows.

        Of a long text, only the start is tokenized if no error or field has the number of its tokens.
        """
        from sentkit.model.checkpoint_model import CheckpointModel
        from sentkit.model.encoding import REFUSING

        if isinstance(model, CheckpointModel):
            model.tokenizer.counts_all = self.on_truncate in ("mark", *REFUSING)
        from sentkit.model.text.tokens import TextTokenizer, TokenizerByPrompt, WindowOptions

        tokenizer: TextTokenizer = model.tokenizer
        record: Mapping[str, Any] = {}
        if self.on_truncate not in ("warn", "mark", "error"):
            size, stride = window(self.window) if self.window else (None, None)
            chunks, late = self.on_truncate != "window", self.on_truncate == "late"
            windows = model.window_tokenizer(WindowOptions(size, stride, chunks, late))
            tokenizer, record = windows, windows.record
        if model.sides:
            return TokenizerByPrompt(tokenizer, model.sides.values()), record
        return tokenizer, record


def is_same(path: str, other: str) -> bool:
    """Whether both paths name one existing folder."""
    return Path(path).is_dir() and Path(other).is_dir() and Path(path).samefile(other)


def recorded_threads(record: Mapping[str, Any]) -> int | None:
    """The threads of earlier vectors; on a smaller machine, the most that it allows."""
    threads = record.get("threads")
    return min(threads, most_threads()) if type(threads) is int and threads > 0 else None


def repeated(record: Mapping[str, Any], precision: str) -> dict[str, Any]:
    """The products of earlier vectors, and their precision if none is given, for `find_encoder`."""
    own = record.get("precision")
    return {
        "recorded": own if precision == "auto" and own in ("fp32", "bf16", "int8") else None,
        "products": None if not record else "plain" if record.get("products") == "plain" else "fused",
    }


@contextmanager
def stopping(console: Console) -> Iterator[Callable[[], None]]:
    """Yield a function that stops the command after a signal. A slow block is dropped."""

    def check() -> None:
        if stop.requested:
            raise Stopped("stopped by a signal", advice=RESUME)

    try:
        notice = "finishing the block; Ctrl-C again to exit at once"
        with handle_signals(lambda: console.say(notice), GRACE) as stop:
            yield check
    except Interrupted as error:
        raise Stopped("stopped by a signal; an incomplete block is lost", advice=RESUME) from error


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
    replace: bool = False,
    row_flags: TextFlags,
    run: options.RunFlags,
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

    console, in_folder, shard = run.console("encode"), folder.applies_to(output), folder.parsed_shard()
    with stopping(console) if in_folder and not dry_run else nullcontext(lambda: None) as check_stop:
        device, of_old = shard.device(machine.device), repeated(made or folder.reused(), machine.precision)
        found = find_encoder(model, reading.options(), device=device, precision=machine.precision, **of_old)
        console.loading(found.name, found.notes)
        in_folder = in_folder and not folder.is_sweep(output, found)
        form, paths = output.form(replace=replace), [output.path]
        if not in_folder:
            paths = output_paths(output.path, found.readouts, form, force=form.force or dry_run)
        tokenizer, windows = long_texts.tokenizer_of(found)
        reads = {"-m": options.model_paths(model), "--reuse": folder.others(output)}
        with row_flags.open(
            console, output, known=FIELDS, reads=reads, writes={"-o": paths}, append=in_folder
        ) as inputs:
            one_text = "a chunk" if windows.get("chunks") else None
            texts = TextParser(common_fields(inputs), one_text=one_text, prompts=found.sides)
            groups: Iterator[RowGroup] = iter(())
            tokens, rows, on_truncate = None, inputs.blocks(texts), long_texts.on_truncate
            if not (in_folder or dry_run):  # these read the rows themselves
                groups = tokenized_groups(rows, tokenizer, inputs.rejects, on_truncate=on_truncate)
                if not folder.reuse:  # old and new vectors have the same precision
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
                old=folder.open_old(found, encoder, windows, output, console),
            )
            progress = RowProgress(console, inputs=inputs)
            if dry_run:
                print_plan(folder if in_folder else None, output.path, encoding, inputs, progress)
                return
            console.loaded(encoder)
            if in_folder:
                words = ["-m", model, *words_of(reading), *words_of(long_texts)]
                work = encoding, inputs, progress, check_stop, row_flags, words
                tally = write_folder(folder, output, *work)
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
    from sentkit.model.encoding_plan import plan_of

    texts = encoding.texts
    parts = [inputs.blocks(texts)] if folder is None else folder.parts(inputs, texts, path)
    plan = plan_of(parts, encoding, inputs.rejects, path, progress.add)
    progress.done()
    if folder is None:
        del plan["blocks"]
    options.ReportFlags().write(plan)


def write_folder(
    flags: FolderFlags,
    output: options.OutputFlags,
    encoding: "Encoding",
    inputs: "Inputs",
    progress: RowProgress,
    check_stop: Callable[[], None],
    row_flags: TextFlags,
    words: Sequence[str],
) -> "Tally":
    """Write the blocks of a shard, and return the counts of the rows that were written.

    `words` are flags that the card shows.
    """
    from sentkit.formats.outputs.uploads import open_outbox
    from sentkit.formats.vectors.folder_check import publish_update, write_card
    from sentkit.model.blocks import BlockWriter

    console, shard, name = progress.console, flags.parsed_shard(), output.path.rstrip("/") or "/"
    update = len(flags.others(output)) < len(flags.reuse or ())  # the folder exists and gets other inputs
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
    files, own = row_flags.files or ["-"], words_of(flags, but=("resume", "shard", "reuse"))
    fields = [*words_of(row_flags, but=("files", "rejects")), *own]
    command = ["encode", *files[:4], *["..."] * (len(files) > 4), *words, *fields, "-o", output.path]
    if outbox is not None and write_card(name, command):
        console.report(f"{name} is complete")
    return writer.tally
