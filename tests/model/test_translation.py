"""Translations equal those of transformers' `generate` for one text, regardless of the batch."""

import json
import shutil
import warnings
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from sentkit.errors import DataError, NoInputError, UnavailableError, UsageError
from sentkit.formats.checkpoints.folders import Checkpoint, read_checkpoint
from sentkit.formats.rows.block import Row, block_of
from sentkit.formats.rows.rows import Rejects
from sentkit.model.encoding import tokenized_groups
from sentkit.model.text.tokens import TokenBlock, Tokens
from sentkit.model.translation import (
    Limits,
    TranslationOptions,
    Translator,
    languages_of,
    limits_of,
    load_config,
    load_model,
    load_tokenizer,
    padded_batches,
    set_languages,
    translate_groups,
    translate_texts,
)

KINDS = ("marian", "t5", "nllb", "fsmt")
START = {"marian": 0, "t5": 0, "nllb": 1, "fsmt": 1}  # the token that the decoder starts from
FOREIGN = {"nllb": {"source_lang": "eng_Latn", "target_lang": "deu_Latn"}}
TEXTS = [
    "a cat sleeps",
    "the old man plays a small guitar and sings to the sea",
    "dog",
    "music is in the sea",
    "a big dog runs on and on and on and on",
    "the woman makes music",
]


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Any:
    """A function that returns the folder of a model."""
    return request.getfixturevalue


@pytest.fixture
def plain(folder: Any, tmp_path: Path) -> Any:
    """A copy that declares only its start, end and padding token."""

    def copy(kind: str) -> Path:
        own = Path(shutil.copytree(folder(kind), tmp_path / f"plain-{kind}"))
        ends = {"decoder_start_token_id": START[kind], "eos_token_id": 1, "pad_token_id": 0}
        (own / "generation_config.json").write_text(json.dumps(ends))
        return own

    return copy


def opened(path: Path, kind: str, **options: Any) -> Translator:
    translation = TranslationOptions(**{**FOREIGN.get(kind, {}), **options})
    return Translator(read_checkpoint(str(path)), translation, device="cpu", precision="fp32")


def translated(translator: Translator, texts: list[str], budget: int = 100) -> list[str | None]:
    made = translate_texts(translator.source(texts), translator, budget)
    return [each and each.text for each in made]


def of_transformers(path: Path, kind: str) -> tuple[Any, Any]:
    """The tokenizer and the model of transformers."""
    source = {"src_lang": "eng_Latn"} if kind == "nllb" else {}
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
    return transformers.AutoTokenizer.from_pretrained(path, **source), model


def generated(path: Path, kind: str, texts: list[str], seed: int = 0, **how: Any) -> list[str]:
    """The output of `model.generate` for one text at a time."""
    tokenizer, model = of_transformers(path, kind)
    if kind == "nllb":
        how["forced_bos_token_id"] = tokenizer.convert_tokens_to_ids("deu_Latn")
    found = []
    torch.manual_seed(seed)
    for text in texts:
        written = model.generate(**tokenizer(text, return_tensors="pt"), **how)
        found.append(tokenizer.decode(written[0], skip_special_tokens=True))
    return found


@pytest.mark.parametrize(("kind", "beams"), [*((kind, 4) for kind in KINDS), ("marian", 1)])
def test_batches_of_mixed_lengths_equal_generate_for_one_text(folder: Any, kind: str, beams: int) -> None:
    """Padding has no effect, with and without beams."""
    path = folder(kind)
    expected = generated(path, kind, TEXTS, num_beams=beams, do_sample=False, max_new_tokens=20)
    translator = opened(path, kind, beams=beams, max_new_tokens=20)

    assert translated(translator, TEXTS, budget=1000) == expected
    assert len(set(expected)) > 2


def test_declared_settings_are_the_defaults(folder: Any) -> None:
    """This model declares three beams and 40 tokens, and `generate` without arguments uses both."""
    path = folder("marian")
    translator = opened(path, "marian")

    assert (translator.limits.beams, translator.limits.written) == (3, 39)
    assert translated(translator, TEXTS) == generated(path, "marian", TEXTS)


