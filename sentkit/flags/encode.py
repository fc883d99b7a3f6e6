"""Flags of `encode`: earlier vectors, the blocks of a vector folder, and long texts."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sentkit.console import Console
from sentkit.errors import UsageError
from sentkit.flag_values import Shard, parse_shard, size, window
from sentkit.flags import Needs
from sentkit.flags.options import OutputFlags, VectorOutputFlags
from sentkit.process import most_threads

if TYPE_CHECKING:
    from sentkit.formats.rows.block import RowBlock
    from sentkit.formats.rows.kinds import TextParser
    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.vectors.folders import FolderRun
    from sentkit.formats.vectors.vector_file import VectorSource
    from sentkit.model import Model
    from sentkit.model.encoding import TokenEncoder
    from sentkit.model.reuse import OldVectors
    from sentkit.model.text.tokens import TextTokenizer

GRACE = 10.0  # seconds to finish a block after a signal


@dataclass(frozen=True)
class ReuseFlags:
    """Earlier outputs whose vectors are copied.

    --reuse OLD: Copy vectors of equal texts from a vector file or folder; repeatable.
    """

    reuse: list[str] | None = None

    def open(
        self, output: OutputFlags, vector_file: "Callable[[str], VectorSource | None]"
    ) -> "dict[str, VectorSource | None]":
        """The earlier outputs by path; None for a file without vectors."""
        paths = self.reuse or []
        for path in paths:
            if is_same(path, output.path):
                name = quote(path.rstrip("/"))
                advice = f"use --reuse {name} -o NEW/, then: mv {name} OLD && mv NEW {name}"
                raise UsageError(f"--reuse {path}: is the output", advice=advice)
        return {path: vector_file(path) for path in paths}


def old_vectors(
    stores: "Mapping[str, VectorSource | None]",
    model: "Model",
    encoder: "TokenEncoder",
    windows: Mapping[str, Any],
    kind: str,
    console: Console,
) -> "OldVectors | None":
    """The vectors of --reuse that can replace those of the encoder. `kind` is that of the new numbers."""
    if not stores:
        return None
    if len(model.readouts) > 1 or model.tokenizer.whole:
        reason = "several readouts" if len(model.readouts) > 1 else model.name
        raise UsageError(f"--reuse cannot be used with {reason}")
    from sentkit.model.reuse import OldVectors

    spec = {**encoder.specs[0].full, **windows}
    return OldVectors(stores, spec, encoder.width, kind, console.warn)


def is_same(path: str, other: str) -> bool:
    """Whether both paths name one existing folder."""
    return Path(path).is_dir() and Path(other).is_dir() and Path(path).samefile(other)


def recorded_encoder(settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The encoder in run.json, or nothing.

    Other processes repeat what the first one measured, also where other products are faster.
    """
    encoder = (settings or {}).get("encoder")
    return encoder if isinstance(encoder, dict) else {}


def recorded_threads(settings: Mapping[str, Any] | None) -> int | None:
    """The threads of earlier vectors in run.json; on a smaller machine, the most that it allows."""
    threads = recorded_encoder(settings).get("threads")
    return min(threads, most_threads()) if type(threads) is int and threads > 0 else None


def repeated(
    settings: Mapping[str, Any] | None, stores: "Mapping[str, VectorSource | None]", precision: str
) -> dict[str, Any]:
    """The products of earlier vectors, and their precision if none is given, for `find_encoder`.

    They are those of the encoder in run.json, or of the first file of --reuse.
    """
    specs = (store.spec for store in stores.values() if store is not None)
    record = recorded_encoder(settings) or next(specs, {})
    own = record.get("precision")
    return {
        "recorded": own if precision == "auto" and own in ("fp32", "bf16", "int8") else None,
        "products": None if not record else "plain" if record.get("products") == "plain" else "fused",
    }


