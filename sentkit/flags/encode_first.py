"""Advice for rows without vectors, or of another space: the command line again, behind `sentkit
encode`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import join
from typing import Any

from sentkit.errors import NoVectorError, OtherSpaceError, SentkitError

WRITES = ("-o", "--output", "--rejects", "--centroids")  # flags whose value is not an input
FLAG_WITH_VALUE = re.compile("--[a-z-]+=")


@dataclass(frozen=True)
class EncodeCommand:
    """The flags of `sentkit encode` that give the vectors of a space, and the transform
    behind it.
    """

    flags: Sequence[str] = ()
    transform: str | None = None

    def line(self, path: str | None, output: str | None = None) -> str:
        """The command line for a file, by default standard input, and for an output, by default a
        pipe.
        """
        encode = ["sentkit", "encode"]
        if path is not None:
            encode.append(path)
        encode += self.flags
        target = list[str]()
        if output is not None:
            target = ["-o", output]
        if self.transform is None:
            return join([*encode, *target])
        apply = ["sentkit", "whiten", "apply", "-t", self.transform, *target]
        return f"{join(encode)} | {join(apply)}"

    def with_flags(self, *flags: str) -> "EncodeCommand":
        return replace(self, flags=[*self.flags, *flags])


def advice_on_vectors(error: NoVectorError | OtherSpaceError, words: Sequence[str]) -> str | None:
    """The advice of an error, from the words of the command line behind `sentkit`."""
    if isinstance(error, NoVectorError):
        return advice_on_texts(error, words)
    if error.advice is not None:
        return error.advice
    if error.wanted is None:
        return "rows without _emb have no known model; encode all rows with one model (-m)"
    command = command_of(error.wanted_path) or command_of_label(error.wanted)
    if error.source == "TEXT":
        return advice_on_query(error.wanted_path or "-", command, words)
    if command is None:
        return "encode all rows with one model (-m)"
    command = command.with_flags(*fields_of_texts(words))
    if not is_vector_file(error.source):
        command = command.with_flags("--replace")  # of the vectors that its rows have
    return f"use one model: {encoded_first(error.source, words, command)}"


def advice_on_query(corpus: str, command: EncodeCommand | None, words: Sequence[str]) -> str:
    """The advice for a query TEXT that is not of the space of the corpus."""
    from sentkit.formats.checkpoints.folders import NANO, STATIC, is_endpoint

    search = join(["sentkit", "search", "--corpus", corpus])
    if command is None:
        return f"use the model and the transform of {corpus}: ... | sentkit encode ... | {search}"
    model = command.flags[1]
    has_model = command_of(corpus) is not None or model in (NANO, STATIC)
    if has_model and not {"-m", "--model"}.isdisjoint(words):
        advice = f"name the model of {corpus}: {join(['-m', model])}"
        if is_endpoint(model):  # texts are sent to it only with -m
            return advice
        return f"leave out -m, or {advice}"
    return f"name the model of {corpus} with -m, or use: ... | {command.line(None)} | {search}"


def advice_on_texts(error: NoVectorError, words: Sequence[str]) -> str:
    """The command line with the texts encoded first, as the first vector file on the line was.
    `score` reads the hits of `search` with another flag.
    """
    if error.has_hits and words[0] == "score":
        flags = {word.partition("=")[0] for word in words}
        advice = "add --qrels FILE to score them"
        if not flags.isdisjoint(["--gold", "--label"]):
            advice = "use --qrels FILE instead of --gold or --label"
        return f"the row has hits of sentkit search: {advice}"
    command = EncodeCommand()
    for path in files_in(words):
        command_of_file = command_of(path)
        if command_of_file is not None:
            command = command_of_file
            break
    command = command.with_flags(*fields_of_texts(words))
    field_of_source = list[str]()
    if error.field is not None:
        field_of_source = ["--field", f"text={error.field}"]
    return f"encode the texts first: {encoded_first(error.source, words, command, field_of_source)}"


def encoded_first(
    source: str, words: Sequence[str], command: EncodeCommand, of_source: Sequence[str] = ()
) -> str:
    """The command line with vectors of the file `source`, and of other files that have texts.

    `of_source` are further flags of `sentkit encode` for this file.
    """
    command_of_source = command.with_flags(*of_source)
    values = [value_of(word) for word in words]
    if source == "-":
        return f"... | {command_of_source.line(None)} | {join(['sentkit', *words])}"
    if source not in values:  # it matches a pattern, or is in a folder
        return command_of_source.line(source, vectors_of(source))
    texts = [path for path in files_in(words) if path != source and has_texts(path)]
    if not texts and values.count(source) == 1 and "-" not in values:
        words_of_pipe = ["sentkit", *renamed(words, {source: "-"})]
        return f"{command_of_source.line(source)} | {join(words_of_pipe)}"

    new_names = names_of_vectors([source, *texts])
    lines = [command_of_source.line(source, new_names[source])]
    lines += [command.line(path, new_names[path]) for path in texts]
    lines.append(join(["sentkit", *renamed(words, new_names)]))
    return " && ".join(lines)


def value_of(word: str) -> str:
    """The value in a word such as --queries=FILE; other words are unchanged."""
    if FLAG_WITH_VALUE.match(word) is None:
        return word
    _, _, value = word.partition("=")
    return value


def renamed(words: Sequence[str], new_names: Mapping[str, str]) -> list[str]:
    """The words with other names for some files."""
    new_words = list[str]()
    for word in words:
        value = value_of(word)
        flag = word.removesuffix(value)
        new_words.append(flag + new_names.get(value, value))
    return new_words


def names_of_vectors(paths: Sequence[str]) -> dict[str, str]:
    """The names of new vector files for several files, all different."""
    names = dict[str, str]()
    for path in paths:
        name = vectors_of(path)
        stem = name.removesuffix(".safetensors")
        number = 2
        while name in names.values():
            name = f"{stem}-{number}.safetensors"
            number += 1
        names[path] = name
    return names


def vectors_of(path: str) -> str:
    """The name of a new vector file for the rows of a file: notes.safetensors for notes.txt.gz,
    notes.new.safetensors for notes.safetensors.
    """
    name = Path(path)
    if name.suffix == ".safetensors":
        return f"{name.stem}.new.safetensors"
    while name.suffix in (".gz", ".zst"):
        name = name.with_suffix("")
    return f"{name.stem}.safetensors"


def fields_of_texts(words: Sequence[str]) -> list[str]:
    """The words of --field that name texts."""
    from sentkit.formats.rows.kinds import FIELDS

    flags = list[str]()
    for word, next_word in zip(words, [*words[1:], ""], strict=True):
        flag, equals, pair = word.partition("=")
        if not equals:
            pair = next_word
        name, _, _ = pair.partition("=")
        if flag == "--field" and name in FIELDS:
            flags += ["--field", pair]
    return flags


def files_in(words: Sequence[str]) -> list[str]:
    """The words that are existing files or folders and no outputs, without repetitions."""
    paths = list[str]()
    for previous_word, word in zip(["", *words], words, strict=False):
        flag, _, _ = word.partition("=")
        path = value_of(word)
        is_output = previous_word in WRITES or flag in WRITES
        if path and path not in paths and not is_output and Path(path).exists():
            paths.append(path)
    return paths


def is_vector_file(path: str) -> bool:
    from sentkit.formats.vectors.store import open_vectors

    return open_vectors(path) is not None


def has_texts(path: str) -> bool:
    """Whether the first good row of a file has texts and no vectors."""
    from sentkit.formats.rows.rows import Inputs, Rejects
    from sentkit.formats.vectors.first_row import from_first_row

    if not Path(path).is_file():
        return False
    try:
        if is_vector_file(path):
            return False
        with from_first_row(Inputs([path], rejects=Rejects(skip=True))) as (_, has_vectors):
            return not has_vectors
    except SentkitError:
        return False


def command_of(path: str | None) -> EncodeCommand | None:
    """How a vector file was encoded; None for other files, and if it names no model."""
    from sentkit.formats.vectors.store import open_vectors

    if path is None:
        return None
    try:
        store = open_vectors(path)
        if store is None:
            return None
        return command_of_record(store.metadata)
    except SentkitError:
        return None


def command_of_label(emb: str) -> EncodeCommand | None:
    """The same from the label of a space."""
    from sentkit.formats.vectors.fingerprint import record_of_label

    return command_of_record(record_of_label(emb))


def command_of_record(record: Mapping[str, Any]) -> EncodeCommand | None:
    """The command that gives the recorded vectors; None if no flags give them: a template, or a
    prompt for each side.
    """
    from sentkit.model.query_encoder import recorded, recorded_options, recorded_prompts

    model = recorded(record, "model", str)
    options = recorded_options(record)
    if model is None or options.template is not None or recorded_prompts(record):
        return None
    flags = ["-m", model]
    if options.readout is not None:
        flags += ["--readout", options.readout]
    if options.prompt or has_default_prompt(model):
        flags += ["--prompt", options.prompt or ""]
    if options.max_length is not None:
        flags += ["--max-length", str(options.max_length)]
    if options.dim is not None:
        flags += ["--dim", str(options.dim)]
    if options.normalize:
        flags += ["--normalize"]
    window = recorded(record, "window", int)
    stride = recorded(record, "stride", int)
    if window is not None and stride is not None and record.get("chunks") is not True:
        flags += ["--on-truncate", "window", "--window", f"{window}:{stride}"]
    return EncodeCommand(flags, options.transform)


def has_default_prompt(model: str) -> bool:
    """Whether a model on this machine declares a prompt for all texts."""
    from sentkit.formats.checkpoints.folders import checkpoint_in, find_model

    try:
        folder = find_model(model, download=False)
        return checkpoint_in(folder, model).declaration.prompt != ""
    except SentkitError:
        return False
