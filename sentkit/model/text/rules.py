"""The rules of a tokenizer, as tokenizer.json states them, and the ids of texts from those of their
words.
"""

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
from sentkit.model.forks import without_fork
from sentkit.model.text.growth import INNER, check_growth
from sentkit.model.text.tokens import Ints, concatenated_ids, indices_of_ranges
from sentkit.process import threads_of_command, usable_cpus

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# As in transformers, tokenizer_config.json overrides tokenizer.json; missing keys have these
# defaults.
NORMALIZER: dict[str, tuple[str, bool | None]] = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
# The same for "add_prefix_space" of byte-level tokenizers, by their class; without one, by the type
# of the model.
BYTE_LEVEL = {
    "roberta": "RobertaTokenizer",
    "longformer": "LongformerTokenizer",
    "bart": "BartTokenizer",
    "led": "LEDTokenizer",
    "deberta": "DebertaTokenizer",
    "gpt2": "GPT2Tokenizer",
}
# Steps of a tokenizer that give equal tokens to the words before a space, whatever is behind it.
LOCAL_NORMALIZERS = {
    "BertNormalizer",
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "StripAccents",
    "Precompiled",
    "Strip",
}
SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Metaspace", "ByteLevel"}
# classes that use tokenizer.json unchanged
GENERIC = (
    "PreTrainedTokenizer",
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
)
LARGEST_CACHE = 1 << 22  # characters of words: about 480,000 words in 80 MB
# With so many CPUs, the library tokenizes whole texts. A sentence takes 54 microseconds of all CPUs
# together; in 7 of them no other thread runs Python. Words take 21 to 27 microseconds, all of them
# in Python.
MANY_CPUS = 8
# values of TOKENIZERS_PARALLELISM without threads
SERIAL = (
    "",
    "off",
    "false",
    "f",
    "no",
    "n",
    "0",
)
TEXTS_AT_ONCE = 1024
NEVER = r"\Z."  # matches nothing
# The pieces that BERT makes of a word: a mark of ASCII, or what is between marks.
PIECES = re.compile(r"[!-/:-@\[-`{-~]|[^!-/:-@\[-`{-~]+")


@contextmanager
def library_errors(source: str, problem: str = "the tokenizer fails") -> Iterator[None]:
    """Convert errors of the library to DataErrors. Its panics do not derive from Exception.

    A fork waits for the library, because the child would wait for its locks.
    """
    try:
        with without_fork():
            yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise DataError(f"{problem}: {error}", source=source) from error
        raise


