"""The record in sentkit.json of the command that made a checkpoint: its words, its inputs and its
bases.
"""

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from sentkit.escaping import without_secrets
from sentkit.formats.checkpoints.folders import INCLUDED, READING_FIELDS, Checkpoint, find_model
from sentkit.formats.checkpoints.modules import PROMPTS, SETTINGS_OF_TRANSFORMERS
from sentkit.formats.files import (
    as_unicode,
    digest_of,
    is_folder,
    is_input_file,
    open_file,
    read_object_if_there,
    shown_path,
)

# Values of `Input.flag`. METHOD is the file of a user's method.
FILE = "FILE"
MODEL = "-m"
METHOD = "METHOD"
DECLARATION = "sentkit.json"
# Files of a checkpoint that determine its vectors: weights, configurations, modules and tokenizer.
# Of sentkit.json, only the fields of the declaration count.
SUFFIXES = (".safetensors", ".bin", ".model", ".spm")
FILES = {
    "config.json",
    "adapter_config.json",
    "modules.json",
    PROMPTS,
    *SETTINGS_OF_TRANSFORMERS,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
}
# Keys of sentkit.json about the command. `this_run` is there if the command makes several
# checkpoints.
OF_COMMAND = ("command", "this_run", "inputs", "made_with")


@dataclass(frozen=True, slots=True)
class Input:
    """A path as on the command line. `flag` can also be FILE, or the name of a setting."""

    flag: str
    path: str
    sha256: str | None = None  # None: standard input, a pipe, or a model of the hub

    @property
    def is_model(self) -> bool:
        """Whether it is a checkpoint: that of -m, or the value of a setting."""
        if self.flag == MODEL:
            return True
        return self.flag not in (FILE, METHOD) and not self.flag.startswith("-")

    def digest(self) -> str | None:
        """The SHA-256 of the file, of the files of the folder, or of the checkpoint; None if not
        local.
        """
        path = Path(self.path)
        if self.is_model:
            if self.path in INCLUDED or self.path.startswith("pkg:") or is_folder(path):
                return digest_of_folder(find_model(self.path), checkpoint=True)
            return None
        if self.path == "-":
            return None
        if is_folder(path):
            return digest_of_folder(path)
        if not is_input_file(self.path):
            return None
        with open_file(self.path) as file:
            return digest_of(file)


def command_record(
    words: Sequence[str], inputs: Sequence[Input], base: Checkpoint | None
) -> dict[str, Any]:
    """What sentkit.json keeps of the command with these words: it, its inputs with digests, and its
    bases.
    """
    records = []
    for entry in inputs:
        records.append(asdict(Input(entry.flag, shown_path(entry.path), entry.digest())))
    bases = []
    if base is not None:
        bases = commands_of_bases(base)
    return {"command": quoted_command(words), "inputs": records, "bases": bases}


def recorded_digests(checkpoint: Path, flag: str) -> list[str | None]:
    """The digests of the inputs of this flag that a checkpoint records; [] without a record."""
    records = read_object_if_there(checkpoint / DECLARATION).get("inputs")
    if not isinstance(records, list):
        return []
    of_flag = [entry for entry in records if isinstance(entry, dict) and entry.get("flag") == flag]
    return [entry.get("sha256") for entry in of_flag]


def quoted_command(words: Sequence[str]) -> str:
    """The command line as a shell reads it, without the secrets of URLs."""
    shown_words = [without_secrets(as_unicode(word)) for word in words]
    return shlex.join(["sentkit", *shown_words])


def commands_of_bases(base: Checkpoint) -> list[dict[str, Any]]:
    """The commands that made the base, and its bases as it lists them; the nearest is first."""
    commands = []
    if is_command_record(base.sentkit_json):
        record = {name: base.sentkit_json[name] for name in OF_COMMAND if name in base.sentkit_json}
        commands.append({"model": shown_path(base.name), **record})
    earlier_records = base.sentkit_json.get("bases")
    if isinstance(earlier_records, list):
        commands += [record for record in earlier_records if is_command_record(record)]
    return commands


def is_command_record(record: Any) -> bool:
    """False for a checkpoint of another program, or of a version that recorded the command as an
    object.
    """
    return isinstance(record, dict) and isinstance(record.get("command"), str)


def inputs_of(paths: Mapping[str, str | Sequence[str] | None]) -> list[Input]:
    """The inputs of a command, from its paths by flag."""
    inputs = []
    for flag, value in paths.items():
        if isinstance(value, str):
            inputs.append(Input(flag, value))
        elif value is not None:
            inputs += [Input(flag, path) for path in value]
    return inputs


def digest_of_folder(folder: Path, *, checkpoint: bool = False) -> str:
    """The SHA-256 of the names and digests of the files, in the format of `sha256sum`.

    Of a `checkpoint`, only the files that determine its vectors count, and the declaration in
    sentkit.json as JSON with sorted keys.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    if checkpoint:
        files = [path for path in files if path.name in FILES or path.suffix in SUFFIXES]
    folder_hash = hashlib.sha256()
    for path in files:
        with open_file(str(path)) as file:
            line = f"{digest_of(file)}  {path.relative_to(folder).as_posix()}\n"
        folder_hash.update(line.encode(errors="surrogateescape"))
    if checkpoint:
        declaration = declared_fields(folder / DECLARATION)
        content = orjson.dumps(declaration, option=orjson.OPT_SORT_KEYS)
        folder_hash.update(f"{hashlib.sha256(content).hexdigest()}  {DECLARATION}\n".encode())
    return folder_hash.hexdigest()


def declared_fields(path: Path) -> dict[str, Any]:
    """The fields of sentkit.json that change vectors, without those about its lineage."""
    return {
        name: value
        for name, value in read_object_if_there(path).items()
        if name in READING_FIELDS or name == "pooler"
    }
