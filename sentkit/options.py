"""Flags that several commands share, so that each is spelled, explained and turned into a value once."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sentkit.console import Console
from sentkit.errors import UsageError

if TYPE_CHECKING:
    from sentkit.formats.rows import Inputs

RANGE = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?")
MOST = 1000  # numbers of a range

Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE]...", help="JSONL, text, TSV or CSV, also .gz or .zst; '-' is stdin."),
]
From = Annotated[
    Literal["jsonl", "text", "tsv", "csv"] | None,
    typer.Option("--from", metavar="FORMAT", help="Read as jsonl, text, tsv or csv. [default: by suffix]"),
]
Field = Annotated[
    list[str] | None,
    typer.Option("--field", metavar="NAME=THEIRS", help="NAME is called THEIRS in these rows; repeatable."),
]
Output = Annotated[str, typer.Option("-o", "--output", metavar="PATH", help="Where to write; '-' is stdout.")]
Force = Annotated[bool, typer.Option("-f", "--force", help="Overwrite the output.")]
Replace = Annotated[bool, typer.Option("--replace", help="New members take the place of old ones.")]
OnError = Annotated[
    Literal["fail", "skip"], typer.Option("--on-error", help="A bad row ends the command, or is counted.")
]
RejectsFile = Annotated[
    str | None, typer.Option("--rejects", metavar="PATH", help="Where --on-error skip puts the bad rows.")
]
Model = Annotated[
    str,
    typer.Option(
        "-m", "--model", metavar="MODEL", help="A checkpoint folder, a hub name, pkg:NAME, or nano."
    ),
]
Readout = Annotated[
    str | None,
    typer.Option(
        metavar="READOUT",
        help="cls, mean, max, mean-last2, mean-first-last, mean-emb-last, pooler:cls|mean, prompt,"
        " or L<k>:cls|mean|max. [default: what the checkpoint declares]",
    ),
]
Template = Annotated[
    str | None,
    typer.Option(metavar="NAME|TEXT", help="For the readout prompt: words around [X] and [MASK]."),
]
FullStop = Annotated[
    Literal["none", "promptbert", "sncse"] | None,
    typer.Option(help="What a sentence without an end gets. [default: as the template's paper]"),
]
Prompt = Annotated[str | None, typer.Option(metavar="PREFIX", help="Words set before every text.")]
MaxLength = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Tokens of a text, special ones too; more are cut.")
]
Normalize = Annotated[bool, typer.Option("--normalize", help="Vectors of unit length.")]
Dim = Annotated[int | None, typer.Option(min=1, metavar="N", help="Keep the first N numbers.")]
Transform = Annotated[str | None, typer.Option(metavar="PATH", help="An affine file, applied last.")]
Encoding = Annotated[
    Literal["list", "base64"],
    typer.Option("--vectors", envvar="SENTKIT_VECTORS", help="How vectors are written in JSONL."),
]
Metric = Annotated[
    Literal["cosine", "dot", "euclidean", "manhattan"],
    typer.Option(help="The two distances are made negative: larger is more alike."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on a terminal too.")]
Seed = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="The seed of every random draw.")]
Progress = Annotated[
    Literal["auto", "bar", "log", "json", "none"],
    typer.Option("--progress", help="auto: a bar on a terminal, else a line a minute."),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No warnings, no progress.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Say what is chosen.")]


def as_table(output: str, *, json: bool) -> bool:
    """Whether a person reads what is written, and has not asked for JSON."""
    return output == "-" and not json and sys.stdout is not None and sys.stdout.isatty()


def numbers(flag: str, text: str) -> list[int]:
    """`7`, `1,2,3` or `0..9`, each number once."""
    found: list[int] = []
    for part in text.split(","):
        match = RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + MOST:
            raise UsageError(
                f'{flag} "{text}"', advice=f"expected 7, or 1,2,3, or 0..9 (of up to {MOST} numbers)"
            )
        found += range(first, last + 1)
    return list(dict.fromkeys(found))


@contextmanager
def open_inputs(
    console: Console,
    files: Sequence[str] | None,
    *,
    format: str | None,
    fields: Sequence[str] | None,
    known: Sequence[str],
    on_error: str = "fail",
    rejects: str | None = None,
    output: str = "-",
    force: bool = False,
) -> Iterator["Inputs"]:
    """The rows of a command, with what its flags say of them; the rows left out are counted at the end."""
    from sentkit.formats.files import check_input, open_output, same_place
    from sentkit.formats.rows import Inputs, Rejects, parse_fields

    if rejects is not None and on_error != "skip":
        raise UsageError("--rejects belongs to --on-error skip")
    if rejects is not None and same_place(rejects, output):
        raise UsageError(f"{rejects}: the rejects and the output cannot go to one place")
    policy = Rejects(skip=on_error == "skip", tell=console.warn)
    inputs = Inputs(files or ["-"], format, parse_fields(fields or [], known), policy)
    for path in inputs.paths:
        check_input(path)
    if rejects is None:
        yield inputs
    else:
        with open_output(rejects, force=force) as policy.file:
            yield inputs
    if policy.count:
        console.warn(f"{policy.count} bad rows were left out")
