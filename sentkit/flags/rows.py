"""The rows that a command reads: files, names of fields, and the file of bad rows."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from sentkit.console import Console
from sentkit.errors import CannotCreateError, NoInputError, NoRowsError, UsageError
from sentkit.flags.outputs import Output, check_paths

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sentkit.formats.outputs.outputs import Paths
    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.vectors.vector_file import VectorSource

N = TypeVar("N", str, str | None)
FieldNames = Sequence[str | None]  # the names that --field may map; None is ignored


def input_paths(files: Sequence[str] | None, *, text_folders: bool = False) -> list[str]:
    """The paths of FILE...: a pattern becomes its matches, and with `text_folders` a folder its
    text files.
    """
    from sentkit.formats.files import expanded

    return list(expanded(files or ["-"], text_folders=text_folders))


@dataclass(frozen=True)
class RowSource:
    """The files of rows of a command line, and how they are read.

    The suffix of a file determines its format, or else its first byte; `format`, `quoting` and
    `columns` are for other files.
    """

    paths: Sequence[str] = ("-",)
    field: Sequence[str] | None = None  # OURS=THEIRS
    rejects: str | None = None  # the file of bad rows; None: a bad row is an error
    format: str | None = None
    quoting: str | None = None
    columns: Sequence[str] = ()
    # vectors that were mapped to a space are compared with its vectors
    accepts_mapped: bool = False

    def name_in_input(self, name: N) -> N:
        """The name in the input of a field that another flag names, such as --gold."""
        names = dict(pair.split("=", 1) for pair in self.field or [] if "=" in pair)
        if not name:
            return name
        return names.get(name, name)

    @cached_property
    def open_vector_file(self) -> "Callable[[str], VectorSource | None]":
        """Opens a vector file or folder, once; None for other files. So all reads see the same
        blocks.
        """
        from sentkit.formats.vectors.store import open_vectors

        return cache(open_vectors)

    def warn_of_prompts(self, console: Console, paths: Sequence[str | None]) -> None:
        """Warn if vector files that are compared as one side have different recorded prompts.

        The space is the same for all prompts, so that queries meet passages. A file of rows records
        no prompt.
        """
        first: tuple[str, object] | None = None  # a path and its prompt
        for path in paths:
            store = None if path is None else self.open_vector_file(path)
            if store is None or "prompt" not in store.metadata:
                continue
            prompt = store.metadata["prompt"]
            if first is None:
                first = (path or "", prompt)
            elif prompt != first[1]:
                prompts = f"{in_quotes(first[1])} and {in_quotes(prompt)}"
                files = f"{first[0]} and {path}"
                console.warn(f"{files} were encoded with different prompts: {prompts}")
                return

    def inputs(self, paths: Sequence[str], field_names: FieldNames) -> "Inputs":
        """The rows of some paths, without the check of their outputs that `open` does."""
        from sentkit.formats.rows.rows import Inputs, parse_fields

        return Inputs(
            paths,
            format=self.format,
            fields=parse_fields(self.field or [], [name for name in field_names if name]),
            quoting=self.quoting,
            columns=self.columns,
            accepts_mapped=self.accepts_mapped,
            open_vector_file=self.open_vector_file,
        )

    @contextmanager
    def open(
        self,
        console: Console,
        output: Output,
        *,
        field_names: FieldNames,
        reads: "Paths | None" = None,
        writes: "Paths | None" = None,
        append: bool = False,
        dry_run: bool = False,
    ) -> Iterator["Inputs"]:
        """Open the rows of all files after a check of all paths; on exit, report the number of bad
        rows, and raise an error if no row was good.

        `reads` and `writes` are further paths, by flag. `append`: the file of --rejects may exist.
        A dry run checks that file as the run does, and does not write it.
        """
        from sentkit.formats.files import check_input
        from sentkit.formats.rows.rows import Rejects

        # All paths are checked before any work.
        all_writes = {"-o": output.path, "--rejects": self.rejects, **(writes or {})}
        all_reads = {"FILE": self.paths, **(reads or {})}
        if self.rejects is not None:
            check_rejects(self.rejects, append=append)
        check_paths(console, all_writes, all_reads)
        self.check_folders(all_reads)
        for path in self.paths:
            try:
                check_input(path)
            except NoInputError as error:
                error.advice = error.advice or advice_for_texts(
                    self.paths, console.command, field_names
                )
                raise

        rejects = Rejects(skip=self.rejects is not None, warn=console.warn, note=console.note)
        inputs = replace(self.inputs(self.paths, field_names), rejects=rejects)
        no_rows: NoRowsError | None = None
        with self.open_rejects(output, append=append, dry_run=dry_run) as rejects_file:
            rejects.file = rejects_file
            try:
                yield inputs
                # A later step, such as the tokenizer, can reject all rows that were read well.
                rows_read = inputs.counter.rows
                rejected_later = rejects.count - inputs.counter.bad_count
                if rows_read > 0 and rejected_later >= rows_read:
                    raise NoRowsError(self.paths)
            except NoRowsError as error:
                no_rows = error  # raised below, when the file of bad rows is complete

        if rejects.count:
            counted = f"bad rows written to {self.rejects}"
            if dry_run:
                counted = "bad rows"
            elif self.rejects == "/dev/null":
                counted = "bad rows dropped"
            console.warn(f"{counted}: {rejects.count}; the first is {rejects.first_error}")
        if no_rows is not None:
            raise no_rows

    def check_folders(self, reads: "Mapping[str, str | Sequence[str] | None]") -> None:
        """Open all vector folders among the inputs: an incomplete one is refused before any
        work.
        """
        from sentkit.formats.files import is_folder

        for paths in reads.values():
            if isinstance(paths, str):
                paths = [paths]
            for path in paths or []:
                if is_folder(path):
                    self.open_vector_file(path)

    def open_rejects(
        self, output: Output, *, append: bool, dry_run: bool
    ) -> "AbstractContextManager[BinaryIO] | AbstractContextManager[None]":
        from sentkit.formats.outputs.outputs import check_creatable, open_appended, open_output

        if self.rejects is None:
            return nullcontext()
        if dry_run:
            if append and Path(self.rejects).is_file():
                with open_appended(self.rejects):
                    return nullcontext()
            check_creatable(self.rejects, force=output.force or append)
            return nullcontext()
        if append and self.rejects != "-":
            return open_appended(self.rejects)
        return open_output(self.rejects, force=output.force, has_rejects=True)


def in_quotes(prompt: object) -> str:
    """A recorded prompt, or those by side, for a message."""
    if isinstance(prompt, dict):
        return ", ".join(f"{side}={in_quotes(text)}" for side, text in prompt.items())
    return f'"{prompt}"'[:100]


def check_rejects(rejects: str, *, append: bool) -> None:
    """Refuse a folder, and formats in which bad rows cannot be written."""
    from sentkit.formats.files import COMPRESSED, is_folder, is_parquet

    if is_folder(rejects):
        raise CannotCreateError(f"{rejects}: is a folder, expected a file")
    advice = "use a name with .jsonl"
    if is_parquet(rejects):
        raise UsageError("--rejects cannot be a Parquet file", advice=advice)
    if append and rejects.lower().endswith(COMPRESSED):
        raise UsageError("--rejects of a vector folder cannot be compressed", advice=advice)


def advice_for_texts(names: Sequence[str], command: str, field_names: FieldNames) -> str | None:
    """The pipe for texts that are given in place of files: names with blanks and without a
    suffix.
    """
    if not all(" " in name and not Path(name).suffix for name in names):
        return None
    steps = [f"printf '%s\\n' {' '.join(map(shlex.quote, names))}"]
    if "embedding" in field_names:
        steps.append("sentkit encode")
    steps.append(f"sentkit {command}")
    return f"a text is not a FILE; use: {' | '.join(steps)}"
