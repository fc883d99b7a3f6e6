"""Flags for the comparison of two vectors by their rankings of a corpus."""

from dataclasses import dataclass
from typing import Annotated

import typer

from sentkit.flags.rules import Needs

RANK_WEIGHT = 0.1  # as in the paper of RankEncoder


@dataclass(frozen=True)
class RankFlags:
    """The corpus of the rankings, and their weight."""

    rank_corpus: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="For pairs: also compare how both rank these vectors, as RankEncoder does."
        ),
        Needs("--metric cosine"),
    ] = None
    rank_weight: Annotated[
        float | None,
        typer.Option(min=0, max=1, metavar="X", help="With --rank-corpus: its weight. [default: 0.1]"),
        Needs("--rank-corpus"),
    ] = None

    @property
    def weight(self) -> float:
        return RANK_WEIGHT if self.rank_weight is None else self.rank_weight
