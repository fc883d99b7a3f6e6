"""Translation options from the flags, the languages of tokenizers, the limits of checkpoints. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.formats.files import read_object
from sentkit.model.reading import LONGEST, most_tokens

BEAMS = 4  # default if a checkpoint declares no number
UNBOUNDED = 1 << 30


@dataclass(frozen=True, slots=True)
class TranslationOptions:
    """Translation options from the flags. None and empty values select the defaults of the checkpoint."""

    beams: int | None = None
    sample: bool = False  # draw each token at random; the next four are for this
    temperature: float = 1.0
    top_p: float | None = None
    seed: int = 0
    max_length: int | None = None  # input tokens
    max_new_tokens: int | None = None  # output tokens
    source_lang: str | None = None
    target_lang: str | None = None
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    read: int  # input tokens of a text, including special tokens
    written: int
    beams: int


def generation_settings(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the generation settings of a checkpoint. Older checkpoints keep them in config.json."""
    path = checkpoint.transformer / "generation_config.json"
    return read_object(path) if path.is_file() else checkpoint.config


def limits_of(
    config: Mapping[str, Any],
    settings: Mapping[str, Any],
    options: TranslationOptions,
    *,
    usual: int,
    source: str,
) -> Limits:
    """Return the limits. `usual`, the declared length of the tokenizer, is a default, not a bound.

    `source` is the path of the config, for errors.
    """
    readable = most_tokens(config.get("encoder") or config, source)
    writable = most_tokens(config.get("decoder") or config, source)
    default = usual if usual < UNBOUNDED else positive(config, "n_positions") or readable or LONGEST
    read = checked(options.max_length, "--max-length", readable) or min(default, readable or UNBOUNDED)
    wanted = checked(options.max_new_tokens, "max_new_tokens", writable)
    # "max_length" includes the start token of the decoder. The default output limit is the input limit.
    declared = positive(settings, "max_new_tokens") or (positive(settings, "max_length") or 0) - 1
    written = wanted or min(declared if declared > 0 else read, writable or UNBOUNDED)
    beams = 1 if options.sample else options.beams or positive(settings, "num_beams") or BEAMS
    return Limits(read, written, beams)


def checked(length: int | None, flag: str, positions: int | None) -> int | None:
    if length is not None and positions is not None and length > positions:
        raise UsageError(f"{flag} {length}: this model has {positions} positions")
    return length


def positive(settings: Mapping[str, Any], name: str) -> int | None:
    """Return a setting if it is a positive integer, else None."""
    value = settings.get(name)
    return value if isinstance(value, int) and value > 0 else None


# The target language is either the first output token or the start token of the decoder.
FIRST, START = "forced_bos_token_id", "decoder_start_token_id"
LANGUAGE_ARGUMENTS = {
    "NllbTokenizer": FIRST,
    "M2M100Tokenizer": FIRST,
    "MBart50Tokenizer": FIRST,
    "MBartTokenizer": START,
}
MAX_SHOWN = 5  # languages in an error


def set_languages(
    tokenizer: Any, source: str | None, target: str | None, settings: Mapping[str, Any]
) -> dict[str, int]:
    """Set the source language of the tokenizer; return the `generate` arguments for the target language."""
    argument = language_argument(tokenizer)
    if argument is None:
        if source is not None or target is not None:
            raise UsageError("this model is not multilingual; remove --source-lang and --target-lang")
        return {}
    known = known_languages(tokenizer)
    declared = settings.get(argument) in known.values()  # the model has one target language
    required = {"--source-lang": source is None, "--target-lang": target is None and not declared}
    missing = " and ".join(flag for flag, is_missing in required.items() if is_missing)
    if missing:
        raise UsageError(
            f"this model has {len(known)} languages: give {missing}", advice=choices("en", known)
        )
    tokenizer.src_lang = known_code("--source-lang", source, known)
    return {} if target is None else {argument: known[known_code("--target-lang", target, known)]}


def language_argument(tokenizer: Any) -> str | None:
    """Return the `generate` argument that selects a language, or None if the tokenizer has no languages."""
    kinds = (each.__name__ for each in type(tokenizer).__mro__)
    return next((LANGUAGE_ARGUMENTS[name] for name in kinds if name in LANGUAGE_ARGUMENTS), None)


def language_tokens(tokenizer: Any) -> frozenset[int]:
    """Return the language tokens. The M2M100 tokenizer does not always list them as special tokens."""
    return (
        frozenset()
        if language_argument(tokenizer) is None
        else frozenset(known_languages(tokenizer).values())
    )


def known_languages(tokenizer: Any) -> dict[str, int]:
    codes = getattr(tokenizer, "lang_code_to_id", None)
    if codes is None:
        codes = {code: tokenizer.convert_tokens_to_ids(code) for code in tokenizer.extra_special_tokens}
    return {code: token for code, token in codes.items() if token not in (None, tokenizer.unk_token_id)}


def known_code(flag: str, code: str | None, known: Mapping[str, int]) -> str:
    if code is None or code not in known:
        raise UsageError(f'{flag} "{code}": unknown language', advice=choices(code or "", known))
    return code


def choices(code: str, known: Mapping[str, int]) -> str:
    nearest = get_close_matches(code, known, MAX_SHOWN, cutoff=0)
    return f"available: {', '.join(nearest)}{' ...' if len(known) > len(nearest) else ''}"
