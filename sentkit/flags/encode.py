"""Flags of `encode`: earlier vectors, the blocks of a vector folder, and long texts."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
    from sentkit.model import Model
    from sentkit.model.encoding import TokenEncoder
    from sentkit.model.reuse import OldVectors
    from sentkit.model.text.tokens import TextTokenizer

GRACE = 10.0  # seconds to finish a block after a signal


@dataclass(frozen=True)
class ReuseFlags:
    """Earlier outputs whose vectors are copied.

    --reuse OLD: Copy vectors of equal texts from a vector file or folder; repeatable. -o OLD/ updates it.
    """

    reuse: list[str] | None = None

    def updates(self, output: OutputFlags) -> bool:
        """Whether the output is a vector folder that the flag also names."""
        return any(is_same(path, output.path) for path in self.reuse or ())

    def others(self, output: OutputFlags) -> list[str]:
        """The paths of the flag that are not the output."""
        return [path for path in self.reuse or () if not is_same(path, output.path)]

    def made(self) -> Mapping[str, Any]:
        """The record of the first old vectors, or nothing."""
        from sentkit.formats.vectors.folders import VectorFolder, is_vector_folder
        from sentkit.formats.vectors.store import is_store
        from sentkit.formats.vectors.tensors import read_note

        path = self.reuse[0] if self.reuse else ""
        if not is_store(path):
            return {}
        return VectorFolder(path).settings["encoder"] if is_vector_folder(path) else read_note(path)

    def open(
        self,
        model: "Model",
        encoder: "TokenEncoder",
        windows: Mapping[str, Any],
        output: VectorOutputFlags,
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
        kind = output.store
        if is_vector_folder(output.path):
            kind = kind or VectorFolder(output.path).store
        for path in self.reuse:
            if is_same(path, output.path):
                take_snapshot(path, partial=True)
        spec = {**encoder.specs[0].full, **windows}
        return OldVectors(self.reuse, spec, encoder.width, kind or "float32", console.warn)


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

    def applies_to(self, output: OutputFlags) -> bool:
        """Whether the output is a vector folder. Refuses flags that do not fit."""
        from sentkit.formats.vectors.folders import is_vector_folder

        if not output.path.endswith("/") and not is_vector_folder(output.path):
            if self != FolderFlags():
                name = next(name for name, value in vars(self).items() if value not in (None, False))
                raise UsageError(f"--{name.replace('_', '-')} needs a vector folder", advice="use -o DIR/")
            return False
        if output.force:
            remove = f"rm -r {quote(output.path.rstrip('/'))}"
            advice = f"--resume writes the missing blocks; to start again, remove it: {remove}"
            raise UsageError(f"--force does not work with a vector folder, {output.path}", advice=advice)
        return True

    def made(self, output: OutputFlags) -> Mapping[str, Any]:
        """The record of the encoder in run.json, if it is there. Imports no numpy.

        Other processes repeat what the first one measured, also where other products are faster.
        """
        from sentkit.formats.files import read_object, run_of

        run = run_of(output.path)
        encoder = None if run is None else read_object(run).get("encoder")
        return encoder if isinstance(encoder, dict) else {}

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

    def parts(self, inputs: "Inputs", texts: "TextParser", path: str) -> "Iterator[Iterator[RowBlock]]":
        """The rows of each block that the command would write, of this size or as the folder has it."""
        from sentkit.formats.vectors.folder_check import describe_input
        from sentkit.formats.vectors.folders import BLOCK_BYTES, Grid, VectorFolder, is_vector_folder

        existing = VectorFolder(path) if is_vector_folder(path) else None
        size = self.size or (existing.block_bytes if existing else BLOCK_BYTES)
        grid = Grid([describe_input(inputs, each) for each in inputs.paths], size)
        done = existing.existing()[0] if existing and self.resume else set()
        for number, each in enumerate(inputs.paths):
            for block in grid.read(inputs, number, each):
                if self.parsed_shard().has(block.index) and block.name not in done:
                    yield block.parsed(inputs, texts)

    def parsed_shard(self) -> Shard:
        return Shard() if self.shard is None else parse_shard(self.shard)

    def is_sweep(self, output: OutputFlags, model: "Model") -> bool:
        """Whether DIR/ gets a vector file for each of several readouts. Refuses flags of a vector folder."""
        from sentkit.formats.vectors.folders import is_vector_folder

        if len(model.readouts) > 1 and (self != FolderFlags() or is_vector_folder(output.path)):
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
        from sentkit.model.checkpoint_model import CheckpointModel

        if isinstance(model, CheckpointModel):
            model.tokenizer.counts_all = self.on_truncate in ("mark", "error")
        from sentkit.model.text.tokens import TextTokenizer, TokenizerByPrompt, WindowOptions

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
