"""`translate`: texts replaced by their translations, rows kept, flags that go together, pipes of two."""

import json
from pathlib import Path

import pytest

TRANSLATE = ("translate", "--precision", "fp32", "-m")
WORDS = ("the", "a", "cat", "dog", "man", "woman", "sea", "plays", "runs", "sleeps", "sings")


def generated(folder, texts, **how):
    """What `model.generate` of transformers makes of each text by itself."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    inputs = (tokenizer(text, return_tensors="pt") for text in texts)
    return [tokenizer.decode(model.generate(**each, **how)[0], skip_special_tokens=True) for each in inputs]


@pytest.fixture
def short():
    """Forty texts of one to eight words, some of them equal; more than the first group."""
    return [" ".join(WORDS[(3 * n + k * (n % 5 + 1)) % 11] for k in range(n % 8 + 1)) for n in range(40)]


def test_lines_of_text_become_rows_of_translations(sentkit, marian, short):
    """In order; of two groups, and each as if it were alone."""
    done = sentkit(*TRANSLATE, marian, "--set", "beams=3", stdin="\n".join(short) + "\n")

    assert (done.code, done.err) == (0, "")
    assert [row["text"] for row in done.rows] == generated(marian, short, num_beams=3)


def test_a_multilingual_model_needs_both_languages(sentkit, nllb):
    """Each changes the output; a multilingual model is refused without them."""
    there = ("--source-lang", "eng_Latn", "--target-lang", "deu_Latn")
    back = ("--source-lang", "deu_Latn", "--target-lang", "eng_Latn")
    done, turned = (sentkit(*TRANSLATE, nllb, *each, stdin="a cat\n") for each in (there, back))
    without = sentkit(*TRANSLATE, nllb, stdin="a cat\n")

    assert done.code == 0
    assert done.out != turned.out
    assert without.code == 2
    assert without.told == [
        "sentkit translate: this model has 2 languages: give --source-lang and --target-lang",
        "  available: eng_Latn, deu_Latn",
    ]


def test_a_bad_row_can_be_left_out_of_its_group(sentkit, marian):
    """One that is found bad when it is read, one when it is cut."""
    stdin = b'{"text":"a cat"}\n{"text":1}\n{"text":"%b"}\n{"text":"a dog"}\n' % (b"a cat runs " * 40)
    flags = ("--rejects", "bad.jsonl", "--on-truncate", "error")
    done = sentkit(*TRANSLATE, marian, *flags, stdin=stdin)

    assert [row["text"] for row in done.rows] == generated(marian, ["a cat", "a dog"])
    rejects = map(json.loads, Path("bad.jsonl").read_text().splitlines())
    assert [reject["row"].encode() for reject in rejects] == stdin.splitlines()[1:3]


def test_two_in_a_row_translate_back(sentkit, marian, t5):
    """The row becomes a pair of the text and its translation."""
    texts = ["a cat sleeps", "the old man"]
    lines = "".join(f"{text}\n" for text in texts)
    first = sentkit(*TRANSLATE, marian, "--keep", "text_a", "--set", "beams=1", stdin=lines)
    second = sentkit(*TRANSLATE, t5, "--set", "max_new_tokens=30", stdin=first.out)
    done = sentkit("encode", "--field", "text_b=text", stdin=second.out)
    there = generated(marian, texts, num_beams=1)
    back = generated(t5, there, num_beams=3, max_new_tokens=30)

    assert (first.code, second.code, done.code, done.err) == (0, 0, 0, "")
    assert [(row["text_a"], row["text"]) for row in done.rows] == list(zip(texts, back, strict=True))
    assert all({"embedding_a", "embedding_b"} <= row.keys() for row in done.rows)
