"""Languages of tokenizers: known ones are set, unknown and missing ones are told with what there is."""

from typing import Any

import pytest
import transformers

from sentkit.errors import UsageError
from sentkit.model.translation.languages import known_languages, language_tokens, set_languages


@pytest.fixture
def nllb() -> Any:
    """202 languages, and no words."""
    return transformers.NllbTokenizer()


@pytest.fixture
def mbart() -> Any:
    return transformers.MBartTokenizer()


def test_nllb_reads_behind_its_language_and_is_forced_to_the_other(nllb: Any) -> None:
    told = set_languages(nllb, "fra_Latn", "deu_Latn", {})

    assert told == {"forced_bos_token_id": nllb.convert_tokens_to_ids("deu_Latn")}
    assert nllb.convert_ids_to_tokens(nllb("").input_ids) == ["fra_Latn", "</s>"]


def test_mbart_starts_from_the_language_that_it_writes(mbart: Any) -> None:
    """And reads one behind the text."""
    told = set_languages(mbart, "en_XX", "ro_RO", {})

    assert told == {"decoder_start_token_id": mbart.convert_tokens_to_ids("ro_RO")}
    assert mbart.convert_ids_to_tokens(mbart("").input_ids) == ["</s>", "en_XX"]


def test_a_model_of_one_target_need_not_be_told_it(mbart: Any, nllb: Any) -> None:
    """mBART's declares what its decoder starts from, NLLB's what it is forced to."""
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
        ("eng_Latn", None, "--target-lang"),
        (None, "eng_Latn", "--source-lang"),
    ],
)
def test_what_is_not_said_is_asked_for(nllb: Any, source: Any, target: Any, flags: str) -> None:
    """Never taken to be English."""
    count = len(known_languages(nllb))

    with pytest.raises(UsageError, match=f"knows {count} languages: give {flags}$"):
        set_languages(nllb, source, target, {})


def test_an_unknown_language_is_told_with_those_of_like_names(nllb: Any) -> None:
    with pytest.raises(UsageError, match='--target-lang "deu": no such language') as error:
        set_languages(nllb, "eng_Latn", "deu", {})

    assert error.value.advice is not None
    assert "deu_Latn" in error.value.advice
    assert error.value.advice.endswith(" ...")


def test_a_token_that_is_no_language_is_not_taken_for_one(nllb: Any) -> None:
    with pytest.raises(UsageError, match='--source-lang "<mask>": no such language'):
        set_languages(nllb, "<mask>", "deu_Latn", {})


def test_a_tokenizer_without_languages_takes_none() -> None:
    t5 = transformers.T5Tokenizer()

    assert set_languages(t5, None, None, {}) == {}
    assert language_tokens(t5) == frozenset()
    with pytest.raises(UsageError, match="this model has no languages to choose from"):
        set_languages(t5, None, "de", {})
