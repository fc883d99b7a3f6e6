"""Converts texts to token ids, and records truncation. Uses the library tokenizers, without torch.

Tokenizers that read each word by itself get the ids of a text from those of its words.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.formats.checkpoints.readout import Template, find_template
from sentkit.formats.rows.block import Row, RowBlock
from sentkit.model.text.rules import (
    backend_of,
    library_errors,
    read_rules,
    rules_hash,
    splits_at_spaces,
    truncates_start,
    unknown_ids,
    word_ids,
)
from sentkit.model.text.tokens import (
    Ints,
    LocatedTokens,
    LongTextTokenizer,
    Range,
    TokenBlock,
    Tokens,
    flat,
    places_in,
    places_of_parts,
    truncate,
)

if TYPE_CHECKING:
    from tokenizers import Encoding

MASKS = ("[MASK]", "<mask>")
CHARACTERS = 8  # of a long text for each token that the model reads; common words have 5 or 6


class Tokenizer(LongTextTokenizer):
    """Tokenizes texts. Truncation happens in this class and not in the library, so that it is recorded."""

    max_length: int

    def __init__(
        self, checkpoint: Checkpoint, *, max_length: int, prompt: str = "", lowercase: bool = False
    ) -> None:
        self.source, self._rules = str(checkpoint.transformer), read_rules(checkpoint)
        self.backend = backend_of(self._rules, str(checkpoint.transformer / "tokenizer.json"))
        self.max_length, self.prompt, self.lowercase = max_length, prompt, lowercase
        self.template: Template | None = None
        self.reads_prompt = True  # whether the readout includes the tokens of the prompt
        self.skip = 0  # number of prompt tokens that the readout excludes
        self.mask_id = -1
        # A text has special tokens before and after it; truncation keeps them.
        with library_errors(self.source):
            special: list[int] = self.backend.encode("a").special_tokens_mask
            if 0 not in special:  # "a" is no token
                masks = (self.backend.encode(word).special_tokens_mask for word in self.backend.get_vocab())
                special = next((mask for mask in masks if 0 in mask), special)
        self.before, self.after = (special.index(0), special[::-1].index(0)) if 0 in special else (0, 0)
        with library_errors(self.source):
            own = self.backend.encode("").ids  # special tokens
        self.first, self.last = own[: self.before], own[self.before :]
        self.words = word_ids(self.alone, self._rules) if len(own) == self.before + self.after else None
        self.truncates_start = truncates_start(checkpoint, self._rules)
        self.head = CHARACTERS * max_length if splits_at_spaces(self._rules) else None
        if max_length <= sum(special):
            problem = f"a maximum length of {max_length} tokens is too small"
            raise UsageError(f"{problem}: the special tokens use all of it")

    @cached_property
    def hash(self) -> str:
        return rules_hash(self._rules)

    @cached_property
    def wordless(self) -> frozenset[int]:
        added = self._rules.get("added_tokens") or ()
        special = [token["id"] for token in added if token.get("special")]
        return frozenset([*special, *unknown_ids(self._rules["model"], self.backend)])

    def rules(self) -> dict[str, Any]:
        """Return the content of a tokenizer.json that tokenizes in the same way, without truncation."""
        rules = self._rules | {"truncation": None, "padding": None}
        if self.lowercase:
            steps = [{"type": "Lowercase"}, *filter(None, [rules.get("normalizer")])]
            rules["normalizer"] = {"type": "Sequence", "normalizers": steps}
        return rules

    def alone(self, words: Sequence[str]) -> list[list[int]]:
        """Return the ids of each word, without special tokens, prompt or template."""
        texts = [word.lower() for word in words] if self.lowercase else list(words)
        with library_errors(self.source):
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def with_prompt(self, prompt: str) -> Self:
        other = super().with_prompt(prompt)
        if not other.reads_prompt:
            other.skip_prompt()
        return other

    def skip_prompt(self) -> None:
        """Exclude the tokens up to the end of the prompt, if there is one, from the readout."""
        self.reads_prompt, self.skip = False, 0
        if not self.prompt:
            return
        with library_errors(self.source):
            encoding = self.backend.encode(self._seen(""))
        self.skip = len(encoding.ids) - bool(self.after)
        if self.skip >= self.max_length - self.after:
            problem = f"a maximum length of {self.max_length} tokens is too small"
            raise UsageError(f"{problem}: the prompt uses all of it")

    def set_template(self, name_or_text: str | None, full_stop: str | None) -> Template:
        """Insert texts into a template from now on; the template uses the mask token of the tokenizer."""
        masks = {mask: number for mask in MASKS if (number := self.backend.token_to_id(mask)) is not None}
        mask = next(iter(masks), None)
        if mask is None:
            raise UsageError("the readout prompt needs a mask token, and this tokenizer has none")
        self.template, self.mask_id = find_template(name_or_text, full_stop, mask), masks[mask]
        return self.template

    def around_text(self) -> tuple[list[int], list[int]]:
        """Return the ids of the template before and after a text, with the special tokens."""
        assert self.template is not None, "no template is set"
        whole = self.template.around("a")
        with library_errors(self.source):
            encoding = self.backend.encode(whole)
        # A token of sentencepiece begins at the space before its word, so it can begin before the text.
        start, end = self.template.place(whole)
        own = [i for i, (first, last) in enumerate(encoding.offsets) if first < end and start < last]
        return encoding.ids[: own[0]], encoding.ids[own[-1] + 1 :]

    def __call__(self, texts: Sequence[str]) -> TokenBlock:
        whole = [self._seen(text) for text in texts] if self.prompt or self.lowercase else texts
        template = self.template
        if template is not None:
            whole = [template.around(text) for text in whole]
            with library_errors(self.source):
                encodings = self.backend.encode_batch(whole)
            both = zip(whole, encodings, strict=True)
            return TokenBlock.of([self._truncate_sentence(template, *each) for each in both])
        longest = max(map(len, whole), default=0)
        if self.head is None or self.counts_all or self.truncates_start or longest <= 2 * self.head:
            return self._truncated(*self._ids(whole))
        heads = [start_of(text, self.head) for text in whole]
        tokens = self._truncated(*self._ids(heads))
        places = np.flatnonzero(tokens.counts <= self.max_length).tolist()
        short = [k for k in places if len(heads[k]) < len(whole[k])]
        if not short:
            return tokens
        found = list(tokens)
        for k, each in zip(short, self._truncated(*self._ids([whole[k] for k in short])), strict=True):
            found[k] = each
        return TokenBlock.of(found)

    def _ids(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], Ints]:
        """The ids of all texts in one array, with special tokens, and their numbers."""
        if self.words is None:
            with library_errors(self.source):
                return flat([encoding.ids for encoding in self.backend.encode_batch_fast(texts)])
        own, counts = self.words(texts)
        lengths = counts + self.before + self.after
        starts, ids = np.cumsum(lengths) - lengths, np.empty(lengths.sum(), np.int32)
        ids[places_of_parts(starts + self.before, counts)] = own
        for place, number in enumerate(self.first):
            ids[starts + place] = number
        for place, number in enumerate(self.last):
            ids[starts + self.before + counts + place] = number
        return ids, lengths

    def tokens_of(self, ids: list[int]) -> Tokens:
        at = 0 if self.template is None else ids.index(self.mask_id)
        return Tokens(ids, len(ids), at, skip=self.skip)

    def locate(self, texts: Sequence[str]) -> list[LocatedTokens]:
        seen = [self._seen(text) for text in texts]
        whole = seen if self.template is None else [self.template.around(text) for text in seen]
        with library_errors(self.source):
            encodings = self.backend.encode_batch(whole)
        return [self._located(*each) for each in zip(texts, whole, encodings, strict=True)]

    def _located(self, text: str, whole: str, encoding: "Encoding") -> LocatedTokens:
        start, last, prompt = 0, len(encoding.ids) - self.after, self._seen("")
        if self.template is not None:
            start, _ = self.template.place(whole)
            _, last = sentence_range(self.template, whole, encoding)
        start += len(prompt)
        # A token can begin at the space before the text, which belongs to the prompt.
        first = next((i for i in range(last) if encoding.offsets[i][1] > start), last)
        first = max(first, self.skip)
        # Each character that the library gets has its index in the text. "İ" has two in lower case.
        lower = str.lower if self.lowercase else str
        characters = [index for index, character in enumerate(text) for _ in lower(character)]
        places = places_in(characters, [(a - start, b - start) for a, b in encoding.offsets[first:last]])
        return LocatedTokens(encoding.ids, (first, max(first, last)), places)

    def _seen(self, text: str) -> str:
        """The text as the library gets it, without the template."""
        whole = self.prompt + text
        return whole.lower() if self.lowercase else whole

    def _truncated(self, ids: NDArray[np.int32], counts: Ints) -> TokenBlock:
        """The texts with these ids, which are truncated at the end or the start of the text."""
        excess = np.maximum(counts - self.max_length, 0)
        if excess.any():
            starts = np.cumsum(counts) - counts
            starts += self.before if self.truncates_start else counts - self.after - excess
            ids = np.delete(ids, places_of_parts(starts, excess))
        problems = dict.fromkeys(
            np.flatnonzero(counts <= self.skip).tolist(), "the text has no tokens after the prompt"
        )
        problems |= dict.fromkeys(np.flatnonzero(counts == 0).tolist(), "the text has no tokens")
        skip = np.full(len(counts), self.skip) if self.skip else None
        return TokenBlock(ids, counts - excess, counts, skip=skip, problems=problems)

    def _truncate_sentence(self, template: Template, whole: str, encoding: "Encoding") -> Tokens:
        """Truncate only the sentence, so that the template stays complete."""
        ids, mask, count = encoding.ids, self.mask_id, len(encoding.ids)
        if ids.count(mask) != 1:
            return Tokens(ids, count, problem=f"the text contains {template.mask}, which the template uses")
        if count > self.max_length:
            first, last = sentence_range(template, whole, encoding)
            if last - first < count - self.max_length:
                problem = f"the template alone has more than {self.max_length} tokens"
                return Tokens(ids, count, problem=problem)
            ids = truncate(ids, self.max_length, (first, last), at_start=self.truncates_start).ids
        return Tokens(ids, count, ids.index(mask))


def start_of(text: str, length: int) -> str:
    """The start of a long text, to a space between two words: the ids do not depend on the rest."""
    if len(text) <= 2 * length:
        return text
    cut = text.find(" ", length)
    while 0 < cut < 2 * length and not text[cut - 1].isalnum() & text[cut + 1 : cut + 2].isalnum():
        cut = text.find(" ", cut + 1)
    return text[:cut] if 0 < cut < 2 * length else text


def sentence_range(template: Template, whole: str, encoding: "Encoding") -> Range:
    """Return the tokens of the sentence. Tokens without characters between others are included."""
    start, end = template.place(whole)
    own = [i for i, (first, last) in enumerate(encoding.offsets) if start <= first < last <= end]
    return (own[0], own[-1] + 1) if own else (0, 0)


def single_tokens(tokenizer: Tokenizer, words: Sequence[str]) -> list[int | None]:
    """Return the token id of each word, or None if the word is not exactly one token.

    Words are tokenised without a leading space, because a byte-level BPE has other tokens for words after a
    space. The unknown token and special tokens give None.
    """
    ids_of_words = tokenizer.alone([word.strip() for word in words])
    return [ids[0] if len(ids) == 1 and ids[0] not in tokenizer.wordless else None for ids in ids_of_words]


class OneToken:
    """Keeps the rows with a single-token word and counts the others."""

    def __init__(self, tokenizer: Tokenizer, word_of: Callable[[Row], str]) -> None:
        self.tokenizer, self.word_of = tokenizer, word_of
        self.rows = self.left_out = 0

    def among(self, blocks: Iterable[RowBlock]) -> Iterator[RowBlock]:
        for block in blocks:
            tokens = single_tokens(self.tokenizer, [self.word_of(row) for row in block])
            kept = [place for place, token in enumerate(tokens) if token is not None]
            self.rows += len(tokens)
            self.left_out += len(tokens) - len(kept)
            yield block.take(kept)
