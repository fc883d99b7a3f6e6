"""Tokenizes the rows of a run and writes them to the files that `map_corpus` maps.

The files contain the token ids of all texts, the end of each text, the first text and the target of
each row, and the vectors of a teacher. One process writes them.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.formats.counted import counted
from sentkit.formats.outputs.temporary import create
from sentkit.formats.rows.block import RowBlock
from sentkit.formats.rows.rows import Inputs, Rejects
from sentkit.formats.vectors.vectors import (
    VectorBlock,
    VectorReader,
    in_blocks_of_size,
    joined_vector_blocks,
)
from sentkit.metrics.seen_pairs import SeenPairs
from sentkit.model.text.tokens import TextTokenizer, TokenBlock, Tokens
from sentkit.training.data.corpus import (
    CORPUS,
    ENDS,
    FILES,
    FIRST_TEXTS,
    IDS,
    ROWS,
    TARGETS,
    VECTORS,
)
from sentkit.training.data.examples import Classes, Example, ExampleParser

BLOCK_ROWS = 2048  # rows tokenized at once


@dataclass(slots=True)
class RowCounts:
    """Counts of used, omitted and truncated rows, for the messages before the first step."""

    used: int = 0
    without_target: int = 0
    why_no_target: str = ""
    blank: int = 0  # with a text that is empty or blank
    duplicates: int = 0  # omitted
    truncated: int = 0  # used rows with a truncated text
    truncated_for_guide: int = 0  # other used rows, with a text that is too long for the guide
    ignored_fields: tuple[str, ...] = ()  # fields of a pair (label, score) that this method ignores

    def warnings(self) -> Iterator[str]:
        if self.without_target:
            yield self.skipped_without_target()
        if self.blank:
            yield f"{self.why_blank()}, of which no model computes a vector"
        if self.duplicates:
            yield f"{counted(self.duplicates, 'row')} skipped: duplicate texts (dedup=on)"
        if self.ignored_fields:
            names = " and ".join(f'"{name}"' for name in self.ignored_fields)
            yield f"this method uses every pair as a positive pair and ignores {names}"
        if self.truncated:
            rows = self.among_used(self.truncated)
            yield f"{rows} truncated to the maximum length (--set max_length)"
        if self.truncated_for_guide:
            rows = self.among_used(self.truncated_for_guide)
            yield f"{rows} truncated to the maximum length of the guide, only for the guide"

    def add_truncated(
        self, tokens: TokenBlock, row_of_text: NDArray[np.int64], *, has_second_texts: bool
    ) -> None:
        """Count the rows with truncated texts. `has_second_texts`: after each text, the tokens have
        the same text by a second tokenizer.

        If only this one truncates a text, it is that of a guide: the tokenizer of a comparison is
        that of the base without prompts, so its texts are not longer.
        """
        is_second = np.zeros(len(tokens), bool)
        if has_second_texts:
            is_second[1::2] = True
        truncated_rows = np.unique(row_of_text[tokens.truncated & ~is_second])
        rows_of_guide = np.unique(row_of_text[tokens.truncated & is_second])
        self.truncated += len(truncated_rows)
        self.truncated_for_guide += len(np.setdiff1d(rows_of_guide, truncated_rows))

    def why_blank(self) -> str:
        return f"{counted(self.blank, 'row')} skipped: an empty text"

    def skipped_without_target(self) -> str:
        return f"{counted(self.without_target, 'row')} skipped: {self.why_no_target}"

    def among_used(self, rows: int) -> str:
        """Such as "1 of 3 rows was"."""
        verb = "was" if rows == 1 else "were"
        return f"{rows} of {counted(self.used, 'row')} {verb}"


def write_corpus(
    folder: Path,
    inputs: Inputs,
    parser: ExampleParser,
    tokenizer: TextTokenizer,
    *,
    dedup: bool = False,
    seen_pairs: SeenPairs | None = None,
    with_files: bool = False,
) -> RowCounts:
    """Tokenize all rows and write the files of a corpus. `seen_pairs` takes the texts of
    each row. `with_files`: also write the number of the file of each row.
    """
    for name in CORPUS:
        (folder / name).unlink(missing_ok=True)
    row_counts = RowCounts()
    reader = VectorReader(inputs)
    if parser.reads.vectors:
        all_blocks = reader.blocks(parser.with_vectors)
    else:
        all_blocks = without_vectors(inputs, parser)
    # A classifier reads the texts of a row together, of which one can be empty.
    skips_blank = parser.reads.tokenize is None
    used_blocks = used_rows(
        all_blocks, row_counts, seen_pairs, skips_blank=skips_blank, dedup=dedup
    )

    # Arrays of the standard library grow in place, and need 4 or 8 bytes for a number.
    text_ends = array("q")  # of all texts, in tokens from the start of the file
    first_texts = array("q", [0])  # of each row, and the number of texts
    targets = array("d")
    files = array("i")
    number_of_file: dict[str, int] = {}  # of the files with used rows
    has_second_texts = parser.reads.second_tokenizer is not None
    tokens_written = 0
    with create(folder / IDS) as ids_file, create(folder / VECTORS) as vectors_file:
        for block in in_blocks_of_size(used_blocks, joined_vector_blocks, BLOCK_ROWS):
            examples: list[Example] = block.rows.parsed
            good_rows = tokenized(block.rows, examples, parser, tokenizer, inputs.rejects)
            for rows, tokens, row_of_text in good_rows:
                ids_file.write(tokens.ids.data)
                text_ends.extend((tokens_written + np.cumsum(tokens.lengths)).tolist())
                tokens_written = text_ends[-1]
                _, text_counts = np.unique(row_of_text, return_counts=True)
                first_texts.extend((first_texts[-1] + np.cumsum(text_counts)).tolist())
                row_counts.used += len(text_counts)
                row_counts.add_truncated(tokens, row_of_text, has_second_texts=has_second_texts)
                targets.extend(targets_of(examples, rows))
                if with_files:
                    for source in np.array(block.rows.sources, object)[rows]:
                        files.append(number_of_file.setdefault(source, len(number_of_file)))
                vectors = block.vectors[rows].astype("<f4", copy=False)
                vectors_file.write(vectors.tobytes())

    row_counts.ignored_fields = parser.ignored_fields
    labels: tuple[str, ...] = ()
    target = parser.reads.target
    if target is not None:
        row_counts.why_no_target = target.why
    if isinstance(target, Classes):
        labels = target.sort(targets)
    with create(folder / ENDS) as file:
        np.save(file, np.array(text_ends, np.int64))
    with create(folder / FIRST_TEXTS) as file:
        np.save(file, np.array(first_texts, np.int64))
    with create(folder / TARGETS) as file:
        np.save(file, np.array(targets))
    with create(folder / FILES) as file:
        np.save(file, np.array(files, np.int32))
    with create(folder / ROWS) as file:
        # "teacher" is the space of the vectors; empty without vectors, or without a name.
        names = {
            "labels": labels,
            "teacher": reader.space_name or "",
            "files": list(number_of_file),
            "second_texts": has_second_texts,
        }
        file.write(orjson.dumps(names))
    return row_counts


def targets_of(examples: Sequence[Example], rows: Sequence[int] | slice) -> list[float]:
    """Return the targets of these rows. Without a target in the method, no example has one."""
    indices = np.arange(len(examples))[rows]
    targets = [examples[index].target for index in indices.tolist()]
    return [target for target in targets if target is not None]


def without_vectors(inputs: Inputs, parser: ExampleParser) -> Iterator[VectorBlock]:
    for rows in inputs.parsed_blocks(parser):
        yield VectorBlock(rows, np.empty((len(rows), 0, 0), np.float32), ())


def used_rows(
    blocks: Iterable[VectorBlock],
    row_counts: RowCounts,
    seen_pairs: SeenPairs | None,
    *,
    skips_blank: bool,
    dedup: bool,
) -> Iterator[VectorBlock]:
    """Yield the rows of the blocks that are not omitted, and count the others."""
    seen_texts: set[bytes] = set()  # hashes of the texts of a row
    for block in blocks:
        used: list[int] = []
        for row, example in enumerate(block.rows.parsed):
            if example is None:
                row_counts.without_target += 1
                continue
            if skips_blank and not all(map(str.strip, example.texts)):
                row_counts.blank += 1
                continue
            if seen_pairs is not None:
                seen_pairs.take(example.row, example.texts)
            if dedup:
                texts = "\0".join(example.texts).encode()
                texts_hash = hashlib.blake2b(texts, digest_size=12).digest()
                if texts_hash in seen_texts:
                    row_counts.duplicates += 1
                    continue
                seen_texts.add(texts_hash)
            used.append(row)
        if len(used) == len(block):
            yield block
        else:
            yield block.take(used)


def tokenized(
    rows: RowBlock,
    examples: Sequence[Example],
    parser: ExampleParser,
    tokenizer: TextTokenizer,
    rejects: Rejects,
) -> Iterator[tuple[Sequence[int] | slice, TokenBlock, NDArray[np.int64]]]:
    """Yield the indices of good rows, the tokens of all their texts (t texts), and the row of each
    text (t,).

    Rows with a text that has a problem are rejected. A column is a tokenizer's result for all
    texts. With several columns, each text counts as several texts, one after the other: text 0 of
    column 0, text 0 of column 1, text 1 of column 0, ...
    """
    columns, texts_of_row = columns_of(examples, parser, tokenizer)
    blocks = [as_block(column) for column in columns]
    text_count = len(blocks[0])
    row_of_text = np.repeat(np.arange(len(rows)), texts_of_row)

    # Refuse rows with a bad text. The first problem of a row, in this order, is its message.
    problems: list[tuple[int, int, str]] = []
    for column_index, block in enumerate(blocks):
        for text, problem in block.problems.items():
            problems.append((text, column_index, problem))
    for text, _, problem in sorted(problems):
        rows.refuse(int(row_of_text[text]), problem)

    # The columns one after the other, and the order that puts the texts of a row together.
    lengths = np.concatenate([block.lengths for block in blocks])
    truncated = np.concatenate([block.truncated for block in blocks])
    ids = np.concatenate([block.ids for block in blocks])
    full_lengths = lengths + truncated  # only whether it is larger is read
    tokens = TokenBlock(ids, lengths, full_lengths)
    texts_of_columns = np.arange(len(lengths)).reshape(len(blocks), text_count)
    text_by_text = texts_of_columns.T.ravel()
    row_of_output = np.repeat(row_of_text, len(blocks))
    for good_rows in rejects.good_indices(rows):
        is_good = np.zeros(len(rows), bool)
        is_good[good_rows] = True
        is_written = is_good[row_of_output]
        yield good_rows, tokens.take(text_by_text[is_written]), row_of_output[is_written]


def tokenized_with_prompts(
    tokenizer: TextTokenizer, prompt_of_text: Sequence[str], texts: Sequence[str]
) -> TokenBlock:
    """The tokens of texts with different prompts."""
    tokens: dict[int, Tokens] = {}  # by the index of the text
    for prompt in dict.fromkeys(prompt_of_text):
        indices = [index for index, other in enumerate(prompt_of_text) if other == prompt]
        block = tokenizer.with_prompt(prompt)([texts[index] for index in indices])
        tokens |= zip(indices, block, strict=True)
    return TokenBlock.of([tokens[index] for index in range(len(texts))])


def as_block(texts: Sequence[Tokens]) -> TokenBlock:
    if isinstance(texts, TokenBlock):
        return texts
    return TokenBlock.of(texts)


def columns_of(
    examples: Sequence[Example], parser: ExampleParser, tokenizer: TextTokenizer
) -> tuple[list[Sequence[Tokens]], list[int]]:
    """Return the columns of these rows, and how many texts of each row are in a column: one, or all
    texts of the row.

    `examples` are the rows that were not omitted.
    """
    one_of_each_row = [1] * len(examples)
    reads = parser.reads  # what the method needs of a row
    prompts = parser.prompts
    # One column for each text of a row, without prompts, as `classify` reads pairs.
    if reads.tokenize is not None:
        return reads.tokenize([example.texts for example in examples]), one_of_each_row

    # One text of each row in each column, by the tokenizer of the column, such as one with its
    # template.
    columns: list[Sequence[Tokens]] = []
    if reads.columns:
        for text_index, column_tokenizer in reads.columns:
            if prompts:
                column_tokenizer = column_tokenizer.with_prompt(prompts[text_index])
            columns.append(column_tokenizer([example.texts[text_index] for example in examples]))
        return columns, one_of_each_row

    # All texts in one column.
    texts = [text for example in examples for text in example.texts]
    if prompts:
        last = len(prompts) - 1  # its prompt is that of all texts of the field "negatives"
        prompt_of_text = [
            prompts[min(i, last)] for example in examples for i in range(len(example.texts))
        ]
        columns.append(tokenized_with_prompts(tokenizer, prompt_of_text, texts))
    else:
        columns.append(tokenizer(texts))
    if reads.second_tokenizer is not None:  # of another model, with its own prompt
        columns.append(reads.second_tokenizer(texts))
    return columns, [len(example.texts) for example in examples]
