"""Writes the blocks of a vector folder, which it resumes, and copies those of the folders of --reuse."""

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

from sentkit.errors import CannotCreateError, DataError, NoRowsError, UsageError
from sentkit.formats.outputs.outputs import published_together
from sentkit.formats.outputs.temporary import remove
from sentkit.formats.rows.kinds import TextParser
from sentkit.formats.rows.lines import MAX_LINE
from sentkit.formats.rows.rows import Inputs, ReadCounter, Rejects
from sentkit.formats.vectors.file_writer import copy_block, create_vector_file
from sentkit.formats.vectors.folders import EMPTY_RECORD, FolderRun, create_folder
from sentkit.formats.vectors.grid import BLOCK_BYTES, Block, describe_input
from sentkit.formats.vectors.vector_file import VectorFile
from sentkit.formats.vectors.writers import SeparateWriter
from sentkit.model.encoding import Report, RowGroup, Tally, computed_ahead, encode_group
from sentkit.model.writing import Encoding


@dataclass(frozen=True, slots=True, eq=False)
class NewBlock:
    """A block to write, with the rejects of its rows."""

    block: Block
    texts: TextParser  # with the kind of rows that is known when the block begins
    old: VectorFile | None  # of --reuse, to copy
    rejects: Rejects


class BlockWriter:
    """Writes the blocks of one shard. The bytes of a block depend only on its input and the settings."""

    def __init__(
        self,
        path: str,
        encoding: Encoding,
        inputs: Inputs,
        wanted: Callable[[int], bool] | None,
        *,
        block_bytes: int | None,
        resume: bool,
        existing: FolderRun | None,
    ) -> None:
        """Open or create a vector folder for the blocks whose index is `wanted`.

        Without `block_bytes` and the tokens of a batch, an existing folder determines them. It may exist
        only with `resume`, which keeps its blocks, or with `wanted`, if other processes write to it, too.
        """
        settings = {
            "block_bytes": block_bytes,
            "batch_tokens": encoding.batch_tokens,
            "inputs": [describe_input(inputs, each) for each in inputs.paths],
            "store": encoding.form.store,
            "encoder": encoding.encoder.specs[0].full,
            "fields": dict(encoding.texts.fields),
            "on_truncate": encoding.on_truncate,
            **encoding.windows,
            "on_error": "skip" if inputs.rejects.skip else "fail",
            "max_line": MAX_LINE,
            "quoting": inputs.quoting or "by format",
            "replace": encoding.form.replace,
        }
        defaults = {"block_bytes": BLOCK_BYTES, "batch_tokens": encoding.encoder.budget, "store": "float32"}
        self.folder, created = create_folder(path, settings, defaults, existing)
        self.keep = resume  # existing blocks; otherwise they are an error
        if not (created or resume or wanted):
            raise CannotCreateError(f"{path}/: already exists", advice="--resume continues it")
        self.alone = created and not resume and wanted is None  # no other process writes to the folder
        self.wanted = wanted or (lambda index: True)
        form = replace(encoding.form, store=self.folder.store)
        self.encoding = replace(encoding, batch_tokens=self.folder.settings["batch_tokens"], form=form)
        self.inputs = replace(inputs, counter=ReadCounter(()))  # a shard can have no rows
        self.existing, leftovers = self.folder.existing()  # names of the complete blocks
        for each in leftovers:
            remove(each)
        self.texts = copy(encoding.texts)  # of all blocks, which have rows of one kind
        self.tally = Tally()
        self.bad = False  # the first row is bad, perhaps in a block of another shard
        self.first: VectorFile | None = None  # an existing block, to compare others with
        self.written = self.copied = self.kept = 0  # blocks: new ones, of old folders, and existing ones
        self.old = {} if encoding.old is None else encoding.old.blocks(self.folder)

    @cached_property
    def count(self) -> int | None:
        """The number of blocks of this shard; None if the length of an input is unknown."""
        lengths = list(map(self.folder.length, range(len(self.folder.inputs))))
        return None if None in lengths else sum(map(self.wanted, range(self.folder.offsets[-1])))

    def share(self, rows: int) -> float | None:
        """The share of the blocks that are complete, for the progress."""
        return (self.written + self.copied + self.kept) / self.count if self.count else None

    def counts(self, part: str) -> str:
        """The message about the blocks; `part` names the shard, if there are several."""
        if self.count == 0 and part:
            return f"{part}no block belongs to it"
        copied = "" if self.encoding.old is None else f", copied: {self.copied}"
        return f"{part}blocks written: {self.written}{copied}, already complete: {self.kept}"

    def run(self, report: Report, check_stop: Callable[[], None]) -> None:
        """Write all blocks that do not exist. `check_stop` is called before each block.

        The next block is read and tokenized while the model computes the last groups of a block.
        """
        encoder, budget, old = self.encoding.encoder, self.encoding.budget, self.encoding.old

        def encode(item: tuple[NewBlock, RowGroup | None]) -> tuple[NewBlock, RowGroup | None]:
            new, group = item
            return new, None if group is None else encode_group(group, encoder, budget, old)

        try:
            items = computed_ahead(encode, self.tokenized(check_stop), encoder.groups_at_once)
            for new, first in items:
                check_stop()
                path = self.folder.file(new.block.name)
                if new.old is None:
                    # Up to None, the end of this block: nothing of the next one is asked for.
                    rest = chain([first], (group for _, group in items))
                    groups = (group for group in takewhile(bool, rest) if group)
                    self.write(new, path, groups, report)
                else:
                    self.copy(new.block, new.old, path)
            if self.texts.kind is None and not self.bad:
                raise NoRowsError(self.inputs.paths)
        except (DataError, UsageError):
            if self.alone and not self.written and not self.copied:
                # The corrected command may have other settings.
                Path(self.folder.source).unlink()
            raise

    def tokenized(self, check_stop: Callable[[], None]) -> Iterator[tuple[NewBlock, RowGroup | None]]:
        """The groups of all new blocks, and None at the end of each block; a block to copy has no groups.

        Existing blocks are checked.
        """
        for block in self.blocks():
            check_stop()
            if block.name not in self.existing:
                rejects = Rejects(self.inputs.rejects.skip, BytesIO())
                new = NewBlock(block, copy(self.texts), self.old_block(block), rejects)
                if new.old is None:
                    rows = block.parsed(replace(self.inputs, rejects=rejects), self.texts)
                    yield from ((new, group) for group in self.encoding.groups(rows, rejects))
                yield new, None
            elif self.keep:
                self.check_source(block)
                self.kept += 1
            else:
                path = self.folder.file(block.name)
                raise CannotCreateError(f"{path}: already exists", advice="--resume keeps complete blocks")

    def blocks(self) -> Iterator[Block]:
        """The blocks of this shard. A stream is read once, so its blocks exist only during the iteration.

        The first row of all inputs determines the kind, also if it is in a block of another shard.
        """
        for number, path in enumerate(self.inputs.paths):
            is_stream = self.folder.length(number) is None
            if not is_stream:
                self.find_kind(self.folder.blocks(number, path))
            for block in self.folder.read(self.inputs, number, path):
                if is_stream:
                    self.find_kind([block])
                if self.wanted(block.index):
                    yield block

    def find_kind(self, blocks: Iterable[Block]) -> None:
        """Read rows until the kind is known. The writer of their block reports bad rows."""
        quiet = replace(self.inputs, rejects=Rejects(skip=self.inputs.rejects.skip))
        if self.texts.kind is None:
            try:
                rows = chain.from_iterable(block.parsed(quiet, self.texts) for block in blocks)
                next(filter(len, rows), None)
            except DataError:
                self.bad = True

    def check_source(self, block: Block) -> None:
        """Check an existing block, and compare a stream with its digest."""
        path, made = self.folder.file(block.name), self.folder.inputs[block.input]
        self.first = self.folder.verified(block.name, self.first)
        if block.rows is None:
            return
        if self.folder.by_line and made["path"] is None and made["format"]:  # a table in a named pipe
            problem = "an older sentkit did not record the header of this input"
            raise DataError(problem, source=path, advice="encode it into another folder, with --reuse")
        if self.folder.record(block.name)["source"] != block.source:
            problem = f"its rows {block.start + 1} to {block.stop} are not those of the block {block.name}"
            advice = "the input has changed; encode it into another folder"
            raise DataError(problem, source=block.path, advice=advice)

    def old_block(self, block: Block) -> VectorFile | None:
        """The file of --reuse with a block that was made from the same bytes, if there is one."""
        old = self.old.get((*self.folder.place_of(block), self.texts.vectors), {})
        return old.get(block.digest()) if old else None

    def copy(self, block: Block, old: VectorFile, path: str) -> None:
        assert self.encoding.old is not None
        record = old.record
        with published_together():
            copy_block(old, path, {**record, "input": block.input})
        self.encoding.old.needs(old)
        rows, truncated = record["rows"], record["truncated"]
        place = block.path if truncated else ""
        self.tally.join(Tally(rows=rows, reused=rows, truncated=truncated, first=place))
        self.copied += 1

    def write(self, new: NewBlock, path: str, groups: Iterator[RowGroup], report: Report) -> None:
        encoding, names, tally, block = self.encoding, new.texts.vectors, Tally(), new.block
        [own] = encoding.specs(new.texts)
        spec = own | self.folder.settings["encoder"]  # with the loss of int8 of the first process
        width, kind = encoding.encoder.width, self.folder.store
        named: dict[str, Any] = {"width": width, "kind": kind, "force": True, "record": EMPTY_RECORD}
        with published_together(), create_vector_file(path, spec, names, **named) as writer:
            sink = SeparateWriter(writer, encoding.form)
            for group in groups:
                encoding.write(group, [sink], names, new.rejects, tally, report)
            writer.record = {
                "input": block.input,
                "start": block.start,
                "stop": block.stop,
                "rows": writer.count,
                "truncated": tally.truncated,
                "skipped": new.rejects.count,
                "last": block.last,
                "source": block.source,
            }
        self.tally.join(tally)
        self.inputs.rejects.join(new.rejects)
        self.written += 1
