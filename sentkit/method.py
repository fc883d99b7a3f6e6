"""The names that a method of a user needs; `man 7 sentkit-method` explains them with a complete
example.
"""

from functools import partial

from sentkit.formats.rows.kinds import ENTRY, NEGATIVES, PAIR, POSITIVE, SENTENCE, TRIPLET
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch, Corpus
from sentkit.training.data.examples import NLI, Classes, Labels, Reads, Scores
from sentkit.training.losses import cosines
from sentkit.training.method import (
    Draw,
    Finished,
    Method,
    Needs,
    Outputs,
    PackedMethod,
    Term,
    mean_of,
)
from sentkit.training.recipe import Recipe
from sentkit.training.settings import ours, paper, released
from sentkit.training.settings import readout as readout_with_source

# a method of a user has no paper unless it says so
readout = partial(readout_with_source, of_paper=False)

__all__ = [
    "ENTRY",
    "NEGATIVES",
    "NLI",
    "PAIR",
    "POSITIVE",
    "SENTENCE",
    "TRIPLET",
    "Base",
    "Batch",
    "Classes",
    "Corpus",
    "Draw",
    "Finished",
    "Labels",
    "Method",
    "Needs",
    "Outputs",
    "PackedMethod",
    "Reads",
    "Recipe",
    "Scores",
    "Term",
    "cosines",
    "mean_of",
    "ours",
    "paper",
    "readout",
    "released",
]
