"""Flags for a report of correlations with gold scores."""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer

from sentkit.errors import UsageError
from sentkit.flags.rows import FieldFlags
from sentkit.flags.rules import Excludes, Needs

if TYPE_CHECKING:
    from sentkit.metrics.sts.gold_pairs import ScoreOptions


@dataclass(frozen=True)
class GoldFlags:
    """The gold scores, their groups, the comparison, and the training rows of the encoder."""

    gold: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Report correlations with this field, a human score."),
    ] = None
    group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --gold: the field that names the group of a row."),
        Needs("--gold"),
    ] = None
    aggregate: Annotated[
        Literal["all", "mean", "weighted"],
        typer.Option(
            help="all: one correlation of all pairs; mean: mean of the groups; weighted: mean weighted by"
            " the pairs of each group."
        ),
        Needs("--group"),
    ] = "all"
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="With --gold: the same pairs, encoded by another model. With --qrels: other hits.",
        ),
        Needs("--gold or --qrels"),
    ] = None
    fail_under: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Exit code 1 if a Spearman x 100 (with --qrels: an nDCG@10 x 100) is below X.",
        ),
        Needs("--gold or --qrels"),
    ] = None
    seen: Annotated[
        list[str] | None,
        typer.Option(
            "--seen",
            metavar="ROWS",
            help="With --gold: training rows; also report the correlation without the pairs that occur in"
            " them. Repeatable.",
        ),
        Needs("--gold"),
    ] = None
    seen_threshold: Annotated[
        float | None,
        typer.Option(
            min=-1,
            max=1,
            metavar="X",
            help="With --seen: rows with vectors; a text also occurs in them if a cosine is at least X.",
        ),
        Needs("--seen"),
    ] = None
    seen_rows: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="With --seen: write the pairs with seen texts, and where they occur."
        ),
        Needs("--seen"),
    ] = None

    @cached_property
    def seen_paths(self) -> list[str]:
        """The files of training rows; a pattern becomes the matching files."""
        from sentkit.formats.files import expanded

        return list(expanded(self.seen or []))

    def options(self, rows: FieldFlags, metric: str) -> "ScoreOptions":
        """The flags as a report takes them."""
        from sentkit.metrics.sts.gold_pairs import ScoreOptions
        from sentkit.metrics.sts.seen import SeenPairs

        assert self.gold is not None
        keep = self.seen_rows is not None
        seen = SeenPairs(self.seen_paths, self.seen_threshold, keep) if self.seen else None
        return ScoreOptions(
            rows.theirs(self.gold), rows.theirs(self.group), metric, self.aggregate, seen=seen
        )

    def open_seen_rows(self, *, force: bool) -> "AbstractContextManager[BinaryIO | None]":
        from sentkit.formats.outputs.outputs import open_output

        return nullcontext() if self.seen_rows is None else open_output(self.seen_rows, force=force)

    def check(self) -> None:
        if not math.isfinite(self.fail_under or 0.0):
            raise UsageError(f"--fail-under {self.fail_under}: expected a finite number")


@dataclass(frozen=True)
class RetrievalFlags:
    """The judgements of relevance for the hits of `search`."""

    qrels: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="For hits of search: report retrieval scores with these judgements (TREC, BEIR or rows).",
        ),
        Excludes("--gold"),
    ] = None
    missing: Annotated[
        Literal["error", "zero"],
        typer.Option(help="With --qrels: how a query without hits counts."),
        Needs("--qrels"),
    ] = "error"
    per_query: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="With --qrels: write the scores of each query."),
        Needs("--qrels"),
    ] = None

    def open_per_query(self, *, force: bool) -> "AbstractContextManager[BinaryIO | None]":
        from sentkit.formats.outputs.outputs import open_output

        return nullcontext() if self.per_query is None else open_output(self.per_query, force=force)
