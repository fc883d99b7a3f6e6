"""Writes rows with their vectors to outputs, and adds the fields of `--on-truncate`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from sentkit.errors import DataError
from sentkit.formats.rows.block import NewFields, RowBlock
from sentkit.formats.rows.kinds import EMBEDDED, VECTORS, TextParser
from sentkit.formats.rows.rows import Inputs, Rejects
from sentkit.formats.vectors.store import encoded_files, recorded_fields
from sentkit.formats.vectors.writers import (
    VectorOutput,
    VectorWriter,
    open_writers,
    refuse_existing_fields,
)
from sentkit.model.encoding import Report, TokenEncoder, encode_groups
from sentkit.model.groups import EncodeStats, RowGroup, tokenized_groups
from sentkit.model.text.tokens import TextTokenizer

if TYPE_CHECKING:
    from sentkit.model.runs.reuse import ReusableVectors

# The fields of --on-truncate mark, with the type of their values, of which a pair has a list.
MARKS = {"n_tokens": int, "truncated": bool, "n_unknown": int, "unknown_language": bool}
CHUNK = ("chunk", "start", "end")  # fields of a window that is a row


class EncodeParser(TextParser):
    """Returns the texts of a row. Without `replace`, a row is bad if it has one of `new_fields`,
    which the command adds: it is refused before the model reads it.
    """

    def __init__(
        self,
        fields: Mapping[str, str],
        *,
        new_fields: Sequence[str],
        replace: bool,
        one_text: str | None,
        prompts: Mapping[str, str] | None,
    ) -> None:
        super().__init__(fields, one_text=one_text, prompts=prompts)
        self.new_fields = new_fields
        self.replace = replace

    def of_block(self, block: RowBlock) -> None:
        refuse_existing_fields(block, self.new_fields, replace=self.replace)
        super().of_block(block)


def new_field_names(inputs: Inputs, tokenizer: TextTokenizer, on_truncate: str) -> list[str]:
    """The fields that the command adds, of which no row may have one."""
    names = ["_emb", *VECTORS]
    if encoded_files(inputs):
        # The writer removes the other fields that an earlier `encode` has added.
        return names
    if on_truncate == "mark":
        names += ["n_tokens", "truncated"]
        if tokenizer.unknown_token:
            names.append("n_unknown")
        if tokenizer.judges_language:
            names.append("unknown_language")
    elif on_truncate == "chunks":
        names += CHUNK
    return names


def is_mark(values: Mapping[str, Any], name: str) -> bool:
    """Whether a row has this field of --on-truncate mark."""
    value = values.get(name)
    of_texts = value if isinstance(value, list) else [value]
    return all(type(value_of_text) is MARKS[name] for value_of_text in of_texts)


@dataclass(frozen=True, slots=True)
class Encoding:
    """The settings that determine the vectors and the fields of a row."""

    encoder: TokenEncoder
    tokenizer: TextTokenizer
    parser: TextParser  # of the rows; it knows their fields after the first row
    vector_output: VectorOutput
    batch_tokens: int | None = None  # None: the budget of the encoder
    on_truncate: str = "warn"  # "mark" adds the fields of MARKS
    # recorded settings; empty without windows
    window_settings: Mapping[str, Any] = field(default_factory=dict)
    # the inputs that store `_emb` and the vectors of their rows separately
    encoded_inputs: Set[str] = frozenset()
    reusable: "ReusableVectors | None" = None  # of --reuse

    @property
    def tokens_per_batch(self) -> int:
        """The number of tokens in a batch."""
        return self.batch_tokens or self.encoder.tokens_per_batch

    def groups(self, blocks: Iterable[RowBlock], rejects: Rejects) -> Iterator[RowGroup]:
        """The rows in groups, with their tokens, and with the numbers of their stored vectors."""
        return self.with_stored(
            tokenized_groups(blocks, self.tokenizer, rejects, on_truncate=self.on_truncate)
        )

    def with_stored(self, groups: Iterator[RowGroup]) -> Iterator[RowGroup]:
        """The same groups with the numbers of the vectors that --reuse has for their texts."""
        if self.reusable is None:
            return groups
        return map(self.reusable.with_stored_vectors, groups)

    def encoded_groups(self, groups: Iterator[RowGroup]) -> Iterator[RowGroup]:
        """The same groups with their vectors. The next groups are computed ahead."""
        read_stored = None if self.reusable is None else self.reusable.read
        return encode_groups(groups, self.encoder, self.tokens_per_batch, read_stored)

    def metadata_of_files(self, parser: TextParser) -> list[dict[str, Any]]:
        """What the vector files record, one for each readout. `parser` has read the first row."""
        fields = recorded_fields(
            {name: parser.fields.get(name, name) for name in parser.text_names}
        )
        settings: dict[str, Any] = {}
        if fields:
            settings["fields"] = fields
        settings |= self.window_settings
        return [spec.full_metadata | settings for spec in self.encoder.spaces]

    def count_messages(self, stats: EncodeStats) -> Iterator[str]:
        """The messages about windows, and about rows with stored vectors."""
        if self.window_settings:
            split = f"{stats.split} of {stats.rows} rows were split"
            if stats.windows:
                split += f" into {stats.windows} windows"
            if self.window_settings["chunks"]:
                split += f", {stats.texts} rows were written"
            window = self.window_settings["window"]
            yield f"{split} (--window {window}:{self.window_settings['stride']})"
        if self.reusable is not None:
            unneeded = ""
            if self.reusable.unneeded is not None:
                unneeded = f", no longer needed: {self.reusable.unneeded:,}"
            yield f"reused rows: {stats.reused:,}, encoded: {stats.rows - stats.reused:,}{unneeded}"

    def to_outputs(
        self, groups: Iterator[RowGroup], paths: Sequence[str], report: Report, rejects: Rejects
    ) -> EncodeStats:
        """Write all rows, with one output for each readout. Returns their counts."""
        stats = EncodeStats()
        encoded_groups = self.encoded_groups(self.with_stored(groups))
        # The parser has the names of the vectors only after it has read the first row.
        first_group = list(islice(encoded_groups, 1))
        names = self.parser.vector_names
        with open_writers(
            paths,
            self.metadata_of_files(self.parser),
            names,
            self.encoder.width,
            self.vector_output,
        ) as writers:
            for group in chain(first_group, encoded_groups):
                self.write(group, writers, names, rejects, stats, report)
        if self.reusable is not None:
            self.reusable.count_unneeded()
        return stats

    def write(
        self,
        group: RowGroup,
        writers: Sequence[VectorWriter],
        names: Sequence[str],
        rejects: Rejects,
        stats: EncodeStats,
        report: Report,
    ) -> None:
        """Write a group to all writers, and count the rows that were written. All writers get the
        same rows. `names` are the fields of the vectors.
        """
        rows = self.without_earlier_fields(group.rows, names)
        fields = self.new_fields(group)
        field_names = [name.decode() for name, _ in fields[0]] if fields else []

        # The lines of the output: the rows, or with chunks one for each window.
        lines = rows
        row_of_line: Sequence[int] = range(len(rows))
        if group.row_of_vector is not None:
            row_of_line = group.row_of_vector.tolist()
            lines = replace(rows.take(row_of_line), error_of_row={})
        for writer, vectors in zip(writers, group.vectors, strict=True):
            writer.check(lines, vectors, field_names)
        for line, error in lines.error_of_row.items():
            rows.error_of_row.setdefault(row_of_line[line], error)

        # The groups of good rows. The bad ones among them go to the rejects.
        for indices in rejects.good_indices(rows):
            good = group.take(indices)
            good_lines = (
                good.rows
                if good.row_of_vector is None
                else good.rows.take(good.row_of_vector.tolist())
            )
            good_fields = fields
            if fields and good is not group:
                good_fields = self.new_fields(good)
            for writer, vectors in zip(writers, good.vectors, strict=True):
                writer.write(good_lines, vectors, good_fields)
            report(len(good.rows), stats.add(good))
        for writer in writers:
            writer.flush()

    def without_earlier_fields(self, rows: RowBlock, names: Sequence[str]) -> RowBlock:
        """Remove the fields of an earlier `encode` from the rows. `names` are the fields of the new
        vectors.

        An earlier vector with another name makes its row bad, unless --replace is given. One with
        the same name, and `_emb`, stay: the writer replaces or refuses them.
        """
        other_vectors = EMBEDDED.difference(names, ["_emb"])
        # Rows of a vector file have no `_emb`, which is in its header.
        from_vector_files = not self.encoded_inputs.isdisjoint(rows.sources)
        if not from_vector_files and all(EMBEDDED.isdisjoint(values) for values in rows.values):
            return rows
        refuse_existing_fields(rows, sorted(other_vectors), replace=self.vector_output.replace)
        for index, row in enumerate(rows):
            removed_fields = set(other_vectors)
            if "_emb" in row.values or row.source in self.encoded_inputs:
                # The fields that `encode` added describe the earlier vectors. One alone is another.
                marks = [name for name in MARKS if is_mark(row.values, name)]
                if len(marks) > 1:
                    removed_fields.update(marks)
                if all(type(row.values.get(name)) is int for name in CHUNK):
                    removed_fields.update(CHUNK)
            if removed_fields.isdisjoint(row.values):
                continue
            try:
                new_row = row.without(removed_fields)
            except DataError as error:
                rows.error_of_row[index] = error
            else:
                rows.lines[index] = new_row.line
                rows.values[index] = new_row.values
        return rows

    def new_fields(self, group: RowGroup) -> list[NewFields]:
        """The new fields of each line to write besides the vectors; [] if there are none."""
        fields: list[NewFields] = []
        tokens = group.tokens
        if self.on_truncate == "mark":
            is_truncated = tokens.truncated
            unknown_counts = tokens.unknown_ids  # None if no text of the group has unknown tokens
            if unknown_counts is None:
                unknown_counts = np.zeros(len(tokens), np.int64)
            language = tokens.language  # None if each text of the group is in a known language
            if language is None:
                language = np.zeros(len(tokens), np.int64)
            for texts in group.text_numbers.tolist():
                counts = json_of_texts([str(tokens.full_lengths[text]) for text in texts])
                marks = json_of_texts([in_json(is_truncated[text]) for text in texts])
                row_fields = [(b"n_tokens", counts), (b"truncated", marks)]
                if self.tokenizer.unknown_token:
                    unknown = json_of_texts([str(unknown_counts[text]) for text in texts])
                    row_fields.append((b"n_unknown", unknown))
                if self.tokenizer.judges_language:
                    languages = json_of_texts([in_json(language[text] > 0) for text in texts])
                    row_fields.append((b"unknown_language", languages))
                fields.append(row_fields)
        if self.window_settings.get("chunks"):
            for text in group.text_numbers[:, 0].tolist():
                for number, (start, end) in enumerate(tokens.windows[text].characters):
                    values = (b"%d" % number, b"%d" % start, b"%d" % end)
                    fields.append(list(zip((b"chunk", b"start", b"end"), values, strict=True)))
        return fields


def in_json(value: bool) -> str:
    return "true" if value else "false"


def json_of_texts(values: Sequence[str]) -> bytes:
    """Return the JSON value of a row with one text, or an array of the values of several texts."""
    return (f"[{','.join(values)}]" if len(values) > 1 else values[0]).encode()
