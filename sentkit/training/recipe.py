"""Settings of the trainer, common to all methods, and the entries of methods and papers in the catalogue.

Each method adds its settings in a subclass. Importing this module does not import torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sentkit.errors import UsageError
from sentkit.training.settings import ours, refuse_idle

if TYPE_CHECKING:
    from sentkit.training.method import Method

OPTIMIZERS = ("adam", "adamw", "adamw-hf", "adamw-bert", "rmsprop")
OF_DEV = ("eval_every", "patience", "early_stop", "final", "metric")  # settings that need --dev
SHORTEST = 3  # tokens of a text: one between two special tokens
LORA_LAYERS = {
    "query-value": ("query", "value"),
    "attention": ("query", "key", "value", "mix"),
    "all": ("query", "key", "value", "mix", "up", "down"),
}
FORMS = ("one-way", "symmetric", "full")  # of a contrast
SCHEDULES = ("constant", "linear", "warmup-constant", "ct")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    presets: ClassVar["Presets"] = {}  # name -> changed settings
    epochs: int = ours(1, "number of passes over the rows", least=1)
    steps: int | None = ours(None, "maximum number of steps, also for the schedule; none: no limit", least=1)
    batch: int = ours(64, "rows per step, of all processes together", least=1)
    lr: float = ours(3e-5, "highest learning rate", above=0)
    optimizer: str = ours(
        "adamw",
        "adamw-hf: of transformers 4; adamw-bert: the same without bias correction; rmsprop uses beta2 only",
        choices=OPTIMIZERS,
    )
    epsilon: float | None = ours(
        None,
        "added to the divisor of the optimizer; none: 1e-8, or 1e-6 for adamw-hf and adamw-bert",
        above=0,
    )
    beta1: float = ours(0.9, "decay rate of the mean of the gradients", least=0, most=0.99999)
    beta2: float = ours(0.999, "decay rate of the mean of the squared gradients", least=0, most=0.99999)
    weight_decay: float = ours(0.0, "weight decay; not for biases and norms", least=0)
    schedule: str = ours(
        "linear", "schedule of the learning rate; ct: five rates, each for 500 steps", choices=SCHEDULES
    )
    warmup: float = ours(0.0, "share of the steps with a rising learning rate", least=0, most=1)
    clip: float = ours(1.0, "maximum norm of the gradient; 0: no limit", least=0)
    max_length: int = ours(32, "maximum tokens of a text, including special tokens", least=SHORTEST)
    prompt: str | None = ours(
        None,
        "text to add before every text, or by side: a=query: ,b=passage: (also before those of --dev); the"
        " checkpoint declares it; none: as the base declares",
    )
    prompt_name: str | None = ours(None, "a prompt of the base, or by side: a=query,b=document")
    chunk: int = ours(0, "rows to encode at once; fewer need less memory; 0: the whole batch", least=0)
    chunk_tokens: str | None = ours(
        None,
        "tokens of the rows to encode at once, in place of chunk; auto: from the free memory of a GPU, halved"
        " when it is short; N,STEP:M: from this step M, as a run with auto records it; none: see chunk",
    )
    dropout: float | None = ours(None, "dropout of the encoder; none: as in its config", least=0, most=0.99)
    lora: int | None = ours(
        None,
        "train only low-rank updates of the encoder's matrices, with this rank; none: all weights",
        least=1,
    )
    lora_alpha: float | None = ours(None, "the factor of the updates is lora_alpha / lora; none: 1", above=0)
    lora_layers: str = ours(
        "query-value",
        "matrices with updates: those of the paper; the four of the attention; all",
        choices=tuple(LORA_LAYERS),
    )
    precision: str = ours(
        "auto",
        "precision of matrix products; weights are fp32; auto: bf16 on a GPU that has it, fp32 on a CPU",
        choices=("fp32", "bf16", "auto"),
    )
    dedup: bool = ours(False, "skip rows with texts that occurred before")
    eval_every: int | None = ours(
        None,
        "steps between two evaluations on --dev, which the end of an epoch adds; 0: only these ends; none: a"
        " tenth of the run, at most 1000 steps, or with patience 0",
        least=0,
    )
    patience: int = ours(0, "evaluations without a better score before the run ends; 0: no limit", least=0)
    early_stop: str = ours(
        "patience",
        "patience: count since the best score; cumulative: count all scores below the previous one",
        choices=("patience", "cumulative"),
    )
    final: str = ours("best", "weights to keep, with --dev", choices=("best", "last"))

    def __post_init__(self) -> None:
        if self.prompt is not None and self.prompt_name is not None:
            raise UsageError("prompt and prompt_name cannot be used together")
        if self.chunk and self.chunk_tokens is not None:
            raise UsageError("chunk and chunk_tokens cannot be used together")
        limits_of(self.chunk_tokens)
        if self.lora is None:
            refuse_idle(self, ("lora_alpha", "lora_layers"), "lora=none")
        if not self.patience:
            refuse_idle(self, ("early_stop",), "patience=0")
        if self.optimizer in ("adam", "rmsprop") and self.weight_decay:
            raise UsageError(f"optimizer={self.optimizer} has no weight decay", advice="use optimizer=adamw")
        if self.optimizer == "rmsprop":
            refuse_idle(self, ("beta1",), "optimizer=rmsprop")
        if self.schedule in ("constant", "ct") and self.warmup:
            advice = "use schedule=warmup-constant, or warmup=0"
            raise UsageError(f"schedule={self.schedule} has no warmup", advice=advice)


AUTO = "auto"  # value of the setting `chunk_tokens`


def limits_of(text: str | None) -> list[list[int]]:
    """Return the steps from which a number of tokens is the limit of a chunk, with these numbers."""
    if text in (None, AUTO):
        return []
    words = [word.rpartition(":")[::2] for word in f"0:{text}".split(",")]
    try:
        limits = [[int(step), int(tokens)] for step, tokens in words]
    except ValueError:
        limits = [[0, 0]]
    steps = [step for step, _ in limits]
    if steps != sorted({*steps}) or min(tokens for _, tokens in limits) < 1:
        problem = f"chunk_tokens={text}: expected a number of tokens, N,STEP:N or auto"
        raise UsageError(problem, advice="for example chunk_tokens=8192")
    return limits


def text_of(limits: Sequence[Sequence[int]]) -> str:
    """The inverse of `limits_of`."""
    (_, first), *others = limits
    return ",".join([str(first), *(f"{step}:{tokens}" for step, tokens in others)])


@dataclass(frozen=True, kw_only=True)
class Dims(Recipe):
    """The settings of a method with a loss that compares sentence vectors."""

    dims: str | None = ours(
        None,
        "widths such as 256,128,64: also add the loss of the vectors cut to each width; for encode --dim",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = widths_of(self)
        if any(width < 1 for width in widths):
            raise UsageError(f"dims={self.dims}: a width is 1 or more")
        if any(left <= right for left, right in pairwise(widths)):
            problem = f"dims={self.dims}: the widths do not decrease"
            raise UsageError(problem, advice="for example dims=256,128,64")


def widths_of(settings: Any) -> list[int]:
    """Return the widths of the setting, or none for a method without it."""
    text = getattr(settings, "dims", None)
    try:
        return [] if text is None else [int(word) for word in text.split(",")]
    except ValueError as error:
        problem = f'dims: "{text}" is not a list of whole numbers'
        raise UsageError(problem, advice="for example dims=256,128,64") from error


def check_widths(settings: Any, width: int) -> None:
    """Raise a UsageError for widths that are not smaller than that of the encoder."""
    large = [each for each in widths_of(settings) if each >= width]
    if large:
        problem = f"dims={settings.dims}: the vectors have {width} dimensions, which are always trained"
        raise UsageError(problem, advice="give smaller widths only")


Presets = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Listing:
    summary: str
    place: str  # module:class
    cite: str = ""
    note: str = ""  # a difference from the paper, for the manual
    settings: type[Recipe] = Recipe
    presets: Presets | None = None

    def load(self) -> "type[Method]":
        """Return the class of the method. This imports torch."""
        module, _, name = self.place.partition(":")
        kind: type[Method] = getattr(import_module(module), name)
        return kind


@dataclass(frozen=True, slots=True)
class Paper:
    key: str  # name of the paper in --paper
    name: str
    folder: str  # in papers/
    methods: Mapping[str, Listing]

    def figures(self) -> bytes:
        """Return the published figures, one JSON object per line."""
        return Path(__file__).parents[1].joinpath("papers", self.folder, "published.jsonl").read_bytes()
