"""Synonyms and paraphrases, read whole: what other words, or other sentences, mean the same."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from sentkit.errors import DataError
from sentkit.formats.files import together
from sentkit.formats.rows.kinds import filled, wrong_member
from sentkit.formats.rows.rows import Inputs, Row

SYNSET = re.compile(r"\d{8} \d{2} [nvasr] ([0-9a-f]{2}) (.*)", re.ASCII)  # of a WordNet data file
MARKER = re.compile(r"\((?:a|p|ip)\)$")  # where an adjective may stand
CURLY = chr(0x2019)  # the apostrophe of typesetters
HEADER = "  "  # how the lines of the licence begin
# A dictionary's nouns and verbs of these letters are not what a sentence means by them: "a" is adenine, "in"
# is indium, "who" is an organisation.
NOT_MEANT = """
    a an the i he it us who in on at by as or but no not so be is are was am have has had do does did can may
    might must will one
"""
FUNCTION_WORDS = frozenset(NOT_MEANT.split())


class Thesaurus:
    """Collects synonyms of words, in lower case. Names serve words that are no common entry's."""

    def __init__(self) -> None:
        self.common: defaultdict[str, set[str]] = defaultdict(set)
        self.names: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, word: str, synonyms: Iterable[str]) -> None:
        """What one who wrote the list says of a word."""
        self._add(self.common, word, synonyms)

    def add_synset(self, entries: Sequence[str]) -> None:
        """What a dictionary puts into one sense."""
        meant = [entry for entry in entries if entry.lower() not in FUNCTION_WORDS]
        for entry in meant:
            self._add(self.common if entry.islower() else self.names, entry, meant)

    def _add(self, found: defaultdict[str, set[str]], word: str, synonyms: Iterable[str]) -> None:
        others = {other for other in synonyms if other.lower() != word.lower()}
        if others and " " not in word:  # words are looked up one by one
            found[word.lower().replace(CURLY, "'")] |= others

    def sorted(self) -> dict[str, tuple[str, ...]]:
        """In an order that is the words' own, so that a draw does not hang on the order of a file."""
        return {word: tuple(sorted(found)) for word, found in {**self.names, **self.common}.items()}


def read_synonyms(paths: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Of words in lower case; from lists, dictionaries with synsets, and data files of WordNet."""
    thesaurus = Thesaurus()
    for path in paths:
        synsets: defaultdict[Any, list[str]] = defaultdict(list)  # their names are one file's own
        for _ in Inputs([path]).read(partial(add_row, thesaurus=thesaurus, synsets=synsets)):
            pass
        for entries in synsets.values():
            thesaurus.add_synset(entries)
    found = thesaurus.sorted()
    if not found:
        raise DataError("holds no synonyms", source=together(paths))
    return found


def add_row(row: Row, thesaurus: Thesaurus, synsets: Mapping[Any, list[str]]) -> None:
    row.check_names()
    values = row.values
    if "word" in values and "synonyms" in values:
        thesaurus.add(filled(row, "word").strip(), synonyms_in(row))
    elif "entry" in values and "synset" in values:
        synsets[name_in(row, "synset")].append(filled(row, "entry").strip())
    elif list(values) == ["text"] and isinstance(values["text"], str):
        thesaurus.add_synset(wordnet_entries(row, values["text"]))
    else:
        raise no_synonyms(row)


def no_synonyms(row: Row) -> DataError:
    return row.error(
        'neither "word" and "synonyms", nor "entry" and "synset", nor a line of a WordNet data file'
    )


def synonyms_in(row: Row) -> list[str]:
    """A list of strings, or in a table one string with commas between."""
    value = row.values["synonyms"]
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise row.error('"synonyms" is no list of strings')
    return [each.strip() for each in value if each.strip()]


def wordnet_entries(row: Row, line: str) -> list[str]:
    """`00001740 03 n 02 thing 0 object 0 ...`: the number of words, and each with a number of its own."""
    if line.startswith(HEADER) or not line.strip():
        return []
    found = SYNSET.match(line)
    if found is None:
        raise no_synonyms(row)
    count, fields = int(found[1], 16), found[2].split(" ")
    if len(fields) < 2 * count:
        raise row.error(f"{count} words are said to be in this synset, and the line ends before them")
    words = [MARKER.sub("", word).replace("_", " ").strip() for word in fields[: 2 * count : 2]]
    if not all(words):
        raise row.error("a word of this synset is empty")
    return words


def name_in(row: Row, member: str) -> str:
    """A string or a whole number, either as a string: in a table all are strings."""
    value = row.values.get(member)
    if isinstance(value, str) or type(value) is int:
        return str(value)
    raise wrong_member(row, member, "a string or a whole number")


def read_paraphrases(path: str, key: str) -> Mapping[str, Sequence[str]]:
    """By the member `key`; several rows may share one."""
    found: defaultdict[str, list[str]] = defaultdict(list)

    def add(row: Row) -> None:
        row.check_names()
        found[name_in(row, key)].append(filled(row, "paraphrase"))

    for _ in Inputs([path]).read(add):
        pass
    if not found:
        raise DataError("holds no paraphrases", source=path)
    return found
