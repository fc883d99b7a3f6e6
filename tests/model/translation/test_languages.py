"""Languages of tokenizers: known ones are set; unknown and missing ones are errors that list languages."""

from typing import Any

import pytest
import transformers

from sentkit.errors import UsageError
from sentkit.model.translation.options import known_languages, language_tokens, set_languages


@pytest.fixture
def nllb() -> Any:
    """A tokenizer with 202 languages and without words."""
    return transformers.NllbTokenizer()


@pytest.fixture
def mbart() -> Any:
    return transformers.MBartTokenizer()


def test_nllb_forces_the_target_language_and_mbart_starts_from_it(nllb: Any, mbart: Any) -> None:
    """Before the text, NLLB reads the source language; mBART reads it after the text."""
    forced, start = (
        set_languages(nllb, "fra_Latn", "deu_Latn", {}),
        set_languages(mbart, "en_XX", "ro_RO", {}),
    )

    assert forced == {"forced_bos_token_id": nllb.convert_tokens_to_ids("deu_Latn")}
    assert start == {"decoder_start_token_id": mbart.convert_tokens_to_ids("ro_RO")}
    assert nllb.convert_ids_to_tokens(nllb("").input_ids) == ["fra_Latn", "</s>"]
    assert mbart.convert_ids_to_tokens(mbart("").input_ids) == ["</s>", "en_XX"]


def test_a_declared_target_language_needs_no_flag(mbart: Any, nllb: Any) -> None:
    """mBART declares the start token of the decoder, NLLB the forced first token."""
    romanian = {"decoder_start_token_id": mbart.convert_tokens_to_ids("ro_RO")}
    german = {"forced_bos_token_id": nllb.convert_tokens_to_ids("deu_Latn")}

    assert set_languages(mbart, "en_XX", None, romanian) == {}
    assert set_languages(nllb, "eng_Latn", None, german) == {}
    with pytest.raises(UsageError, match=r"give --target-lang$"):
        set_languages(mbart, "en_XX", None, {"decoder_start_token_id": 2})


@pytest.mark.parametrize(
    ("source", "target", "flags"),
    [
        (None, None, "--source-lang and --target-lang"),
        *(("eng_Latn", None, "--target-lang"), (None, "eng_Latn", "--source-lang")),
    ],
)
def test_missing_languages_are_errors(nllb: Any, source: Any, target: Any, flags: str) -> None:
    """English is not a default."""
    count = len(known_languages(nllb))

    with pytest.raises(UsageError, match=f"^this model has {count} languages: give {flags}$"):
        set_languages(nllb, source, target, {})


def test_the_error_for_an_unknown_language_lists_similar_names(nllb: Any) -> None:
    """Other special tokens are not languages."""
    with pytest.raises(UsageError, match='--target-lang "deu": unknown language') as error:
        set_languages(nllb, "eng_Latn", "deu", {})
    with pytest.raises(UsageError, match='--source-lang "<mask>": unknown language'):
        set_languages(nllb, "<mask>", "deu_Latn", {})

    assert error.value.advice is not None
    assert "deu_Latn" in error.value.advice
    assert error.value.advice.endswith(" ...")


def test_languages_for_a_model_without_languages_are_an_error() -> None:
    t5 = transformers.T5Tokenizer()

    assert set_languages(t5, None, None, {}) == {}
    assert language_tokens(t5) == frozenset()
    with pytest.raises(UsageError, match="this model is not multilingual; remove --source-lang"):
        set_languages(t5, None, "de", {})
