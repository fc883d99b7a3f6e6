"""The settings of methods, those of the trainer, and the entries of methods and papers. No torch.

A setting has a name, a default, the source of the default and the valid values.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from functools import partial
from importlib import import_module
from itertools import pairwise, product
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args

from sentkit.errors import UsageError
from sentkit.flag_values import assignment, suggestion

if TYPE_CHECKING:
    from sentkit.training.method import Method

S = TypeVar("S")

WORDS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
KINDS = {int: "a whole number", float: "a number", bool: "on or off", str: "a word"}
AS_BASE = "base"  # value of the setting `readout`: use the base's readout
SYNONYMS = {  # names of other libraries and of papers -> our setting or flag
    "learning_rate": "lr",
    "step_size": "lr",
    "batch_size": "batch",
    "train_batch_size": "batch",
    "per_device_train_batch_size": "batch",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "optim": "optimizer",
    "adam_epsilon": "epsilon",
    "eps": "epsilon",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "weight_decay_rate": "weight_decay",
    "lr_scheduler_type": "schedule",
    "scheduler": "schedule",
    "warmup_ratio": "warmup",
    "warmup_steps": "warmup",
    "warmup_proportion": "warmup",
    "max_grad_norm": "clip",
    "gradient_clip": "clip",
    "max_seq_length": "max_length",
    "max_len": "max_length",
    "mini_batch_size": "chunk",
    "gradient_accumulation_steps": "chunk",
    "hidden_dropout_prob": "dropout",
    "dropout_rate": "dropout",
    "lora_rank": "lora",
    "lora_r": "lora",
    "lora_target_modules": "lora_layers",
    "bf16": "precision",
    "fp16": "precision",
    "dtype": "precision",
    "remove_duplicates": "dedup",
    "eval_steps": "eval_every",
    "evaluation_steps": "eval_every",
    "early_stopping_patience": "patience",
    "load_best_model_at_end": "final",
    "temp": "temperature",
    "tau": "temperature",
    "pooling_mode": "readout",
    "pooling": "readout",
    "pooler_type": "readout",
    "mlm_probability": "mlm_rate",
    "matryoshka_dims": "dims",
    "queue_length": "queue_size",
    "seed": "--seed",
    "random_seed": "--seed",
    "save_steps": "--save-every",
    "output_dir": "--output",
    "model_name_or_path": "--model",
    "resume_from_checkpoint": "--resume",
}


@dataclass(frozen=True, slots=True)
class Note:
    """Meaning and limits of a setting. The meaning is empty if a method only changes the default."""

    source: str
    meaning: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    needs: str = ""  # a setting; if that is 0, off or none, this one has no effect and must not be changed

    @property
    def limits(self) -> str:
        words = [
            ", ".join(self.choices),
            "" if self.least is None else f"{self.least:g} or more",
            "" if self.above is None else f"over {self.above:g}",
            "" if self.most is None else f"at most {self.most:g}",
        ]
        return ", ".join(filter(None, words))

    def refusal(self, value: Any) -> str | None:
        """Return the limits if a value is outside of them, or None."""
        valid = (
            (not self.choices or value in self.choices)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )
        return None if valid else f"expected {self.limits}"


def declare(source: str, default: Any, meaning: str = "", **limits: Any) -> Any:
    return field(default=default, metadata={"note": Note(source, meaning, **limits)})


paper = partial(declare, "paper")
released = partial(declare, "released code")  # for a value that the paper omits
ours = partial(declare, "our choice")  # for a value that neither the paper nor its code states


def readout(usual: str, *, of_paper: bool = True, **limits: Any) -> Any:
    """Declare the setting `readout`. Its default is the readout of the base."""
    where = " as in the paper" if of_paper else ""
    meaning = f"how a text becomes a vector; base: as the base declares, else {usual}{where}"
    note = Note("our choice", meaning, **limits)
    return field(default=AS_BASE, metadata={"note": note, "usual": usual, "of_paper": of_paper})


def with_readout_of_base(settings: S, declared: str | None) -> S:
    """Fill in the settings that follow the readout of the base, if it is one of their choices `of_base`."""
    values = {}
    for each in fields(settings):  # type: ignore[arg-type]
        choices = each.metadata.get("of_base")
        if choices and getattr(settings, each.name) == AS_BASE:
            values[each.name] = declared if declared in choices else choices[0]
    return replace(settings, **values)  # type: ignore[type-var]


def usual_readout(kind: type) -> tuple[str, bool]:
    """Return the readout for a base that declares none, and whether it is that of a paper."""
    declared = kind.__dataclass_fields__["readout"].metadata  # type: ignore[attr-defined]
    return declared["usual"], declared["of_paper"]


def chosen_readout(settings: Any) -> str:
    """Return the setting `readout`. Replace `base` by the method's usual readout."""
    name: str = settings.readout
    return usual_readout(type(settings))[0] if name == AS_BASE else name


