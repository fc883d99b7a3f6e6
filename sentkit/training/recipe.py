"""The settings of the trainer, which those of every method include. No torch."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from sentkit.errors import UsageError
from sentkit.training.settings import Presets, format_value, notes, ours, refuse_idle

AUTO = "auto"  # value of the setting `chunk_tokens`
OPTIMIZERS = ("adam", "adamw", "adamw-hf", "adamw-bert", "rmsprop")
OF_DEV = ("eval_every", "patience", "early_stop", "final", "metric")  # settings that need --dev
SHORTEST = 3  # tokens of a text: one between two special tokens
LORA_LAYERS = {
    "query-value": ("query", "value"),
    "attention": ("query", "key", "value", "mix"),
    "all": ("query", "key", "value", "mix", "up", "down"),
}
FORMS = ("one-way", "symmetric", "full")  # of a contrast
BATCHES = ("mixed", "by-file", "proportional", "round-robin")
SCHEDULES = ("constant", "linear", "warmup-constant", "ct")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    presets: ClassVar[Presets] = {}
    epochs: int | None = ours(
        1, "number of passes over the rows; none: as many as steps needs", least=1
    )
    steps: int | None = ours(
        None,
        "number of steps, also for the schedule; with epochs, the maximum; none: no limit",
        least=1,
    )
    batch: int = ours(64, "rows per step, of all processes together", least=1)
    batches: str = ours(
        "mixed",
        "rows of a batch: mixed: of all files; the others: of one file, so that the negatives of a "
        "batch are of one source. by-file: in random order; proportional: evenly spread; "
        "round-robin: in turn, until the file with the fewest batches ends the epoch",
        choices=BATCHES,
    )
    lr: float = ours(3e-5, "highest learning rate", above=0)
    optimizer: str = ours(
        "adamw",
        "adamw-hf: of transformers 4; adamw-bert: the same without bias correction; "
        "rmsprop uses beta2 only",
        choices=OPTIMIZERS,
    )
    epsilon: float | None = ours(
        None,
        "added to the divisor of the optimizer; none: 1e-8, or 1e-6 for adamw-hf and adamw-bert",
        above=0,
    )
    beta1: float = ours(0.9, "decay rate of the mean of the gradients", least=0, most=0.99999)
    beta2: float = ours(
        0.999, "decay rate of the mean of the squared gradients", least=0, most=0.99999
    )
    weight_decay: float = ours(0.0, "weight decay; not for biases and norms", least=0)
    schedule: str = ours(
        "linear",
        "schedule of the learning rate; ct: five rates, each for 500 steps",
        choices=SCHEDULES,
    )
    warmup: float = ours(0.0, "share of the steps with a rising learning rate", least=0, most=1)
    clip: float = ours(1.0, "maximum norm of the gradient; 0: no limit", least=0)
    max_length: int = ours(32, "maximum tokens of a text, including special tokens", least=SHORTEST)
    prompt: str | None = ours(
        None,
        "text to add before every text, or by side: a=query: ,b=passage: "
        "(also before those of --dev); the checkpoint declares it; none: as the base declares",
    )
    prompt_name: str | None = ours(None, "a prompt of the base, or by side: a=query,b=document")
    chunk: int = ours(
        0, "rows to encode at once; fewer need less memory; 0: the whole batch", least=0
    )
    chunk_tokens: str | None = ours(
        None,
        "tokens of the rows to encode at once, in place of chunk; "
        "auto: from the free memory of a GPU, halved when it is short; none: see chunk",
    )
    dropout: float | None = ours(
        None, "dropout of the encoder; none: as in its config", least=0, most=0.99
    )
    lora: int | None = ours(
        None,
        "train only low-rank updates of the encoder's matrices, with this rank; none: all weights",
        least=1,
    )
    lora_alpha: float | None = ours(
        None, "the factor of the updates is lora_alpha / lora; none: 1", above=0, needs="lora"
    )
    lora_layers: str = ours(
        "query-value",
        "matrices with updates: those of the paper; the four of the attention; all",
        choices=tuple(LORA_LAYERS),
        needs="lora",
    )
    precision: str = ours(
        "auto",
        "precision of matrix products; weights are fp32; "
        "auto: bf16 on a GPU that has it, fp32 on a CPU",
        choices=("fp32", "bf16", "auto"),
    )
    dedup: bool = ours(False, "skip rows with texts that occurred before")
    eval_every: int | None = ours(
        None,
        "steps between two evaluations on --dev, which the end of an epoch adds; "
        "0: only these ends; none: a tenth of the run, at most 1000 steps, or with patience 0",
        least=0,
    )
    patience: int = ours(
        0, "evaluations without a better score before the run ends; 0: no limit", least=0
    )
    early_stop: str = ours(
        "patience",
        "patience: count since the best score; cumulative: count all scores below the previous one",
        choices=("patience", "cumulative"),
        needs="patience",
    )
    final: str = ours("best", "weights to keep, with --dev", choices=("best", "last"))

    def __post_init__(self) -> None:
        if self.prompt is not None and self.prompt_name is not None:
            raise UsageError("prompt and prompt_name cannot be used together")
        if self.chunk and self.chunk_tokens is not None:
            raise UsageError("chunk and chunk_tokens cannot be used together")
        if self.epochs is None and self.steps is None:
            raise UsageError("epochs=none needs steps", advice="for example --set steps=1000")
        limits_of(self.chunk_tokens)  # raises an error for a wrong value
        for name, note in notes(type(self)).items():
            if note.needs and not getattr(self, note.needs):
                off = format_value(getattr(self, note.needs))
                refuse_idle(self, (name,), f"{note.needs}={off}")
        if self.optimizer in ("adam", "rmsprop") and self.weight_decay:
            raise UsageError(
                f"optimizer={self.optimizer} has no weight decay", advice="use optimizer=adamw"
            )
        if self.optimizer == "rmsprop":
            refuse_idle(self, ("beta1",), "optimizer=rmsprop")
        if self.schedule in ("constant", "ct") and self.warmup:
            advice = "use schedule=warmup-constant, or warmup=0"
            raise UsageError(f"schedule={self.schedule} has no warmup", advice=advice)

    @property
    def views_need_dropout(self) -> bool:
        """Whether only dropout makes the two views of a sentence different."""
        return False


def limits_of(text: str | None) -> list[list[int]]:
    """Return the first limit of a chunk in tokens, with its step 0; [] for none or `auto`."""
    if text in (None, AUTO):
        return []
    try:
        tokens = int(text)
    except ValueError:
        tokens = 0
    if tokens < 1:
        problem = f"chunk_tokens={text}: expected a number of tokens, or auto"
        raise UsageError(problem, advice="for example chunk_tokens=8192")
    return [[0, tokens]]


@dataclass(frozen=True, kw_only=True)
class Dims(Recipe):
    """The settings of a method with a loss that compares sentence vectors."""

    dims: str | None = ours(
        None,
        "widths such as 256,128,64: also add the loss of the vectors cut to each width; "
        "for encode --dim",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = widths_of(self)
        if any(width < 1 for width in widths):
            raise UsageError(f"dims={self.dims}: a width is 1 or more")
        if any(width <= next_width for width, next_width in pairwise(widths)):
            problem = f"dims={self.dims}: the widths do not decrease"
            raise UsageError(problem, advice="for example dims=256,128,64")


def widths_of(settings: Any) -> list[int]:
    """Return the widths of the setting, or none for a method without it."""
    text = getattr(settings, "dims", None)
    if text is None:
        return []
    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        problem = f'dims: "{text}" is not a list of whole numbers'
        raise UsageError(problem, advice="for example dims=256,128,64") from error


def check_widths(settings: Any, width: int) -> None:
    """Raise a UsageError for widths that are not smaller than that of the encoder."""
    if any(trained_width >= width for trained_width in widths_of(settings)):
        problem = (
            f"dims={settings.dims}: the vectors have {width} dimensions, which are always trained"
        )
        raise UsageError(problem, advice="give smaller widths only")
