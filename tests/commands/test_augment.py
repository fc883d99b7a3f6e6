"""`augment`: variants of sentences, the same in any shard, and a record that makes them again."""

import random
from functools import reduce
from hashlib import blake2b

import pytest

from support import redone

TEXTS = [
    "The quick brown fox does not jump over the lazy dog today.",
    "A man is playing a large guitar, and a woman sings.",
    "Two   words",
    "One",
    "",
    "The quick brown fox does not jump over the lazy dog today.",
    *(" ".join(f"w{number}" for number in range(n)) for n in (5, 19, 20, 33, 60, 101)),
]
THESAURUS = (
    '{"word":"large","synonyms":["big","huge"]}\n{"word":"quick","synonyms":["fast","rapid one"]}\n'
)
OPERATIONS = (
    ["delete=0.3"],
    ["delete", "--mark", "[DEL]"],
    ["span-delete"],
    ["span-delete=3x0.2", "--mark", "[DEL]"],
    ["reorder"],
    ["repeat"],
    ["swap"],
    ["swap=0.2"],
    ["synonym=0.5", "--synonyms", "thesaurus.jsonl"],
    ["repeat", "--op", "delete=.5", "--op", "reorder=2x0.2"],
)
every = pytest.mark.parametrize("operation", OPERATIONS, ids=" ".join)


@pytest.fixture
def lines(jsonl):
    return jsonl(*({"id": n, "text": text} for n, text in enumerate(TEXTS)))


@pytest.fixture(autouse=True)
def thesaurus(tmp_path):
    (tmp_path / "thesaurus.jsonl").write_text(THESAURUS)


