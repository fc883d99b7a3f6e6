"""Settings of the trainer, common to all methods. Each method adds its settings in a subclass. No torch."""

from dataclasses import dataclass

from sentkit.errors import UsageError
from sentkit.training.settings import ours

OPTIMISERS = ("adam", "adamw", "adamw-hf", "adamw-bert")
SCHEDULES = ("constant", "linear", "warmup-constant")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    epochs: int = ours(1, "passes over the rows", least=1)
    batch: int = ours(64, "rows of one step, of all processes together", least=1)
    lr: float = ours(3e-5, "learning rate at its highest", above=0)
    optimizer: str = ours(
        "adamw", "adamw-hf: epsilon 1e-6; adamw-bert: that without bias correction", choices=OPTIMISERS
    )
    beta1: float = ours(0.9, "decay of the gradient's mean", least=0, most=0.99999)
    beta2: float = ours(0.999, "decay of the gradient's square", least=0, most=0.99999)
    weight_decay: float = ours(0.0, "of all but biases and norms", least=0)
    schedule: str = ours("linear", "of the learning rate", choices=SCHEDULES)
    warmup: float = ours(0.0, "part of the steps in which it rises", least=0, most=1)
    clip: float = ours(1.0, "the gradient's longest norm; 0: any", least=0)
    max_length: int = ours(32, "tokens of a text, special ones too", least=3)
    chunk: int = ours(0, "rows encoded at once, exactly, in less memory; 0: the batch", least=0)
    dropout: float | None = ours(None, "the encoder's; none: as its config says", least=0, most=0.99)
    precision: str = ours("fp32", "of products; weights stay fp32", choices=("fp32", "bf16", "auto"))
    dedup: bool = ours(False, "leave out rows whose texts stood before")
    eval_every: int = ours(0, "steps between two looks at --dev; 0: an epoch", least=0)
    patience: int = ours(0, "looks without a better score before the end; 0: any", least=0)
    early_stop: str = ours(
        "patience",
        "cumulative: count each score below the one before, for good",
        choices=("patience", "cumulative"),
    )
    final: str = ours("best", "the weights that are kept, where there is a --dev", choices=("best", "last"))

    def __post_init__(self) -> None:
        if self.optimizer == "adam" and self.weight_decay:
            raise UsageError("optimizer=adam has no weight decay", advice="use optimizer=adamw")
        if self.schedule == "constant" and self.warmup:
            advice = "use schedule=warmup-constant, or warmup=0"
            raise UsageError("schedule=constant has no warmup", advice=advice)
