"""Splits texts into word pieces for static models, without special tokens."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from sentkit.errors import DataError
from sentkit.formats.json_files import read_object
from sentkit.model.static.lookup import UNKNOWN, without_unknown
from sentkit.model.text.tokenizer import Tokens, backend_of, rules_hash, told, unknown_ids

AT_ONCE = 512  # texts: the encodings fit the caches of the CPU


class Pieces:
    """Tokenises texts with tokenizer.json.

    model2vec removes unknown tokens after truncation. sentence-transformers (`keep_unknown`) uses the vector
    of the unknown token and takes the length limit from tokenizer.json.
    """

    unit, whole = "tokens", False

    def __init__(self, folder: Path, *, prompt: str, keep_unknown: bool = False) -> None:
        path = folder / "tokenizer.json"
        self.source = str(path)
        self._rules = read_object(path)
        self.backend = backend_of(self._rules, self.source)
        self.max_length = truncation_of(self._rules, self.source) if keep_unknown else None
        self.prompt, self.keep_unknown = prompt, keep_unknown
        vocabulary = self.backend.get_vocab()
        if not vocabulary:
            raise DataError("a tokenizer without tokens", source=self.source)
        self.count = max(vocabulary.values()) + 1
        unknown = [] if keep_unknown else unknown_ids(self._rules["model"], self.backend)
        self.unknown = next(iter(unknown), UNKNOWN)

    @cached_property
    def hash(self) -> str:
        rules = rules_hash(self._rules)
        return f"{rules}+unknown" if self.keep_unknown else rules

    def __call__(self, texts: Sequence[str]) -> list[Tokens]:
        whole = [self.prompt + text for text in texts] if self.prompt else list(texts)
        found: list[Tokens] = []
        for start in range(0, len(whole), AT_ONCE):
            with told(self.source):
                some = self.backend.encode_batch_fast(
                    whole[start : start + AT_ONCE], add_special_tokens=False
                )
            found += [without_unknown(each.ids, self.max_length, self.unknown) for each in some]
        return found


def truncation_of(rules: Mapping[str, Any], source: str) -> int | None:
    """Return the length limit of tokenizer.json, or None."""
    truncation = rules.get("truncation")
    if truncation is None:
        return None
    if not isinstance(truncation, dict) or type(truncation.get("max_length")) is not int:
        raise DataError(f'"truncation" is {truncation!r:.40}', source=source)
    if truncation.get("direction", "Right") != "Right" or truncation["max_length"] < 1:
        raise DataError("truncates texts at their start, which sentkit cannot", source=source)
    return int(truncation["max_length"])
