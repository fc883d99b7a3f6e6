"""Flags of the commands that read rows: input files, their format, and bad rows."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sentkit.console import Console
from sentkit.errors import DataError, NoInputError, UsageError
from sentkit.flag_values import size
from sentkit.flags.options import OutputFlags, check_paths

if TYPE_CHECKING:
    from sentkit.formats.outputs.path_checks import Paths
    from sentkit.formats.rows.rows import Inputs


@dataclass(frozen=True)
class FormatFlags:
    """Flags for the format of rows."""

    from_: Annotated[
        Literal["jsonl", "text", "tsv", "csv", "parquet"] | None,
        typer.Option(
            "--from",
            metavar="FORMAT",
            help="Input format: jsonl, text, tsv, csv or parquet. [default: by suffix]",
        ),
    ] = None
    field: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME=THEIRS", help="Read the field THEIRS as NAME; repeatable."),
    ] = None
    quoting: Annotated[
        Literal["none", "csv"] | None,
        typer.Option(
            "--quoting",
            help="For TSV and CSV. csv: fields may be quoted; none: a quote is text. [default: by format]",
        ),
    ] = None
    max_line: Annotated[
        str,
        typer.Option(
            "--max-line",
            metavar="SIZE",
            help="Maximum bytes of a row; a longer row is a bad row. Suffixes: K, M, G.",
        ),
    ] = "64M"

    partial: Annotated[
        bool, typer.Option("--partial", help="Read the complete blocks of an incomplete vector folder.")
    ] = False

    def take_snapshots(self, paths: Sequence[str]) -> None:
        """List the blocks of all vector folders, and refuse an incomplete one without --partial."""
        from sentkit.formats.vectors.folders import is_vector_folder
        from sentkit.formats.vectors.store import take_snapshot

        folders = list(filter(is_vector_folder, paths))
        if self.partial and not folders:
            raise UsageError("--partial needs a vector folder")
        for path in folders:
            take_snapshot(path, partial=self.partial)

    def inputs(self, paths: Sequence[str], known: Sequence[str], others: Sequence[str] = ()) -> "Inputs":
        """The rows of `paths`. `others` are further files that are read with the same flags."""
        self.take_snapshots([*paths, *others])
        from sentkit.formats.rows.rows import Inputs, parse_fields
        from sentkit.formats.vectors.store import rows_in

        inputs = Inputs(
            paths,
            self.from_,
            parse_fields(self.field or [], known),
            quoting=self.quoting,
            longest=size("--max-line", self.max_line),
            vector_file=rows_in,
        )
        formats = {*map(inputs.format_of, paths), *(inputs.other(path).format_of(path) for path in others)}
        if self.quoting is not None and not {"tsv", "csv"} & formats:
            raise UsageError(
                "--quoting can be used only with TSV and CSV input", advice="to read TSV, use --from tsv"
            )
        return inputs


@dataclass(frozen=True)
class StreamFlags(FormatFlags):
    """Flags for the format of rows and for bad rows."""

    on_error: Annotated[
        Literal["fail", "skip"],
        typer.Option("--on-error", help="On a bad row: stop, or skip it and report the number."),
    ] = "fail"
    rejects: Annotated[
        str | None,
        typer.Option("--rejects", metavar="PATH", help="With --on-error skip: write the bad rows to PATH."),
    ] = None

    @property
    def paths(self) -> list[str]:
        return ["-"]

    def sources(self) -> "Paths":
        """The input paths by flag."""
        return {"FILE": self.paths}

    @contextmanager
    def open(
        self,
        console: Console,
        output: OutputFlags,
        *,
        known: Sequence[str],
        reads: "Paths | None" = None,
        writes: "Paths | None" = None,
    ) -> Iterator["Inputs"]:
        """Open the rows of all files; on exit, report the number of skipped rows.

        `known` are the names that --field may map. `reads` and `writes` are further paths, by flag.
        """
        from sentkit.formats.files import check_input, is_parquet
        from sentkit.formats.meter import Meter
        from sentkit.formats.outputs.outputs import open_output
        from sentkit.formats.rows.rows import Rejects

        if self.rejects is not None and self.on_error != "skip":
            raise UsageError("--rejects needs --on-error skip")
        if self.rejects is not None and is_parquet(self.rejects):
            raise UsageError("--rejects cannot be a Parquet file", advice="use a name with .jsonl")
        written = {"-o": output.path, "--rejects": self.rejects, **(writes or {})}
        check_paths(console, written, {**self.sources(), **(reads or {})})
        policy = Rejects(skip=self.on_error == "skip", warn=console.warn)
        given = filter(None, (reads or {}).values())
        others = [path for paths in given for path in ([paths] if isinstance(paths, str) else paths)]
        meter = Meter(self.paths, nothing=console.mute)
        inputs = replace(self.inputs(self.paths, known, others), rejects=policy, meter=meter)
        for path in inputs.paths:
            try:
                check_input(path)
            except NoInputError as error:
                error.advice = error.advice or pipe_of(self.paths, console.command, known)
                raise
        try:
            if self.rejects is None:
                yield inputs
            else:
                with open_output(self.rejects, force=output.force) as policy.file:
                    yield inputs
        except DataError as error:
            error.silent = console.muted
            raise
        if policy.count:
            console.warn(f"{policy.count} bad rows skipped")
        if policy.too_many_tokens:
            console.warn(f"{policy.too_many_tokens} rows skipped: more tokens than the maximum length")
        if policy.too_long and self.rejects is not None:
            problem = f"{policy.too_long} skipped rows are longer than --max-line"
            console.warn(f"{problem} and were not written to {self.rejects}")


def pipe_of(names: Sequence[str], command: str, known: Sequence[str]) -> str | None:
    """The pipe for texts that are given in place of files: missing names with blanks and without a suffix."""
    from sentkit.formats.json_files import exists
    from sentkit.formats.rows.rows import SUFFIXES

    if not all(" " in name and not name.endswith((*SUFFIXES, ".gz", ".zst", "/")) for name in names):
        return None
    if any(map(exists, map(Path, names))):
        return None
    first, *others = [f"sentkit {step}" for step in (["encode"] if "embedding" in known else []) + [command]]
    if command == "score" and len(names) == 2:
        import orjson

        names = [orjson.dumps(dict(zip(("text_a", "text_b"), names, strict=True))).decode()]
    texts = " ".join(map(shlex.quote, names))
    return "a text is not a FILE; use: " + " | ".join([f"printf '%s\\n' {texts}", first, *others])


@dataclass(frozen=True)
class RowFlags(StreamFlags):
    """The input of most commands: any number of files."""

    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="JSONL, text, TSV, CSV or Parquet, also .gz or .zst. [default: standard input, also '-']",
        ),
    ] = None
    files_from: Annotated[
        str | None,
        typer.Option(
            "--files-from",
            metavar="LIST",
            help="Read the names of the files from LIST, one per line or with NUL between them; '-' is"
            " standard input.",
        ),
    ] = None

    @cached_property
    def paths(self) -> list[str]:
        from sentkit.formats.file_lists import expanded, read_list

        if self.files_from is None:
            return list(expanded(self.files or ["-"]))
        if self.files:
            raise UsageError("--files-from and FILE cannot be used together")
        return read_list(self.files_from)

    def sources(self) -> "Paths":
        return {"FILE": self.paths, "--files-from": self.files_from}
