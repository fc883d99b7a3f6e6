"""Translations equal those of transformers' `generate` for one text, regardless of the batch."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from sentkit.errors import DataError, UnavailableError, UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.rows.block import Row, block_of_rows
from sentkit.formats.rows.rows import Rejects
from sentkit.model.encoding import BUDGETS
from sentkit.model.groups import tokenized_groups
from sentkit.model.text.tokens import TokenBlock, Tokens
from sentkit.model.translation import Translator, load, set_languages

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
def folder(request):
    """A function that returns the folder of a model."""
    return request.getfixturevalue


@pytest.fixture
def plain(folder, tmp_path):
    """A copy that declares only its start, end and padding token."""

    def copy(kind):
        copied = Path(shutil.copytree(folder(kind), tmp_path / f"plain-{kind}"))
        ends = {"decoder_start_token_id": START[kind], "eos_token_id": 1, "pad_token_id": 0}
        (copied / "generation_config.json").write_text(json.dumps(ends))
        return copied

    return copy


def opened(path, kind, **options):
    options = {**FOREIGN.get(kind, {}), **options}
    return Translator(read_checkpoint(str(path)), device="cpu", precision="fp32", **options)


def translated(translator, texts, budget=100):
    translations = translator(translator.source(texts), budget)
    return [translation and translation.text for translation in translations]


def generated(path, kind, texts, seed=0, **options):
    """The output of `model.generate` for one text at a time."""
    source = {"src_lang": "eng_Latn"} if kind == "nllb" else {}
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, **source)
    if kind == "nllb":
        options["forced_bos_token_id"] = tokenizer.convert_tokens_to_ids("deu_Latn")
    texts_generated = []
    torch.manual_seed(seed)
    for text in texts:
        written = model.generate(**tokenizer(text, return_tensors="pt"), **options)
        texts_generated.append(tokenizer.decode(written[0], skip_special_tokens=True))
    return texts_generated


@pytest.mark.parametrize(("kind", "beams"), [*((kind, 4) for kind in KINDS), ("marian", 1)])
def test_batches_of_mixed_lengths_equal_generate_for_one_text(folder, kind, beams):
    """Padding has no effect, with and without beams."""
    path = folder(kind)
    expected = generated(path, kind, TEXTS, num_beams=beams, do_sample=False, max_new_tokens=20)
    translator = opened(path, kind, beams=beams, max_new_tokens=20)

    assert translated(translator, TEXTS, budget=1000) == expected
    assert len(set(expected)) > 2


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"seed": 10, "temperature": 2.0, "top_p": 0.6}) for kind in KINDS),
        ("marian", {"seed": 7}),
        ("marian", {"seed": 1 << 70}),
    ],
)
def test_a_sample_is_that_of_generate_with_the_seed(folder, kind, options):
    """For one text. The probability of each token is that of the model: there is no top-k."""
    sampled = translated(
        opened(folder(kind), kind, sample=True, max_new_tokens=8, **options), TEXTS[1:2]
    )
    sampling = {name: value for name, value in options.items() if name != "seed"}
    sampling |= {"do_sample": True, "num_beams": 1, "top_k": 0, "max_new_tokens": 8}
    expected = generated(folder(kind), kind, TEXTS[1:2], options["seed"] % 2**64, **sampling)

    assert sampled == expected


@pytest.mark.parametrize("prefix", ["", "the sea: "])
def test_the_prefix_precedes_every_text_and_empty_texts_are_not_translated(folder, prefix):
    translator = opened(folder("t5"), "t5", prefix=prefix)

    expected = translated(opened(folder("t5"), "t5"), [f"{prefix}{text}" for text in TEXTS])
    translations = translated(translator, ["", *TEXTS, "   ", "\t"])
    assert translations == [None, *expected, None, None]
    assert translated(translator, [""]) == [None]


@pytest.mark.parametrize(("kind", "before"), [("marian", 0), ("nllb", 1)])
def test_truncated_texts_keep_their_final_special_tokens(folder, kind, before):
    """A text of NLLB starts with its language; both models end a text with </s>, token 1."""
    translator = opened(folder(kind), kind, max_length=6)
    (whole,) = opened(folder(kind), kind).source(["a cat sleeps and a dog runs"])
    (tokens,) = translator.source(["a cat sleeps and a dog runs"])

    assert tokens.ids == [*whole.ids[:5], whole.ids[-1]]
    assert tokens.full_length == whole.full_length == len(whole.ids) > 6
    assert sum(token == 1 or token > 119 for token in tokens.ids) == before + 1


def test_translations_that_reach_the_limit_are_marked(folder, plain):
    """This Marian model forces an end token at the limit."""
    marian = opened(folder("marian"), "marian", beams=1, max_new_tokens=4)
    short = marian(marian.source(TEXTS), 1000)
    roomy = opened(folder("marian"), "marian", beams=1)
    whole = roomy(roomy.source(TEXTS), 1000)

    assert [translation.full for translation in short if translation] == [True] * len(TEXTS)
    assert [translation.full for translation in whole if translation] == [False] * len(TEXTS)
    t5 = opened(plain("t5"), "t5", beams=1, max_new_tokens=4)
    assert all(translation.full for translation in t5(t5.source(TEXTS), 1000) if translation)


@pytest.mark.parametrize("options", [{"max_length": 1}, {"max_length": 3, "prefix": "a dog"}])
def test_impossible_lengths_are_errors(folder, options):
    problem = "tokens is too small: the special tokens and the prefix use all of it"
    with pytest.raises(UsageError, match=f"a maximum length of {options['max_length']} {problem}"):
        opened(folder("marian"), "marian", **options)


def test_a_token_without_weights_is_an_error(folder):
    translator = opened(folder("marian"), "marian")

    problem = "the tokenizer and the model do not match: token id 5000, but the model has "
    with pytest.raises(DataError, match=problem):
        translator(TokenBlock.of([Tokens([5000, 1], 2)]), 1000)


def test_a_batch_that_does_not_fit_is_halved(folder, monkeypatch):
    """The translations are the same. A single text that does not fit is an error."""
    translator = opened(folder("marian"), "marian")
    expected = translated(translator, TEXTS, budget=1000)
    generate = translator.model.generate
    room = 2

    def small(input_ids, **options):
        if len(input_ids) > room:
            raise torch.cuda.OutOfMemoryError
        return generate(input_ids=input_ids, **options)

    monkeypatch.setattr(translator.model, "generate", small)

    assert translated(translator, TEXTS, budget=1000) == expected
    assert translator.halved == 3  # six become three and three, and each three becomes one and two
    room = 0
    with pytest.raises(UnavailableError, match="a text of 7 tokens does not fit") as error:
        translated(translator, TEXTS[:1])
    assert error.value.advice == "use --max-length, --set beams=N with a smaller N, or --device cpu"


@pytest.fixture
def sizes(monkeypatch):
    """The numbers of texts that are translated together."""
    counts = []
    generate = Translator._generate

    def counted(self, batch):
        counts.append(len(batch))
        return generate(self, batch)

    monkeypatch.setattr(Translator, "_generate", counted)
    return counts


def through(texts, translator):
    rows = block_of_rows(Row(b"{}", {}, "a", n) for n in range(len(texts)))
    rows.texts = [(text,) for text in texts]
    groups = tokenized_groups([rows], translator.source, Rejects(), largest=40)
    return [
        translation for _, translations in translator.groups(groups) for translation in translations
    ]


def test_equal_texts_of_a_group_are_translated_once(folder, sizes):
    translator = opened(folder("marian"), "marian")
    translations = through([*TEXTS[:2], TEXTS[0], TEXTS[0], ""], translator)

    assert sizes == [2]
    assert [translation and translation.text for translation in translations[:2]] == translated(
        translator, TEXTS[:2]
    )
    assert (translations[2], translations[3], translations[4]) == (
        translations[0],
        translations[0],
        None,
    )


@pytest.mark.parametrize(("beams", "expected"), [(1, [4, 4, 2]), (2, [2] * 5), (9, [1] * 10)])
def test_short_texts_count_as_16_tokens_for_each_beam(folder, sizes, beams, expected, monkeypatch):
    """A budget of 64 tokens: four texts, or two texts with two beams, and at least one text."""
    monkeypatch.setitem(BUDGETS, "cpu", 64)
    texts = ["a", "cat", "dog", "man", "woman", "sea", "big", "old", "in", "on"]
    through(texts, opened(folder("marian"), "marian", beams=beams))

    assert sizes == expected


def test_translations_have_no_language_token(folder, monkeypatch):
    """The tokenizer of M2M100 does not always list languages as special tokens."""
    translator = opened(folder("nllb"), "nllb")
    expected = translated(translator, TEXTS)
    german = translator.tokenizer.convert_tokens_to_ids("deu_Latn")
    decode = translator.tokenizer.decode
    monkeypatch.setattr(translator.tokenizer, "decode", lambda ids, **_: decode(ids))

    assert german in translator.language_tokens
    assert translated(translator, TEXTS) == expected


@pytest.fixture
def languages():
    """A tokenizer with 202 languages and without words."""
    return transformers.NllbTokenizer()


@pytest.fixture
def romance():
    return transformers.MBartTokenizer()


def test_nllb_forces_the_target_language_and_mbart_starts_from_it(languages, romance):
    """Before the text, NLLB reads the source language; mBART reads it after the text."""
    forced = set_languages(languages, "fra_Latn", "deu_Latn", None)
    start = set_languages(romance, "en_XX", "ro_RO", None)

    assert forced == {"forced_bos_token_id": languages.convert_tokens_to_ids("deu_Latn")}
    assert start == {"decoder_start_token_id": romance.convert_tokens_to_ids("ro_RO")}
    assert languages.convert_ids_to_tokens(languages("").input_ids) == ["fra_Latn", "</s>"]
    assert romance.convert_ids_to_tokens(romance("").input_ids) == ["</s>", "en_XX"]


def test_a_declared_target_language_needs_no_flag(romance, languages):
    """mBART declares the start token of the decoder, NLLB the forced first token."""
    romanian = {"decoder_start_token_id": romance.convert_tokens_to_ids("ro_RO")}
    german = {"forced_bos_token_id": languages.convert_tokens_to_ids("deu_Latn")}

    assert set_languages(romance, "en_XX", None, transformers.GenerationConfig(**romanian)) == {}
    assert set_languages(languages, "eng_Latn", None, transformers.GenerationConfig(**german)) == {}
    with pytest.raises(UsageError, match=r"give --target-lang$"):
        set_languages(
            romance, "en_XX", None, transformers.GenerationConfig(decoder_start_token_id=2)
        )


@pytest.mark.parametrize(
    ("source", "target", "problem"),
    [
        (None, None, "^this model has 202 languages: give --source-lang and --target-lang$"),
        ("eng_Latn", None, "^this model has 202 languages: give --target-lang$"),
        # English is no default.
        (None, "eng_Latn", "^this model has 202 languages: give --source-lang$"),
        ("eng_Latn", "deu", '--target-lang "deu": unknown language'),
        ("<mask>", "deu_Latn", '--source-lang "<mask>": unknown language'),  # another special token
    ],
)
def test_missing_and_unknown_languages_are_errors(languages, source, target, problem):
    with pytest.raises(UsageError, match=problem) as error:
        set_languages(languages, source, target, None)

    if target == "deu":
        assert "deu_Latn" in error.value.advice
        assert error.value.advice.endswith(" ...")


def test_languages_for_a_model_without_languages_are_an_error():
    t5 = transformers.T5Tokenizer()

    assert set_languages(t5, None, None, None) == {}
    with pytest.raises(UsageError, match="this model is not multilingual; remove --source-lang"):
        set_languages(t5, None, "de", None)


SIX_BEAMS = {"max_length": 20, "num_beams": 6}


@pytest.mark.parametrize(
    ("kind", "declared", "length", "options", "expected"),
    [
        ("marian", {}, 1e30, {}, (48, 48, 4)),
        ("marian", {}, 32, {}, (32, 32, 4)),
        ("marian", {}, 9999, {}, (48, 48, 4)),
        # A length counts the token that the decoder starts from, a number of new tokens does not.
        ("marian", SIX_BEAMS, 48, {}, (48, 19, 6)),
        ("marian", {"max_length": 20, "max_new_tokens": 7}, 48, {}, (48, 7, 4)),
        ("marian", {"max_length": 9999}, 48, {}, (48, 48, 4)),
        ("marian", SIX_BEAMS, 48, {"beams": 1, "max_length": 9, "max_new_tokens": 8}, (9, 8, 1)),
        ("marian", {"num_beams": 6}, 32, {"max_length": 48}, (48, 48, 6)),
        ("marian", {"num_beams": 6}, 32, {"sample": True}, (32, 32, 1)),
        # Relative positions have no bound.
        ("t5", {}, 1e30, {}, (512, 512, 4)),
        ("t5", {}, 9999, {}, (9999, 9999, 4)),
        ("t5", {}, 9999, {"max_length": 9998, "max_new_tokens": 8888}, (9998, 8888, 4)),
    ],
)
def test_limits(plain, kind, declared, length, options, expected):
    """Of the flags, else of the checkpoint, within the 48 positions of Marian; `length`: of the
    tokenizer.
    """
    path = plain(kind)
    for name, values in (
        ("generation_config", declared),
        ("tokenizer_config", {"model_max_length": length}),
    ):
        file = path / f"{name}.json"
        content = json.loads(file.read_text()) | values
        file.write_text(json.dumps(content))
    translator = opened(path, kind, **options)

    assert (translator.read, translator.written, translator.beams) == expected


@pytest.fixture
def damaged(marian, tmp_path):
    """A copy of the Marian model that a test damages."""
    return Path(shutil.copytree(marian, tmp_path / "damaged"))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model_type": "no-such"}, "transformers cannot load the model: "),
        (
            {"model_type": "bert"},
            "transformers cannot load the model: Unrecognized configuration class",
        ),
        ({"d_model": "x"}, "transformers cannot load the model: "),
        (
            {"decoder_ffn_dim": 23},
            'do not match: "model.decoder.layers.0.fc1.bias" is 24, expected 23, ',
        ),
        ({"decoder_layers": 9}, 'missing "model'),
        *(
            ({name: 10**9}, f'"{name}" cannot be {10**9}$')
            for name in ("decoder_layers", "vocab_size")
        ),
    ],
)
def test_a_config_that_cannot_be_used_is_an_error_of_one_line(damaged, config, problem):
    """With a huge size, the process would not finish."""
    path = damaged / "config.json"
    content = json.loads(path.read_text()) | config
    path.write_text(json.dumps(content))

    with pytest.raises(DataError, match=problem) as error:
        load(read_checkpoint(str(damaged)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("nan", [False, True])
def test_missing_weights_and_nan_are_errors(damaged, nan):
    """transformers would use random weights, and the search would not fail."""
    name = "model.decoder.layers.1.fc1.weight"
    tensors = load_file(damaged / "model.safetensors")
    weight = tensors.pop(name)
    weight[3, 4] = torch.nan
    tensors |= {name: weight} if nan else {}
    save_file(tensors, damaged / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(DataError, match="its weights contain NaN" if nan else f'missing "{name}"$'):
        load(read_checkpoint(str(damaged)))


def test_a_folder_without_a_tokenizer_is_an_error(t5, tmp_path):
    """transformers would create a tokenizer without words."""
    without_tokenizer = shutil.copytree(
        t5, tmp_path / "own", ignore=shutil.ignore_patterns("tokenizer*")
    )

    with pytest.raises(DataError, match="this folder has no tokenizer"):
        load(read_checkpoint(str(without_tokenizer)))


def test_warnings_of_a_tokenizer_are_returned(damaged, monkeypatch, capfd):
    """Without sacremoses, the tokenizer of Marian does not normalize punctuation and warns."""
    real = transformers.AutoTokenizer.from_pretrained

    def warning(*names, **settings):
        warnings.warn("Recommended: pip install sacremoses.", stacklevel=2)
        warnings.warn("of no interest to anybody", FutureWarning, stacklevel=2)
        return real(*names, **settings)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", warning)
    *_, notes = load(read_checkpoint(str(damaged)))

    assert notes == [f"{damaged}: Recommended: pip install sacremoses."]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["marian", "t5", "nllb"])
def test_loading_prints_nothing(kind, folder, capfd):
    path = str(folder(kind))
    capfd.readouterr()  # remove the output of its creation
    _, model, _ = load(read_checkpoint(path))

    assert capfd.readouterr() == ("", "")
    assert not model.training
    assert model.dtype == torch.float32
