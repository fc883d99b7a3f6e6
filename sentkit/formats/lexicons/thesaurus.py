"""Read synonyms of words and paraphrases of sentences into memory."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from sentkit.errors import DataError
from sentkit.formats.files import together
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import filled, wrong_field
from sentkit.formats.rows.rows import Inputs

SYNSET = re.compile(r"\d{8} \d{2} [nvasr] ([0-9a-f]{2}) (.*)", re.ASCII)  # line of a WordNet data file
MARKER = re.compile(r"\((?:a|p|ip)\)$")  # the syntactic position of an adjective
CURLY = chr(0x2019)  # typographic apostrophe
EXPECTED = 'expected "word" and "synonyms", or "entry" and "synset", or a line of a WordNet data file'
HEADER = "  "  # start of the licence lines
# In a dictionary, nouns and verbs with these spellings are different words: "a" is adenine, "in" is indium,
# "who" is an organisation.
FUNCTION_WORDS = frozenset(
    """
    a an the i he it us who in on at by as or but no not so be is are was am have has had do does did can may
    might must will one
    """.split()  # noqa: SIM905
)


class Thesaurus:
    """Collects synonyms by lowercase word. Proper names are used only for words without a common entry."""

    def __init__(self) -> None:
        self.common: defaultdict[str, set[str]] = defaultdict(set)
        self.names: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, word: str, synonyms: Iterable[str], *, is_name: bool = False) -> None:
        others = {other for other in synonyms if other.lower() != word.lower()}
        if others and " " not in word:  # look-ups use single words
            (self.names if is_name else self.common)[word.lower().replace(CURLY, "'")] |= others

    def add_synset(self, entries: Sequence[str]) -> None:
        """Add a synset: entries with one sense in a dictionary."""
        meant = [entry for entry in entries if entry.lower() not in FUNCTION_WORDS]
        for entry in meant:
            self.add(entry, meant, is_name=not entry.islower())

    def sorted(self) -> dict[str, tuple[str, ...]]:
        """Synonyms in sorted order, so that random choices do not depend on the order of the file."""
        return {word: tuple(sorted(synonyms)) for word, synonyms in {**self.names, **self.common}.items()}


def read_synonyms(paths: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Read synonyms by lowercase word from lists, dictionaries with synsets, and WordNet data files."""
    thesaurus = Thesaurus()
    for path in paths:
        synsets: defaultdict[Any, list[str]] = defaultdict(list)  # names are valid within one file
        for _ in Inputs([path]).read(partial(add_row, thesaurus=thesaurus, synsets=synsets)):
            pass
        for entries in synsets.values():
            thesaurus.add_synset(entries)
    synonyms = thesaurus.sorted()
    if not synonyms:
        raise DataError("contains no synonyms", source=together(paths))
    return synonyms


def add_row(row: Row, thesaurus: Thesaurus, synsets: Mapping[Any, list[str]]) -> None:
    row.refuse_duplicates()
    values = row.values
    if "word" in values and "synonyms" in values:
        value = values["synonyms"]
        value = value.split(",") if isinstance(value, str) else value  # in TSV and CSV
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise row.error('"synonyms" is not a list of strings')
        thesaurus.add(filled(row, "word").strip(), [each.strip() for each in value if each.strip()])
    elif "entry" in values and "synset" in values:
        synsets[name_in(row, "synset")].append(filled(row, "entry").strip())
    elif list(values) == ["text"] and isinstance(values["text"], str):
        thesaurus.add_synset(wordnet_entries(row, values["text"]))
    else:
        raise row.error(EXPECTED)


def wordnet_entries(row: Row, line: str) -> list[str]:
    """The words of a line like `00001740 03 n 02 thing 0 object 0 ...`, with a word count in column 4."""
    if line.startswith(HEADER) or not line.strip():
        return []
    match = SYNSET.match(line)
    count, fields = (int(match[1], 16), match[2].split(" ")) if match else (0, [])
    words = [MARKER.sub("", word).replace("_", " ").strip() for word in fields[: 2 * count : 2]]
    if match is None or len(fields) < 2 * count or not all(words):
        raise row.error(EXPECTED)
    return words


def name_in(row: Row, field: str) -> str:
    """A field with a string or an integer, as a string, because tables have only strings."""
    value = row.values.get(field)
    if isinstance(value, str) or type(value) is int:
        return str(value)
    raise wrong_field(row, field, "a string or a whole number")


def read_paraphrases(path: str, key: str) -> Mapping[str, Sequence[str]]:
    """Read paraphrases by the field `key`; several rows can have the same key."""
    paraphrases: defaultdict[str, list[str]] = defaultdict(list)

    def add(row: Row) -> None:
        row.refuse_duplicates()
        paraphrases[name_in(row, key)].append(filled(row, "paraphrase"))

    for _ in Inputs([path]).read(add):
        pass
    return paraphrases
