"""What `encode` needs beside its flags: earlier vectors, vector folders and the tokenizer of long
texts.
"""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from sentkit.console import Console
from sentkit.errors import UsageError
from sentkit.flag_values import Shard, window_sizes
from sentkit.flags.outputs import Output
from sentkit.flags.rules import is_given
from sentkit.process import limit_threads, most_threads

if TYPE_CHECKING:
    from sentkit.formats.rows.block import RowBlock
    from sentkit.formats.rows.kinds import TextParser
    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.vectors.folders import FolderRun
    from sentkit.formats.vectors.vector_file import VectorSource
    from sentkit.model import Model
    from sentkit.model.encoding import TokenEncoder
    from sentkit.model.runs.reuse import ReusableVectors
    from sentkit.model.text.tokens import TextTokenizer
    from sentkit.process import Stop

GRACE = 10.0  # seconds to finish a block after a signal

RunRecord = dict[str, Any]  # the content of run.json in a vector folder
# the outputs of --reuse by path; None for a file without vectors
Stores = Mapping[str, "VectorSource | None"]


def open_earlier(
    paths: Sequence[str], output: Output, vector_file: "Callable[[str], VectorSource | None]"
) -> "Stores":
    """The earlier outputs, of which --reuse copies vectors."""
    for path in paths:
        if is_same_folder(path, output.path):
            name = quote(path.rstrip("/"))
            advice = f"use --reuse {name} -o NEW/, then: mv {name} OLD && mv NEW {name}"
            raise UsageError(f"--reuse {path}: is the output", advice=advice)
    return {path: vector_file(path) for path in paths}


def is_same_folder(path: str, other: str) -> bool:
    """Whether both paths name one existing folder."""
    return Path(path).is_dir() and Path(other).is_dir() and Path(path).samefile(other)


def reusable_vectors(
    stores: "Stores",
    model: "Model",
    encoder: "TokenEncoder",
    windows: Mapping[str, Any],
    dtype: str,
    console: Console,
) -> "ReusableVectors | None":
    """The vectors of --reuse that can replace those of the encoder. `dtype` is that of the new
    numbers.
    """
    if not stores:
        return None
    if len(model.readouts) > 1:
        raise UsageError("--reuse cannot be used with several readouts")
    if model.tokenizer.needs_all_texts:
        raise UsageError(f"--reuse cannot be used with {model.name}")
    from sentkit.model.runs.reuse import ReusableVectors

    spec = {**encoder.spaces[0].full_metadata, **windows}
    return ReusableVectors(stores, spec, encoder.width, dtype, console.warn)


def recorded_encoder(run: RunRecord | None) -> Mapping[str, Any]:
    """The encoder in run.json, or nothing."""
    encoder = (run or {}).get("encoder")
    if not isinstance(encoder, dict):
        return {}
    return encoder


def recorded_threads(run: RunRecord | None) -> int | None:
    """The threads of earlier vectors in run.json; on a smaller machine, the most that it allows."""
    threads = recorded_encoder(run).get("threads")
    if type(threads) is not int or threads <= 0:
        return None
    return min(threads, most_threads())


def requests_or_threads(model: str, threads: int | None, run: RunRecord | None) -> int | None:
    """Set the threads of the command. Return the requests at a time if --threads is their number.

    Each thread computes its own batches, so an operation of numpy or torch has one thread.
    """
    from sentkit.formats.checkpoints.folders import is_endpoint

    if is_endpoint(model):
        limit_threads(of_libraries=1)
        return threads
    limit_threads(threads or recorded_threads(run), of_libraries=1)
    return None


def earlier_encoder(run: RunRecord | None, stores: "Stores") -> Mapping[str, Any]:
    """The record of the encoder of earlier vectors: of run.json, or of the first file of
    --reuse.
    """
    specs = [store.metadata for store in stores.values() if store is not None]
    return recorded_encoder(run) or next(iter(specs), {})


def earlier_precision(earlier: Mapping[str, Any], precision: str) -> str | None:
    """The precision of earlier vectors, which new ones get if the flag does not choose one."""
    recorded = earlier.get("precision")
    if precision == "auto" and recorded in ("fp32", "bf16", "int8"):
        return str(recorded)
    return None


def existing_folder(
    output: Output, run: RunRecord | None, folder_flags: Mapping[str, object]
) -> "FolderRun | None":
    """The output, if it is a vector folder. Refuses the flags of a vector folder for other
    outputs.
    """
    from sentkit.formats.vectors.folders import folder_of

    folder = folder_of(output.path.rstrip("/") or "/", run)
    if folder is None and not output.path.endswith("/"):
        for flag, value in folder_flags.items():
            if is_given(value):
                raise UsageError(f"{flag} needs a vector folder", advice="use -o DIR/")
        return None
    if folder is not None:
        refuse_force(output)
    return folder


def refuse_force(output: Output) -> None:
    """Refuse --force for a vector folder."""
    if output.force:
        remove = f"rm -r {quote(output.path.rstrip('/'))}"
        advice = f"--resume writes the missing blocks; to start again, remove it: {remove}"
        raise UsageError(
            f"--force does not work with a vector folder, {output.path}", advice=advice
        )


