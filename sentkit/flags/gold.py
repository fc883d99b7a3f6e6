"""Flags for a report of correlations with gold scores, of labels, or of hits with judgements."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

from sentkit.flag_values import numbers
from sentkit.flags.rows import FieldFlags
from sentkit.flags.rules import Excludes, Needs, Range

if TYPE_CHECKING:
    from sentkit.metrics.gold_pairs import ScoreOptions


@dataclass(frozen=True)
class GoldFlags:
    """The gold scores, their groups, the comparison, and the training rows of the encoder.

    --gold NAME: Report correlations with this field, a human score.
    --label NAME: Report average precision, AUC and the threshold of the best F1 for this field, 0 or 1.
    --precision-at P: With --label: the threshold with the highest recall at a precision of at least P.
    --group NAME[:HOW]: With --gold: the field that names the group of a row. HOW: all: one correlation of all
        pairs; mean: mean of the groups; weighted: mean weighted by the pairs of each group. [default: all]
    --dim N,N: With --gold: also the correlations of the first N numbers, with tests against all numbers.
    --baseline FILE: The same pairs, encoded by another model, or with --qrels other hits.
    --fail-under X: Exit code 1 if Spearman, average precision or nDCG@10 (x 100) is below X.
    --seen ROWS: With --gold: training rows; also report the correlation without the pairs that occur in them.
        Repeatable.
    """

    gold: str | None = None
    label: Annotated[str | None, Excludes("--gold")] = None
    precision_at: Annotated[float | None, Range(min=0, max=1), Needs("--label")] = None
    group: Annotated[str | None, Needs("--gold")] = None
    dim: Annotated[str | None, Needs("--gold"), Excludes("--baseline")] = None
    baseline: Annotated[str | None, Needs("--gold or --label or --qrels")] = None
    fail_under: Annotated[float | None, Needs("--gold or --label or --qrels")] = None
    seen: Annotated[list[str] | None, Needs("--gold")] = None

    @cached_property
    def seen_paths(self) -> list[str]:
        """The files of training rows; a pattern becomes the matching files."""
        from sentkit.formats.files import expanded

        return list(expanded(self.seen or []))

    @property
    def grouping(self) -> tuple[str | None, str]:
        """The field of --group, and the aggregate."""
        field, _, how = (self.group or "").rpartition(":")
        return (field, how) if field and how in ("all", "mean", "weighted") else (self.group, "all")

    def options(self, rows: FieldFlags, metric: str) -> "ScoreOptions":
        """The flags as a report takes them."""
        from sentkit.metrics.gold_pairs import ScoreOptions
        from sentkit.metrics.seen import SeenPairs

        field = self.gold or self.label
        assert field is not None
        group, aggregate = self.grouping
        return ScoreOptions(
            rows.theirs(field),
            rows.theirs(group),
            metric,
            aggregate,
            dims=numbers("--dim", self.dim) if self.dim else (),
            seen=SeenPairs(self.seen_paths) if self.seen else None,
            binary=self.label is not None,
        )


@dataclass(frozen=True)
class RetrievalFlags:
    """The judgements of relevance for the hits of `search`.

    --qrels FILE: For hits of search: report retrieval scores with these judgements (TREC, BEIR or rows).
    --missing: With --qrels: how a query without hits counts.
    --per-query PATH: With --qrels: write the scores of each query.
    """

    qrels: Annotated[str | None, Excludes("--gold"), Excludes("--label")] = None
    missing: Annotated[Literal["error", "zero"], Needs("--qrels")] = "error"
    per_query: Annotated[str | None, Needs("--qrels")] = None

    def open_per_query(self, *, force: bool) -> "AbstractContextManager[BinaryIO | None]":
        from sentkit.formats.outputs.outputs import open_output

        return nullcontext() if self.per_query is None else open_output(self.per_query, force=force)