@dataclass(frozen=True)
class FolderFlags:
    """The blocks of a vector folder that a process writes.

    --resume: With -o DIR/: write only the missing blocks.
    --shard I/N|auto: With -o DIR/: part I of N; auto: of Slurm, torchrun.
    --block-bytes SIZE: With -o DIR/: input of a block. [default: 512K]
    """

    resume: bool = False
    shard: str | None = None
    block_bytes: str | None = None

    def settings(self, output: OutputFlags) -> dict[str, Any] | None:
        """The content of run.json in the output; None if there is none. Imports no numpy."""
        from sentkit.formats.files import read_run

        return read_run(output.path)

    def existing(self, output: OutputFlags, settings: dict[str, Any] | None) -> "FolderRun | None":
        """The output, if it is a vector folder with these settings. Refuses flags that do not fit."""
        from sentkit.formats.vectors.folders import folder_of

        existing = folder_of(output.path.rstrip("/") or "/", settings)
        if not output.path.endswith("/") and existing is None:
            if self != FolderFlags():
                name = next(name for name, value in vars(self).items() if value not in (None, False))
                raise UsageError(f"--{name.replace('_', '-')} needs a vector folder", advice="use -o DIR/")
            return None
        if output.force:
            remove = f"rm -r {quote(output.path.rstrip('/'))}"
            advice = f"--resume writes the missing blocks; to start again, remove it: {remove}"
            raise UsageError(f"--force does not work with a vector folder, {output.path}", advice=advice)
        return existing

    def store(self, output: VectorOutputFlags, existing: "FolderRun | None") -> str:
        """The numbers of the vectors: of the flag, or as the folder has them."""
        recorded = "float32" if existing is None else existing.store
        return output.store or recorded

    @property
    def size(self) -> int | None:
        return None if self.block_bytes is None else size("--block-bytes", self.block_bytes)

    @contextmanager
    def stopping(self, console: Console, path: str, *, active: bool) -> Iterator[Callable[[], None]]:
        """Yield a function that stops the command after a signal. A slow block is dropped.

        Without a vector folder (`active`), the message about the signal names it as a way to keep the work.
        """
        from sentkit.process import RESUME, Interrupted, Stopped, handle_signals

        def check() -> None:
            if stop.requested:
                raise Stopped("stopped by a signal", advice=RESUME)

        try:
            if not active:
                yield lambda: None
                return
            notice = "finishing the block; Ctrl-C again to exit at once"
            with handle_signals(lambda: console.say(notice), GRACE) as stop:
                yield check
        except Interrupted as error:
            raise Stopped("stopped by a signal; an incomplete block is lost", advice=RESUME) from error
        except (KeyboardInterrupt, SystemExit) as error:
            if not active and path != "-":
                error.add_note("with -o DIR/, complete blocks are kept, and --resume continues")
            raise

    def parts(
        self, inputs: "Inputs", texts: "TextParser", existing: "FolderRun | None"
    ) -> "Iterator[Iterator[RowBlock] | None]":
        """The rows of each block that the command would write, of this size or as the folder has it.

        None: a block of another shard, or one that is complete.
        """
        from sentkit.formats.rows.rows import ReadCounter
        from sentkit.formats.vectors.grid import BLOCK_BYTES, Grid, describe_input

        size = self.size or (existing.block_bytes if existing else BLOCK_BYTES)
        grid = Grid([describe_input(inputs, each) for each in inputs.paths], size)
        done = existing.existing()[0] if existing and self.resume else set()
        inputs = replace(inputs, counter=ReadCounter(()))  # a shard can have no rows
        for number, input_path in enumerate(inputs.paths):
            for block in grid.read(inputs, number, input_path):
                planned = self.parsed_shard().has(block.index) and block.name not in done
                yield block.parsed(inputs, texts) if planned else None

    def parsed_shard(self) -> Shard:
        return Shard() if self.shard is None else parse_shard(self.shard)

    def is_sweep(self, existing: "FolderRun | None", model: "Model") -> bool:
        """Whether DIR/ gets a vector file for each of several readouts. Refuses flags of a vector folder."""
        if len(model.readouts) > 1 and (self != FolderFlags() or existing is not None):
            advice = "run the command once per readout, or use -o DIR"
            raise UsageError("a vector folder has one readout", advice=advice)
        if len(model.readouts) == 1 and model.tokenizer.whole:
            raise UsageError(f"{model.name} needs all rows at once, so it cannot write a vector folder")
        return len(model.readouts) > 1


@dataclass(frozen=True)
class LongTextFlags:
    """What happens to texts that are too long.

    --on-truncate: For too long texts: truncate and count them, also mark each row, fail, or encode
        overlapping windows (window: their mean; chunks: a row for each).
    --window N[:STRIDE]: Tokens of a window, and to the next one. [default: the maximum length, half of its
        text]
    """

    on_truncate: Literal["warn", "mark", "error", "window", "chunks"] = "warn"
    window: Annotated[str | None, Needs("--on-truncate window|chunks")] = None

    def tokenizer_of(self, model: "Model") -> "tuple[TextTokenizer, Mapping[str, Any]]":
        """Return the tokenizer of the model, with windows if there are any, and the settings of windows.

        Of a long text, only the start is tokenized if no error or field has the number of its tokens.
        """
        from sentkit.model.text.tokens import TextTokenizer, TokenizerByPrompt, WindowOptions

        model.tokenizer.counts_all = self.on_truncate in ("mark", "error")
        tokenizer: TextTokenizer = model.tokenizer
        record: Mapping[str, Any] = {}
        if self.on_truncate not in ("warn", "mark", "error"):
            size, stride = window(self.window) if self.window else (None, None)
            options = WindowOptions(size, stride, chunks=self.on_truncate == "chunks")
            windows = model.window_tokenizer(options)
            tokenizer, record = windows, windows.record
        if model.sides:
            return TokenizerByPrompt(tokenizer, model.sides.values()), record
        return tokenizer, record
