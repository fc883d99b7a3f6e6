"""Writes rows with their vectors: to outputs, or to the blocks of a vector folder, which it resumes."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from shlex import quote
from typing import Any

import orjson

from sentkit.errors import CannotCreateError, DataError, NoRowsError, UsageError
from sentkit.formats.outputs.outputs import published_together
from sentkit.formats.outputs.temporary import remove_if_abandoned
from sentkit.formats.outputs.uploads import Outbox
from sentkit.formats.rows.block import NewFields, RowBlock
from sentkit.formats.rows.kinds import EMBEDDED, TextParser
from sentkit.formats.rows.rows import Inputs, Meter, Part, Rejects, digest_of_part
from sentkit.formats.urls import is_url
from sentkit.formats.vectors.fingerprint import without_machine
from sentkit.formats.vectors.folder_check import describe_input, open_folder, place_of_update
from sentkit.formats.vectors.folders import BLOCK_BYTES, EMPTY_RECORD, Block, VectorFolder, place_of
from sentkit.formats.vectors.sinks import Sink, StoreSink, VectorOutput, open_sinks
from sentkit.formats.vectors.store import recorded_fields
from sentkit.formats.vectors.vector_file import VectorFile, copy_block, create_vector_file
from sentkit.model.encoding import (
    Report,
    RowGroup,
    Tally,
    TokenEncoder,
    computed_ahead,
    encode_group,
    encode_groups,
    tokenized_groups,
)
from sentkit.model.reuse import OldVectors, Source
from sentkit.model.text.tokens import TextTokenizer, TokenBlock

MARKS = ("n_tokens", "truncated")  # fields that `marks` adds
CHUNK = ("chunk", "start", "end")  # fields of a window that is a row


@dataclass(frozen=True, slots=True)
class Encoding:
    """The settings that determine the vectors and the fields of a row."""

    encoder: TokenEncoder
    tokenizer: TextTokenizer
    fields: Mapping[str, str]
    budget: int  # tokens in a batch
    form: VectorOutput
    refuse_truncation: bool = False
    marks: bool = False  # add the fields of MARKS
    windows: Mapping[str, Any] = field(default_factory=dict)  # recorded settings; empty without windows
    sides: Mapping[str, str] = field(default_factory=dict)  # the prompt of each side, or none
    encoded: Set[str] = frozenset()  # the inputs that store `_emb` and the vectors of their rows separately
    old: OldVectors | None = None  # of --reuse

    @property
    def chunks(self) -> bool:
        return bool(self.windows.get("chunks"))

    def texts(self) -> TextParser:
        return TextParser(self.fields, one_text="a chunk" if self.chunks else None, prompts=self.sides)

    def groups(self, blocks: Iterable[RowBlock], rejects: Rejects) -> Iterator[RowGroup]:
        return tokenized_groups(blocks, self.tokenizer, rejects, refuse_truncation=self.refuse_truncation)

    def specs(self, texts: TextParser) -> list[dict[str, Any]]:
        """The specs of the vector files; the first row has set the names of the texts."""
        named = {name: self.fields[name] for name in texts.texts if name in self.fields}
        recorded = {"fields": recorded_fields(named)} if recorded_fields(named) else {}
        return [{**spec.full, **recorded, **self.windows} for spec in self.encoder.specs]

    def to_outputs(
        self,
        groups: Iterator[RowGroup],
        texts: TextParser,
        paths: Sequence[str],
        report: Report,
        rejects: Rejects,
    ) -> Tally:
        """Write all rows, with one output for each readout. Returns their counts."""
        tally = Tally()
        done = encode_groups(groups, self.encoder, self.budget, self.old)
        first = list(islice(done, 1))  # the first row determines the names of the vectors
        with open_sinks(paths, self.specs(texts), texts.vectors, self.encoder.width, self.form) as sinks:
            for group in chain(first, done):
                self.write(group, sinks, texts.vectors, rejects, tally, report)
        if self.old is not None:
            self.old.count_unneeded()
        return tally

    def write(
        self,
        group: RowGroup,
        sinks: Sequence[Sink],
        names: Sequence[str],
        rejects: Rejects,
        tally: Tally,
        report: Report,
    ) -> None:
        """Write a group to all sinks, and count the rows that were written. All sinks get the same rows."""
        rows = self.without_old(group.rows, names)
        extra = self.extra(group)
        lines = rows if group.owners is None else rows.take(group.owners.tolist())
        lines.bad = dict(rows.bad) if group.owners is None else {}
        for sink, vectors in zip(sinks, group.vectors, strict=True):
            sink.check(lines, vectors, [name.decode() for name, _ in extra[0]] if extra else ())
        for place, error in lines.bad.items():
            rows.bad.setdefault(place if group.owners is None else int(group.owners[place]), error)
        for places in rejects.good_places(rows):
            own = group.take(places)
            kept = own.rows if own.owners is None else own.rows.take(own.owners.tolist())
            new = self.extra(own) if extra and own is not group else extra
            for sink, vectors in zip(sinks, own.vectors, strict=True):
                sink.write(kept, vectors, new)
            report(len(own.rows), tally.add(own))
        for sink in sinks:
            sink.flush()

    def without_old(self, rows: RowBlock, names: Sequence[str]) -> RowBlock:
        """The rows without the fields of old vectors. Old vectors of other names make a row bad."""
        others = EMBEDDED.difference(names, ["_emb"])  # vectors that the new `_emb` would not describe
        stored = not self.encoded.isdisjoint(rows.sources)
        if not stored and all(map(EMBEDDED.isdisjoint, rows.values)):
            return rows
        for place, row in enumerate(rows):
            try:
                gone = set[str]()
                if not others.isdisjoint(row.values):
                    row.check_absent(sorted(others), replace=self.form.replace)
                    gone |= others
                if "_emb" in row.values or row.source in self.encoded:
                    # The fields that `encode` added describe the old vectors.
                    gone |= {*MARKS, *(CHUNK if row.values.keys() >= set(CHUNK) else ())}
                if not gone.isdisjoint(row.values):
                    left = row.without(gone)
                    rows.lines[place], rows.values[place] = left.line, left.values
            except DataError as error:
                rows.bad[place] = error
        return rows

    def extra(self, group: RowGroup) -> list[NewFields]:
        """The new fields of each row to write besides the vectors; [] if there are none."""
        if not self.chunks:
            return [token_marks(group.tokens, own) for own in group.index.tolist()] if self.marks else []
        extra: list[NewFields] = []
        for place in group.index[:, 0].tolist():
            for number, (start, end) in enumerate(group.tokens.windows[place].places):
                values = zip(CHUNK, (number, start, end), strict=True)
                extra.append([(name.encode(), b"%d" % value) for name, value in values])
        return extra


def token_marks(tokens: TokenBlock, places: Sequence[int]) -> NewFields:
    """The fields of MARKS; lists for a pair."""
    texts = (
        [str(tokens.counts[place]) for place in places],
        ["true" if tokens.truncated[place] else "false" for place in places],
    )
    values = [f"[{','.join(each)}]" if len(each) > 1 else each[0] for each in texts]
    return [(name.encode(), value.encode()) for name, value in zip(MARKS, values, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class NewBlock:
    """A block to write, with the rejects of its rows."""

    block: Block
    part: Part
    texts: TextParser  # with the kind of rows that is known when the block begins
    rejects: Rejects
    rejected: BytesIO


class BlockWriter:
    """Writes the blocks of one shard. The bytes of a block depend only on its input and the settings."""

    def __init__(
        self,
        path: str,
        encoding: Encoding,
        inputs: Inputs,
        wanted: Callable[[int], bool],
        *,
        block_bytes: int | None,
        batch_tokens: int | None,
        update: bool,
        resume: bool,
        shared: bool,
        outbox: Outbox | None = None,
    ) -> None:
        """Open or create a vector folder for the blocks whose index is `wanted`.

        Without `block_bytes` and `batch_tokens`, an existing folder determines them. With `update`, the
        folder is one beside `path` if the inputs have changed. Otherwise it may exist only with `resume`,
        which keeps its blocks, or if other processes write to it, too (`shared`).
        """
        settings = {
            "block_bytes": block_bytes,
            "batch_tokens": batch_tokens,
            "inputs": [describe_input(inputs, each) for each in inputs.paths],
            "store": encoding.form.store,
            "encoder": encoding.encoder.specs[0].full,
            "fields": dict(encoding.fields),
            "on_truncate": "error" if encoding.refuse_truncation else "mark" if encoding.marks else "warn",
            **encoding.windows,
            "on_error": "skip" if inputs.rejects.skip else "fail",
            "max_line": inputs.longest,
            "quoting": inputs.quoting or "by format",
            "replace": encoding.form.replace,
        }
        defaults = {"block_bytes": BLOCK_BYTES, "batch_tokens": encoding.encoder.budget, "store": "float32"}
        place = path
        if update:
            defaults = VectorFolder(path).settings
            place = place_of_update(path, settings)
        self.folder, created = open_folder(place, settings, defaults)
        self.keep = resume or (update and place == path)  # existing blocks; otherwise they are an error
        if not (created or self.keep or shared):
            raise CannotCreateError(f"{place}/: already exists", advice="--resume continues it")
        self.alone = created and not resume and not shared  # no other process writes to the folder
        form = replace(encoding.form, store=self.folder.store)
        self.encoding = replace(encoding, budget=self.folder.settings["batch_tokens"], form=form)
        self.inputs, self.wanted = replace(inputs, meter=Meter(())), wanted  # a shard can have no rows
        self.outbox = outbox  # of a folder at a URL
        self.existing, leftovers = self.folder.existing()  # names of the complete blocks
        self.leftovers = [each for each in leftovers if not remove_if_abandoned(each)]
        self.texts = encoding.texts()  # of all blocks, which have rows of one kind
        self.tally, self.tally_of_copies = Tally(), Tally()  # a thread copies blocks while others are written
        self.bad = False  # the first row is bad, perhaps in a block of another shard
        self.names: tuple[str, ...] = ()  # the vectors of all blocks
        self.first: VectorFile | None = None  # an existing block, to compare others with
        self.written = self.copied = self.kept = 0  # blocks: new ones, of old folders, and existing ones
        self.old: dict[tuple[Any, ...], list[tuple[Source, int]]] = {}  # blocks of old folders, by place
        if encoding.old is not None and not encoding.windows:  # windows are counted by row
            self.find_old_blocks(encoding.old)

    def warnings(self) -> Iterator[str]:
        for number, each in enumerate(self.inputs.paths):
            if self.folder.length(number) is None:
                yield f"{each}: has no byte positions, so every process reads it from the start"
        if self.leftovers:
            path, first = self.folder.path, self.leftovers[0].name
            problem = f"{len(self.leftovers)} incomplete blocks of killed processes, such as {first}"
            advice = "if no other machine or container writes to the folder, remove them"
            yield f"{path}: {problem}; sentkit check {quote(path)} lists them; {advice}"

    @property
    def done(self) -> int:
        """The number of complete blocks."""
        return self.written + self.copied + self.kept

    def count(self) -> int | None:
        """The number of blocks of this shard; None if the length of an input is unknown."""
        numbers = range(len(self.folder.inputs))
        if any(self.folder.length(number) is None for number in numbers):
            return None
        return sum(self.wanted(block.index) for number in numbers for block in self.folder.blocks(number))

    def run(self, report: Report, check_stop: Callable[[], None]) -> None:
        """Write all blocks that do not exist. `check_stop` is called before each block."""
        try:
            self.names = self.existing_names()
            encoded = self.encoded(check_stop)
            for new, first in encoded:
                check_stop()
                self.write_block(new, rest_of_block(first, encoded), report)
                self.written += 1
                if self.outbox is not None:
                    self.outbox.add(new.block.name)
            if self.texts.kind is None and not self.bad:
                raise NoRowsError(self.inputs.paths)
            self.tally.join(self.tally_of_copies)
        except (DataError, UsageError):
            if self.alone and not self.written and not self.copied:
                # The corrected command may have other settings.
                if self.outbox is None:
                    Path(self.folder.source).unlink()
                else:
                    self.outbox.place.remove([Path(self.folder.source).name])
            raise

    def encoded(self, check_stop: Callable[[], None]) -> "Iterator[tuple[NewBlock, RowGroup | None]]":
        """The groups of all new blocks with their vectors, and None at the end of each block.

        The next block is read and tokenized while the model computes the last groups of a block.
        """
        encoder, budget, old = self.encoding.encoder, self.encoding.budget, self.encoding.old

        def encode(item: tuple[NewBlock, RowGroup | None]) -> tuple[NewBlock, RowGroup | None]:
            new, group = item
            return new, None if group is None else encode_group(group, encoder, budget, old)

        return computed_ahead(encode, self.groups(check_stop), encoder.groups_at_once)

    def groups(self, check_stop: Callable[[], None]) -> Iterator[tuple[NewBlock, RowGroup | None]]:
        """The same without vectors. Existing blocks are checked, and old ones are copied."""
        for block, part in self.parts():
            check_stop()
            if block.name in self.existing and not self.keep:
                path = self.folder.file(block.name)
                raise CannotCreateError(f"{path}: already exists", advice="--resume keeps complete blocks")
            if block.name in self.existing:
                self.check_source(block, part)
                self.kept += 1
                continue
            if self.copy_block(block, part):
                self.copied += 1
                if self.outbox is not None:
                    self.outbox.add(block.name)
            else:
                rejected = BytesIO()
                rejects = Rejects(self.inputs.rejects.skip, rejected)
                new = NewBlock(block, part, copy(self.texts), rejects, rejected)
                inputs = replace(self.inputs, rejects=rejects)
                rows = chain.from_iterable(inputs.parsed(each, self.texts) for each in part.blocks(inputs))
                yield from ((new, group) for group in self.encoding.groups(rows, rejects))
                yield new, None

    def parts(self) -> Iterator[tuple[Block, Part]]:
        """The blocks of this shard. A stream is read once, so its blocks exist only during the iteration.

        The first row of all inputs determines the kind, also if it is in a block of another shard.
        """
        for number, path in enumerate(self.inputs.paths):
            is_stream = self.folder.length(number) is None
            if not is_stream:
                self.find_kind(part for _, part in self.folder.parts(self.inputs, number, path))
            for block, part in self.folder.parts(self.inputs, number, path):
                if is_stream:
                    self.find_kind([part])
                if self.wanted(block.index):
                    yield block, part

    def find_kind(self, parts: Iterable[Part]) -> None:
        """Read rows until the kind is known. The writer of their block reports bad rows."""
        quiet = replace(self.inputs, rejects=Rejects(skip=self.inputs.rejects.skip))
        blocks = (block for part in parts for block in part.blocks(quiet))
        if self.texts.kind is None:
            try:
                next(chain.from_iterable(quiet.parsed(block, self.texts) for block in blocks), None)
            except DataError:
                self.bad = True

    def path(self, block: Block) -> str:
        """The file of a new block; the outbox of a folder at a URL sends it."""
        return (self.folder if self.outbox is None else self.outbox).file(block.name)

    def find_old_blocks(self, old: OldVectors) -> None:
        """List the blocks of the folders of --reuse that have the same settings, by input and start."""
        own = same_for_all(self.folder)
        for source in old.sources:
            folder = VectorFolder(source.store.path) if source.store.is_folder else None
            if folder is None or same_for_all(folder) != own:
                continue
            for file, each in enumerate(source.store.files):
                number, start = place_of(Path(each.path).name)
                if folder.by_line and folder.length(number) is None:
                    continue  # its digests omit the header
                self.old.setdefault((*kind_of_input(folder, number), start), []).append((source, file))

    def copy_block(self, block: Block, part: Part) -> bool:
        """Copy a block of a folder of --reuse that was made from the same bytes, if there is one."""
        old, digest = self.encoding.old, ""
        for source, number in self.old.get((*kind_of_input(self.folder, block.input), block.start), ()):
            file = source.store.files[number]
            record = orjson.loads(file.header.metadata["block"])
            span = record["start"], record["stop"], record["last"]
            if span != (part.start, part.stop, part.last) or file.names != self.texts.vectors:
                continue
            digest = digest or digest_of_part(part, self.inputs)
            if record["source"] != digest or record["skipped"]:  # --rejects gets the bad rows
                continue
            with published_together():
                copy_block(file, self.path(block), {**record, "input": block.input})
            if not is_url(file.path):
                made = Path(file.path).stat()
                os.utime(self.path(block), ns=(made.st_atime_ns, made.st_mtime_ns))  # see `counts_of`
            assert old is not None
            old.needed[source.place(number) : source.place(number + 1)] = True
            rows, truncated = record["rows"], record["truncated"]
            first = self.inputs.paths[block.input] if truncated else ""
            self.tally_of_copies.join(Tally(rows=rows, reused=rows, truncated=truncated, first=first))
            self.names = self.names or file.names
            return True
        return False

    def existing_names(self) -> tuple[str, ...]:
        for name in sorted(self.existing):
            with suppress(DataError):  # `check --deep` names damaged blocks
                file = VectorFile(self.folder.file(name))
                if file.count:
                    return file.names
        return ()

    def check_source(self, block: Block, part: Part) -> None:
        """Check an existing block, which is not read at a URL, and compare a stream with its digest."""
        path, made = self.folder.file(block.name), self.folder.inputs[block.input]
        if self.outbox is None:
            self.first = self.folder.verified(block.name, self.first)
        elif self.folder.length(block.input) is not None:
            return
        record = self.folder.record(block.name)
        if self.folder.by_line and made["path"] is None and made["format"]:  # a table in a named pipe
            advice = "encode it into another folder, with --reuse"
            raise DataError(
                "an older sentkit did not record the header of this input", source=path, advice=advice
            )
        if self.folder.length(block.input) is None and record["source"] != part.digest:
            problem = f"its rows {part.start + 1} to {part.stop} are not those of the block {block.name}"
            advice = "the input has changed; encode it into another folder"
            raise DataError(problem, source=self.inputs.paths[block.input], advice=advice)

    def write_block(self, new: NewBlock, groups: Iterator[RowGroup], report: Report) -> None:
        encoding, texts, tally, block = self.encoding, new.texts, Tally(), new.block
        first = list(islice(groups, 1))
        if first:
            self.names = self.names or texts.vectors
            if texts.vectors != self.names:
                names = ", ".join(texts.vectors), ", ".join(self.names)
                raise first[0].rows.row(0).error(f"vectors would be {names[0]}, other blocks have {names[1]}")
        [own] = encoding.specs(texts)
        spec = own | self.folder.settings["encoder"]  # with the loss of int8 of the first process
        with (
            published_together(),
            create_vector_file(
                self.path(block),
                spec,
                texts.vectors,
                width=encoding.encoder.width,
                force=True,
                record=EMPTY_RECORD,
                kind=self.folder.store,
            ) as writer,
        ):
            sink = StoreSink(writer, encoding.form)
            for group in chain(first, groups):
                encoding.write(group, [sink], texts.vectors, new.rejects, tally, report)
            writer.record = {
                "input": block.input,
                "start": new.part.start,
                "stop": new.part.stop,
                "rows": writer.count,
                "truncated": tally.truncated,
                "skipped": new.rejects.count,
                "last": new.part.last,
                "source": new.part.digest,
            }
        self.tally.join(tally)
        self.inputs.rejects.join(new.rejects, new.rejected.getvalue())


def rest_of_block(
    group: RowGroup | None, following: Iterator[tuple[NewBlock, RowGroup | None]]
) -> Iterator[RowGroup]:
    """This group and the others of its block. Nothing of the next block is asked for."""
    while group is not None:
        yield group
        _, group = next(following)


def same_for_all(folder: VectorFolder) -> dict[str, Any]:
    """The settings of a folder without its inputs."""
    others = {name: value for name, value in folder.settings.items() if name != "inputs"}
    return {**others, "encoder": without_machine(folder.settings["encoder"])}


def kind_of_input(folder: VectorFolder, number: int) -> tuple[Any, ...]:
    return tuple(folder.inputs[number][name] for name in ("name", "grid", "format"))
