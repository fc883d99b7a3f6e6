"""How settings are declared and parsed. `recipe.py` has those of the trainer. No torch.

A setting is a field of a dataclass. It has a default, the source of the default and the valid
values.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from itertools import product
from types import NoneType
from typing import Any, TypeVar, get_args

from sentkit.errors import UsageError
from sentkit.flag_values import assignment, suggestion_with_all

S = TypeVar("S")
Presets = Mapping[str, Mapping[str, Any]]  # name -> changed settings

WORDS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "on or off", str: "a word"}
MANUAL = "see: man 7 sentkit-method"
AS_BASE = "base"  # value of the setting `readout`: use the base's readout
# Names of the identity of a run besides its settings, which can have none of them.
OF_RUN = ("method", "method_file", "seed", "base", "data", "dev", "test", "entries")
# names of other libraries and of papers -> our setting or flag
SYNONYMS = {
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
    "max_seq": "max_length",
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
    "seeds": "--seed",
    "dev": "--dev",
    "test": "--test",
    "entries": "--entries",
    "preset": "--preset",
    "device": "--device",
    "threads": "--threads",
    "model": "--model",
    "random_seed": "--seed",
    "save_steps": "--save-every",
    "output_dir": "--output",
    "model_name_or_path": "--model",
    "resume_from_checkpoint": "--resume",
}


@dataclass(frozen=True, slots=True)
class Note:
    """Meaning and limits of a setting; an empty meaning: a method only changes the default."""

    source: str
    meaning: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    # a setting; if that is 0, off or none, this one has no effect and must not be changed
    needs: str = ""

    @property
    def limits(self) -> str:
        words = list(self.choices)
        if self.least is not None:
            words.append(f"{self.least:g} or more")
        if self.above is not None:
            words.append(f"over {self.above:g}")
        if self.most is not None:
            words.append(f"at most {self.most:g}")
        return ", ".join(words)

    def refusal(self, value: Any) -> str | None:
        """Return the limits if a value is outside of them, or None."""
        is_valid = (
            (not self.choices or value in self.choices)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )
        if is_valid:
            return None
        return f"expected {self.limits}"


def declare(source: str, default: Any, meaning: str = "", **limits: Any) -> Any:
    return field(default=default, metadata={"note": Note(source, meaning, **limits)})


paper = partial(declare, "paper")
released = partial(declare, "released code")  # for a value that the paper omits
ours = partial(declare, "our choice")  # for a value that neither the paper nor its code states


def readout(usual: str, *, of_paper: bool = True, **limits: Any) -> Any:
    """Declare the setting `readout`. Its default is the readout of the base."""
    meaning = f"how a text becomes a vector; base: as the base declares, else {usual}"
    if of_paper:
        meaning += " as in the paper"
    note = Note("our choice", meaning, **limits)
    return field(default=AS_BASE, metadata={"note": note, "usual": usual, "of_paper": of_paper})


def with_readout_of_base(settings: S, declared: str | None) -> S:
    """Fill in each setting that follows the base's readout, if this is a choice `of_base`."""
    values: dict[str, str] = {}
    for setting in fields(settings):  # type: ignore[arg-type]
        choices = setting.metadata.get("of_base")
        if not choices or getattr(settings, setting.name) != AS_BASE:
            continue
        values[setting.name] = choices[0]
        if declared is not None and declared in choices:
            values[setting.name] = declared
    return replace(settings, **values)  # type: ignore[type-var]


def usual_readout(settings_class: type) -> tuple[str, bool]:
    """Return the readout for a base that declares none, and whether it is that of a paper."""
    metadata = settings_class.__dataclass_fields__["readout"].metadata  # type: ignore[attr-defined]
    return metadata["usual"], metadata["of_paper"]


def chosen_readout(settings: Any) -> str:
    """Return the setting `readout`. Replace `base` by the method's usual readout."""
    name: str = settings.readout
    if name == AS_BASE:
        name, _ = usual_readout(type(settings))
    return name


