"""The rules of a tokenizer, as tokenizer.json states them, and the ids of texts from those of their words."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import Checkpoint, with_end_token
from sentkit.formats.files import read_object, read_object_if_there
from sentkit.model.forks import working
from sentkit.model.text.growth import check_growth
from sentkit.model.text.tokens import Ints, flat, places_of_parts
from sentkit.process import threads_of_command, usable_cpus

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# As in transformers, tokenizer_config.json overrides tokenizer.json; missing keys have these defaults.
NORMALIZER: dict[str, tuple[str, bool | None]] = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
# Steps of a tokenizer that give equal tokens to the words before a space, whatever is behind it.
LOCAL_NORMALIZERS = {
    *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Precompiled", "Strip")
}
SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Metaspace", "ByteLevel"}
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that use tokenizer.json unchanged
MOST_CHARACTERS = 1 << 22  # of the words that are kept: about 480,000 words in 80 MB
# With so many CPUs, the library tokenizes whole texts. A sentence takes 54 microseconds of all CPUs together;
# in 7 of them no other thread runs Python. Words take 21 to 27 microseconds, all of them in Python.
MANY_CPUS = 8
SERIAL = ("", "off", "false", "f", "no", "n", "0")  # values of TOKENIZERS_PARALLELISM without threads
TEXTS_AT_ONCE = 1024
# The parts of a word: a mark of ASCII, or what is between marks.
PARTS = re.compile(r"[!-/:-@\[-`{-~]|[^!-/:-@\[-`{-~]+")


@contextmanager
def library_errors(source: str, problem: str = "the tokenizer fails") -> Iterator[None]:
    """Convert errors of the library to DataErrors. Its panics do not derive from Exception.

    A fork waits for the library, because the child would wait for its locks.
    """
    try:
        with working():
            yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise DataError(f"{problem}: {error}", source=source) from error
        raise


def read_rules(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the rules of a checkpoint, as tokenizer_config.json changes them."""
    path = checkpoint.transformer / "tokenizer.json"
    if not path.is_file():
        return rules_of_vocabulary(checkpoint)
    rules = read_object(path)
    with library_errors(str(path), "not a tokenizer"):
        rules = with_end_token(rules, checkpoint.transformer)
    normalizer = rules.get("normalizer")
    config = read_object_if_there(checkpoint.transformer / "tokenizer_config.json")
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        return rules
    if config.get("tokenizer_class") in GENERIC:
        return rules
    stated = {ours: config.get(theirs, usual) for theirs, (ours, usual) in NORMALIZER.items()}
    return {**rules, "normalizer": {**normalizer, **stated}}


