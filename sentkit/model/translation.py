"""Translates texts in batches of similar length by `generate` of transformers.

Without sampling, a translation does not depend on the other texts.

The import of transformers takes seconds, so it is inside the functions. Code from a checkpoint is
never run.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import Checkpoint, is_adapter
from sentkit.formats.files import read_object_if_there
from sentkit.model.checkpoint_reading import LONGEST
from sentkit.model.encoding import AHEAD, BUDGETS, ahead, batches_of_indices
from sentkit.model.groups import RowGroup
from sentkit.model.text.growth import check_growth
from sentkit.model.text.tokens import TextTokenizer, TokenBlock, Tokens, check_ids, truncate
from sentkit.model.transformer.device import halve_to_fit_memory, pick_device, pick_precision
from sentkit.model.transformer.transformers_model import (
    LOCAL,
    REPORTED,
    check_sizes,
    quiet_transformers,
    refuse_other_shapes,
    transformers_errors,
)
from sentkit.model.transformer.weights import refuse_missing

UNBOUNDED = 1 << 30  # transformers sets 1e30 if a tokenizer declares no length
BEAMS = 4  # default if a checkpoint declares no number
# tokens: shorter texts are not cheaper, because each step scores the whole vocabulary
MIN_LENGTH = 16
# The target language is either the first output token or the start token of the decoder.
FIRST = "forced_bos_token_id"
START = "decoder_start_token_id"
LANGUAGE_ARGUMENTS = dict.fromkeys(("NllbTokenizer", "M2M100Tokenizer", "MBart50Tokenizer"), FIRST)
LANGUAGE_ARGUMENTS["MBartTokenizer"] = START
MAX_SHOWN = 5  # languages in an error


def languages_of(tokenizer: Any) -> tuple[str, dict[str, int]]:
    """The `generate` argument that selects a language, and the languages with their tokens; empty
    if none.
    """
    class_names = [base.__name__ for base in type(tokenizer).__mro__]
    argument = next(
        (LANGUAGE_ARGUMENTS[name] for name in class_names if name in LANGUAGE_ARGUMENTS), ""
    )
    if not argument:
        return "", {}
    codes = getattr(tokenizer, "lang_code_to_id", None)
    if codes is None:
        codes = {
            code: tokenizer.convert_tokens_to_ids(code) for code in tokenizer.extra_special_tokens
        }
    unknown_tokens = (None, tokenizer.unk_token_id)
    return argument, {code: token for code, token in codes.items() if token not in unknown_tokens}


def set_languages(
    tokenizer: Any, source: str | None, target: str | None, declared: Any
) -> dict[str, int]:
    """Set the source language of the tokenizer; return the `generate` arguments for the target
    language.

    `declared` is the configuration of `generate`, which can have one target language.
    """
    argument, languages = languages_of(tokenizer)
    if not argument:
        if source is not None or target is not None:
            raise UsageError(
                "this model is not multilingual; remove --source-lang and --target-lang"
            )
        return {}
    missing_flags = []
    if source is None:
        missing_flags.append("--source-lang")
    if target is None and getattr(declared, argument, None) not in languages.values():
        missing_flags.append("--target-lang")
    if missing_flags:
        problem = f"this model has {len(languages)} languages: give {' and '.join(missing_flags)}"
        raise UsageError(problem, advice=similar("en", languages))
    for flag, code in (("--source-lang", source), ("--target-lang", target)):
        if code is not None and code not in languages:
            raise UsageError(f'{flag} "{code}": unknown language', advice=similar(code, languages))
    tokenizer.src_lang = source
    if target is None:
        return {}
    return {argument: languages[target]}


def similar(code: str, languages: Mapping[str, int]) -> str:
    nearest = get_close_matches(code, languages, MAX_SHOWN, cutoff=0)
    more = " ..." if len(languages) > len(nearest) else ""
    return f"available: {', '.join(nearest)}{more}"


def load(checkpoint: Checkpoint) -> tuple[Any, Any, list[str]]:
    """Return the tokenizer, the model in float32 and evaluation mode, and the warnings of the
    tokenizer.
    """
    transformers = quiet_transformers()
    source = checkpoint.name
    check_sizes(checkpoint.config, checkpoint.config_file)
    if is_adapter(checkpoint.transformer_folder):
        problem = "sentkit cannot run a sequence-to-sequence model with an adapter"
        raise DataError(problem, source=source)
    rules_file = checkpoint.transformer_folder / "tokenizer.json"
    check_growth(read_object_if_there(rules_file), str(rules_file))
    with transformers_errors(source), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            checkpoint.transformer_folder, **LOCAL
        )
        tokenizer("", truncation=False, padding=False)  # disable both settings of the file
    # transformers returns a tokenizer without words if the folder has no tokenizer files.
    if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) < 2:
        raise DataError("this folder has no tokenizer", source=source)
    with transformers_errors(source):
        model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            checkpoint.transformer_folder, dtype=torch.float32, **REPORTED, **LOCAL
        )
    refuse_other_shapes(report, source)
    refuse_missing(sorted(report["missing_keys"]), source=source)
    if not all(weight.isfinite().all() for weight in model.parameters()):
        raise DataError("its weights contain NaN or infinity", source=source)
    notes = [
        f"{source}: {warning.message}" for warning in caught if warning.category is UserWarning
    ]
    return tokenizer, model.eval(), notes


@dataclass(frozen=True, slots=True)
class Translation:
    text: str
    full: bool  # the text reached the token limit


class Source(TextTokenizer):
    """Tokenizes texts with the prefix before each text. An empty text has no tokens."""

    def __init__(self, tokenizer: Any, prefix: str, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.prefix = prefix
        self.max_length = max_length
        self.empty: list[int] = tokenizer(prefix).input_ids
        special: list[int] = tokenizer("a", return_special_tokens_mask=True).special_tokens_mask
        self.after = 0  # special tokens after a text
        if 0 in special:
            self.after = special[::-1].index(0)
        if max_length <= len(self.empty):
            reason = "the special tokens and the prefix use all of it"
            raise UsageError(f"a maximum length of {max_length} tokens is too small: {reason}")

    def __call__(self, texts: Sequence[str]) -> TokenBlock:
        sequences: list[list[int]] = self.tokenizer(
            [self.prefix + text for text in texts]
        ).input_ids
        tokens = [Tokens([], 0)] * len(texts)
        for index, (text, ids) in enumerate(zip(texts, sequences, strict=True)):
            if ids != self.empty and text.strip():
                tokens[index] = truncate(
                    ids, self.max_length, (0, len(ids) - self.after), at_start=False
                )
        return TokenBlock.of(tokens)


class Translator:
    """Converts tokens to translations. A sample also depends on the texts before it and in its
    batch.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: str,
        precision: str = "auto",
        source_lang: str | None = None,
        target_lang: str | None = None,
        prefix: str = "",
        max_length: int | None = None,
        max_new_tokens: int | None = None,
        beams: int | None = None,
        sample: bool = False,
        seed: int = 0,
        temperature: float = 1.0,
        top_p: float | None = None,
    ) -> None:
        """None selects the default of the checkpoint. `sample` draws each token at random."""
        self.name = checkpoint.name
        self.device = pick_device(device)
        dtype = pick_precision(precision, self.device)
        self.precision = "bf16" if dtype == torch.bfloat16 else "fp32"
        self.halved = 0  # number of times that a batch was halved to fit into memory
        self.tokenizer, model, self.notes = load(checkpoint)
        self.model = model.to(self.device, dtype)
        declared = model.generation_config
        self.languages = set_languages(self.tokenizer, source_lang, target_lang, declared)
        # The M2M100 tokenizer does not always list the languages as special tokens.
        self.language_tokens = frozenset(languages_of(self.tokenizer)[1].values())
        positions = getattr(model.config, "max_position_embeddings", None)  # None: relative ones
        for flag, length in (("--max-length", max_length), ("max_new_tokens", max_new_tokens)):
            if positions is not None and length is not None and length > positions:
                raise UsageError(f"{flag} {length}: this model has {positions} positions")

        # The longest input, with special tokens.
        longest = self.tokenizer.model_max_length
        if longest > UNBOUNDED:
            longest = positions or LONGEST
        self.read = max_length or min(longest, positions or longest)
        self.source = Source(self.tokenizer, prefix, self.read)

        # The longest output. "max_length" includes the start token of the decoder. The default
        # output limit is the input limit.
        declared_limit = declared.max_new_tokens or (declared.max_length or 0) - 1
        limit = max_new_tokens or (declared_limit if declared_limit > 0 else self.read)
        self.written = min(limit, positions or limit)
        # Some models force an end token at the limit. This token does not mean that the text is
        # complete.
        self.room = self.written - (declared.forced_eos_token_id is not None)
        end_tokens = declared.eos_token_id
        self.ends = set(end_tokens) if isinstance(end_tokens, list) else {end_tokens}

        if sample:
            self.beams = 1
        else:
            self.beams = beams or declared.num_beams or BEAMS
        self.sampling: dict[str, Any] = {"do_sample": sample}
        if sample:
            torch.manual_seed(seed % (1 << 64))  # the largest seed of torch
            self.sampling["temperature"] = float(temperature)
            self.sampling["top_p"] = 1.0 if top_p is None else float(top_p)
            self.sampling["top_k"] = 0

    def __call__(self, tokens: TokenBlock, budget: int) -> list[Translation | None]:
        """The translations of the texts, None for an empty text. The budget counts all beams."""
        translations: list[Translation | None] = [None] * len(tokens)
        filled_texts = np.flatnonzero(tokens.lengths)
        advice = "use --max-length, --set beams=N with a smaller N, or --device cpu"
        lengths = np.maximum(tokens.lengths[filled_texts], MIN_LENGTH)
        for indices in batches_of_indices(lengths, budget // self.beams):
            texts = filled_texts[indices]
            batch = tokens.take(texts)
            check_ids(batch, self.model.get_input_embeddings().num_embeddings, self.name)

            # One chunk, or several if the batch does not fit into the memory of the device.
            outputs_of_chunks = halve_to_fit_memory(self._generate, batch, advice=advice)
            self.halved += len(outputs_of_chunks) - 1
            outputs = list(chain.from_iterable(outputs_of_chunks))
            for text, ids in zip(texts.tolist(), outputs, strict=True):
                translations[text] = self._read(ids)
        return translations

    def _generate(self, batch: TokenBlock) -> list[list[int]]:
        """Return the output ids of each text, padded to the longest output."""
        rows = [torch.tensor(tokens.ids) for tokens in batch]
        # Token ids of shape (b, t), padded.
        ids = pad_sequence(rows, batch_first=True, padding_value=self.tokenizer.pad_token_id or 0)
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        output = self.model.generate(
            input_ids=ids.to(self.device),
            attention_mask=mask.to(self.device),
            num_beams=self.beams,
            max_new_tokens=self.written,
            num_return_sequences=1,
            return_dict_in_generate=False,
            **self.sampling,
            **self.languages,
        )
        # the first id is the start token of the decoder
        outputs: list[list[int]] = output[:, 1:].tolist()
        return outputs

    def _read(self, ids: list[int]) -> Translation:
        end = next((index for index, token in enumerate(ids) if token in self.ends), len(ids))
        words = [token for token in ids[:end] if token not in self.language_tokens]
        text: str = self.tokenizer.decode(words, skip_special_tokens=True)
        return Translation(text, full=end >= self.room)

    def groups(
        self, prepared: Iterator[RowGroup]
    ) -> Iterator[tuple[RowGroup, list[Translation | None]]]:
        """Rows with one text each, in order, with a translation for each."""
        for group in ahead(prepared, AHEAD):
            distinct_translations = self(
                group.tokens.take(group.accepted_texts), BUDGETS[self.device.type]
            )
            by_text = dict(zip(group.accepted_texts.tolist(), distinct_translations, strict=True))
            yield group, [by_text[text] for text in group.text_numbers[:, 0].tolist()]