def read_rules(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return tokenizer.json of a checkpoint, as tokenizer_config.json changes it."""
    path = checkpoint.transformer_folder / "tokenizer.json"
    if not path.is_file():
        return rules_of_vocabulary(checkpoint)
    rules = read_object(path)
    with library_errors(str(path), "not a tokenizer"):
        rules = with_end_token(rules, checkpoint.transformer_folder)
    config_path = checkpoint.transformer_folder / "tokenizer_config.json"
    config = read_object_if_there(config_path)
    if not isinstance(config.get("add_prefix_space"), bool | None):
        problem = '"add_prefix_space" is neither true nor false'
        raise DataError(problem, source=str(config_path))
    rules = with_declared_space(rules, config, checkpoint.config.get("model_type"))
    normalizer = rules.get("normalizer")
    if not isinstance(normalizer, dict) or normalizer.get("type") != "BertNormalizer":
        return rules
    if config.get("tokenizer_class") in GENERIC:
        return rules
    changed_normalizer = dict(normalizer)
    for config_name, (name, usual) in NORMALIZER.items():
        changed_normalizer[name] = config.get(config_name, usual)
    return {**rules, "normalizer": changed_normalizer}


def with_declared_space(
    rules: dict[str, Any], config: Mapping[str, Any], model_type: object
) -> dict[str, Any]:
    """Return the rules of a byte-level tokenizer with a space before a text if `config` adds one.

    `config` is the content of tokenizer_config.json.
    """
    splitter = rules.get("pre_tokenizer")
    if not isinstance(splitter, dict) or splitter.get("type") != "ByteLevel":
        return rules
    class_name = config.get("tokenizer_class")
    if class_name is None:
        class_name = BYTE_LEVEL.get(str(model_type))
    if str(class_name).removesuffix("Fast") not in BYTE_LEVEL.values():
        return rules
    adds_space = config.get("add_prefix_space") or False
    return {**rules, "pre_tokenizer": {**splitter, "add_prefix_space": adds_space}}


def rules_of_vocabulary(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the rules that transformers derives from a vocabulary file. Only this function imports
    it.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(checkpoint.transformer_folder), local_files_only=True
        )
        rules: dict[str, Any] = orjson.loads(tokenizer.backend_tokenizer.to_str())
    except Exception as error:  # every error means that the folder has no usable tokenizer
        problem = "no tokenizer in this folder"
        first_line = str(error).partition("\n")[0].rstrip()
        if first_line and not first_line.endswith(":"):  # before a list of ways to have one
            problem += f" ({first_line})"
        raise DataError(problem, source=str(checkpoint.folder)) from error
    # transformers returns a tokenizer without words if the folder has no tokenizer files.
    if len(rules["model"]["vocab"]) <= len(tokenizer.all_special_tokens):
        raise DataError("no tokenizer in this folder", source=str(checkpoint.folder))
    return rules


def backend_of(rules: dict[str, Any], source: str) -> "Backend":
    """Return a library tokenizer with these rules, without truncation and padding."""
    from tokenizers import Tokenizer as Backend

    check_growth(rules, source)
    with library_errors(source, "not a tokenizer"):
        backend = Backend.from_str(orjson.dumps(rules).decode())
    check_steps(rules, source)
    backend.no_truncation()
    backend.no_padding()
    return backend


def check_steps(rules: Mapping[str, Any], source: str) -> None:
    """Refuse a step that is not an object: the library also reads a list of its values."""
    for name, inner in INNER.items():
        steps = [rules.get(name) or {}]
        while steps:
            step = steps.pop()
            if not isinstance(step, dict):
                problem = f'not a tokenizer: a step of "{name}" is {step!r:.40}, expected an object'
                raise DataError(problem, source=source)
            inner_steps = step.get(inner)
            if isinstance(inner_steps, list):
                steps += inner_steps


def type_of(step: Mapping[str, Any]) -> str | None:
    """The type of a step; None if it has none, as an old or a damaged file."""
    name = step.get("type")
    if isinstance(name, str):
        return name
    return None


def splits_at_spaces(rules: Mapping[str, Any]) -> bool:
    """Return whether the ids before a space between two words surely do not depend on the text
    behind it.
    """

    def steps(step: Mapping[str, Any] | None, inner: str) -> Sequence[Mapping[str, Any]]:
        if step is None:
            return []
        return step.get(inner, [step])

    normalizers = steps(rules.get("normalizer"), "normalizers")
    splitters = steps(rules.get("pre_tokenizer"), "pretokenizers")
    for step in normalizers:
        joins_blanks = step.get("pattern") == {"Regex": " {2,}"}
        if type_of(step) not in LOCAL_NORMALIZERS and not joins_blanks:
            return False
    if not all(type_of(step) in SPLITTERS for step in splitters):
        return False
    if not any(step.get("split", True) and step.get("use_regex", True) for step in splitters):
        return False
    added_tokens = rules.get("added_tokens") or ()
    return not any(" " in token["content"] for token in added_tokens)


def has_lowercase(rules: Mapping[str, Any]) -> bool:
    """Whether the normalizer already converts texts to lower case."""
    normalizer = rules.get("normalizer") or {}
    steps = normalizer.get("normalizers", [normalizer])
    return any(step.get("type") == "Lowercase" or step.get("lowercase") is True for step in steps)


BPE_DEFAULTS: dict[str, Any] = {  # of a model of merges
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}


def rules_hash(rules: Mapping[str, Any]) -> str:
    """Return the hash of the rules without truncation and padding, which are not used."""
    used = {name: value for name, value in rules.items() if name not in ("truncation", "padding")}
    model = rules.get("model")
    if isinstance(model, dict) and "merges" in model:
        used["model"] = with_current_merges(model)
    return hashlib.blake2b(
        orjson.dumps(used, option=orjson.OPT_SORT_KEYS), digest_size=16
    ).hexdigest()


def with_current_merges(model: Mapping[str, Any]) -> dict[str, Any]:
    """A model of merges as tokenizers writes it now: earlier versions wrote a merge as "a b", and
    left out values that are the default now.
    """
    merges = model["merges"]
    if isinstance(merges, list):
        merges = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges]
    return {**BPE_DEFAULTS, **model, "merges": merges}


def kept_token(rules: Mapping[str, Any]) -> re.Pattern[str]:
    """Return the pattern of a token that the library finds in a text before it normalizes it."""
    added_tokens = rules.get("added_tokens") or ()
    kept = [token["content"] for token in added_tokens if not token.get("normalized", True)]
    longest_first = sorted(kept, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or NEVER})")


def unknown_ids(model: Mapping[str, Any], backend: "Backend") -> list[int]:
    """Return the ids of the unknown token. Each kind of model has another key for it."""
    ids: list[int | None] = [model.get("unk_id")]
    name = model.get("unk_token")
    if isinstance(name, str):
        ids.append(backend.token_to_id(name))
    return [number for number in ids if number is not None]


def truncates_start(checkpoint: Checkpoint, rules: Mapping[str, Any]) -> bool:
    """Whether the tokenizer truncates at the start of a text. tokenizer_config.json has
    priority.
    """
    side = read_object_if_there(checkpoint.transformer_folder / "tokenizer_config.json").get(
        "truncation_side"
    )
    truncation = rules.get("truncation")
    if side is None and isinstance(truncation, dict):
        side = str(truncation.get("direction")).lower()
    return side == "left"


class WordIds:
    """Returns the ids of texts. The library tokenizes a word once, as long as it is kept."""

    def __init__(
        self, encode: Callable[[list[str]], list[list[int]]], rules: Mapping[str, Any]
    ) -> None:
        """`encode` returns the ids of each text, without special tokens."""
        self.encode = encode
        self.lock = Lock()
        added_tokens = [re.escape(token["content"]) for token in rules.get("added_tokens") or ()]
        self.added_token = re.compile("|".join(added_tokens) or NEVER)
        self.forget()

    def forget(self) -> None:
        self.numbers: dict[str, int] = {}  # of the words
        self.ids = np.empty(0, np.int32)  # of all words, one after the other
        self.lengths = np.empty(0, np.int64)  # number of ids of each word
        self.characters = 0

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], Ints]:
        """The ids of all texts in one array, and their numbers (n,)."""
        no_ids, no_counts = concatenated_ids([])
        ids = [no_ids]
        counts = [no_counts]
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            words_of_texts = [text.split(" ") for text in texts[start : start + TEXTS_AT_ONCE]]
            with without_fork(), self.lock:
                if self.characters > LARGEST_CACHE:
                    self.forget()
                words = set(chain.from_iterable(words_of_texts))
                self._learn(words.difference(self.numbers))
                ids_of_texts, counts_of_texts = self._joined(words_of_texts)
            ids.append(ids_of_texts)
            counts.append(counts_of_texts)
        return np.concatenate(ids), np.concatenate(counts)

    def _learn(self, words: Iterable[str]) -> None:
        """Add words. Those with marks have the ids of their pieces, except around added tokens."""
        pieces: dict[str, list[str]] = {}
        for word in words:
            pieces[word] = [word]
            if not self.added_token.search(word):
                pieces[word] = PIECES.findall(word) or [word]
        new_pieces = list(set(chain.from_iterable(pieces.values())).difference(self.numbers))
        self._add(new_pieces, *concatenated_ids(self.encode(new_pieces)))
        words_of_pieces = [word for word in pieces if word not in self.numbers]
        self._add(words_of_pieces, *self._joined([pieces[word] for word in words_of_pieces]))

    def _add(self, words: Sequence[str], ids: NDArray[np.int32], lengths: Ints) -> None:
        next_number = len(self.numbers)
        self.numbers |= zip(words, range(next_number, next_number + len(words)), strict=True)
        self.ids = np.append(self.ids, ids)
        self.lengths = np.append(self.lengths, lengths)
        self.characters += sum(map(len, words))

    def _joined(self, lists: Sequence[Sequence[str]]) -> tuple[NDArray[np.int32], Ints]:
        """The ids of lists of known words, and their numbers."""
        counts = np.fromiter(map(len, lists), np.int64, len(lists))
        words = chain.from_iterable(lists)
        numbers = np.fromiter(map(self.numbers.__getitem__, words), np.int64, int(counts.sum()))
        starts = (np.cumsum(self.lengths) - self.lengths)[numbers]
        lengths = self.lengths[numbers]
        ids = self.ids[indices_of_ranges(starts, lengths)]
        # The ids of a list: those up to its last word, without those up to its first.
        ends = np.cumsum(counts)
        ids_before = np.append(0, np.cumsum(lengths))
        return ids, ids_before[ends] - ids_before[ends - counts]


def word_ids(
    encode: Callable[[list[str]], list[list[int]]], rules: Mapping[str, Any]
) -> WordIds | None:
    """Return the ids of words, if they surely are those of a text, and if this is faster."""
    cpus = threads_of_command() or usable_cpus()
    if os.environ.get("TOKENIZERS_PARALLELISM", "true").lower() in SERIAL:
        cpus = 1
    if cpus < MANY_CPUS and tokenizes_words_separately(rules):
        return WordIds(encode, rules)
    return None


def tokenizes_words_separately(rules: Mapping[str, Any]) -> bool:
    """Whether the ids of a text are surely those of its words between spaces, one after the other.

    `WordIds` searches added tokens in the words as they are written. So the library must also find
    them there, and not in the normalized text, and a token must not contain a space.
    """

    def type_of(name: str) -> object:
        return (rules.get(name) or {}).get("type")

    if type_of("normalizer") not in (None, "BertNormalizer"):
        return False
    if type_of("pre_tokenizer") != "BertPreTokenizer" or type_of("model") != "WordPiece":
        return False
    added_tokens = rules.get("added_tokens") or ()
    return not any(
        " " in token["content"] or token.get("normalized", True) for token in added_tokens
    )
