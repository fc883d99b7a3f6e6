"""SG-BERT (arXiv 2106.07345): settings, presets and citation.

The tuned copy of the encoder is contrasted with layers of a frozen copy, the guide.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from sentkit.errors import UsageError
from sentkit.training.listings import Listing, Paper
from sentkit.training.recipe import Recipe
from sentkit.training.settings import Presets, ours, paper, readout, refuse_idle, released

# Settings of the guide, which have no effect if both texts are encoded by the tuned copy.
OF_GUIDE = ("guide", "guide_pool", "guide_layers", "guide_dropout", "layer_sampler")
# A layer, or a range such as 4.. or 4..12, whose last layer may be missing.
LAYERS = re.compile(r"(?P<first>\d{1,4})(?P<is_range>\.\.(?P<last>\d{1,4})?)?")

# The released code differs from the paper. Its trainer also sets the guide to training mode.
RELEASED = {
    "guide_pool": "mean",
    "guide_dropout": True,
    "early_stop": "cumulative",
    "final": "last",
}
PRESETS: Presets = {
    "paper": {},
    "released": RELEASED,
    "released-opt2": RELEASED | {"objective": "opt2", "compat_opt2_slice": True},
    "bt": {"objective": "base", "second_text": "tuned"},  # baseline with back-translation
    "bt-sg-opt": {"second_text": "guide"},
    "senteval": {"guide_pool": "mean", "guide_layers": "4.."},  # the paper omits "several" layers
}


@dataclass(frozen=True, kw_only=True)
class Settings(Recipe):
    presets: ClassVar = PRESETS
    objective: str = paper(
        "opt3",
        "form of the loss; base: one layer, in both directions",
        choices=("base", "opt1", "opt2", "opt3"),
    )
    temperature: float = paper(0.01, "divisor of the cosines", above=0)
    # lambda in the paper
    drift_weight: float = paper(
        0.1, "weight of the squared distance from the initial weights", least=0
    )
    head: str = paper("gelu", "gelu: two layers between vectors and loss", choices=("gelu", "none"))
    head_width: int = paper(4096, "width of both layers of the head", least=1)
    guide: str = paper(
        "copy",
        "source of the views; copy: a frozen copy; self: the tuned encoder, with gradient",
        choices=("copy", "self"),
    )
    guide_pool: str = paper(
        "max", "how the token states of the guide become a view", choices=("max", "mean")
    )
    guide_layers: str = paper(
        "all", "layers that give views: all, 4.., 4..12 or 12; 0 is the embeddings"
    )
    layer_sampler: str = paper(
        "uniform",
        "probability of each layer as the view; upper: increases with the layer; lower: decreases",
        choices=("uniform", "upper", "lower"),
    )
    guide_dropout: bool = ours(False, "dropout in the guide too, as in the released code")
    compat_opt2_slice: bool = paper(False, "opt2: use one negative less, as in the released code")
    second_text: str | None = paper(
        None,
        "encoder of the second text of a pair; none: rows are sentences",
        choices=("guide", "tuned"),
    )
    freeze_embeddings: bool = paper(True, "keep layer 0 of the tuned copy unchanged")
    readout: str = readout("cls")
    batch: int = paper(16)
    lr: float = paper(5e-5)
    epochs: int | None = paper(1)
    max_length: int = paper(128)
    beta1: float = paper(0.9)
    beta2: float = paper(0.9)
    eval_every: int | None = paper(50)
    patience: int = paper(10)
    optimizer: str = released("adamw-hf")  # AdamW of transformers at that time
    weight_decay: float = released(0.01)  # the script passes 0, but the parameter groups have 0.01
    schedule: str = released("linear")
    warmup: float = released(0.1)
    clip: float = released(1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        layer_bounds(self.guide_layers)  # raises an error for a wrong value
        if self.second_text == "tuned" and self.objective != "base":
            problem = "second_text=tuned can be used only with objective=base"
            advice = "the other objectives contrast the tuned copy with the guide"
            raise UsageError(f"{problem}, not {self.objective}", advice=advice)

        # Settings that would have no effect.
        if self.second_text == "tuned":
            refuse_idle(self, OF_GUIDE, "second_text=tuned, because the guide is not used")
        if self.guide == "self":
            refuse_idle(self, ("guide_dropout",), "guide=self")
        if self.objective == "opt3":
            refuse_idle(self, ("layer_sampler",), "objective=opt3: it uses all layers")
        if self.lora is not None:
            refuse_idle(self, ("freeze_embeddings",), f"lora={self.lora}")
        if self.head == "none":
            refuse_idle(self, ("head_width",), "head=none")
        if self.objective != "opt2":
            refuse_idle(self, ("compat_opt2_slice",), f"objective={self.objective}")


def layer_bounds(text: str) -> tuple[int, int | None]:
    """Parse `all`, `4..`, `4..12` or `12` to the first and last layer; None means the encoder's
    last.
    """
    if text == "all":
        return 0, None
    match = LAYERS.fullmatch(text)
    if match is None:
        raise UsageError(f'guide_layers="{text}"', advice="expected all, 4.., 4..12 or 12")
    first = int(match["first"])
    if not match["is_range"]:
        return first, first
    if match["last"] is None:
        return first, None
    last = int(match["last"])
    if last < first:
        raise UsageError(f'guide_layers="{text}": the last layer is before the first')
    return first, last


PAPER = Paper(
    "sg-bert",
    "SG-BERT",
    "sg_bert",
    methods={
        "sg-bert": Listing(
            "contrast [CLS] with layers of a frozen copy",
            "sentkit.papers.sg_bert.method:SelfGuided",
            "2106.07345",
            settings=Settings,
        )
    },
)
