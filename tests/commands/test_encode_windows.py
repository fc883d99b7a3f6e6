"""`encode --on-truncate window` and `chunks`, against loops over a model of transformers."""

import random

import numpy as np
import pytest

import support
from support import in_jsonl, make_bert

CLOSE = 1e-5
WORDS = "the old river runs unbelievably south, and 中国 Café people walked along it in 1999"
FLAGS = ("--on-truncate", "window", "--max-length", 20)
CHUNKS = ("--on-truncate", "chunks", "--max-length", 20)


def words(count, seed):
    return " ".join(random.Random(seed).choices(WORDS.split(), k=count))


SHORT = "a cat sat"
LONGER = words(40, 1)
LONGEST = words(130, 2)
DOCUMENTS = [LONGER, SHORT, LONGEST, words(14, 3)]


@pytest.fixture(scope="session")
def other(tmp_path_factory):
    """A checkpoint that runs through transformers, with random weights and nano's tokenizer."""
    return make_bert(tmp_path_factory.mktemp("other"), hidden_act="quick_gelu")


@pytest.fixture
def encode(sentkit, tiny):
    def run(*arguments, model=tiny, texts=DOCUMENTS, stdin=None):
        if stdin is None:
            stdin = "\n".join(texts)
        return sentkit("encode", "-m", model, "--precision", "fp32", *arguments, stdin=stdin)

    return run


def ids_of(folder, text):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)["input_ids"]


def states_of(folder, sequences):
    """The last states of [CLS] ids [SEP] for each sequence."""
    return support.states_of(folder, [[2, *ids, 3] for ids in sequences])


def windows(count, room, stride):
    """Starts and ends of windows, token by token."""
    spans = []
    start = 0
    while True:
        spans.append((start, min(start + room, count)))
        if start + room >= count:
            return spans
        start += stride


def by_hand(folder, text, size, stride, reduce):
    """The mean over the tokens of the mean of their windows' vectors."""
    ids = ids_of(folder, text)
    spans = [(0, len(ids))]
    if len(ids) > 18:
        spans = windows(len(ids), size - 2, stride)
    sequences = [ids[start:end] for start, end in spans]
    vectors = [reduce(states) for states in states_of(folder, sequences)]
    total = np.zeros(len(vectors[0]))
    for token in range(len(ids)):
        of_token = [
            vector
            for vector, (start, end) in zip(vectors, spans, strict=True)
            if start <= token < end
        ]
        total += sum(of_token) / len(of_token)
    return total / len(ids)


REDUCE = {
    "mean": lambda states: states.mean(0),
    "cls": lambda states: states[0],
    "max": lambda s: s.max(0),
}


# One vector for each text


@pytest.mark.parametrize(
    ("model", "readout", "sizes"),
    [
        ("tiny", "mean", ()),
        ("tiny", "mean", (13, 4)),
        ("tiny", "cls", (20, 18)),
        ("tiny", "max", ()),
        ("other", "mean", (13, 4)),
    ],
)
def test_vectors_are_those_of_transformers(encode, request, model, readout, sizes):
    folder = request.getfixturevalue(model)
    flags = ["--window", ":".join(map(str, sizes))] if sizes else []
    result = encode(*FLAGS, *flags, "--readout", readout, model=folder)

    expected = [by_hand(folder, text, *(sizes or (20, 9)), REDUCE[readout]) for text in DOCUMENTS]
    assert result.code == 0
    assert np.abs(result.vectors() - expected).max() < CLOSE


def test_texts_under_the_limit_have_the_same_bytes(encode):
    """In one input with long texts, which have another vector, and without them the same output."""
    texts = [words(1 + number % 6, number) + LONGER * (number % 7 == 0) for number in range(60)]
    plain = encode("--max-length", 20, "-q", texts=texts)
    split = encode("--max-length", 20, "--on-truncate", "window", "-q", texts=texts)
    lines = zip(plain.out.splitlines(), split.out.splitlines(), strict=True)
    changed = [number for number, (before, after) in enumerate(lines) if before != after]
    assert changed == [*range(0, 60, 7)]

    short = [text for number, text in enumerate(texts) if number % 7]
    with_windows = encode(*FLAGS, "-q", texts=short)
    assert with_windows.out == encode("--max-length", 20, "-q", texts=short).out


def test_the_closing_line_counts_rows_and_windows(encode, tiny):
    result = encode(*FLAGS, "--readout", "mean")
    token_counts = [len(ids_of(tiny, text)) for text in (LONGER, LONGEST)]
    count = sum(len(windows(tokens, 18, 9)) for tokens in token_counts)

    messages = [line for line in result.told if "unknown tokens" not in line]
    assert messages == [
        f"sentkit encode: 2 of 4 rows were split into {count} windows (--window 20:9)"
    ]
    assert encode(*FLAGS, "--readout", "mean", "-q").told == []
    [planned] = encode(*FLAGS, "-n", "--readout", "mean").rows
    expected = {"rows": 4, "split_rows": 2, "windows": count, "truncated": 0}
    assert expected.items() <= planned.items()


@pytest.mark.parametrize(
    "flags", [("--readout", "mean", "--prompt", "a cat: "), ("--readout", "prompt")]
)
def test_a_prompt_and_a_template_are_in_each_window(encode, flags):
    """A window that begins and ends between words has the vector of its characters as a text."""
    result = encode(*CHUNKS, *flags, texts=[LONGER])
    numbers = [number for number, row in enumerate(result.rows) if is_at_words(row)]
    chunks = []
    for number in numbers:
        row = result.rows[number]
        chunks.append(row["text"][row["start"] : row["end"]])
    alone = encode("--max-length", 20, *flags, texts=chunks)

    assert len(numbers) > 1
    assert np.abs(result.vectors()[numbers] - alone.vectors()).max() < CLOSE


def is_at_words(row):
    text = f" {row['text']} "
    return text[row["start"]] == " " and text[row["end"] + 1] == " "


# One row for each window


def test_chunks_are_rows_with_all_other_fields(encode, tiny):
    row = {"id": 12345678901234567890123, "text": LONGER, "tags": ["x"]}
    result = encode(*CHUNKS, "--readout", "mean", stdin=in_jsonl(row, {"text": " a cat "}))

    ids = ids_of(tiny, LONGER)
    spans = windows(len(ids), 18, 9)
    sequences = [ids[start:end] for start, end in spans]
    expected = [states.mean(0) for states in states_of(tiny, sequences)]
    *chunks, short_text = result.rows
    *lines, _ = result.out.splitlines()
    fields = in_jsonl(row)[:-2].encode()  # without the brace and the newline
    assert [chunk["chunk"] for chunk in result.rows] == [*range(len(spans)), 0]
    assert np.abs(result.vectors()[:-1] - expected).max() < CLOSE
    assert all(line.startswith(fields) for line in lines)
    assert (chunks[0]["start"], chunks[-1]["end"]) == (0, len(LONGER))
    assert (short_text["start"], short_text["end"]) == (0, 7)
    for (start, end), chunk in zip(spans, chunks, strict=True):
        inside = ids_of(tiny, LONGER[chunk["start"] : chunk["end"]])
        assert inside[-1] == ids[end - 1] or inside[0] == ids[start]
    assert result.told[-1] == (
        f"sentkit encode: 1 of 2 rows were split into {len(spans)} windows, "
        f"{len(spans) + 1} rows were written (--window 20:9)"
    )
