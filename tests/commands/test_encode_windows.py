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


SHORT, LONGER, LONGEST = "a cat sat", words(40, 1), words(130, 2)
DOCUMENTS = [LONGER, SHORT, LONGEST, words(14, 3)]


@pytest.fixture(scope="session")
def other(tmp_path_factory):
    """A checkpoint that runs through transformers, with random weights and nano's tokenizer."""
    return make_bert(tmp_path_factory.mktemp("other"), hidden_act="quick_gelu")


@pytest.fixture
def encode(sentkit, tiny):
    def run(*arguments, model=tiny, texts=DOCUMENTS, **given):
        given = given or {"stdin": "\n".join(texts)}
        return sentkit("encode", "-m", model, "--precision", "fp32", *arguments, **given)

    return run


def ids_of(folder, text):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)["input_ids"]


def states_of(folder, sequences):
    """The last states of [CLS] ids [SEP] for each sequence."""
    return support.states_of(folder, [[2, *ids, 3] for ids in sequences])


def windows(count, room, stride):
    """Starts and ends of windows, token by token."""
    found, start = [], 0
    while True:
        found.append((start, min(start + room, count)))
        if start + room >= count:
            return found
        start += stride


def by_hand(folder, text, size, stride, reduce):
    """The mean over the tokens of the mean of their windows' vectors."""
    ids = ids_of(folder, text)
    own = windows(len(ids), size - 2, stride) if len(ids) > 18 else [(0, len(ids))]
    vectors = [
        reduce(states) for states in states_of(folder, [ids[start:end] for start, end in own])
    ]
    total = np.zeros(len(vectors[0]))
    for token in range(len(ids)):
        having = [
            vector
            for vector, (start, end) in zip(vectors, own, strict=True)
            if start <= token < end
        ]
        total += sum(having) / len(having)
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
        *(
            ("tiny", *each)
            for each in (("mean", ()), ("mean", (13, 4)), ("cls", (20, 18)), ("max", ()))
        ),
        ("other", "mean", (13, 4)),
    ],
)
def test_vectors_are_those_of_transformers(encode, request, model, readout, sizes):
    folder = request.getfixturevalue(model)
    flags = ["--window", ":".join(map(str, sizes))] if sizes else []
    done = encode(*FLAGS, *flags, "--readout", readout, model=folder)

    expected = [by_hand(folder, text, *(sizes or (20, 9)), REDUCE[readout]) for text in DOCUMENTS]
    assert done.code == 0
    assert np.abs(done.vectors() - expected).max() < CLOSE


def test_texts_under_the_limit_have_the_same_bytes(encode):
    """In one input with long texts, which have another vector, and without them the same output."""
    texts = [words(1 + number % 6, number) + LONGER * (number % 7 == 0) for number in range(60)]
    plain, split = (
        encode("--max-length", 20, *flags, "-q", texts=texts)
        for flags in ((), ("--on-truncate", "window"))
    )
    pairs = list(zip(plain.out.splitlines(), split.out.splitlines(), strict=True))
    assert [number for number, (one, other) in enumerate(pairs) if one != other] == [
        *range(0, 60, 7)
    ]

    short = [text for number, text in enumerate(texts) if number % 7]
    assert (
        encode(*FLAGS, "-q", texts=short).out == encode("--max-length", 20, "-q", texts=short).out
    )


def test_the_closing_line_counts_rows_and_windows(encode, tiny):
    done = encode(*FLAGS, "--readout", "mean")
    counts = [len(windows(len(ids_of(tiny, text)), 18, 9)) for text in (LONGER, LONGEST)]

    assert done.told == [
        f"sentkit encode: 2 of 4 rows were split into {sum(counts)} windows (--window 20:9)"
    ]
    assert encode(*FLAGS, "--readout", "mean", "-q").told == []
    [planned] = encode(*FLAGS, "-n", "--readout", "mean").rows
    assert {
        "rows": 4,
        "split_rows": 2,
        "windows": sum(counts),
        "truncated": 0,
    }.items() <= planned.items()


@pytest.mark.parametrize(
    "flags", [("--readout", "mean", "--prompt", "a cat: "), ("--readout", "prompt")]
)
def test_a_prompt_and_a_template_are_in_each_window(encode, flags):
    """A window that begins and ends between words has the vector of its characters as a text."""
    done = encode(*CHUNKS, *flags, texts=[LONGER])
    found = [number for number, row in enumerate(done.rows) if is_at_words(row)]
    parts = [done.rows[number]["text"][slice(*place_of(done.rows[number]))] for number in found]
    alone = encode("--max-length", 20, *flags, texts=parts)

    assert len(found) > 1
    assert np.abs(done.vectors()[found] - alone.vectors()).max() < CLOSE


def place_of(row):
    return row["start"], row["end"]


def is_at_words(row):
    text, (start, end) = f" {row['text']} ", place_of(row)
    return text[start] == " " and text[end + 1] == " "


# One row for each window


def test_chunks_are_rows_with_all_other_fields(encode, tiny):
    row = {"id": 12345678901234567890123, "text": LONGER, "tags": ["x"]}
    done = encode(*CHUNKS, "--readout", "mean", stdin=in_jsonl(row, {"text": " a cat "}))

    ids = ids_of(tiny, LONGER)
    own = windows(len(ids), 18, 9)
    expected = [
        states.mean(0) for states in states_of(tiny, [ids[start:end] for start, end in own])
    ]
    found = done.rows
    assert [row["chunk"] for row in found] == [*range(len(own)), 0]
    assert np.abs(done.vectors()[:-1] - expected).max() < CLOSE
    assert all(line.startswith(in_jsonl(row)[:-2].encode()) for line in done.out.splitlines()[:-1])
    assert (found[0]["start"], found[-2]["end"]) == (0, len(LONGER))
    assert (found[-1]["start"], found[-1]["end"]) == (0, 7)
    for (start, end), each in zip(own, found, strict=False):
        inside = ids_of(tiny, LONGER[each["start"] : each["end"]])
        assert inside[-1] == ids[end - 1] or inside[0] == ids[start]
    assert done.told[-1] == (
        f"sentkit encode: 1 of 2 rows were split into {len(own)} windows, {len(own) + 1} rows were "
        f"written"
        " (--window 20:9)"
    )