def changes_of(settings_class: type, preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a preset, which reproduces a paper: also the paper's readout."""
    changes: dict[str, Any] = {}
    if "readout" in settings_class.__dataclass_fields__:  # type: ignore[attr-defined]
        usual, of_paper = usual_readout(settings_class)
        if of_paper:
            changes["readout"] = usual
    return changes | dict(preset)


def notes(settings_class: type) -> dict[str, Note]:
    """Return the note of each setting.

    The source is that of the last class. The meaning and limits are from the last class with a
    meaning.
    """
    merged: dict[str, Note] = {}
    for base_class in reversed(settings_class.__mro__):
        if not is_dataclass(base_class):
            continue
        for setting in fields(base_class):
            note: Note = setting.metadata["note"]
            if note.meaning or setting.name not in merged:
                merged[setting.name] = note
            else:
                merged[setting.name] = replace(merged[setting.name], source=note.source)
    return merged


def build(
    settings_class: type[S],
    presets: Mapping[str, Mapping[str, Any]],
    preset: str | None,
    assignments: Sequence[str],
) -> S:
    """Return the defaults, changed by the preset and each `name=value`: the last value wins."""
    changes: dict[str, Any] = {}
    if preset is not None:
        if preset not in presets:
            available = ", ".join(presets) or "none"
            raise UsageError(f'unknown preset "{preset}"', advice=f"available: {available}")
        changes = changes_of(settings_class, presets[preset])
    given = parsed(settings_class, assignments)
    if given.get("steps") is not None:
        given = {"epochs": None, **given}  # the steps, not the epochs of a preset, end the run
    return settings_class(**changes | given)


def combinations(settings_class: type, assignments: Mapping[str, str]) -> list[dict[str, str]]:
    """Return each combination of values of the settings with lists; the last varies fastest.

    A comma separates numbers, `on` and `off`, words with choices, and readouts. In another text,
    and in a readout that is a list by default, it is part of the value.
    """
    settings = {setting.name: setting for setting in fields(settings_class)}
    setting_notes = notes(settings_class)
    texts_of_setting: dict[str, list[str]] = {}  # of settings with a list
    for name, text in assignments.items():
        if "," not in text or name not in settings:
            continue
        setting_type = settings[name].type
        usual = settings[name].metadata.get("usual")  # of a readout
        is_text = str in (get_args(setting_type) or (setting_type,))
        is_list_of_readouts = usual is not None and "," not in usual
        if is_text and not setting_notes[name].choices and not is_list_of_readouts:
            continue
        text_of_value: dict[Any, str] = {}  # 1e-5 and 0.00001 are one value
        for word in text.split(","):
            value = value_of(name, setting_type, word.strip())
            text_of_value.setdefault(value, word.strip())
        texts_of_setting[name] = list(text_of_value.values())
    return [
        dict(zip(texts_of_setting, texts, strict=True))
        for texts in product(*texts_of_setting.values())
    ]


def synonyms_of(settings: Collection[str]) -> dict[str, str]:
    """Return the synonyms of these settings, and of flags."""
    return {
        synonym: name
        for synonym, name in SYNONYMS.items()
        if name in settings or name.startswith("--")
    }


def parsed(settings_class: type, assignments: Iterable[str]) -> dict[str, Any]:
    """Return the value of each `name=value`. Raise a UsageError for a bad name or value."""
    types = {setting.name: setting.type for setting in fields(settings_class)}
    setting_notes = notes(settings_class)
    values: dict[str, Any] = {}
    for name, text in map(assignment, assignments):
        if name not in types:
            advice = suggestion_with_all(name, types, synonyms_of(types))
            raise UsageError(f'unknown setting "{name}"', advice=advice)
        value = value_of(name, types[name], text)
        if value is not None:
            refusal = setting_notes[name].refusal(value)
            if refusal is not None:
                raise UsageError(f"{name}={text}: {refusal}")
        values[name] = value
    return values


def value_of(name: str, setting_type: Any, text: str) -> Any:
    """Convert a text to the type of the setting. `none` is valid for optional settings."""
    alternatives = get_args(setting_type)
    if NoneType in alternatives:
        if text.lower() == "none":
            return None
        setting_type = next(
            alternative for alternative in alternatives if alternative is not NoneType
        )
    try:
        value = WORDS[text.lower()] if setting_type is bool else setting_type(text)
    except (KeyError, ValueError) as error:
        raise UsageError(f'{name}: "{text}" is not {TYPE_NAMES[setting_type]}') from error
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f'{name}: "{text}" is not {TYPE_NAMES[setting_type]}')
    return value


def refuse_idle(settings: Any, names: Collection[str], because: str) -> None:
    """Raise a UsageError if one of these settings is changed, because it has no effect here."""
    for setting in fields(settings):
        if setting.name in names and getattr(settings, setting.name) != setting.default:
            # A preset may have changed the setting. The user must then set it back to the default.
            advice = f"use the default {setting.name}={format_value(setting.default)}"
            raise UsageError(f"{setting.name} has no effect with {because}", advice=advice)


def format_value(value: Any) -> str:
    """Format a value in the syntax of `--set`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    if isinstance(value, float):
        short = f"{value:g}"  # without ".0"
        if float(short) == value:
            return short
    return str(value)


def differences(record: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[str]:
    """Return the fields that differ from an earlier record, as `name (value, was value)`."""
    changes: list[str] = []
    for name in dict.fromkeys([*earlier, *record]):
        value = record.get(name)
        before = earlier.get(name)
        if value != before:
            changes.append(f"{name} ({format_value(value)}, was {format_value(before)})")
    return changes


def described(
    settings_class: type, presets: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """Return the presets, and then each setting with default, meaning, limits and source."""
    setting_notes = notes(settings_class)
    lines: list[tuple[str, str]] = []
    for preset, values in presets.items():
        changes = changes_of(settings_class, values)
        assignments = [f"{name}={format_value(value)}" for name, value in changes.items()]
        lines.append((f"--preset {preset}", " ".join(assignments) or "the defaults"))
    for setting in fields(settings_class):
        note = setting_notes[setting.name]
        text = "; ".join(filter(None, [note.meaning, note.limits]))
        lines.append((f"{setting.name}={format_value(setting.default)}", f"{text} [{note.source}]"))
    return lines