def by_loop(kind: str, loaded: tuple[Any, Any], text: str, most: int) -> str:
    """A plain loop for one text without a cache. The first token of NLLB is the target language."""
    tokenizer, model = loaded
    inputs, written = tokenizer(text, return_tensors="pt"), [START[kind]]
    while len(written) <= most and 1 not in written[1:]:
        with torch.no_grad():
            so_far = {"decoder_input_ids": torch.tensor([written]), "use_cache": False}
            chosen = int(model(**inputs, **so_far).logits[0, -1].argmax())
        forced = kind == "nllb" and len(written) == 1
        written.append(tokenizer.convert_tokens_to_ids("deu_Latn") if forced else chosen)
    return tokenizer.decode(written, skip_special_tokens=True)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_translations_use_the_most_likely_token_at_each_step(plain: Any, kind: str) -> None:
    path = plain(kind)
    loaded = of_transformers(path, kind)
    found = translated(opened(path, kind, beams=1, max_new_tokens=9), TEXTS, budget=1000)

    assert found == [by_loop(kind, loaded, text, 9) for text in TEXTS]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"seed": 10, "temperature": 2.0, "top_p": 0.6}) for kind in KINDS),
        ("marian", {"seed": 7}),
        ("marian", {"seed": 1 << 70}),
    ],
)
def test_a_sample_is_that_of_generate_with_the_seed(folder: Any, kind: str, options: Any) -> None:
    """For one text. The probability of each token is that of the model: there is no top-k."""
    found = translated(opened(folder(kind), kind, sample=True, max_new_tokens=8, **options), TEXTS[1:2])
    how = {name: value for name, value in options.items() if name != "seed"}
    how |= {"do_sample": True, "num_beams": 1, "top_k": 0, "max_new_tokens": 8}
    expected = generated(folder(kind), kind, TEXTS[1:2], options["seed"] % 2**64, **how)

    assert found == expected


def test_samples_depend_on_the_seed(folder: Any) -> None:
    first, again, other = (
        translated(opened(folder("marian"), "marian", sample=True, seed=seed), TEXTS) for seed in (1, 1, 2)
    )

    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))


# Empty, long and impossible texts


@pytest.mark.parametrize("prefix", ["", "the sea: "])
def test_the_prefix_precedes_every_text_and_empty_texts_are_not_translated(folder: Any, prefix: str) -> None:
    translator = opened(folder("t5"), "t5", prefix=prefix)

    expected = translated(opened(folder("t5"), "t5"), [f"{prefix}{text}" for text in TEXTS])
    found = translated(translator, ["", *TEXTS, "   ", "\t"])
    assert found == [None, *expected, None, None]
    assert translated(translator, [""]) == [None]


@pytest.mark.parametrize(("kind", "before"), [("marian", 0), ("nllb", 1)])
def test_truncated_texts_keep_their_final_special_tokens(folder: Any, kind: str, before: int) -> None:
    """A text of NLLB starts with its language; both models end a text with </s>, token 1."""
    translator = opened(folder(kind), kind, max_length=6)
    (whole,) = opened(folder(kind), kind).source(["a cat sleeps and a dog runs"])
    (tokens,) = translator.source(["a cat sleeps and a dog runs"])

    assert tokens.ids == [*whole.ids[:5], whole.ids[-1]]
    assert tokens.count == whole.count == len(whole.ids) > 6
    assert sum(each == 1 or each > 119 for each in tokens.ids) == before + 1


def test_translations_that_reach_the_limit_are_marked(folder: Any, plain: Any) -> None:
    """This Marian model forces an end token at the limit."""
    marian = opened(folder("marian"), "marian", beams=1, max_new_tokens=4)
    made = translate_texts(marian.source(TEXTS), marian, 1000)
    roomy = opened(folder("marian"), "marian", beams=1)
    whole = translate_texts(roomy.source(TEXTS), roomy, 1000)

    assert [each.full for each in made if each] == [True] * len(TEXTS)
    assert [each.full for each in whole if each] == [False] * len(TEXTS)
    t5 = opened(plain("t5"), "t5", beams=1, max_new_tokens=4)
    assert all(each.full for each in translate_texts(t5.source(TEXTS), t5, 1000) if each)


