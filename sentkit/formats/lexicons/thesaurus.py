"""Read synonyms of words and paraphrases of sentences into memory."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sentkit.errors import DataError
from sentkit.formats.files import text_of_paths
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import filled_string, wrong_field
from sentkit.formats.rows.rows import Inputs

# line of a WordNet data file
SYNSET = re.compile(r"\d{8} \d{2} [nvasr] ([0-9a-f]{2}) (.*)", re.ASCII)
MARKER = re.compile(r"\((?:a|p|ip)\)$")  # the syntactic position of an adjective
CURLY = chr(0x2019)  # typographic apostrophe
EXPECTED = (
    'expected "word" and "synonyms", or "entry" and "synset", or a line of a WordNet data file'
)
HEADER = "  "  # start of the licence lines
# In a dictionary, nouns and verbs with these spellings are different words: "a" is adenine, "in" is
# indium, "who" is an organisation.
FUNCTION_WORDS = frozenset(
    """
    a an the i he it us who in on at by as or but no not so be is are was am have has had do
    does did can may might must will one
    """.split()  # noqa: SIM905
)


class Thesaurus:
    """Collects synonyms by lowercase word. Proper names are used only for words without a common
    entry.
    """

    def __init__(self) -> None:
        self.common: defaultdict[str, set[str]] = defaultdict(set)
        self.names: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, word: str, synonyms: Iterable[str], *, is_name: bool = False) -> None:
        other_words = {synonym for synonym in synonyms if synonym.lower() != word.lower()}
        if other_words and " " not in word:  # look-ups use single words
            key = word.lower().replace(CURLY, "'")
            table = self.names if is_name else self.common
            table[key] |= other_words

    def add_synset(self, entries: Sequence[str]) -> None:
        """Add a synset: entries with one sense in a dictionary."""
        content_words = [entry for entry in entries if entry.lower() not in FUNCTION_WORDS]
        for entry in content_words:
            self.add(entry, content_words, is_name=not entry.islower())

    def sorted(self) -> dict[str, tuple[str, ...]]:
        """Synonyms in sorted order, so that random choices do not depend on the order of
        the file.
        """
        all_synonyms = {**self.names, **self.common}
        return {word: tuple(sorted(synonyms)) for word, synonyms in all_synonyms.items()}


def read_synonyms(paths: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Read synonyms by lowercase word from lists, dictionaries with synsets, and WordNet data
    files.
    """
    thesaurus = Thesaurus()
    for path in paths:
        entries_of_synset: defaultdict[str, list[str]] = defaultdict(list)
        for row in Inputs([path]).read(without_duplicates):
            values = row.values
            if "word" in values and "synonyms" in values:  # of a list
                synonyms = synonyms_in(row)
                thesaurus.add(filled_string(row, "word").strip(), synonyms)
            elif "entry" in values and "synset" in values:  # of a dictionary
                synset = name_in(row, "synset")  # which is valid within the file
                entries_of_synset[synset].append(filled_string(row, "entry").strip())
            elif list(values) == ["text"] and isinstance(values["text"], str):  # of WordNet
                thesaurus.add_synset(wordnet_entries(row, values["text"]))
            else:
                raise row.error(EXPECTED)
        for entries in entries_of_synset.values():
            thesaurus.add_synset(entries)
    all_synonyms = thesaurus.sorted()
    if not all_synonyms:
        raise DataError("contains no synonyms", source=text_of_paths(paths))
    return all_synonyms


def without_duplicates(row: Row) -> Row:
    row.check_duplicate_names()
    return row


def synonyms_in(row: Row) -> list[str]:
    synonyms = row.values["synonyms"]
    if isinstance(synonyms, str):  # in TSV and CSV
        synonyms = synonyms.split(",")
    if not isinstance(synonyms, list) or not all(isinstance(synonym, str) for synonym in synonyms):
        raise row.error('"synonyms" is not a list of strings')
    return [synonym.strip() for synonym in synonyms if synonym.strip()]


def wordnet_entries(row: Row, line: str) -> list[str]:
    """The words of a line like `00001740 03 n 02 thing 0 object 0 ...`, with a word count in column
    4.
    """
    if line.startswith(HEADER) or not line.strip():
        return []
    match = SYNSET.match(line)
    if match is None:
        raise row.error(EXPECTED)
    word_count = int(match[1], 16)
    fields = match[2].split(" ")  # a word and a number by turns, then others
    words = [
        MARKER.sub("", word).replace("_", " ").strip() for word in fields[: 2 * word_count : 2]
    ]
    if len(fields) < 2 * word_count or not all(words):
        raise row.error(EXPECTED)
    return words


def name_in(row: Row, field: str) -> str:
    """A field with a string or an integer, as a string, because tables have only strings."""
    value = row.values.get(field)
    if isinstance(value, str) or type(value) is int:
        return str(value)
    raise wrong_field(row, field, "a string or a whole number")


def read_paraphrases(path: str, key: str, standard_key: str) -> Mapping[str, Sequence[str]]:
    """Read paraphrases by the field `key`; several rows can have the same key.

    A row without this field has `standard_key`, the name of the field before --field.
    """

    def parse(row: Row) -> tuple[str, str]:
        row.check_duplicate_names()
        key_of_row = key
        if key not in row.values and standard_key in row.values:
            key_of_row = standard_key
        return name_in(row, key_of_row), filled_string(row, "paraphrase")

    paraphrases: defaultdict[str, list[str]] = defaultdict(list)
    for name, paraphrase in Inputs([path]).read(parse):
        paraphrases[name].append(paraphrase)
    return paraphrases
