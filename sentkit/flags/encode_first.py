"""Advice for rows without vectors, or of another space: the command line again, behind `sentkit encode`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import join
from typing import Any

from sentkit.errors import NoVectorError, OtherSpaceError, SentkitError

WRITES = ("-o", "--output", "--rejects", "--centroids")  # flags whose value is not an input
LABEL = re.compile(r"(?P<model>[^/>]+)/(?P<readout>[^/>]+)(?P<steps>(?:/[^/>]+)*):[0-9a-f]+")


@dataclass(frozen=True)
class Encoding:
    """The flags of `sentkit encode` that give the vectors of a space, and the transform behind it."""

    flags: Sequence[str] = ()
    transform: str | None = None

    def line(self, path: str | None, output: str | None = None) -> str:
        """The command line for a file, by default standard input, and for an output, by default a pipe."""
        words = ["sentkit", "encode", *([] if path is None else [path]), *self.flags]
        target = [] if output is None else ["-o", output]
        if self.transform is None:
            return join([*words, *target])
        return f"{join(words)} | {join(['sentkit', 'whiten', 'apply', '-t', self.transform, *target])}"

    def with_flags(self, *flags: str) -> "Encoding":
        return replace(self, flags=[*self.flags, *flags])


def advice_on_vectors(error: NoVectorError | OtherSpaceError, words: Sequence[str]) -> str | None:
    """The advice of an error, from the words of the command line behind `sentkit`."""
    fields = fields_of_texts(words)
    if isinstance(error, NoVectorError):
        known = (encoding_of(path) for path in files_in(words))
        encoding = next((each for each in known if each is not None), Encoding()).with_flags(*fields)
        named = [] if error.field is None else ["--field", f"text={error.field}"]
        return f"encode the texts first: {encoded_first(error.source, words, encoding, named)}"
    if error.advice is not None:
        return error.advice
    if error.wanted is None:
        return "rows without _emb have no known model; encode all rows with one model (-m)"
    wanted = encoding_of(error.wanted_path) or encoding_of_label(error.wanted)
    if wanted is None:
        return "encode all rows with one model (-m)"
    if error.source == "TEXT":
        return f"leave out -m, or name the model of {error.wanted_path}: {join(wanted.flags[:2])}"
    if not is_vector_file(error.source):
        fields.append("--replace")  # of the vectors that its rows have
    return f"use one model: {encoded_first(error.source, words, wanted.with_flags(*fields))}"


def encoded_first(
    source: str, words: Sequence[str], encoding: Encoding, of_source: Sequence[str] = ()
) -> str:
    """The command line with vectors of the file `source`, and of other files that have texts.

    `of_source` are further flags of `sentkit encode` for this file.
    """
    first = encoding.with_flags(*of_source)
    values = [value_of(word) for word in words]
    if source == "-":
        return f"... | {first.line(None)} | {join(['sentkit', *words])}"
    if source not in values:  # it matches a pattern, or is in a folder
        return first.line(source, vectors_of(source))
    paths = [source, *(path for path in files_in(words) if path != source and has_texts(path))]
    if len(paths) == 1 and values.count(source) == 1 and "-" not in values:
        return f"{first.line(source)} | {join(['sentkit', *renamed(words, {source: '-'})])}"
    lines = [first.line(source, vectors_of(source))]
    lines += [encoding.line(path, vectors_of(path)) for path in paths[1:]]
    new = {path: vectors_of(path) for path in paths}
    return " && ".join([*lines, join(["sentkit", *renamed(words, new)])])


def value_of(word: str) -> str:
    """The value in a word such as --queries=FILE; other words are unchanged."""
    return word.partition("=")[2] if re.match("--[a-z-]+=", word) else word


def renamed(words: Sequence[str], new: Mapping[str, str]) -> list[str]:
    """The words with other names for some files."""
    return [
        word.removesuffix(value_of(word)) + new[value_of(word)] if value_of(word) in new else word
        for word in words
    ]


def vectors_of(path: str) -> str:
    """The name of a vector file for the rows of a file: notes.safetensors for notes.txt.gz."""
    name = Path(path)
    while name.suffix in (".gz", ".zst"):
        name = name.with_suffix("")
    return f"{name.stem}.safetensors"


def fields_of_texts(words: Sequence[str]) -> list[str]:
    """The words of --field that name texts."""
    from sentkit.formats.rows.kinds import FIELDS

    flags = list[str]()
    for flag, value in zip(words, [*words[1:], ""], strict=True):
        pair = flag.removeprefix("--field=") if flag.startswith("--field=") else value
        if flag.partition("=")[0] == "--field" and pair.partition("=")[0] in FIELDS:
            flags += ["--field", pair]
    return flags


def files_in(words: Sequence[str]) -> list[str]:
    """The words that are existing files or folders and no outputs, without repetitions."""
    before = ["", *words]
    paths = [
        value_of(word)
        for flag, word in zip(before, words, strict=False)
        if flag not in WRITES and word.partition("=")[0] not in WRITES
    ]
    return [path for path in dict.fromkeys(paths) if path and Path(path).exists()]


def is_vector_file(path: str) -> bool:
    from sentkit.formats.vectors.store import open_vectors

    return open_vectors(path) is not None


def has_texts(path: str) -> bool:
    """Whether the first good row of a file has texts and no vectors."""
    from sentkit.formats.rows.rows import Inputs, Rejects
    from sentkit.formats.vectors.first_row import from_first_row

    if not Path(path).is_file() or is_vector_file(path):
        return False
    try:
        with from_first_row(Inputs([path], rejects=Rejects(skip=True))) as (_, has_vectors):
            return not has_vectors
    except SentkitError:
        return False


def encoding_of(path: str | None) -> Encoding | None:
    """How a vector file was encoded; None for other files, and if it names no model."""
    from sentkit.formats.vectors.store import open_vectors

    if path is None:
        return None
    try:
        store = open_vectors(path)
        if store is None:
            return None
        return encoding_of_record(store.spec)
    except SentkitError:
        return None


def encoding_of_label(emb: str) -> Encoding | None:
    """The same from the label of a space, which has only the last part of the name of the model."""
    match = LABEL.fullmatch(emb)
    if match is None:
        return None
    steps = [f"/{step}:" for step in match["steps"].split("/")[1:]]
    return encoding_of_record({"model": match["model"], "readout": match["readout"], "steps": steps})


def encoding_of_record(record: Mapping[str, Any]) -> Encoding | None:
    from sentkit.model.query_encoder import Recorded

    recorded = Recorded("", record)
    if recorded.model is None:
        return None
    options = recorded.options()
    flags = ["-m", recorded.model]
    if options.readout is not None:
        flags += ["--readout", options.readout]
    if options.dim is not None:
        flags += ["--dim", str(options.dim)]
    if options.normalize:
        flags += ["--normalize"]
    return Encoding(flags, options.transform)
