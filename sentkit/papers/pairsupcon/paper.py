"""PairSupCon (arXiv 2109.05424): settings, presets and citation.

The loss is the sum of two terms. The id term contrasts the two texts of each entailment pair, and
alpha weights its negatives by their similarity. The cls term classifies pairs.
"""

from dataclasses import dataclass
from typing import ClassVar

from sentkit.training.listings import Listing, Paper
from sentkit.training.recipe import Recipe
from sentkit.training.settings import Presets, paper, readout, refuse_idle, released

# Settings of the id term, which have no effect on the cls term.
OF_ID_TERM = (
    "beta",
    "temperature",
    "hard_negatives",
    "hard_negative_form",
    "detach_alpha",
    "id_average",
    "head_width",
)
PRESETS: Presets = {
    "paper": {},
    # The ablations of the paper: one term only, or all negatives with the same weight.
    "cls": {"objective": "cls"},
    "id": {"objective": "id"},
    "id-plain": {"objective": "id", "hard_negatives": False},
    "plain": {"hard_negatives": False},
}


@dataclass(frozen=True, kw_only=True)
class Settings(Recipe):
    presets: ClassVar = PRESETS
    objective: str = paper(
        "both", "cls: classify pairs; id: contrast partners", choices=("both", "id", "cls")
    )
    beta: float = paper(1.0, "weight of the id term", above=0)
    temperature: float = paper(0.05, "divisor of the cosines", above=0)
    hard_negatives: bool = paper(True, "give near negatives more weight, by alpha")
    hard_negative_form: str = released(
        "code",
        "code: alpha multiplies the exponential; exponent: alpha multiplies the cosine",
        choices=("code", "exponent"),
        needs="hard_negatives",
    )
    detach_alpha: bool = released(False, "no gradient through alpha", needs="hard_negatives")
    id_average: str = released(
        "anchors",
        "anchors: mean over both sides of each entailment; pairs, as in the formula: twice that",
        choices=("anchors", "pairs"),
    )
    head_width: int = released(128, "width of the vectors of the id term", least=1)
    head_lr_factor: float = paper(
        100.0, "learning rate of the heads, divided by that of the encoder", above=0
    )
    readout: str = readout("mean")
    batch: int = paper(1024)
    lr: float = released(5e-6)
    optimizer: str = paper("adam")
    schedule: str = released("constant")
    clip: float = released(0.0)
    epochs: int | None = paper(3)
    max_length: int = released(32)
    eval_every: int | None = released(500)
    final: str = paper("last")  # no model selection

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective == "cls":
            refuse_idle(self, OF_ID_TERM, "objective=cls")


PAPER = Paper(
    "pairsupcon",
    "PairSupCon",
    "pairsupcon",
    methods={
        "pairsupcon": Listing(
            "classify pairs and contrast partners",
            "sentkit.papers.pairsupcon.method:PairSupCon",
            "2109.05424",
            settings=Settings,
        )
    },
)
