"""`translate`: texts replaced by their translations, rows kept, flags that go together, pipes of
two.
"""

import json
from pathlib import Path

import pytest

TRANSLATE = ("translate", "-m")
WORDS = ("the", "a", "cat", "dog", "man", "woman", "sea", "plays", "runs", "sleeps", "sings")


def generated(folder, texts, **options):
    """What `model.generate` of transformers makes of each text by itself."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    translations = []
    for text in texts:
        tokens = tokenizer(text, return_tensors="pt")
        [generated_tokens] = model.generate(**tokens, **options)
        translations.append(tokenizer.decode(generated_tokens, skip_special_tokens=True))
    return translations


@pytest.fixture(autouse=True)
def in_fp32(monkeypatch):
    monkeypatch.setenv("SENTKIT_PRECISION", "fp32")


@pytest.fixture
def short():
    """Forty texts of one to eight words, some of them equal; more than the first group."""
    texts = []
    for n in range(40):
        words = [WORDS[(3 * n + k * (n % 5 + 1)) % 11] for k in range(n % 8 + 1)]
        texts.append(" ".join(words))
    return texts


def test_lines_of_text_become_rows_of_translations(sentkit, marian, short):
    """In order; of two groups, and each as if it were alone."""
    result = sentkit(*TRANSLATE, marian, "--set", "beams=3", stdin="\n".join(short) + "\n")

    assert (result.code, result.err) == (0, "")
    assert [row["text"] for row in result.rows] == generated(marian, short, num_beams=3)


def test_a_bad_row_can_be_left_out_of_its_group(sentkit, marian):
    """One that is found bad when it is read, one when it is cut."""
    stdin = b'{"text":"a cat"}\n{"text":1}\n{"text":"%b"}\n{"text":"a dog"}\n' % (
        b"a cat runs " * 40
    )
    flags = ("--rejects", "bad.jsonl", "--on-truncate", "error")
    result = sentkit(*TRANSLATE, marian, *flags, stdin=stdin)

    assert [row["text"] for row in result.rows] == generated(marian, ["a cat", "a dog"])
    rejects = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert [reject["row"].encode() for reject in rejects] == stdin.splitlines()[1:3]