def rules_of_vocabulary(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the rules that transformers derives from a vocabulary file. Only this function imports it."""
    from transformers import AutoTokenizer

    try:
        made = AutoTokenizer.from_pretrained(str(checkpoint.transformer), local_files_only=True)
        rules: dict[str, Any] = orjson.loads(made.backend_tokenizer.to_str())
    except Exception as error:  # every error means that the folder has no usable tokenizer
        first = str(error).partition("\n")[0]
        raise DataError(f"no tokenizer in this folder ({first})", source=str(checkpoint.folder)) from error
    # transformers returns a tokenizer without words if the folder has no tokenizer files.
    if len(rules["model"]["vocab"]) <= len(made.all_special_tokens):
        raise DataError("no tokenizer in this folder", source=str(checkpoint.folder))
    return rules


def backend_of(rules: dict[str, Any], source: str) -> "Backend":
    """Return a library tokenizer with these rules, without truncation and padding."""
    from tokenizers import Tokenizer as Backend

    check_growth(rules, source)
    with library_errors(source, "not a tokenizer"):
        backend = Backend.from_str(orjson.dumps(rules).decode())
    backend.no_truncation()
    backend.no_padding()
    return backend


def splits_at_spaces(rules: Mapping[str, Any]) -> bool:
    """Return whether the ids before a space between two words surely do not depend on the text behind it."""

    def steps(step: Mapping[str, Any] | None, inner: str) -> Sequence[Mapping[str, Any]]:
        return [] if step is None else step.get(inner, [step])

    normalizers = steps(rules.get("normalizer"), "normalizers")
    splitters = steps(rules.get("pre_tokenizer"), "pretokenizers")
    added, blanks = rules.get("added_tokens") or (), {"Regex": " {2,}"}
    return (
        all(each["type"] in LOCAL_NORMALIZERS or each.get("pattern") == blanks for each in normalizers)
        and all(each["type"] in SPLITTERS for each in splitters)
        and any(each.get("split", True) and each.get("use_regex", True) for each in splitters)
        and not any(" " in token["content"] for token in added)
    )


def rules_hash(rules: Mapping[str, Any]) -> str:
    """Return the hash of the rules without truncation and padding, which are not used."""
    used = {name: value for name, value in rules.items() if name not in ("truncation", "padding")}
    return hashlib.blake2b(orjson.dumps(used, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()


def unknown_ids(model: Mapping[str, Any], backend: "Backend") -> list[int]:
    """Return the ids of the unknown token. Each kind of model has another key for it."""
    name = model.get("unk_token")
    ids = model.get("unk_id"), backend.token_to_id(name) if isinstance(name, str) else None
    return [number for number in ids if number is not None]


def truncates_start(checkpoint: Checkpoint, rules: Mapping[str, Any]) -> bool:
    """Whether the tokenizer truncates at the start of a text. tokenizer_config.json has priority."""
    side = read_object_if_there(checkpoint.transformer / "tokenizer_config.json").get("truncation_side")
    truncation = rules.get("truncation")
    if side is None and isinstance(truncation, dict):
        side = str(truncation.get("direction")).lower()
    return side == "left"


class WordIds:
    """Returns the ids of texts. The library tokenizes a word once, as long as it is kept."""

    def __init__(self, encode: Callable[[list[str]], list[list[int]]], rules: Mapping[str, Any]) -> None:
        """`encode` returns the ids of each text, without special tokens."""
        self.encode, self.lock = encode, Lock()
        added = [re.escape(token["content"]) for token in rules.get("added_tokens") or ()]
        self.whole = re.compile("|".join(added) or r"\Z.")
        self.forget()

    def forget(self) -> None:
        self.numbers: dict[str, int] = {}  # of the words
        self.ids, self.lengths, self.characters = np.empty(0, np.int32), np.empty(0, np.int64), 0

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], Ints]:
        """The ids of all texts in one array, and their numbers (n,)."""
        parts = [flat([])]
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            words = [text.split(" ") for text in texts[start : start + TEXTS_AT_ONCE]]
            with working(), self.lock:
                if self.characters > MOST_CHARACTERS:
                    self.forget()
                self._learn({*chain.from_iterable(words)}.difference(self.numbers))
                parts.append(self._joined(words))
        ids, counts = zip(*parts, strict=True)
        return np.concatenate(ids), np.concatenate(counts)

    def _learn(self, words: Iterable[str]) -> None:
        """Add words: with marks as their parts, unless they have tokens that are found before the parts."""
        parts = {each: [each] if self.whole.search(each) else PARTS.findall(each) or [each] for each in words}
        new = [*{*chain.from_iterable(parts.values())}.difference(self.numbers)]
        self._add(new, *flat(self.encode(new)))
        others = [each for each in parts if each not in self.numbers]
        self._add(others, *self._joined([parts[each] for each in others]))

    def _add(self, words: Sequence[str], ids: NDArray[np.int32], lengths: Ints) -> None:
        self.numbers |= zip(words, range(len(self.numbers), len(self.numbers) + len(words)), strict=True)
        self.ids, self.lengths = np.append(self.ids, ids), np.append(self.lengths, lengths)
        self.characters += sum(map(len, words))

    def _joined(self, lists: Sequence[Sequence[str]]) -> tuple[NDArray[np.int32], Ints]:
        """The ids of lists of known words, and their numbers."""
        counts = np.fromiter(map(len, lists), np.int64, len(lists))
        words = chain.from_iterable(lists)
        numbers = np.fromiter(map(self.numbers.__getitem__, words), np.int64, int(counts.sum()))
        starts, lengths = (np.cumsum(self.lengths) - self.lengths)[numbers], self.lengths[numbers]
        ends = np.cumsum(counts)
        totals = np.append(0, np.cumsum(lengths))
        return self.ids[places_of_parts(starts, lengths)], totals[ends] - totals[ends - counts]


def word_ids(encode: Callable[[list[str]], list[list[int]]], rules: Mapping[str, Any]) -> WordIds | None:
    """Return the ids of words, if they surely are those of a text, and if this is faster."""
    cpus = threads_of_command() or usable_cpus()
    if os.environ.get("TOKENIZERS_PARALLELISM", "true").lower() in SERIAL:
        cpus = 1
    return WordIds(encode, rules) if reads_words_alone(rules) and cpus < MANY_CPUS else None


def reads_words_alone(rules: Mapping[str, Any]) -> bool:
    """Whether the ids of a text are surely those of its words between spaces, one after the other.

    Added tokens must be found as they are written, and not in the normalized text.
    """
    kinds = [(rules.get(name) or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
    bert = kinds[0] in (None, "BertNormalizer") and kinds[1:] == ["BertPreTokenizer", "WordPiece"]
    added = rules.get("added_tokens") or ()
    return bert and not any(" " in token["content"] or token.get("normalized", True) for token in added)
