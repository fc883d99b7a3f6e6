"""Flags of the commands that read rows: files, names of fields, and bad rows; for `cat`, also the format."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, TypeVar

from sentkit.console import Console
from sentkit.errors import NoInputError, NoRowsError, UsageError
from sentkit.flags import Excludes, Named
from sentkit.flags.options import OutputFlags, check_paths

if TYPE_CHECKING:
    from sentkit.formats.outputs.outputs import Paths
    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.vectors.vector_file import VectorSource

N = TypeVar("N", str, str | None)
Known = Sequence[str | None]


@dataclass(frozen=True)
class FieldFlags:
    """The names of the fields. The suffix of a file determines its format, or else its first byte.

    --field OURS=THEIRS: Read the field THEIRS as OURS; repeatable.
    """

    field: Annotated[list[str] | None, Excludes("--kind merge")] = None

    def theirs(self, name: N) -> N:
        """The name in the input of a field that another flag names, such as --gold."""
        names = dict(pair.split("=", 1) for pair in self.field or [] if "=" in pair)
        return names.get(name, name) if name else name

    @cached_property
    def vector_file(self) -> "Callable[[str], VectorSource | None]":
        """Opens a vector file or folder, once; None for other files. So all reads see the same blocks."""
        from sentkit.formats.vectors.store import open_vectors

        return cache(open_vectors)

    def inputs(self, paths: Sequence[str], known: Known) -> "Inputs":
        """The rows of `paths`. `known` are the names that --field may map; None is ignored."""
        from sentkit.formats.rows.rows import Inputs, parse_fields

        fields = parse_fields(self.field or [], [name for name in known if name])
        return Inputs(paths, fields=fields, vector_file=self.vector_file)


@dataclass(frozen=True)
class StreamFlags(FieldFlags):
    """The names of the fields, and bad rows.

    --rejects FILE: Write bad rows to FILE, with file, line and reason, and continue; /dev/null drops them.
    """

    rejects: Annotated[str | None, Excludes("--kind merge")] = None

    @property
    def paths(self) -> list[str]:
        return ["-"]

    def sources(self) -> "Paths":
        """The input paths by flag."""
        return {"FILE": self.paths}

    def open_folders(self, read: "Paths") -> None:
        """Open all vector folders among the inputs: an incomplete one is refused before any work."""
        from sentkit.formats.files import is_folder

        for paths in read.values():
            if isinstance(paths, str):
                paths = [paths]
            for path in paths or ():
                if is_folder(path):
                    self.vector_file(path)

    @contextmanager
    def open(
        self,
        console: Console,
        output: OutputFlags,
        *,
        known: Known,
        reads: "Paths | None" = None,
        writes: "Paths | None" = None,
        append: bool = False,
    ) -> Iterator["Inputs"]:
        """Open the rows of all files; on exit, report the number of bad rows.

        `reads` and `writes` are further paths, by flag. `append`: the file of --rejects may exist.
        """
        from sentkit.formats.files import check_input, is_parquet
        from sentkit.formats.outputs.outputs import open_appended, open_output
        from sentkit.formats.rows.rows import Rejects

        if self.rejects is not None and is_parquet(self.rejects):
            raise UsageError("--rejects cannot be a Parquet file", advice="use a name with .jsonl")
        written = {"-o": output.path, "--rejects": self.rejects, **(writes or {})}
        read = {**self.sources(), **(reads or {})}
        check_paths(console, written, read)
        self.open_folders(read)
        policy = Rejects(skip=self.rejects is not None, warn=console.warn, note=console.note)
        inputs = replace(self.inputs(self.paths, known), rejects=policy)
        counter = inputs.counter
        for path in inputs.paths:
            try:
                check_input(path)
            except NoInputError as error:
                error.advice = error.advice or pipe_of(self.paths, console.command, known)
                raise
        if self.rejects is None:
            out: AbstractContextManager[BinaryIO | None] = nullcontext()
        elif append:
            out = open_appended(self.rejects)
        else:
            out = open_output(self.rejects, force=output.force, has_rejects=True)
        nothing: NoRowsError | None = None
        with out as policy.file:
            try:
                yield inputs
                if policy.count - counter.bad >= counter.rows > 0:  # a later step has rejected all of them
                    raise NoRowsError(self.paths)
            except NoRowsError as error:
                nothing = error
        if policy.count:
            place = "dropped" if self.rejects == "/dev/null" else f"written to {self.rejects}"
            console.warn(f"bad rows {place}: {policy.count}; the first is {policy.first}")
        if nothing is not None:
            raise nothing


def pipe_of(names: Sequence[str], command: str, known: Known) -> str | None:
    """The pipe for texts that are given in place of files: names with blanks and without a suffix."""
    if not all(" " in name and not Path(name).suffix for name in names):
        return None
    steps = [f"printf '%s\\n' {' '.join(map(shlex.quote, names))}"]
    steps += [f"sentkit {step}" for step in (["encode"] if "embedding" in known else []) + [command]]
    return "a text is not a FILE; use: " + " | ".join(steps)


@dataclass(frozen=True)
class RowFlags(StreamFlags):
    """The input of most commands: any number of files.

    [FILE]...: JSONL, text, TSV, CSV or Parquet, also .gz or .zst. [default: standard input, also '-']
    """

    folders = False  # a folder is its text files
    files: Annotated[list[str] | None, Named("[FILE]...")] = None

    @cached_property
    def paths(self) -> list[str]:
        from sentkit.formats.files import expanded

        return list(expanded(self.files or ["-"], folders=self.folders))


@dataclass(frozen=True)
class TextFlags(RowFlags):
    """The input of `encode`.

    [FILE]...: JSONL, text, TSV, CSV or Parquet, also .gz or .zst; a folder of text. [default: standard
        input, also '-']
    """

    folders = True


@dataclass(frozen=True)
class UnusualFlags(TextFlags):
    """The input of `cat`, also if it is unusual.

    --from FORMAT: Input format: jsonl, text, paragraphs, tsv, csv or parquet. [default: by suffix]
    --quoting: For TSV and CSV. csv: fields may be quoted; none: a quote is text. [default: by format]
    --columns A,B,...: For TSV and CSV without a header: the names of the columns.
    """

    from_: Literal["jsonl", "text", "paragraphs", "tsv", "csv", "parquet"] | None = None
    quoting: Literal["none", "csv"] | None = None
    columns: str | None = None

    def inputs(self, paths: Sequence[str], known: Known) -> "Inputs":
        inputs = replace(
            super().inputs(paths, known),
            format=self.from_,
            quoting=self.quoting,
            columns=[] if self.columns is None else self.columns.split(","),
        )
        for flag, value in {"--quoting": self.quoting, "--columns": self.columns}.items():
            if value is not None and not {"tsv", "csv"} & {*map(inputs.format_of, paths)}:
                problem = f"{flag} can be used only with TSV and CSV input"
                raise UsageError(problem, advice="to read TSV, use --from tsv")
        if not all(inputs.columns) or len({*inputs.columns}) < len(inputs.columns):
            raise UsageError(f'--columns "{self.columns}": expected different names, such as text,label')
        return inputs
