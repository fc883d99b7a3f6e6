"""Synonyms from lists, dictionaries and WordNet's own files; paraphrases by key."""

import gzip

import pytest

from sentkit.errors import DataError
from sentkit.formats.lexicons.thesaurus import read_paraphrases, read_synonyms
from support import in_jsonl

EXPECTED, SYNSET = "expected a string or a whole number", "00000001 29 v"
WORDNET = """\
  1 This software and database is being provided to you, the LICENSEE
  2 and so on
02086723 05 n 03 dog 0 domestic_dog 0 Canis_familiaris 0 002 @ 02085998 n 0000 @ 01320032 n 0000 | a member
00005205 00 a 02 absolute(p) 1 total 0 001 & 00005473 a 0000 | perfect
00001740 03 n 01 entity 0 001 ~ 00001930 n 0000 | that which is
"""


@pytest.fixture
def write_rows(write):
    def written(name, *rows):
        lines = "".join(row if isinstance(row, str) else in_jsonl(row) for row in rows).encode()
        return write(name, gzip.compress(lines) if name.endswith(".gz") else lines)

    return written


def test_a_list_of_words(write_rows):
    rows = [
        {"word": "Big", "synonyms": ["large", "huge ", "BIG", ""]},
        {"word": "big", "synonyms": ["great"]},
        {"word": "a", "synonyms": ["one"]},
        {"word": "alone", "synonyms": []},
    ]
    table = write_rows("a.tsv", "word\tsynonyms\n", "big\tlarge, very large\n")

    assert read_synonyms([write_rows("a.jsonl", *rows)]) == {"big": ("great", "huge", "large"), "a": ("one",)}
    assert read_synonyms([table]) == {"big": ("large", "very large")}


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz"])
def test_entries_of_one_synset_are_synonyms(write_rows, name):
    """A word has the synonyms of all its synsets; phrases and function words are no keys; names have less
    priority."""
    synsets = {
        "1": ["attempt", "try", "have a go"],
        "2": ["try", "test"],
        "3": ["more", "further"],
        "4": ["More", "Thomas More"],
        "5": ["Paris", "City of Light"],
        "6": ["in", "indium"],
        "7": ["alone"],
        "8": ["adenine", "a", "A", "base"],
    }
    rows = [{"entry": entry, "synset": synset} for synset, words in synsets.items() for entry in words]
    rows[0]["synset"], rows[1]["definition"] = 1, "x"

    assert read_synonyms([write_rows(name, *rows)]) == {
        "attempt": ("have a go", "try"),
        "try": ("attempt", "have a go", "test"),
        "test": ("try",),
        "more": ("further",),
        "further": ("more",),
        "paris": ("City of Light",),
        "adenine": ("base",),
        "base": ("adenine",),
    }


@pytest.mark.parametrize("name", ["data.noun", "data.noun.gz", "words.txt"])
def test_a_data_file_of_wordnet(write_rows, name):
    """By its lines: the licence is skipped, underscores are blanks, (p) is dropped, the count is in hex."""
    assert read_synonyms([write_rows(name, WORDNET)]) == {
        "dog": ("Canis familiaris", "domestic dog"),
        "absolute": ("total",),
        "total": ("absolute",),
    }


def test_a_count_of_words_is_hexadecimal(write_rows):
    words = " ".join(f"w{n} {n:x}" for n in range(11))
    found = read_synonyms([write_rows("data.verb", f"00000001 29 v 0b {words} 000 01 + 02 00 | x\n")])

    assert len(found) == 11
    assert set(found["w0"]) == {f"w{n}" for n in range(1, 11)}


def test_several_files_are_joined_but_not_their_synsets(write_rows):
    one = write_rows("1.jsonl", {"entry": "a1", "synset": 1}, {"entry": "a2", "synset": 1})
    two = write_rows("2.jsonl", {"entry": "b1", "synset": 1}, {"entry": "b2", "synset": 1})

    assert read_synonyms([one, two]) == {"a1": ("a2",), "a2": ("a1",), "b1": ("b2",), "b2": ("b1",)}


def paraphrases(paths):
    return read_paraphrases(paths[0], "id")


@pytest.mark.parametrize(
    ("read", "rows", "problem"),
    [
        *(
            (read_synonyms, [line], ':1: expected "word" and "synonyms", or "entry" and "synset", or a line')
            for line in ("hello\n", f"{SYNSET} 03 a 0 b 0\n", f"{SYNSET} 02 (p) 0 thing 0 000 | x\n")
        ),
        (read_synonyms, [{"text": "00000001 29 v 02 a 0 b 0 000"}, {"x": 1}], ':2: expected "word" and'),
        (read_synonyms, [{"word": 7, "synonyms": []}], ':1: "word" is a number, expected a string'),
        (read_synonyms, [{"word": "a", "synonyms": [7]}], ':1: "synonyms" is not a list of strings'),
        (read_synonyms, [{"entry": "a", "synset": None}], f':1: "synset" is null, {EXPECTED}'),
        (read_synonyms, [{"entry": " ", "synset": 1}], ':1: "entry" is empty'),
        (read_synonyms, [{"word": "a", "synonyms": ["A"]}], ": contains no synonyms"),
        (paraphrases, [{"paraphrase": "a"}], ':1: "id" is missing'),
        (paraphrases, [{"id": 1.5, "paraphrase": "a"}], f':1: "id" is a number, {EXPECTED}'),
        (paraphrases, [{"id": 1}], ':1: "paraphrase" is missing'),
        (paraphrases, [{"id": 1, "paraphrase": ""}], ':1: "paraphrase" is empty'),
    ],
)
def test_a_file_of_other_rows_is_refused_with_its_place(write_rows, read, rows, problem):
    path = write_rows("s", *rows)
    with pytest.raises(DataError) as error:
        read([path])

    assert str(error.value).startswith(path + problem)


def test_paraphrases_by_key(write_rows):
    """Several of a key, in order; a number and its digits are one key, as tables have it."""
    rows = [{"id": key, "paraphrase": text} for key, text in ((7, "b"), ("7", "a"), ("x", "c"))]

    assert read_paraphrases(write_rows("p.jsonl", *rows), "id") == {"7": ["b", "a"], "x": ["c"]}
