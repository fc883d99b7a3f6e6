"""Writes the blocks of a vector folder, which it resumes, and copies those of the folders of
--reuse.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentkit.errors import CannotCreateError, DataError, NoRowsError, UsageError
from sentkit.formats.files import commit_in, exists
from sentkit.formats.outputs.outputs import published_together
from sentkit.formats.outputs.temporary import remove
from sentkit.formats.rows.kinds import TextParser
from sentkit.formats.rows.lines import MAX_LINE
from sentkit.formats.rows.rows import Inputs, ReadCounter, Rejects
from sentkit.formats.vectors.file_writer import copy_block, create_vector_file
from sentkit.formats.vectors.folders import WIDEST_RECORD, FolderRun, create_folder
from sentkit.formats.vectors.grid import BLOCK_BYTES, Block, describe_input
from sentkit.formats.vectors.vector_file import VectorFile
from sentkit.formats.vectors.writers import SeparateWriter
from sentkit.model.encoding import Report, computed_ahead, encode_group
from sentkit.model.groups import EncodeStats, RowGroup
from sentkit.model.runs.writing import Encoding

if TYPE_CHECKING:
    from sentkit.model.runs.reuse import BlockFiles


@dataclass(frozen=True, slots=True, eq=False)
class NewBlock:
    """A block to write, with the rejects of its rows."""

    block: Block
    parser: TextParser  # with the kind of rows that is known when the block begins
    reusable_file: VectorFile | None  # of --reuse, to copy
    rejects: Rejects


def settings_of(encoding: Encoding, inputs: Inputs, block_bytes: int | None) -> dict[str, Any]:
    """What the vectors of all blocks depend on; None: as an existing folder has it."""
    return {
        "block_bytes": block_bytes,
        "batch_tokens": encoding.batch_tokens,
        "inputs": [describe_input(inputs, path) for path in inputs.paths],
        "store": encoding.vector_output.store,
        "encoder": encoding.encoder.spaces[0].full_metadata,
        "fields": dict(encoding.parser.fields),
        "on_truncate": encoding.on_truncate,
        **encoding.window_settings,
        "max_line": MAX_LINE,
        "quoting": inputs.quoting or "by format",
        "replace": encoding.vector_output.replace,
    }


class BlockWriter:
    """Writes the blocks of one shard. The bytes of a block depend only on its input and the
    settings.
    """

    def __init__(
        self,
        path: str,
        encoding: Encoding,
        inputs: Inputs,
        in_shard: Callable[[int], bool] | None,
        *,
        block_bytes: int | None,
        resume: bool,
        existing: FolderRun | None,
    ) -> None:
        """Open or create a vector folder for the blocks whose index is `in_shard`.

        Without `block_bytes` and the tokens of a batch, an existing folder determines them. It may
        exist only with `resume`, which keeps its blocks, or with `in_shard`, if other processes
        write to it, too.
        """
        settings = settings_of(encoding, inputs, block_bytes)
        defaults = {  # for settings that are None
            "block_bytes": BLOCK_BYTES,
            "batch_tokens": encoding.encoder.tokens_per_batch,
            "store": "float32",
        }

        # The folder, whose recorded settings this process then uses.
        self.folder_is_new = not exists(path)
        self.folder, created_run_json = create_folder(
            path, settings, defaults, existing, resume=resume
        )
        self.keeps_blocks = resume  # that exist; otherwise they are an error
        is_alone = in_shard is None  # with --shard, other processes write to the folder, too
        if is_alone and not (created_run_json or resume):
            raise CannotCreateError(f"{path}/: already exists", advice="--resume continues it")
        self.can_undo = created_run_json and is_alone
        self.in_shard = in_shard or (lambda index: True)
        self.encoding = replace(
            encoding,
            batch_tokens=self.folder.settings["batch_tokens"],
            vector_output=replace(encoding.vector_output, store=self.folder.store),
        )
        # A shard can have no rows.
        self.inputs = replace(inputs, counter=ReadCounter.accepting_no_rows())

        # The blocks that exist, by name. What killed processes left is removed.
        self.existing, leftovers = self.folder.existing()
        for leftover in leftovers:
            remove(leftover)

        # A killed process may have written the bad rows of a block, but not the block.
        self.earlier_rejects = set[bytes]()
        if not created_run_json:
            self.earlier_rejects = inputs.rejects.written_lines()

        # The state of the work.
        self.parser = copy(self.encoding.parser)  # of all blocks, which have rows of one kind
        self.stats = EncodeStats()
        self.first_row_is_bad = False  # perhaps in a block of another shard
        self.first_existing: VectorFile | None = None  # a block, to compare the others with
        self.new_names: set[str] = set()  # of the blocks that this process wrote or copied
        # Numbers of blocks.
        self.written = 0
        self.copied = 0  # from the folders of --reuse
        self.complete = 0  # that existed
        # The blocks of --reuse that fit, by what identifies the block and by its digest.
        self.stored_blocks: BlockFiles = {}
        if self.encoding.reusable is not None:
            self.stored_blocks = self.encoding.reusable.blocks(self.folder)

    @cached_property
    def count(self) -> int | None:
        """The number of blocks of this shard; None if the length of an input is unknown."""
        for number in range(len(self.folder.inputs)):
            if self.folder.length(number) is None:
                return None
        return sum(self.in_shard(index) for index in range(self.folder.offsets[-1]))

    def share(self, rows: int) -> float | None:
        """The share of the blocks that are complete, for the progress."""
        if not self.count:
            return None
        return (self.written + self.copied + self.complete) / self.count

    def count_message(self, shard: str) -> str:
        """The message about the blocks; `shard` names the shard, if there are several."""
        if self.count == 0 and shard:
            return f"{shard}no block belongs to it"
        copied = "" if self.encoding.reusable is None else f", copied: {self.copied}"
        return f"{shard}blocks written: {self.written}{copied}, already complete: {self.complete}"

    def run(self, report: Report, check_stop: Callable[[], None]) -> None:
        """Write all blocks that do not exist. `check_stop` is called before each block.

        The next block is read and tokenized while the model computes the last groups of a block.
        """
        encoding = self.encoding
        read_stored = None if encoding.reusable is None else encoding.reusable.read

        def encode(item: tuple[NewBlock, RowGroup | None]) -> tuple[NewBlock, RowGroup | None]:
            new, group = item
            if group is None:  # the end of a block
                return new, None
            return new, encode_group(
                group, encoding.encoder, encoding.tokens_per_batch, read_stored
            )

        try:
            # The groups of all blocks in one sequence. `groups_of_block` reads on in it.
            items = computed_ahead(
                encode, self.tokenized(check_stop), encoding.encoder.groups_at_once
            )
            for new, first_group in items:
                check_stop()
                path = self.folder.block_path(new.block.name)
                if new.reusable_file is None:
                    self.write(new, path, groups_of_block(first_group, items), report)
                else:
                    self.copy(new.block, new.reusable_file, path)
            if self.parser.kind is None and not self.first_row_is_bad:
                raise NoRowsError(self.inputs.paths)
        except (DataError, UsageError) as error:
            # Inputs of known length without rows have none for the other shards, either.
            has_no_input = isinstance(error, NoRowsError) and self.count is not None
            if (self.can_undo or has_no_input) and not self.stats.rows:
                self.undo()
            raise

    def undo(self) -> None:
        """Remove the blocks of this process, which have no rows. If no block is left, remove
        run.json and the folder, unless it existed before. If this process created run.json for
        blocks whose run.json was lost, remove it, too.

        The corrected command may have other settings, and the corrected input has rows.
        """
        for name in self.new_names:
            Path(self.folder.block_path(name)).unlink()
        try:
            remaining_names, _ = self.folder.existing()
        except FileNotFoundError:  # another shard has removed the folder
            return
        earlier_names: set[str] = self.existing if self.can_undo else set()
        if remaining_names - earlier_names:
            return
        Path(self.folder.source).unlink(missing_ok=True)
        if self.folder_is_new:
            with suppress(OSError):  # it has other files
                Path(os.path.realpath(self.folder.path)).rmdir()

    def tokenized(
        self, check_stop: Callable[[], None]
    ) -> Iterator[tuple[NewBlock, RowGroup | None]]:
        """The groups of all new blocks, and None at the end of each block; a block to copy has no
        groups.

        Existing blocks are checked.
        """
        for block in self.blocks():
            check_stop()
            if block.name not in self.existing:
                rejects = Rejects(self.inputs.rejects.skip, BytesIO())
                new = NewBlock(block, copy(self.parser), self.stored_block(block), rejects)
                if new.reusable_file is None:
                    rows = block.parsed(replace(self.inputs, rejects=rejects), self.parser)
                    for group in self.encoding.groups(rows, rejects):
                        yield new, group
                yield new, None
            elif self.keeps_blocks:
                self.check_source(block)
                self.complete += 1
            else:
                path = self.folder.block_path(block.name)
                raise CannotCreateError(
                    f"{path}: already exists", advice="--resume keeps complete blocks"
                )

    def blocks(self) -> Iterator[Block]:
        """The blocks of this shard. A stream is read once, so its blocks exist only during the
        iteration.

        The first row of all inputs determines the kind, also if it is in a block of another shard.
        """
        for number, path in enumerate(self.inputs.paths):
            is_stream = self.folder.length(number) is None
            if not is_stream:
                self.find_kind(self.folder.blocks(number, path))
            for block in self.folder.read(self.inputs, number, path):
                if is_stream:
                    self.find_kind([block])
                if self.in_shard(block.index):
                    yield block

    def find_kind(self, blocks: Iterable[Block]) -> None:
        """Read rows until the kind is known. The writer of their block reports bad rows."""
        if self.parser.kind is not None:
            return
        quiet = replace(self.inputs, rejects=Rejects(skip=self.inputs.rejects.skip))
        try:
            for block in blocks:
                for rows in block.parsed(quiet, self.parser):
                    if len(rows):
                        return
        except DataError:
            self.first_row_is_bad = True

    def check_source(self, block: Block) -> None:
        """Check an existing block, and compare its rows in the input with their digest."""
        path = self.folder.block_path(block.name)
        described = self.folder.inputs[block.input_number]
        try:
            self.first_existing = self.folder.open_verified_block(block.name, self.first_existing)
        except DataError:
            self.can_undo = False  # `sentkit check`, which removes damaged blocks, needs run.json
            raise
        record = self.folder.record(block.name)
        if record["skipped"] and not self.inputs.rejects.skip:
            problem = f"an earlier command with --rejects skipped its bad rows: {record['skipped']}"
            raise DataError(problem, source=path, advice="add --rejects FILE")
        if block.rows is None and commit_in(described["path"]) is not None:
            return  # the input cannot change, and would be read through the network
        is_table_in_pipe = described["path"] is None and described["format"]
        if self.folder.by_line and is_table_in_pipe:
            problem = "an older sentkit did not record the header of this input"
            raise DataError(
                problem, source=path, advice="encode it into another folder, with --reuse"
            )
        change: str | None = None
        if record["source"] != block.digest():
            unit = described["grid"]
            change = (
                f"its {unit} {block.start + 1} to {block.stop} are not those of the block "
                f"{block.name}"
            )
        elif record["last"] != block.is_last:
            change = f"it has more or fewer rows than when the block {block.name} was written"
        if change is not None:
            advice = "the input has changed; encode it into another folder"
            raise DataError(change, source=block.path, advice=advice)

    def stored_block(self, block: Block) -> VectorFile | None:
        """The file of --reuse with a block that was made from the same bytes, if there is one."""
        files = self.stored_blocks.get((*self.folder.identity_of(block), self.parser.vector_names))
        if files:
            return files.get(block.digest())
        return None

    def copy(self, block: Block, stored: VectorFile, path: str) -> None:
        assert self.encoding.reusable is not None
        record = stored.record
        with published_together():
            copy_block(stored, path, {**record, "input": block.input_number})
        self.new_names.add(block.name)
        self.encoding.reusable.needs(stored)
        rows = record["rows"]
        truncated = record["truncated"]
        first_truncated = block.path if truncated else ""
        self.stats.join(
            EncodeStats(rows=rows, reused=rows, truncated=truncated, first=first_truncated)
        )
        self.copied += 1

    def write(self, new: NewBlock, path: str, groups: Iterator[RowGroup], report: Report) -> None:
        # A new file, with what the folder records of the encoder and the widest record of a block.
        stats = EncodeStats()
        block = new.block
        names = new.parser.vector_names
        [metadata_of_file] = self.encoding.metadata_of_files(new.parser)
        # The loss of int8 is the one that the first process has measured.
        metadata = {**metadata_of_file, **self.folder.settings["encoder"]}
        opened = create_vector_file(
            path,
            metadata,
            names,
            width=self.encoding.encoder.width,
            kind=self.folder.store,
            force=True,
            block_record=WIDEST_RECORD,
        )
        with published_together():
            with opened as writer:
                sink = SeparateWriter(writer, self.encoding.vector_output)
                for group in groups:
                    self.encoding.write(group, [sink], names, new.rejects, stats, report)
                # The record, which is known after the last row.
                assert block.source_digest, "it is known after the last row"
                writer.set_block_record(
                    {
                        "input": block.input_number,
                        "start": block.start,
                        "stop": block.stop,
                        "rows": writer.count,
                        "truncated": stats.truncated,
                        "skipped": new.rejects.count,
                        "last": block.is_last,
                        "source": block.source_digest,
                    }
                )
            # Before the block appears: --resume does not read the rows of a complete block again.
            self.inputs.rejects.add_all(new.rejects, self.earlier_rejects)
        self.new_names.add(block.name)
        self.stats.join(stats)
        self.written += 1


def groups_of_block(
    first: RowGroup | None, items: Iterator[tuple[NewBlock, RowGroup | None]]
) -> Iterator[RowGroup]:
    """Yield groups up to None, the end of this block. Nothing of the next one is read."""
    group = first
    while group is not None:
        yield group
        _, group = next(items)