@pytest.mark.parametrize("options", [{"max_length": 1}, {"max_length": 3, "prefix": "a dog"}])
def test_impossible_lengths_are_errors(folder: Any, options: dict[str, Any]) -> None:
    problem = (
        f"length of {options['max_length']} tokens is too small: the special tokens and the prefix use all"
    )
    with pytest.raises(UsageError, match=f"a maximum {problem} of it"):
        opened(folder("marian"), "marian", **options)


def test_input_and_output_can_use_all_positions(plain: Any) -> None:
    translator = opened(plain("marian"), "marian", beams=1, max_length=48, max_new_tokens=48)
    (made,) = translator(translator.source(["a cat and a dog " * 20]))

    assert made.full


def test_a_token_without_weights_is_an_error(folder: Any) -> None:
    translator = opened(folder("marian"), "marian")

    problem = "the tokenizer and the model do not match: token id 5000, but the model has "
    with pytest.raises(DataError, match=problem):
        translator(TokenBlock.of([Tokens([5000, 1], 2)]))


def test_a_batch_that_does_not_fit_is_halved(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The translations are the same. A single text that does not fit is an error."""
    translator = opened(folder("marian"), "marian")
    expected = translated(translator, TEXTS, budget=1000)
    generate, most = translator.model.generate, 2

    def small(input_ids: torch.Tensor, **how: Any) -> Any:
        if len(input_ids) > most:
            raise torch.cuda.OutOfMemoryError
        return generate(input_ids=input_ids, **how)

    monkeypatch.setattr(translator.model, "generate", small)

    assert translated(translator, TEXTS, budget=1000) == expected
    assert translator.halved == 3  # six become three and three, and each three becomes one and two
    most = 0
    with pytest.raises(UnavailableError, match="a text of 7 tokens does not fit") as error:
        translated(translator, TEXTS[:1])
    assert error.value.advice == "use --max-length, --set beams=N with a smaller N, or --device cpu"


# Rows


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of texts that are translated together."""
    found: list[int] = []
    generate = Translator._generate

    def counted(self: Translator, batch: TokenBlock) -> list[list[int]]:
        found.append(len(batch))
        return generate(self, batch)

    monkeypatch.setattr(Translator, "_generate", counted)
    return found


def through(texts: list[str], translator: Translator, budget: int = 64) -> list[Any]:
    rows = block_of(Row(b"{}", {}, "a", n) for n in range(len(texts)))
    rows.texts = [(text,) for text in texts]
    groups = tokenized_groups([rows], translator.source, Rejects(), largest=40)
    return [each for _, made in translate_groups(groups, translator, budget) for each in made]


def test_equal_texts_of_a_group_are_translated_once(folder: Any, sizes: list[int]) -> None:
    translator = opened(folder("marian"), "marian")
    found = through([*TEXTS[:2], TEXTS[0], TEXTS[0], ""], translator, 1000)

    assert sizes == [2]
    assert [made and made.text for made in found[:2]] == translated(translator, TEXTS[:2])
    assert (found[2], found[3], found[4]) == (found[0], found[0], None)


@pytest.mark.parametrize(("beams", "expected"), [(1, [4, 4, 2]), (2, [2] * 5), (9, [1] * 10)])
def test_short_texts_count_as_16_tokens_for_each_beam(
    folder: Any, sizes: list[int], beams: int, expected: list[int]
) -> None:
    """A budget of 64 tokens: four texts, or two texts with two beams, and at least one text."""
    through(
        ["a", "cat", "dog", "man", "woman", "sea", "big", "old", "in", "on"],
        opened(folder("marian"), "marian", beams=beams),
    )

    assert sizes == expected


def test_translations_have_no_language_token(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer of M2M100 does not always list languages as special tokens."""
    translator = opened(folder("nllb"), "nllb")
    expected = translated(translator, TEXTS)
    german = translator.tokenizer.convert_tokens_to_ids("deu_Latn")
    decode = translator.tokenizer.decode
    monkeypatch.setattr(translator.tokenizer, "decode", lambda ids, **_: decode(ids))

    assert german in translator.language_tokens
    assert translated(translator, TEXTS) == expected


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 100))
def test_padded_batches_respect_the_budget(lengths: list[int], budget: int) -> None:
    """The size of a batch is its number of texts times the longest length."""
    found = padded_batches(lengths, budget)
    order = [place for batch in found for place in batch]

    assert order == sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))
    assert all(len(batch) * lengths[batch[0]] <= budget or len(batch) == 1 for batch in found)
    for batch, _ in pairwise(found):
        assert (len(batch) + 1) * lengths[batch[0]] > budget


# Languages: known ones are set; unknown and missing ones are errors that list languages.


@pytest.fixture
def languages() -> Any:
    """A tokenizer with 202 languages and without words."""
    return transformers.NllbTokenizer()


@pytest.fixture
def romance() -> Any:
    return transformers.MBartTokenizer()


def test_nllb_forces_the_target_language_and_mbart_starts_from_it(languages: Any, romance: Any) -> None:
    """Before the text, NLLB reads the source language; mBART reads it after the text."""
    forced, start = (
        set_languages(languages, "fra_Latn", "deu_Latn", {}),
        set_languages(romance, "en_XX", "ro_RO", {}),
    )

    assert forced == {"forced_bos_token_id": languages.convert_tokens_to_ids("deu_Latn")}
    assert start == {"decoder_start_token_id": romance.convert_tokens_to_ids("ro_RO")}
    assert languages.convert_ids_to_tokens(languages("").input_ids) == ["fra_Latn", "</s>"]
    assert romance.convert_ids_to_tokens(romance("").input_ids) == ["</s>", "en_XX"]


def test_a_declared_target_language_needs_no_flag(romance: Any, languages: Any) -> None:
    """mBART declares the start token of the decoder, NLLB the forced first token."""
    romanian = {"decoder_start_token_id": romance.convert_tokens_to_ids("ro_RO")}
    german = {"forced_bos_token_id": languages.convert_tokens_to_ids("deu_Latn")}

    assert set_languages(romance, "en_XX", None, romanian) == {}
    assert set_languages(languages, "eng_Latn", None, german) == {}
    with pytest.raises(UsageError, match=r"give --target-lang$"):
        set_languages(romance, "en_XX", None, {"decoder_start_token_id": 2})


@pytest.mark.parametrize(
    ("source", "target", "flags"),
    [
        (None, None, "--source-lang and --target-lang"),
        *(("eng_Latn", None, "--target-lang"), (None, "eng_Latn", "--source-lang")),
    ],
)
def test_missing_languages_are_errors(languages: Any, source: Any, target: Any, flags: str) -> None:
    """English is not a default."""
    count = len(languages_of(languages)[1])

    with pytest.raises(UsageError, match=f"^this model has {count} languages: give {flags}$"):
        set_languages(languages, source, target, {})


def test_the_error_for_an_unknown_language_lists_similar_names(languages: Any) -> None:
    """Other special tokens are not languages."""
    with pytest.raises(UsageError, match='--target-lang "deu": unknown language') as error:
        set_languages(languages, "eng_Latn", "deu", {})
    with pytest.raises(UsageError, match='--source-lang "<mask>": unknown language'):
        set_languages(languages, "<mask>", "deu_Latn", {})

    assert error.value.advice is not None
    assert "deu_Latn" in error.value.advice
    assert error.value.advice.endswith(" ...")


def test_languages_for_a_model_without_languages_are_an_error() -> None:
    t5 = transformers.T5Tokenizer()

    assert set_languages(t5, None, None, {}) == {}
    with pytest.raises(UsageError, match="this model is not multilingual; remove --source-lang"):
        set_languages(t5, None, "de", {})


# Limits come from the flags, else from the checkpoint, and never exceed its positions.

MARIAN = {"model_type": "marian", "max_position_embeddings": 512}
T5 = {"model_type": "t5", "n_positions": 300}
PAIR = {"encoder": {"model_type": "x", "max_position_embeddings": 64}}
PAIR |= {"decoder": {"model_type": "x", "max_position_embeddings": 32}}
ENDLESS = int(1e30)  # the value of transformers if a tokenizer declares no length


@pytest.mark.parametrize(
    ("config", "said", "usual", "expected"),
    [
        (MARIAN, {}, ENDLESS, Limits(512, 512, 4)),
        (MARIAN, {}, 128, Limits(128, 128, 4)),
        (MARIAN, {}, 9999, Limits(512, 512, 4)),
        # A length counts the token that the decoder starts from, a number of new tokens does not.
        (MARIAN, {"max_length": 200, "num_beams": 6}, 512, Limits(512, 199, 6)),
        (MARIAN, {"max_length": 200, "max_new_tokens": 70}, 512, Limits(512, 70, 4)),
        (MARIAN, {"max_length": 9999}, 512, Limits(512, 512, 4)),
        (MARIAN, {"max_length": "many", "num_beams": None}, 512, Limits(512, 512, 4)),
        (T5, {}, ENDLESS, Limits(300, 300, 4)),
        (T5, {"max_length": 900}, 200, Limits(200, 899, 4)),
        ({"model_type": "mt5"}, {}, ENDLESS, Limits(512, 512, 4)),
        (PAIR, {}, ENDLESS, Limits(64, 32, 4)),
    ],
)
def test_limits_without_flags_come_from_the_checkpoint(
    config: Any, said: Any, usual: int, expected: Limits
) -> None:
    assert limits_of(config, said, TranslationOptions(), usual=usual, source="config.json") == expected


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        (MARIAN, TranslationOptions(beams=1, max_length=9, max_new_tokens=8), Limits(9, 8, 1)),
        (MARIAN, TranslationOptions(beams=7), Limits(128, 99, 7)),
        (MARIAN, TranslationOptions(max_length=512), Limits(512, 99, 6)),
        (MARIAN, TranslationOptions(sample=True), Limits(128, 99, 1)),
        # Relative positions have a default, but no bound.
        (T5, TranslationOptions(max_length=9999, max_new_tokens=8888), Limits(9999, 8888, 6)),
    ],
)
def test_flags_override_the_checkpoint(config: Any, options: TranslationOptions, expected: Limits) -> None:
    assert (
        limits_of(config, {"max_length": 100, "num_beams": 6}, options, usual=128, source="config.json")
        == expected
    )


def test_older_checkpoints_keep_the_settings_in_the_config(marian: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(marian, tmp_path / "own"))
    (own / "generation_config.json").unlink()
    change(own, num_beams=6)

    assert opened(own, "marian").limits.beams == 6


# Checkpoints that cannot be used are errors in one line; the library prints nothing.


@pytest.fixture
def damaged(marian: Path, tmp_path: Path) -> Path:
    """A copy of the Marian model that a test damages."""
    return Path(shutil.copytree(marian, tmp_path / "damaged"))


def loaded(folder: Path) -> Any:
    checkpoint = read_checkpoint(str(folder))
    return load_model(checkpoint, load_config(checkpoint))


def change(folder: Path, **settings: Any) -> Checkpoint:
    """Write these into config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return read_checkpoint(str(folder))


@pytest.mark.parametrize("kind", ["bert", "gpt2", "whisper"])
def test_models_that_do_not_convert_text_to_text_are_errors(tmp_path: Path, kind: str) -> None:
    """An encoder, a decoder, and a model that reads sound."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))

    problem = f'^{tmp_path}: "{kind}" is not a sequence-to-sequence model$'
    with pytest.raises(DataError, match=problem) as error:
        load_config(read_checkpoint(str(tmp_path)))
    assert "such as Marian" in str(error.value.advice)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            {"auto_map": {"AutoModelForSeq2SeqLM": "own.Model"}},
            "needs its own Python code; sentkit does not run",
        ),
        ({"model_type": "no-such"}, r"^[^\n]*damaged: transformers cannot load the model: [^\n]+$"),
        ({"d_model": "x"}, r"^[^\n]*damaged: transformers cannot load the model: [^\n]+$"),
    ],
)
def test_a_config_that_cannot_be_used_is_an_error(damaged: Path, config: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        load_config(change(damaged, **config))


def test_a_folder_without_weights_is_a_missing_input(damaged: Path) -> None:
    (damaged / "model.safetensors").unlink()

    with pytest.raises(NoInputError, match=r"has no model\.safetensors"):
        loaded(damaged)


@pytest.mark.parametrize(
    ("nan", "problem"),
    [
        (
            False,
            r'missing "model\.decoder\.layers\.1\.fc1\.weight"$',
        ),  # transformers would use random weights
        (True, "its weights contain NaN or infinity"),  # the search would not fail
    ],
)
def test_missing_weights_and_nan_are_errors(damaged: Path, nan: bool, problem: str) -> None:
    tensors = load_file(damaged / "model.safetensors")
    weight = tensors.pop("model.decoder.layers.1.fc1.weight")
    weight[3, 4] = torch.nan
    more = {"model.decoder.layers.1.fc1.weight": weight} if nan else {}
    save_file(tensors | more, damaged / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(DataError, match=problem):
        loaded(damaged)


def test_a_folder_without_a_tokenizer_is_an_error(t5: Path, tmp_path: Path) -> None:
    """transformers would create a tokenizer without words."""
    own = shutil.copytree(t5, tmp_path / "own", ignore=shutil.ignore_patterns("tokenizer*"))

    with pytest.raises(DataError, match="this folder has no tokenizer"):
        load_tokenizer(read_checkpoint(str(own)))


@pytest.mark.parametrize(
    ("message", "package"),
    [
        ("MarianTokenizer requires the SentencePiece library", "sentencepiece"),
        ("You need to install sacremoses to use XLMTokenizer. See its page.", "sacremoses"),
    ],
)
def test_a_missing_package_of_a_tokenizer_is_named(
    damaged: Path, monkeypatch: Any, message: str, package: str
) -> None:
    """The tokenizers of Marian and FSMT need one."""

    def failing(*_: Any, **__: Any) -> None:
        raise ImportError(message)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", failing)

    with pytest.raises(UnavailableError, match=f"its tokenizer needs the package {package}$") as error:
        load_tokenizer(read_checkpoint(str(damaged)))
    assert error.value.advice == "pip install 'sentkit[translate]'"


def test_warnings_of_a_tokenizer_are_returned(damaged: Path, monkeypatch: Any, capfd: Any) -> None:
    """Without sacremoses, the tokenizer of Marian does not normalize punctuation and warns."""
    real = transformers.AutoTokenizer.from_pretrained

    def warning(*names: Any, **settings: Any) -> Any:
        warnings.warn("Recommended: pip install sacremoses.", stacklevel=2)
        warnings.warn("of no interest to anybody", FutureWarning, stacklevel=2)
        return real(*names, **settings)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", warning)
    _, notes = load_tokenizer(read_checkpoint(str(damaged)))

    assert notes == [f"{damaged}: Recommended: pip install sacremoses."]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["marian", "t5", "nllb"])
def test_loading_prints_nothing(kind: str, request: pytest.FixtureRequest, capfd: Any) -> None:
    folder = request.getfixturevalue(kind)
    capfd.readouterr()  # remove the output of its creation
    load_tokenizer(read_checkpoint(str(folder)))
    model = loaded(folder)

    assert capfd.readouterr() == ("", "")
    assert not model.training
    assert model.dtype == torch.float32


def test_the_tokenizer_of_fsmt_needs_sacremoses(fsmt: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(fsmt, tmp_path / "own"))
    (own / "tokenizer.json").unlink()
    vocabulary = {token: place for place, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "a</w>"])}
    for side in ("src", "tgt"):
        (own / f"vocab-{side}.json").write_text(json.dumps(vocabulary))
    (own / "merges.txt").write_text("")
    config = {"tokenizer_class": "FSMTTokenizer", "langs": ["en", "de"]}
    (own / "tokenizer_config.json").write_text(json.dumps(config))

    if find_spec("sacremoses") is None:
        with pytest.raises(UnavailableError, match="needs the package sacremoses"):
            load_tokenizer(read_checkpoint(str(own)))
    else:
        assert load_tokenizer(read_checkpoint(str(own)))[0]("a").input_ids == [4, 2]


LARGE = ("encoder_layers", "decoder_layers", "vocab_size", "max_position_embeddings")


@pytest.mark.parametrize(
    ("size", "value", "problem"),
    [
        ("decoder_ffn_dim", 23, "transformers cannot load the model: "),
        ("decoder_layers", 1000, "the model is larger than the stored weights"),
        *((name, 10**9, f'"{name}" cannot be {10**9}$') for name in LARGE),
    ],
)
def test_sizes_that_do_not_fit_the_weights_are_errors(
    damaged: Path, size: str, value: int, problem: str
) -> None:
    """The check happens before a model of a large size is built, which would not finish."""
    change(damaged, **{size: value})

    with pytest.raises(DataError, match=problem):
        loaded(damaged)