@every
def test_the_record_reproduces_the_variant(sentkit, lines, operation):
    """By plain loops. The same for the same seed; other variants for another seed."""
    flags = ("augment", "-q", "--op", *operation, "--views", 3)
    result = sentkit(*flags, stdin=lines)
    repeated = sentkit(*flags, "--seed", 0, stdin=lines)
    other = sentkit(*flags, "--seed", 4, stdin=lines)

    assert result.code == 0
    assert result.out == repeated.out
    assert [row["text_b"] for row in result.rows] != [row["text_b"] for row in other.rows]
    assert {row["augment"][0]["seed"] for row in other.rows} == {4}
    assert len(result.rows) == 3 * len(TEXTS)
    for number, row in enumerate(result.rows):
        (run,) = row["augment"]
        assert (run["seed"], run["view"], run["member"]) == (0, number % 3, "text_b")
        assert row["text_a"] == TEXTS[number // 3]
        assert row["text_b"] == reduce(redone, run["ops"], row["text_a"])


@every
def test_variants_do_not_depend_on_shard_and_order(sentkit, lines, operation):
    whole = sentkit("augment", "-q", "--op", *operation, stdin=lines)
    rows = lines.splitlines(keepends=True)
    random.Random(1).shuffle(rows)
    shards = [
        sentkit("augment", "-q", "--op", *operation, stdin=b"".join(rows[i::3])).out
        for i in range(3)
    ]

    assert sorted(b"".join(shards).splitlines()) == sorted(whole.out.splitlines())
    assert whole.rows[0]["text_b"] == whole.rows[5]["text_b"]


def test_draws_never_change_between_versions(sentkit):
    """Eighteen of sixty places by Fisher-Yates, from the digest of the key and then from its own
    digest.
    """
    text = " ".join(f"w{number}" for number in range(60))
    digest = blake2b(b"5/1/0:" + text.encode()).digest()
    numbers = digest + blake2b(digest).digest()
    remaining = list(range(60))
    drawn = []
    for i in range(18):
        index = int.from_bytes(numbers[4 * i : 4 * i + 4], "little") * len(remaining) >> 32
        drawn.append(remaining[index])
        remaining[index] = remaining[-1]
        remaining.pop()
    result = sentkit("augment", "--op", "delete=0.3", "--views", 2, "--seed", 5, stdin=text)

    assert result.rows[1]["augment"][0]["ops"][0]["at"] == sorted(drawn)


def test_two_variants_make_a_pair(sentkit, lines):
    """As in CLEAR, both sides are independent variants of the sentence."""
    first = sentkit("augment", "-q", "--op", "delete=0.3", "--views", 2, stdin=lines)
    flags = ("--replace", "--field", "text=text_a", "--op", "delete=0.3")
    both = sentkit("augment", "-q", *flags, stdin=first.out)
    rows = [row for row in both.rows if len(row["text_b"].split()) > 9]

    assert [row["text_b"] for row in both.rows] == [row["text_b"] for row in first.rows]
    for before, row in zip(first.rows, both.rows, strict=True):
        assert [run["member"] for run in row["augment"]] == ["text_b", "text_a"]
        assert row["text_a"] == redone(before["text_a"], row["augment"][1]["ops"][0])
    assert all(row["text_a"] != row["text_b"] for row in rows)  # the second run draws anew
    assert all(a["text_a"] != b["text_a"] for a, b in zip(rows[::2], rows[1::2], strict=True))


def test_paraphrases_are_found_by_their_key(sentkit, jsonl, tmp_path):
    (tmp_path / "p.tsv").write_text("id\tparaphrase\n7\tone\n7\ttwo\n7\tthree\n8\tlast\n")
    rows = jsonl({"text": "A", "id": 7}, {"text": "B", "id": "8"}, {"text": "C", "id": 9})
    flags = ("--op", "paraphrase", "--paraphrases", "p.tsv", "--key", "id", "--views", 30)
    result = sentkit("augment", *flags, stdin=rows)
    texts = [row["text_b"] for row in result.rows]
    notes = [row["augment"][0]["ops"][0] for row in result.rows]

    assert set(texts[:30]) == {"one", "two", "three"}
    assert (set(texts[30:60]), set(texts[60:])) == ({"last"}, {"C"})
    assert [["one", "two", "three"][note["number"]] for note in notes[:30]] == texts[:30]
    assert result.told == ["sentkit augment: warning: paraphrase did not change 30 of 90 texts"]


@pytest.mark.parametrize("name", ["title", "text"])
def test_field_names_the_key_in_both_files(sentkit, jsonl, tmp_path, name):
    """Paraphrases can have the standard name, too."""
    (tmp_path / "p.tsv").write_text(f"{name}\tparaphrase\nA\tone\n")
    flags = ("--op", "paraphrase", "--paraphrases", "p.tsv", "--field", "text=title")
    result = sentkit("augment", *flags, stdin=jsonl({"title": "A"}))

    assert (result.code, [row["text_b"] for row in result.rows]) == (0, ["one"])


def test_field_renames_the_fields_of_flags(sentkit, jsonl, tmp_path):
    (tmp_path / "p.tsv").write_text("ident\tparaphrase\n7\tone\n")
    rows = jsonl({"text": "A", "ident": 7, "class": "x", "not": "no A"})
    flags_of_operation = (
        ("paraphrase", "--paraphrases", "p.tsv", "--key", "id", "--field", "id=ident"),
        ("negate=no", "--field", "no=not"),
        ("same-label=label", "--field", "label=class"),
    )
    results = [sentkit("augment", "--op", *flags, stdin=rows) for flags in flags_of_operation]

    assert [result.code for result in results] == [0, 0, 0]
    assert [result.rows[0]["text_b"] for result in results] == ["one", "no A", "A"]


def test_texts_of_the_same_label(sentkit, jsonl):
    """Each row gets each other text of its label in some view, never its own, unless it is
    alone.
    """
    labels = ["a", "b", "a", "c", "a", "b", 1, 1.0]
    rows = [{"text": f"t{n}", "label": label} for n, label in enumerate(labels)]
    rows.append({"text": "t0", "label": "a"})  # a repeated text is one candidate
    result = sentkit("augment", "--op", "same-label=label", "--views", 40, stdin=jsonl(*rows))
    expected = {
        "t0": {"t2", "t4"},
        "t1": {"t5"},
        "t2": {"t0", "t4"},
        "t3": {"t3"},
        "t4": {"t0", "t2"},
    }
    expected |= {"t5": {"t1"}, "t6": {"t7"}, "t7": {"t6"}}
    partners = {}
    for row in result.rows:
        partners.setdefault(row["text_a"], set()).add(row["text_b"])

    assert len(result.rows) == 40 * 9
    assert partners == expected
    assert result.err == "sentkit augment: warning: same-label did not change 40 of 360 texts\n"


def test_a_blank_text_is_no_text_of_a_label(sentkit, jsonl):
    """Its row gets a text of its label, but no other row gets a blank one."""
    texts = ["t0", "", "t1", " "]
    rows = [{"text": text, "label": "a"} for text in texts]
    result = sentkit("augment", "--op", "same-label=label", "--views", 20, stdin=jsonl(*rows))
    partners = {}
    for row in result.rows:
        partners.setdefault(row["text_a"], set()).add(row["text_b"])

    assert partners == {"t0": {"t1"}, "t1": {"t0"}, "": {"t0", "t1"}, " ": {"t0", "t1"}}
