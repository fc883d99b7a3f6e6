"""Flags of `encode`: earlier vectors, vector folders and long texts.

Several processes can write a vector folder, and a killed one can resume. The part of one process is shard I
of N, from a flag or from the variables of an engine.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sentkit.console import Console, RowProgress
from sentkit.errors import CannotCreateError, UsageError
from sentkit.flag_values import size, window
from sentkit.flags.options import OutputFlags, VectorOutputFlags
from sentkit.flags.rules import Needs

if TYPE_CHECKING:
    from sentkit.formats.rows.rows import Inputs
    from sentkit.model import Model
    from sentkit.model.encoding import Encoder, Encoding, Tally
    from sentkit.model.reuse import OldVectors
    from sentkit.model.text.tokens import TextTokenizer


GRACE = 10.0  # seconds to finish a block after a signal
MOST_THREADS = 4096


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

    def recorded(self, precision: str, products: str | None) -> dict[str, Any]:
        """The precision and the products of the first old vectors, if others are not given or recorded."""
        from sentkit.formats.vectors.folders import VectorFolder, is_vector_folder
        from sentkit.formats.vectors.safetensors_header import read_note
        from sentkit.formats.vectors.store import is_store

        path = self.reuse[0] if self.reuse else ""
        if products is None and is_store(path):
            spec = VectorFolder(path).settings["encoder"] if is_vector_folder(path) else read_note(path)
            if precision == "auto" and spec.get("precision") in ("fp32", "bf16", "int8"):
                precision = spec["precision"]
            products = "plain" if spec.get("products") == "plain" else "fused"
        return {"precision": precision, "products": products}

    def open(
        self,
        model: "Model",
        tokenizer: "TextTokenizer",
        windows: Mapping[str, Any],
        output: VectorOutputFlags,
        console: Console,
    ) -> "tuple[OldVectors | None, Encoder | None, TextTokenizer]":
        """Open the old vectors, the encoder of the new ones, and a tokenizer that finds texts in the old."""
        from sentkit.formats.vectors.folders import VectorFolder, is_vector_folder
        from sentkit.formats.vectors.store import take_snapshot
        from sentkit.model.reuse import OldVectors, ReusingTokenizer

        if self.reuse is None:
            return None, None, tokenizer
        if len(model.readouts) > 1 or model.tokenizer.whole:
            reason = "several readouts" if len(model.readouts) > 1 else model.name
            raise UsageError(f"--reuse cannot be used with {reason}")
        encoder, kind = model.encoder(None), output.store
        if is_vector_folder(output.path):
            kind = kind or VectorFolder(output.path).store
        for path in self.reuse:
            if is_same(path, output.path):
                take_snapshot(path, partial=True)
        spec = {**encoder.specs[0].full, **windows}
        old = OldVectors(self.reuse, spec, encoder.width, kind or "float32", console.warn)
        return old, encoder, ReusingTokenizer(tokenizer, old)


def is_same(path: str, other: str) -> bool:
    """Whether both paths name one existing folder."""
    return Path(path).is_dir() and Path(other).is_dir() and Path(path).samefile(other)


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
            name = output.path.rstrip("/")
            advice = f"--resume writes the missing blocks; to start again, remove it: rm -r {name}"
            raise UsageError(f"--force does not work with a vector folder, {output.path}", advice=advice)
        return True

    def recorded(self, output: OutputFlags, precision: str) -> tuple[int | None, str, str | None]:
        """The threads, the precision and the products in run.json, if it is there. Imports no numpy.

        Other processes repeat what the first one measured, also where other products are faster.
        """
        from sentkit.formats.json_files import read_object_if_there

        encoder = read_object_if_there(Path(output.path, "run.json")).get("encoder")
        if not isinstance(encoder, dict):
            return None, precision, None
        threads, recorded = encoder.get("threads"), encoder.get("precision")
        usable = type(threads) is int and 0 < threads <= MOST_THREADS
        if precision == "auto" and isinstance(recorded, str):
            precision = recorded
        products = "plain" if encoder.get("products") == "plain" else "fused"
        return threads if usable else None, precision, products

    @property
    def size(self) -> int | None:
        return None if self.block_bytes is None else size("--block-bytes", self.block_bytes)

    def parsed_shard(self) -> "Shard":
        return Shard() if self.shard is None else parse_shard(self.shard)

    def is_sweep(self, output: OutputFlags, model: "Model") -> bool:
        """Whether DIR/ gets a vector file for each of several readouts. Refuses flags of a vector folder."""
        from sentkit.formats.vectors.folders import is_vector_folder

        if len(model.readouts) > 1 and (self != FolderFlags() or is_vector_folder(output.path)):
            raise UsageError(
                "a vector folder has one readout", advice="run the command once per readout, or use -o DIR"
            )
        if len(model.readouts) == 1 and model.tokenizer.whole:
            raise UsageError(f"{model.name} needs all rows at once, so it cannot write a vector folder")
        return len(model.readouts) > 1

    @contextmanager
    def stopping(
        self, console: Console, output: OutputFlags, *, active: bool
    ) -> Iterator[Callable[[], None]]:
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
        from sentkit.signals import RESUME, Interrupted, Stopped, handle_signals

        def notice() -> None:
            console.say("finishing the block; Ctrl-C again to exit at once")

        with handle_signals(notice, GRACE) as stop:

            def check() -> None:
                if stop.requested:
                    raise Stopped("stopped by a signal", advice=RESUME)

            try:
                yield check
            except Interrupted as error:
                raise Stopped("stopped by a signal; an incomplete block is lost", advice=RESUME) from error

    def write(
        self,
        path: str,
        encoding: "Encoding",
        inputs: "Inputs",
        batch_tokens: int | None,
        progress: RowProgress,
        check_stop: Callable[[], None],
        *,
        update: bool,
    ) -> "Tally":
        """Write the blocks of this shard, and return the counts of the rows that were written.

        With `update`, the folder exists and gets other inputs.
        """
        from sentkit.formats.vectors.folder_check import publish_update
        from sentkit.model.block_writer import BlockWriter, open_encoding_folder

        console, shard, name = progress.console, self.parsed_shard(), path.rstrip("/") or "/"
        folder, encoding, created = open_encoding_folder(
            name, encoding, inputs, block_bytes=self.size, batch_tokens=batch_tokens, update=update
        )
        current = update and folder.path == name
        if not created and not self.resume and self.shard is None and not current:
            raise CannotCreateError(f"{folder.path}/: already exists", advice="--resume continues it")
        for number, each in enumerate(inputs.paths):
            if folder.length(number) is None:
                console.warn(f"{each}: has no byte positions, so every process reads it from the start")
        existing, leftovers = folder.existing()
        if leftovers:
            problem = f"{len(leftovers)} incomplete blocks of killed processes, such as {leftovers[0].name}"
            listing = f"sentkit check {folder.path} lists them, and you can remove them"
            console.warn(f"{folder.path}: {problem}; {listing}")
        keep = self.resume or current
        writer = BlockWriter(folder, encoding, inputs, shard.has, existing, keep=keep)
        total = writer.count()
        progress.share = lambda rows: (
            (writer.written + writer.copied + writer.kept) / total if total else None
        )
        writer.run(progress.add, check_stop)
        part = f"shard {shard}: " if shard.count > 1 else ""
        copied = f", copied: {writer.copied}" if encoding.old is not None else ""
        none = f"{part}no block belongs to it" if total == 0 and shard.count > 1 else ""
        counts = f"{part}blocks written: {writer.written}{copied}, already complete: {writer.kept}"
        console.report(none or counts)
        if encoding.old is not None and shard.count == 1 and not writer.kept:
            encoding.old.count_unneeded()  # before the old folder is replaced
        if update and not current and not publish_update(folder, name):
            console.report(f"{name} is replaced by {folder.path} when the other shards are complete")
        return writer.tally


FORM = re.compile(r"(\d{1,9})/(\d{1,9})")
ADVICE = "expected I/N with I from 1 to N, for example 3/8, or auto"


@dataclass(frozen=True, slots=True)
class Shard:
    """The blocks with an index that is `number` modulo `count`."""

    number: int = 1
    count: int = 1
    local: int | None = None  # the number of the process on its machine

    def has(self, index: int) -> bool:
        return (index - self.number) % self.count == 0

    def device(self, name: str) -> str:
        """The device for `auto`: each process of a machine gets its own, if there are several."""
        return f"auto:{self.local}" if name == "auto" and self.local is not None else name

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def parse_shard(text: str, environment: Mapping[str, str] = os.environ) -> Shard:
    """Parse `3/8` or `auto`. 0/8 is the same as 8/8, for arrays that start at 0."""
    if text == "auto":
        return shard_of_engine(environment)
    match = FORM.fullmatch(text)
    if match is None or not int(match[2]) or int(match[1]) > int(match[2]):
        raise UsageError(f'--shard "{text}"', advice=ADVICE)
    return Shard(int(match[1]), int(match[2]))


def shard_of_engine(environment: Mapping[str, str]) -> Shard:
    """The shard of this process: Slurm array, tasks of srun in each array task, or else torchrun."""

    def number(name: str) -> int | None:
        value = environment.get(name)
        if value is not None and not value.isdecimal():
            raise UsageError(f'--shard auto: {name} is "{value}", expected a number')
        return None if value is None else int(value)

    place, count, local, known = 0, 1, None, False
    task, tasks = number("SLURM_ARRAY_TASK_ID"), number("SLURM_ARRAY_TASK_COUNT")
    if task is not None and tasks:
        first, step = number("SLURM_ARRAY_TASK_MIN") or 0, number("SLURM_ARRAY_TASK_STEP") or 1
        place, count, known = (task - first) // step, tasks, True
        last = number("SLURM_ARRAY_TASK_MAX")
        if (task - first) % step or place >= tasks or last not in (None, first + step * (tasks - 1)):
            advice = "use --shard $SLURM_ARRAY_TASK_ID/N with the N of the whole array"
            raise UsageError("--shard auto: the indices of the Slurm array have gaps", advice=advice)
    # SLURM_NTASKS is also set in a batch script that runs once; this variable only in tasks of srun.
    inner, size = number("SLURM_PROCID"), number("SLURM_STEP_NUM_TASKS")
    if inner is not None and size:
        place, count, known, local = place * size + inner, count * size, True, number("SLURM_LOCALID")
    rank, world = number("RANK"), number("WORLD_SIZE")
    if not known and rank is not None and world:
        place, count, known, local = rank, world, True, number("LOCAL_RANK")
    if not known:
        advice = "outside of Slurm and torchrun, name the shard: --shard 3/8"
        raise UsageError("--shard auto: no Slurm array, srun or torchrun", advice=advice)
    return Shard(place + 1, count, local)


@dataclass(frozen=True)
class LongTextFlags:
    """What happens to texts that are too long.

    --on-truncate: For too long texts: truncate and count them, fail, or encode overlapping windows (window:
        their mean; chunks: a row for each). late: chunks of the token states of the whole text.
    --window N[:STRIDE]: Tokens of a window, and to the next one. [default: the maximum length, half of its
        text]
    """

    on_truncate: Literal["warn", "error", "window", "chunks", "late"] = "warn"
    window: Annotated[str | None, Needs("--on-truncate window|chunks|late")] = None

    def __post_init__(self) -> None:
        if self.on_truncate == "late" and self.window is None:
            raise UsageError("--on-truncate late needs --window N")

    @property
    def chunks(self) -> bool:
        """Whether each window becomes a row."""
        return self.on_truncate in ("chunks", "late")

    @property
    def refuses(self) -> bool:
        """Whether a text above the maximum length is an error."""
        return self.on_truncate in ("error", "late")

    def tokenizer_of(self, model: "Model", *, counts_all: bool) -> "tuple[TextTokenizer, Mapping[str, Any]]":
        """Return the tokenizer of the model, with windows if there are any, and the settings of windows.

        Without `counts_all`, only the start of a long text is tokenized.
        """
        from sentkit.model.checkpoint_model import CheckpointModel

        if isinstance(model, CheckpointModel):
            model.tokenizer.counts_all = counts_all or self.refuses
        if self.on_truncate in ("warn", "error"):
            return model.tokenizer, {}
        from sentkit.model.text.tokens import WindowOptions

        size, stride = (None, None) if self.window is None else window(self.window)
        options = WindowOptions(size, stride, self.chunks, late=self.on_truncate == "late")
        tokenizer = model.window_tokenizer(options)
        return tokenizer, tokenizer.record