@dataclass(frozen=True)
class FolderOptions:
    """The blocks of a vector folder that a process writes."""

    resume: bool = False  # only the missing blocks
    shard: Shard | None = None
    block_bytes: int | None = None  # of the input of a block

    def planned_blocks(
        self, inputs: "Inputs", texts: "TextParser", existing: "FolderRun | None"
    ) -> "Iterator[Iterator[RowBlock] | None]":
        """The rows of each block that the command would write, of this size or as the folder has
        it.

        None: a block of another shard, or one that is complete.
        """
        from sentkit.formats.rows.rows import ReadCounter
        from sentkit.formats.vectors.grid import BLOCK_BYTES, Grid, describe_input

        block_bytes = self.block_bytes
        complete = set[str]()
        if existing is not None:
            block_bytes = block_bytes or existing.block_bytes
            if self.resume:
                complete, *_ = existing.existing()
        grid = Grid(
            [describe_input(inputs, path) for path in inputs.paths], block_bytes or BLOCK_BYTES
        )
        shard = self.shard or Shard()
        # A shard can have no rows.
        inputs = replace(inputs, counter=ReadCounter.accepting_no_rows())
        for input_number, path in enumerate(inputs.paths):
            for block in grid.read(inputs, input_number, path):
                if shard.has(block.index) and block.name not in complete:
                    yield block.parsed(inputs, texts)
                else:
                    yield None


def has_file_per_readout(
    model: "Model", options: FolderOptions, existing: "FolderRun | None", output: Output
) -> bool:
    """Whether DIR/ gets a vector file for each of several readouts. Refuses flags of a vector
    folder, and for a vector folder --force.
    """
    if len(model.readouts) == 1:
        refuse_force(output)
        if model.tokenizer.needs_all_texts:
            problem = f"{model.name} needs all rows at once, so it cannot write a vector folder"
            raise UsageError(problem)
        return False
    if options != FolderOptions() or existing is not None:
        advice = "run the command once per readout, or use -o DIR"
        raise UsageError("a vector folder has one readout", advice=advice)
    return True


class Stopping:
    """What a signal does to `encode`: it stops at once, or in a vector folder after the block."""

    def __init__(self) -> None:
        self.handlers = ExitStack()
        self.stop: Stop | None = None  # None: a signal stops the command at once
        # blocks are written, or would be written with -o DIR/
        self.can_have_blocks = True

    def finish_blocks(self, console: Console) -> None:
        """From now on, a signal only requests a stop, and a block has GRACE seconds to end."""
        from sentkit.process import handle_signals

        notice = "finishing the block; Ctrl-C again to exit at once"
        self.stop = self.handlers.enter_context(handle_signals(lambda: console.say(notice), GRACE))

    def adapt_to(self, readouts: Sequence[str]) -> None:
        """With several readouts, there is no vector folder that --resume could continue.

        A signal then stops the command at once; so does one that it has already received.
        """
        if len(readouts) == 1:
            return
        self.can_have_blocks = False
        self.handlers.close()
        if self.stop is not None and self.stop.received is not None:
            signal.raise_signal(self.stop.received)
        self.stop = None

    def check(self) -> None:
        """Stop the command between two blocks if a signal has requested it."""
        from sentkit.process import RESUME, Stopped

        if self.stop is not None and self.stop.requested:
            raise Stopped("stopped by a signal", advice=RESUME)


@contextmanager
def stopping(
    console: Console, path: str, *, in_vector_folder: bool, dry_run: bool
) -> Iterator[Stopping]:
    """Let a signal stop the command: in a vector folder after the block, else at once.

    A block that takes too long is dropped. If a vector folder would have kept the work, the
    message about the signal names it.
    """
    from sentkit.process import RESUME, Interrupted, Stopped

    state = Stopping()
    try:
        with state.handlers:
            if in_vector_folder and not dry_run:
                state.finish_blocks(console)
            yield state
    except Interrupted as error:  # after GRACE seconds
        raise Stopped("stopped by a signal; an incomplete block is lost", advice=RESUME) from error
    # A second Ctrl-C in a vector folder. Otherwise the first one (KeyboardInterrupt), or SIGTERM or
    # SIGHUP (SystemExit).
    except (KeyboardInterrupt, SystemExit) as error:
        has_work = path != "-" and not dry_run
        if has_work and not in_vector_folder and state.can_have_blocks:
            error.add_note("with -o DIR/, complete blocks are kept, and --resume continues")
        raise


def tokenizer_and_windows(
    model: "Model", on_truncate: str, window: str | None, batch_tokens: int | None
) -> "tuple[TextTokenizer, Mapping[str, Any]]":
    """The tokenizer of the model, with windows if there are any, and the settings of windows.

    The flags that need tokens are refused for a model behind an API.
    """
    from sentkit.formats.checkpoints.folders import is_endpoint
    from sentkit.model.text.tokens import TextTokenizer, TokenizerByPrompt, WindowOptions

    if is_endpoint(model.name):
        from sentkit.model.api import refuse_flags

        on_truncate_of_tokens = f"--on-truncate {on_truncate}"
        flags = {on_truncate_of_tokens: on_truncate != "warn", "--batch-tokens": batch_tokens}
        refuse_flags(flags)

    # Of a long text, only the start is tokenized if no error or field has the number of its tokens.
    model.tokenizer.counts_all = on_truncate in ("mark", "error")
    tokenizer: TextTokenizer = model.tokenizer
    windows: Mapping[str, Any] = {}
    if on_truncate in ("window", "chunks"):
        size, stride = window_sizes(window)
        options = WindowOptions(size, stride, chunks=on_truncate == "chunks")
        window_tokenizer = model.window_tokenizer(options)
        tokenizer = window_tokenizer
        windows = window_tokenizer.record
    if model.prompt_of_side:
        tokenizer = TokenizerByPrompt(tokenizer, model.prompt_of_side.values())
    return tokenizer, windows
