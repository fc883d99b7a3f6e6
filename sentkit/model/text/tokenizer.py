"""Converts texts to token ids, and records truncation. Uses the library tokenizers, without torch.

Tokenizers that read each word by itself get the ids of a text from those of its words.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.formats.checkpoints.readout import Template, find_template
from sentkit.formats.rows.block import Row, RowBlock
from sentkit.model.text.languages import LanguageCheck
from sentkit.model.text.rules import (
    WordIds,
    backend_of,
    has_lowercase,
    kept_token,
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
    characters_of_tokens,
    concatenated_ids,
    indices_of_ranges,
    truncate,
)

if TYPE_CHECKING:
    from tokenizers import Encoding

MASKS = ("[MASK]", "<mask>")
# of a long text for each token that the model reads; common words have 5 or 6
CHARACTERS_OF_TOKEN = 8


class Tokenizer(LongTextTokenizer):
    """Tokenizes texts. Truncation happens in this class and not in the library, so that it is
    recorded.
    """

    max_length: int
    judges_language = True

    def __init__(
        self, checkpoint: Checkpoint, *, max_length: int, prompt: str = "", lowercase: bool = False
    ) -> None:
        self.source = str(checkpoint.transformer_folder)
        self._rules = read_rules(checkpoint)
        self.backend = backend_of(
            self._rules, str(checkpoint.transformer_folder / "tokenizer.json")
        )
        self.max_length = max_length
        self.prompt = prompt
        self.lowercase = lowercase
        self.kept_token = kept_token(self._rules)  # in lower case, too
        self.template: Template | None = None
        self.reads_prompt = True  # whether the readout includes the tokens of the prompt
        self.skip = 0  # number of prompt tokens that the readout excludes
        self.mask_id = -1
        # A text has special tokens before and after it; truncation keeps them.
        special = self._special_tokens_mask()
        self.before = 0
        self.after = 0
        if 0 in special:
            self.before = special.index(0)
            self.after = special[::-1].index(0)
        with library_errors(self.source):
            special_ids = self.backend.encode("").ids
        self.first = special_ids[: self.before]
        self.last = special_ids[self.before :]
        self.words: WordIds | None = None
        if len(special_ids) == self.before + self.after:
            self.words = word_ids(self.alone, self._rules)
        self.unknown_id = next(iter(unknown_ids(self._rules["model"], self.backend)), None)
        if self.unknown_id is not None:
            self.unknown_token = str(self.backend.id_to_token(self.unknown_id))
        self.languages = LanguageCheck(self._rules, self.unknown_id, self.backend.id_to_token)
        self.truncates_start = truncates_start(checkpoint, self._rules)
        # The number of characters at the start of a long text that are enough; None: the whole
        # text is tokenized.
        self.head_length: int | None = None
        if splits_at_spaces(self._rules):
            self.head_length = CHARACTERS_OF_TOKEN * max_length
        if max_length <= sum(special):
            problem = f"a maximum length of {max_length} tokens is too small"
            raise UsageError(f"{problem}: the special tokens use all of it")

    def _special_tokens_mask(self) -> list[int]:
        """Return the ids of a short text as 0, and the special tokens around it as 1."""
        with library_errors(self.source):
            mask: list[int] = self.backend.encode("a").special_tokens_mask
            if 0 in mask:
                return mask
            for word in self.backend.get_vocab():  # "a" is not a token
                mask_of_word: list[int] = self.backend.encode(word).special_tokens_mask
                if 0 in mask_of_word:
                    return mask_of_word
        return mask

    @cached_property
    def hash(self) -> str:
        if self.lowercase and not has_lowercase(self._rules):
            return rules_hash(self.rules())
        return rules_hash(self._rules)

    @cached_property
    def wordless(self) -> frozenset[int]:
        """The special tokens and the unknown token."""
        added_tokens = self._rules.get("added_tokens") or ()
        special = [token["id"] for token in added_tokens if token.get("special")]
        return frozenset([*special, *unknown_ids(self._rules["model"], self.backend)])

    def rules(self) -> dict[str, Any]:
        """Return the content of a tokenizer.json that tokenizes in the same way, without
        truncation.
        """
        rules = self._rules | {"truncation": None, "padding": None}
        if self.lowercase:
            steps = [{"type": "Lowercase"}]
            if rules.get("normalizer"):
                steps.append(rules["normalizer"])
            rules["normalizer"] = {"type": "Sequence", "normalizers": steps}
        return rules

    def alone(self, words: Sequence[str]) -> list[list[int]]:
        """Return the ids of each word, without special tokens, prompt or template."""
        texts = list(words)
        if self.lowercase:
            texts = [self._lowered(text) for text in texts]
        with library_errors(self.source):
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def with_prompt(self, prompt: str) -> Self:
        tokenizer = super().with_prompt(prompt)
        if not tokenizer.reads_prompt:
            tokenizer.skip_prompt()
        return tokenizer

    def skip_prompt(self) -> None:
        """Exclude the tokens up to the end of the prompt, if there is one, from the readout."""
        self.reads_prompt = False
        self.skip = 0
        if not self.prompt:
            return
        with library_errors(self.source):
            encoding = self.backend.encode(self._prompted(""))
        self.skip = len(encoding.ids) - bool(self.after)
        if self.skip >= self.max_length - self.after:
            problem = f"a maximum length of {self.max_length} tokens is too small"
            raise UsageError(f"{problem}: the prompt uses all of it")

    def set_template(self, name_or_text: str | None, full_stop: str | None) -> Template:
        """Insert texts into a template from now on; the template uses the mask token of the
        tokenizer.
        """
        for mask in MASKS:
            mask_id = self.backend.token_to_id(mask)
            if mask_id is not None:
                self.template = find_template(name_or_text, full_stop, mask)
                self.judges_language = False
                self.mask_id = mask_id
                return self.template
        raise UsageError("the readout prompt needs a mask token, and this tokenizer has none")

    def around_text(self) -> tuple[list[int], list[int]]:
        """Return the ids of the template before and after a text, with the special tokens."""
        assert self.template is not None, "no template is set"
        sentence = self.template.around("a")
        with library_errors(self.source):
            encoding = self.backend.encode(sentence)
        # A token of sentencepiece begins at the space before its word, so it can begin before the
        # text.
        start, end = self.template.range_of_sentence(sentence)
        tokens_of_text = [
            index
            for index, (first, last) in enumerate(encoding.offsets)
            if first < end and start < last
        ]
        return encoding.ids[: tokens_of_text[0]], encoding.ids[tokens_of_text[-1] + 1 :]

    def __call__(self, texts: Sequence[str]) -> TokenBlock:
        if self.prompt or self.lowercase:
            texts = [self._prompted(text) for text in texts]
        if self.template is not None:
            return self._in_template(self.template, texts)
        head_length = self.head_length
        if head_length is None or self.counts_all or self.truncates_start:
            return self._truncated(texts, *self._ids(texts))
        # `start_of` does not cut shorter texts.
        if max(map(len, texts), default=0) <= 2 * head_length:
            return self._truncated(texts, *self._ids(texts))
        return self._of_heads(texts, head_length)

    def _in_template(self, template: Template, texts: Sequence[str]) -> TokenBlock:
        sentences = [template.around(text) for text in texts]
        with library_errors(self.source):
            encodings = self.backend.encode_batch(sentences)
        return TokenBlock.of(
            [
                self._marked(self._truncate_sentence(template, sentence, encoding))
                for sentence, encoding in zip(sentences, encodings, strict=True)
            ]
        )

    def _of_heads(self, texts: Sequence[str], head_length: int) -> TokenBlock:
        """Tokenize only the start of long texts, about `head_length` characters.

        `full_lengths` of these texts have the tokens of the start, which are too many, too.
        """
        heads = [start_of(text, head_length) for text in texts]
        tokens = self._truncated(heads, *self._ids(heads))

        # A start that fits has too few tokens: the model also reads some of the rest of the text.
        fits = np.flatnonzero(tokens.full_lengths <= self.max_length).tolist()
        too_short = [index for index in fits if len(heads[index]) < len(texts[index])]
        if not too_short:
            return tokens
        tokens_of_texts = list(tokens)
        whole_texts = [texts[index] for index in too_short]
        tokens_of_whole = self._truncated(whole_texts, *self._ids(whole_texts))
        for index, tokens_of_text in zip(too_short, tokens_of_whole, strict=True):
            tokens_of_texts[index] = tokens_of_text
        return TokenBlock.of(tokens_of_texts)

    def _ids(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], Ints]:
        """The ids of all texts in one array, with special tokens, and their numbers."""
        if self.words is None:
            with library_errors(self.source):
                return concatenated_ids(
                    [encoding.ids for encoding in self.backend.encode_batch_fast(texts)]
                )
        ids_of_words, counts = self.words(texts)
        lengths = counts + self.before + self.after
        starts = np.cumsum(lengths) - lengths
        ends_of_words = starts + self.before + counts
        ids = np.empty(lengths.sum(), np.int32)
        ids[indices_of_ranges(starts + self.before, counts)] = ids_of_words
        for position, number in enumerate(self.first):
            ids[starts + position] = number
        for position, number in enumerate(self.last):
            ids[ends_of_words + position] = number
        return ids, lengths

    def tokens_of(self, ids: list[int]) -> Tokens:
        mask_index = 0 if self.template is None else ids.index(self.mask_id)
        return self._marked(Tokens(ids, len(ids), mask_index, prompt_length=self.skip))

    def locate(self, texts: Sequence[str]) -> list[LocatedTokens]:
        inputs = [self._prompted(text) for text in texts]
        if self.template is not None:
            inputs = [self.template.around(text) for text in inputs]
        with library_errors(self.source):
            encodings = self.backend.encode_batch(inputs)
        return [
            self._located(text, input_text, encoding)
            for text, input_text, encoding in zip(texts, inputs, encodings, strict=True)
        ]

    def _located(self, text: str, input_text: str, encoding: "Encoding") -> LocatedTokens:
        """`input_text` is what the library got: the text with prompt and template."""
        start = len(self._prompted(""))  # of the text in the input
        last = len(encoding.ids) - self.after
        if self.template is not None:
            start += self.template.range_of_sentence(input_text)[0]
            _, last = sentence_range(self.template, input_text, encoding)
        # A token can begin at the space before the text, which belongs to the prompt.
        first = next((index for index in range(last) if encoding.offsets[index][1] > start), last)
        first = max(first, self.skip)
        # Each character that the library gets has its index in the text. "İ" has two in lower case.
        if self.lowercase:
            characters = [index for index, character in enumerate(text) for _ in character.lower()]
        else:
            characters = list(range(len(text)))
        ranges = [
            (token_start - start, token_end - start)
            for token_start, token_end in encoding.offsets[first:last]
        ]
        return LocatedTokens(
            encoding.ids, (first, max(first, last)), characters_of_tokens(characters, ranges)
        )

    def _prompted(self, text: str) -> str:
        """The text as the library gets it, without the template."""
        prompted = self.prompt + text
        if self.lowercase:
            return self._lowered(prompted)
        return prompted

    def _lowered(self, text: str) -> str:
        """The text in lower case, as the normalizer Lowercase of the library: without a final
        sigma, and with the tokens as they are that a text can contain.
        """
        pieces = self.kept_token.split(text)  # the kept tokens have odd indices
        for index in range(0, len(pieces), 2):
            pieces[index] = pieces[index].replace("\u03a3", "\u03c3").lower()
        return "".join(pieces)

    def _truncated(self, texts: Sequence[str], ids: NDArray[np.int32], counts: Ints) -> TokenBlock:
        """The texts with these ids, which are truncated at the end or the start of the text.

        The texts have the prompt.
        """
        # The special tokens around a text stay.
        excess = np.maximum(counts - self.max_length, 0)
        if excess.any():
            starts = np.cumsum(counts) - counts
            if self.truncates_start:
                starts += self.before
            else:
                starts += counts - self.after - excess
            ids = np.delete(ids, indices_of_ranges(starts, excess))

        # Texts that cannot be read, and the columns about prompt and unknown tokens.
        without_text = np.flatnonzero(counts <= self.skip).tolist()
        without_tokens = np.flatnonzero(counts == 0).tolist()
        problems = dict.fromkeys(without_text, "the text has no tokens after the prompt")
        problems |= dict.fromkeys(without_tokens, "the text has no tokens")
        skip = np.full(len(counts), self.skip) if self.skip else None
        lengths = counts - excess
        only_unknown, unknown_ids = self._unknown(ids, lengths)
        language = self.languages(texts, ids, lengths, counts, self._tokens_before_text())
        return TokenBlock(
            ids,
            lengths,
            counts,
            prompt_length=skip,
            only_unknown=only_unknown,
            unknown_ids=unknown_ids,
            language=language,
            problems=problems,
        )

    def _tokens_before_text(self) -> int:
        """The number of special tokens and of tokens of the prompt before a text."""
        if not self.prompt:
            return self.before
        with library_errors(self.source):
            return len(self.backend.encode(self._prompted("")).ids) - self.after

    def _unknown(
        self, ids: NDArray[np.int32], lengths: Ints
    ) -> "tuple[Ints, Ints] | tuple[None, None]":
        """Two columns (n,) about the tokens besides those of all texts; None if none is unknown.

        1 for texts that have only unknown tokens, and the number of unknown tokens. The special
        tokens and those of the prompt and the template are in all texts.
        """
        if self.unknown_id is None:
            return None, None
        positions = np.flatnonzero(ids == self.unknown_id)
        if not len(positions):
            return None, None

        # Unknown tokens of each text.
        text_of_position = np.searchsorted(np.cumsum(lengths), positions, side="right")
        unknown = np.bincount(text_of_position, minlength=len(lengths))

        # Tokens of all texts, and the unknown ones among them.
        empty = self._prompted("")
        if self.template is not None:
            empty = self.template.around(empty)
        with library_errors(self.source):
            ids_around: list[int] = self.backend.encode(empty).ids
        unknown_around = ids_around.count(self.unknown_id)

        unknown_of_text = np.maximum(unknown - unknown_around, 0)
        has_no_other = lengths - unknown == len(ids_around) - unknown_around
        only_unknown = (unknown_of_text > 0) & has_no_other
        return only_unknown.astype(np.int64), unknown_of_text

    def _marked(self, tokens: Tokens) -> Tokens:
        """The same tokens of a text or a window, with `only_unknown` and `unknown_ids`."""
        if self.unknown_id not in tokens.ids:
            return tokens
        only_unknown, unknown_ids = self._unknown(
            np.array(tokens.ids, np.int32), np.array([len(tokens.ids)])
        )
        if only_unknown is None or unknown_ids is None:
            return tokens
        return replace(tokens, only_unknown=int(only_unknown[0]), unknown_ids=int(unknown_ids[0]))

    def _truncate_sentence(
        self, template: Template, input_text: str, encoding: "Encoding"
    ) -> Tokens:
        """Truncate only the sentence, so that the template stays complete."""
        ids = encoding.ids
        count = len(ids)
        if ids.count(self.mask_id) != 1:
            return Tokens(
                ids, count, problem=f"the text contains {template.mask}, which the template uses"
            )
        if count > self.max_length:
            first, last = sentence_range(template, input_text, encoding)
            if last - first < count - self.max_length:
                problem = f"the template alone has more than {self.max_length} tokens"
                return Tokens(ids, count, problem=problem)
            ids = truncate(ids, self.max_length, (first, last), at_start=self.truncates_start).ids
        return Tokens(ids, count, ids.index(self.mask_id))


def start_of(text: str, length: int) -> str:
    """The start of a long text, to a space between two words: the ids do not depend on the rest.

    It has `length` to 2 `length` characters. A text without such a space is returned as it is.
    """
    if len(text) <= 2 * length:
        return text
    space = text.find(" ", length)
    while 0 < space < 2 * length:
        if text[space - 1].isalnum() and text[space + 1].isalnum():
            return text[:space]
        space = text.find(" ", space + 1)
    return text


def sentence_range(template: Template, input_text: str, encoding: "Encoding") -> Range:
    """Return the tokens of the sentence. Tokens without characters between others are included."""
    start, end = template.range_of_sentence(input_text)
    indices = [
        index
        for index, (first, last) in enumerate(encoding.offsets)
        if start <= first < last <= end
    ]
    if indices:
        return (indices[0], indices[-1] + 1)
    return (0, 0)


def single_tokens(tokenizer: Tokenizer, words: Sequence[str]) -> list[int | None]:
    """Return the token id of each word, or None if the word is not exactly one token.

    Words are tokenized without a leading space, because a byte-level BPE has other tokens for words
    after a space. The unknown token and special tokens give None.
    """
    numbers: list[int | None] = []
    for ids in tokenizer.alone([word.strip() for word in words]):
        is_one_token = len(ids) == 1 and ids[0] not in tokenizer.wordless
        numbers.append(ids[0] if is_one_token else None)
    return numbers


class OneToken:
    """Keeps the rows with a single-token word and counts the others."""

    def __init__(self, tokenizer: Tokenizer, word_of: Callable[[Row], str]) -> None:
        self.tokenizer = tokenizer
        self.word_of = word_of
        self.rows = 0
        self.left_out = 0

    def among(self, blocks: Iterable[RowBlock]) -> Iterator[RowBlock]:
        for block in blocks:
            tokens = single_tokens(self.tokenizer, [self.word_of(row) for row in block])
            indices = [index for index, token in enumerate(tokens) if token is not None]
            self.rows += len(tokens)
            self.left_out += len(tokens) - len(indices)
            yield block.take(indices)