def changes_of(kind: type, preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a preset. Presets reproduce a paper, so they include the paper's readout."""
    has = "readout" in kind.__dataclass_fields__  # type: ignore[attr-defined]
    usual, of_paper = usual_readout(kind) if has else ("", False)
    return {**({"readout": usual} if of_paper else {}), **preset}


def notes(kind: type) -> dict[str, Note]:
    """Return the note of each setting.

    The source is that of the last class. The meaning and limits are from the last class with a meaning.
    """
    merged: dict[str, Note] = {}
    for each in filter(is_dataclass, reversed(kind.__mro__)):
        for one in fields(each):
            note = one.metadata["note"]
            rule = note if note.meaning else merged[one.name]
            merged[one.name] = replace(rule, source=note.source)
    return merged


def build(
    kind: type[S], presets: Mapping[str, Mapping[str, Any]], preset: str | None, assignments: Sequence[str]
) -> S:
    """Return the defaults, changed by the preset and then by each `name=value`. The last value wins."""
    if preset is not None and preset not in presets:
        raise UsageError(f'unknown preset "{preset}"', advice=f"available: {', '.join(presets) or 'none'}")
    changes = changes_of(kind, presets[preset]) if preset else {}
    return kind(**changes | parsed(kind, assignments))


def combinations(kind: type, assignments: Mapping[str, str]) -> list[dict[str, str]]:
    """Return each combination of values of the settings with a list; the last setting varies fastest.

    A comma separates numbers, `on` and `off`, words with choices, and readouts. In another text, and in a
    readout that is a list by default, it is part of the value.
    """
    rules, several = notes(kind), dict[str, list[str]]()
    known: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}
    for name, text in assignments.items():
        if "," not in text or name not in known:
            continue
        usual, of = known[name].metadata.get("usual"), known[name].type
        listed = rules[name].choices or (usual is not None and "," not in usual)
        if listed or str not in (get_args(of) or (of,)):
            words = dict[Any, str]()
            for word in map(str.strip, text.split(",")):
                words.setdefault(value_of(name, of, word), word)
            several[name] = [*words.values()]
    return [dict(zip(several, words, strict=True)) for words in product(*several.values())]


def synonyms_of(settings: Collection[str]) -> dict[str, str]:
    """Return the synonyms of these settings, and of flags."""
    return {synonym: name for synonym, name in SYNONYMS.items() if name in settings or name.startswith("--")}


def parsed(kind: type, assignments: Iterable[str]) -> dict[str, Any]:
    known: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}
    rules, values = notes(kind), dict[str, Any]()
    for name, text in map(assignment, assignments):
        if name not in known:
            raise UsageError(f'unknown setting "{name}"', advice=suggestion(name, known, synonyms_of(known)))
        values[name] = value_of(name, known[name].type, text)
        refusal = None if values[name] is None else rules[name].refusal(values[name])
        if refusal:
            raise UsageError(f"{name}={text}: {refusal}")
    return values


def value_of(name: str, kind: Any, text: str) -> Any:
    """Convert a text to the type of the setting. `none` is valid for optional settings."""
    either = get_args(kind)
    if NoneType in either:
        if text.lower() == "none":
            return None
        kind = next(each for each in either if each is not NoneType)
    try:
        value = WORDS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError) as error:
        raise UsageError(f'{name}: "{text}" is not {KINDS[kind]}') from error
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f'{name}: "{text}" is not {KINDS[kind]}')
    return value


def refuse_idle(settings: Any, names: Collection[str], because: str) -> None:
    """Raise a UsageError if one of these settings is changed, because it has no effect here."""
    for each in fields(settings):
        if each.name in names and getattr(settings, each.name) != each.default:
            # A preset may have changed the setting. The user must then set it back to the default.
            advice = f"use the default {each.name}={format_value(each.default)}"
            raise UsageError(f"{each.name} has no effect with {because}", advice=advice)


def format_value(value: Any) -> str:
    """Format a value in the syntax of `--set`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the fields that differ between two records, as `name (ours, was theirs)`."""
    names = dict.fromkeys([*theirs, *ours])
    return [
        f"{name} ({format_value(ours.get(name))}, was {format_value(theirs.get(name))})"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]


def described(kind: type, presets: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return each setting with default, meaning, limits and source, and then the presets."""
    rules, lines = notes(kind), []
    for each in fields(kind):
        words = "; ".join(filter(None, (rules[each.name].meaning, rules[each.name].limits)))
        lines.append((f"{each.name}={format_value(each.default)}", f"{words} [{rules[each.name].source}]"))
    for name, preset in presets.items():
        changes = " ".join(f"{one}={format_value(value)}" for one, value in changes_of(kind, preset).items())
        lines.append((f"--preset {name}", changes or "the defaults"))
    return lines


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
        " when it is short; none: see chunk",
    )
    dropout: float | None = ours(None, "dropout of the encoder; none: as in its config", least=0, most=0.99)
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
        needs="patience",
    )
    final: str = ours("best", "weights to keep, with --dev", choices=("best", "last"))

    def __post_init__(self) -> None:
        if self.prompt is not None and self.prompt_name is not None:
            raise UsageError("prompt and prompt_name cannot be used together")
        if self.chunk and self.chunk_tokens is not None:
            raise UsageError("chunk and chunk_tokens cannot be used together")
        limits_of(self.chunk_tokens)
        for name, note in notes(type(self)).items():
            if note.needs and not (needed := getattr(self, note.needs)):
                refuse_idle(self, (name,), f"{note.needs}={format_value(needed)}")
        if self.optimizer in ("adam", "rmsprop") and self.weight_decay:
            raise UsageError(f"optimizer={self.optimizer} has no weight decay", advice="use optimizer=adamw")
        if self.optimizer == "rmsprop":
            refuse_idle(self, ("beta1",), "optimizer=rmsprop")
        if self.schedule in ("constant", "ct") and self.warmup:
            advice = "use schedule=warmup-constant, or warmup=0"
            raise UsageError(f"schedule={self.schedule} has no warmup", advice=advice)


AUTO = "auto"  # value of the setting `chunk_tokens`


def limits_of(text: str | None) -> list[list[int]]:
    """Return the first limit of a chunk in tokens, with its step 0; nothing for no limit, or for `auto`."""
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
