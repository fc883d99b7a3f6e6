"""Languages of multilingual tokenizers, and the `generate` argument that selects the target language."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from sentkit.errors import UsageError

# The target language is either the first output token or the start token of the decoder.
FIRST, START = "forced_bos_token_id", "decoder_start_token_id"
TOLD_BY = {
    "NllbTokenizer": FIRST,
    "M2M100Tokenizer": FIRST,
    "MBart50Tokenizer": FIRST,
    "MBartTokenizer": START,
}
SHOWN = 5  # languages in an error


def set_languages(
    tokenizer: Any, source: str | None, target: str | None, said: Mapping[str, Any]
) -> dict[str, int]:
    """Set the source language of the tokenizer; return the `generate` arguments for the target language."""
    told_by = told_how(tokenizer)
    if told_by is None:
        if source is not None or target is not None:
            raise UsageError("--source-lang and --target-lang: this model has no languages to choose from")
        return {}
    known = known_languages(tokenizer)
    declared = said.get(told_by) in known.values()  # the model has one target language
    lacking = {"--source-lang": source is None, "--target-lang": target is None and not declared}
    if any(lacking.values()):
        flags = " and ".join(flag for flag, lacks in lacking.items() if lacks)
        raise UsageError(
            f"this model knows {len(known)} languages: give {flags}", advice=such_as("en", known)
        )
    tokenizer.src_lang = checked("--source-lang", source, known)
    return {} if target is None else {told_by: known[checked("--target-lang", target, known)]}


def told_how(tokenizer: Any) -> str | None:
    """Return the `generate` argument that selects a language, or None if the tokenizer has no languages."""
    kinds = (each.__name__ for each in type(tokenizer).__mro__)
    return next((TOLD_BY[name] for name in kinds if name in TOLD_BY), None)


def language_tokens(tokenizer: Any) -> frozenset[int]:
    """Return the language tokens. The M2M100 tokenizer does not always list them as special tokens."""
    return frozenset() if told_how(tokenizer) is None else frozenset(known_languages(tokenizer).values())


def known_languages(tokenizer: Any) -> dict[str, int]:
    """Return the token of each language code."""
    codes = getattr(tokenizer, "lang_code_to_id", None)
    if codes is None:
        codes = {code: tokenizer.convert_tokens_to_ids(code) for code in tokenizer.extra_special_tokens}
    return {code: token for code, token in codes.items() if token not in (None, tokenizer.unk_token_id)}


def checked(flag: str, code: str | None, known: Mapping[str, int]) -> str:
    if code is None or code not in known:
        raise UsageError(f'{flag} "{code}": no such language', advice=such_as(code or "", known))
    return code


def such_as(code: str, known: Mapping[str, int]) -> str:
    nearest = get_close_matches(code, known, SHOWN, cutoff=0)
    return f"there are: {', '.join(nearest)}{' ...' if len(known) > len(nearest) else ''}"
