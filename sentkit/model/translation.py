"""Translates texts in batches of similar length by `generate` of transformers.

Without sampling, a translation does not depend on the other texts.

The import of transformers takes seconds, so it is inside the functions. Code from a checkpoint is never run.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from sentkit.errors import DataError, UnavailableError, UsageError
from sentkit.formats.checkpoints.folders import Checkpoint, is_adapter
from sentkit.formats.files import read_object
from sentkit.model.encoding import AHEAD, RowGroup, ahead
from sentkit.model.reading import LONGEST, most_tokens
from sentkit.model.text.tokens import TextTokenizer, TokenBlock, Tokens, check_ids, truncate
from sentkit.model.transformer.device import halve_to_fit_memory, pick_device, pick_precision
from sentkit.model.transformer.transformers_model import (
    LOCAL,
    built_from,
    check_numbers,
    check_weights,
    quiet_transformers,
    transformers_errors,
)
from sentkit.model.transformer.weights import read_tensors

PACKAGES = ("sentencepiece", "sacremoses")  # optional packages that some tokenizers import
BEAMS = 4  # default if a checkpoint declares no number
UNBOUNDED = 1 << 30
MIN_LENGTH = 16  # tokens: shorter texts are not cheaper, because each step scores the whole vocabulary
# The target language is either the first output token or the start token of the decoder.
FIRST, START = "forced_bos_token_id", "decoder_start_token_id"
LANGUAGE_ARGUMENTS = {
    "NllbTokenizer": FIRST,
    "M2M100Tokenizer": FIRST,
    "MBart50Tokenizer": FIRST,
    "MBartTokenizer": START,
}
MAX_SHOWN = 5  # languages in an error


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

    def positive(values: Mapping[str, Any], name: str) -> int:
        value = values.get(name)
        return value if isinstance(value, int) and value > 0 else 0

    readable, writable = (
        most_tokens(config.get(side) or config, source) or UNBOUNDED for side in ("encoder", "decoder")
    )
    default = readable if readable < UNBOUNDED else LONGEST
    default = usual if usual < UNBOUNDED else positive(config, "n_positions") or default
    for flag, length, most in (
        ("--max-length", options.max_length, readable),
        ("max_new_tokens", options.max_new_tokens, writable),
    ):
        if length is not None and length > most:
            raise UsageError(f"{flag} {length}: this model has {most} positions")
    read = options.max_length or min(default, readable)
    # "max_length" includes the start token of the decoder. The default output limit is the input limit.
    declared = positive(settings, "max_new_tokens") or positive(settings, "max_length") - 1
    written = options.max_new_tokens or min(declared if declared > 0 else read, writable)
    beams = 1 if options.sample else options.beams or positive(settings, "num_beams") or BEAMS
    return Limits(read, written, beams)


def languages_of(tokenizer: Any) -> tuple[str, dict[str, int]]:
    """The `generate` argument that selects a language, and the languages with their tokens; empty if none."""
    kinds = (each.__name__ for each in type(tokenizer).__mro__)
    argument = next((LANGUAGE_ARGUMENTS[name] for name in kinds if name in LANGUAGE_ARGUMENTS), "")
    codes = getattr(tokenizer, "lang_code_to_id", None) if argument else {}
    if codes is None:
        codes = {code: tokenizer.convert_tokens_to_ids(code) for code in tokenizer.extra_special_tokens}
    return argument, {
        code: token for code, token in codes.items() if token not in (None, tokenizer.unk_token_id)
    }


def set_languages(
    tokenizer: Any, source: str | None, target: str | None, settings: Mapping[str, Any]
) -> dict[str, int]:
    """Set the source language of the tokenizer; return the `generate` arguments for the target language."""
    argument, known = languages_of(tokenizer)
    if not argument:
        if source is not None or target is not None:
            raise UsageError("this model is not multilingual; remove --source-lang and --target-lang")
        return {}
    declared = settings.get(argument) in known.values()  # the model has one target language
    missing = ["--source-lang"] * (source is None) + ["--target-lang"] * (target is None and not declared)
    if missing:
        problem = f"this model has {len(known)} languages: give {' and '.join(missing)}"
        raise UsageError(problem, advice=similar("en", known))
    for flag, code in (("--source-lang", source), ("--target-lang", target)):
        if code is not None and code not in known:
            raise UsageError(f'{flag} "{code}": unknown language', advice=similar(code, known))
    tokenizer.src_lang = source
    return {} if target is None else {argument: known[target]}


def similar(code: str, known: Mapping[str, int]) -> str:
    nearest = get_close_matches(code, known, MAX_SHOWN, cutoff=0)
    return f"available: {', '.join(nearest)}{' ...' if len(known) > len(nearest) else ''}"


def load_config(checkpoint: Checkpoint) -> Any:
    """Return the config; raise a DataError if the model is not a sequence-to-sequence model."""
    transformers, source = quiet_transformers(), checkpoint.name
    check_numbers(checkpoint.config, checkpoint.config_file)
    with transformers_errors(source):
        config = transformers.AutoConfig.from_pretrained(checkpoint.transformer, **LOCAL)
    if "AutoModelForSeq2SeqLM" in (getattr(config, "auto_map", None) or {}):
        problem = "the model needs its own Python code; sentkit does not run code of models"
        raise DataError(problem, source=source)
    known = type(config) in transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    if not known or not config.is_encoder_decoder:
        problem = f'"{config.model_type}" is not a sequence-to-sequence model'
        raise DataError(problem, source=source, advice="use a model such as Marian, T5, NLLB or mBART")
    return config


def load_tokenizer(checkpoint: Checkpoint) -> tuple[Any, list[str]]:
    """Return the tokenizer and the warnings of the library."""
    transformers, source = quiet_transformers(), checkpoint.name
    try:
        with transformers_errors(source), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint.transformer, **LOCAL)
            tokenizer("", truncation=False, padding=False)  # disable both settings of the file
    except DataError as error:
        if isinstance(error.__cause__, ImportError):
            package = next((name for name in PACKAGES if name in str(error.__cause__)), PACKAGES[0])
            problem = f"{source}: its tokenizer needs the package {package}"
            raise UnavailableError(problem, advice="pip install 'sentkit[translate]'") from error
        raise
    # transformers returns a tokenizer without words if the folder has no tokenizer files.
    if len(set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)) < 2:
        raise DataError("this folder has no tokenizer", source=source)
    return tokenizer, [f"{source}: {each.message}" for each in caught if each.category is UserWarning]


def load_model(checkpoint: Checkpoint, config: Any) -> Any:
    """Return the model in float32 and evaluation mode; missing or non-finite weights raise a DataError."""
    transformers, source = quiet_transformers(), checkpoint.name
    if is_adapter(checkpoint.transformer):
        problem = "sentkit cannot run a sequence-to-sequence model with an adapter"
        raise DataError(problem, source=source)
    shapes = [tuple(tensor.shape) for tensor in read_tensors(checkpoint.weights()).values()]
    with transformers_errors(source):
        with built_from(shapes, source):
            transformers.AutoModelForSeq2SeqLM.from_config(config, trust_remote_code=False)
        model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            checkpoint.transformer, config=config, dtype=torch.float32, output_loading_info=True, **LOCAL
        )
    check_weights(model, report["missing_keys"], source)
    if not all(weight.isfinite().all() for weight in model.parameters()):
        raise DataError("its weights contain NaN or infinity", source=source)
    return model.eval()


@dataclass(frozen=True, slots=True)
class Translation:
    text: str
    full: bool  # the text reached the token limit


class Source(TextTokenizer):
    """Tokenizes texts with the prefix before each text. An empty text has no tokens."""

    def __init__(self, tokenizer: Any, prefix: str, max_length: int) -> None:
        self.tokenizer, self.prefix, self.max_length = tokenizer, prefix, max_length
        self.empty: list[int] = tokenizer(prefix).input_ids
        special: list[int] = tokenizer("a", return_special_tokens_mask=True).special_tokens_mask
        self.after = next((i for i, is_special in enumerate(reversed(special)) if not is_special), 0)
        if max_length <= len(self.empty):
            why = "the special tokens and the prefix use all of it"
            raise UsageError(f"a maximum length of {max_length} tokens is too small: {why}")

    def __call__(self, texts: Sequence[str]) -> TokenBlock:
        sequences: list[list[int]] = self.tokenizer([self.prefix + text for text in texts]).input_ids
        return TokenBlock.of(
            [
                truncate(ids, self.max_length, (0, len(ids) - self.after), at_start=False)
                if ids != self.empty and text.strip()
                else Tokens([], 0)
                for text, ids in zip(texts, sequences, strict=True)
            ]
        )


class Translator:
    """Converts tokens to translations. A sample also depends on the texts before it and in its batch."""

    def __init__(
        self, checkpoint: Checkpoint, options: TranslationOptions, *, device: str, precision: str
    ) -> None:
        self.name, self.options = checkpoint.name, options
        self.device = pick_device(device)
        dtype = pick_precision(precision, self.device)
        self.precision = "bf16" if dtype == torch.bfloat16 else "fp32"
        self.halved = 0  # number of times that a batch was halved to fit into memory
        config = load_config(checkpoint)
        self.tokenizer, self.notes = load_tokenizer(checkpoint)
        path = checkpoint.transformer / "generation_config.json"
        settings = read_object(path) if path.is_file() else checkpoint.config  # as older checkpoints
        self.languages = set_languages(self.tokenizer, options.source_lang, options.target_lang, settings)
        # The M2M100 tokenizer does not always list the languages as special tokens.
        self.language_tokens = frozenset(languages_of(self.tokenizer)[1].values())
        usual = self.tokenizer.model_max_length
        self.limits = limits_of(
            config.to_dict(), settings, options, usual=usual, source=checkpoint.config_file
        )
        self.source = Source(self.tokenizer, options.prefix, self.limits.read)
        self.model = load_model(checkpoint, config).to(self.device, dtype)
        own = self.model.generation_config
        self.ends = set(own.eos_token_id if isinstance(own.eos_token_id, list) else [own.eos_token_id])
        # Some models force an end token at the limit. This token does not mean that the text is complete.
        self.room = self.limits.written - (own.forced_eos_token_id is not None)
        self.sampling: dict[str, Any] = {"do_sample": options.sample}
        if options.sample:
            torch.manual_seed(options.seed % (1 << 64))  # the largest seed of torch
            top_p = 1.0 if options.top_p is None else float(options.top_p)
            self.sampling |= {"temperature": float(options.temperature), "top_p": top_p, "top_k": 0}

    def __call__(self, batch: TokenBlock) -> list[Translation]:
        check_ids(batch, self.model.get_input_embeddings().num_embeddings, self.name)
        advice = "use --max-length, --set beams=N with a smaller N, or --device cpu"
        parts = halve_to_fit_memory(self._generate, batch, advice=advice)
        self.halved += len(parts) - 1
        return [self._read(ids) for part in parts for ids in part]

    def _generate(self, batch: TokenBlock) -> list[list[int]]:
        """Return the output ids of each text, padded to the longest output."""
        rows = [torch.tensor(tokens.ids) for tokens in batch]
        ids = pad_sequence(rows, batch_first=True, padding_value=self.tokenizer.pad_token_id or 0)  # (b, t)
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        written = self.model.generate(
            input_ids=ids.to(self.device),
            attention_mask=mask.to(self.device),
            num_beams=self.limits.beams,
            max_new_tokens=self.limits.written,
            num_return_sequences=1,
            return_dict_in_generate=False,
            **self.sampling,
            **self.languages,
        )
        outputs: list[list[int]] = written[:, 1:].tolist()  # the first id is the start token of the decoder
        return outputs

    def _read(self, ids: list[int]) -> Translation:
        end = next((place for place, token in enumerate(ids) if token in self.ends), len(ids))
        words = [token for token in ids[:end] if token not in self.language_tokens]
        text: str = self.tokenizer.decode(words, skip_special_tokens=True)
        return Translation(text, full=end >= self.room)


def translate_groups(
    prepared: Iterator[RowGroup], translate: Translator, budget: int
) -> Iterator[tuple[RowGroup, list[Translation | None]]]:
    """Rows with one text each, in order, with a translation for each. The budget counts all beams."""
    for group in ahead(prepared, AHEAD):
        used = group.used
        made = translate_texts(group.tokens.take(used), translate, budget // translate.limits.beams)
        where = dict(zip(used.tolist(), made, strict=True))
        yield group, [where[place] for place in group.index[:, 0].tolist()]


def translate_texts(tokens: TokenBlock, translate: Translator, budget: int) -> list[Translation | None]:
    """Return the translations in input order, None for an empty text."""
    translations: list[Translation | None] = [None] * len(tokens)
    filled = np.flatnonzero(tokens.lengths).tolist()
    for batch in padded_batches([max(int(tokens.lengths[index]), MIN_LENGTH) for index in filled], budget):
        indexes = [filled[each] for each in batch]
        for index, translation in zip(indexes, translate(tokens.take(indexes)), strict=True):
            translations[index] = translation
    return translations


def padded_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return batches of indexes, longest first. The budget in tokens includes the padding."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > budget:
            batches.append([])
        batches[-1].append(index)
    return batches
