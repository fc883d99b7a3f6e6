"""The command that made a checkpoint, as sentkit.json records it: its words and the digests of its inputs."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import INCLUDED, find_model
from sentkit.formats.files import digest_of, is_folder, is_input_file, open_file, readable

FILE, MODEL, METHOD = "FILE", "-m", "METHOD"  # METHOD: the file of a user's method
# Files of a checkpoint that determine its vectors. Its README and sentkit.json are not among them.
SUFFIXES = (".safetensors", ".bin", ".model")
FILES = ("config.json", "tokenizer.json", "vocab.txt", "adapter_config.json")


@dataclass(frozen=True, slots=True)
class Input:
    """A path as on the command line. `flag` can also be FILE, or the name of a setting."""

    flag: str
    path: str
    sha256: str | None = None  # None: standard input, a pipe, or a model of the hub

    @property
    def is_model(self) -> bool:
        return self.flag == MODEL or not (self.flag in (FILE, METHOD) or self.flag.startswith("-"))

    def digest(self) -> str | None:
        """The SHA-256 of the file, of the files of the folder, or of the checkpoint; None if not local."""
        if self.is_model:
            local = self.path in INCLUDED or self.path.startswith("pkg:") or is_folder(Path(self.path))
            return digest_of_folder(find_model(self.path), checkpoint=True) if local else None
        if self.path == "-":
            return None
        if is_folder(Path(self.path)):
            return digest_of_folder(Path(self.path))
        return digest_of_file(self.path) if is_input_file(self.path) else None


@dataclass(frozen=True, slots=True)
class Command:
    """A command without its output."""

    words: Sequence[str] = ()  # such as `train simcse`
    inputs: Sequence[Input] = ()
    flags: Sequence[str] = ()  # the other flags that change the output

    def record(self) -> dict[str, Any]:
        """The record for sentkit.json, with the digests of the inputs."""
        inputs = [Input(each.flag, readable(each.path), each.digest()) for each in self.inputs]
        return {
            "words": list(self.words),
            "inputs": list(map(asdict, inputs)),
            "flags": list(map(readable, self.flags)),
        }


def inputs_of(paths: Mapping[str, str | Sequence[str] | None]) -> list[Input]:
    """The inputs of a command, from its paths by flag."""
    return [
        Input(flag, path)
        for flag, given in paths.items()
        for path in ([given] if isinstance(given, str) else given or ())
    ]


def recorded_command(own: Mapping[str, Any], source: str) -> Command | None:
    """The command in the content of a sentkit.json; None if there is none."""
    record = own.get("command")
    if record is None:
        return None
    try:
        inputs = [Input(**each) for each in record["inputs"]]
        words, flags = [*record["words"]], [*record["flags"]]
        texts = [*words, *flags, *(text for each in inputs for text in (each.flag, each.path))]
        texts += [each.sha256 for each in inputs if each.sha256 is not None]
        valid = words[:1] in (["train"], ["export"]) and all(isinstance(text, str) for text in texts)
    except (TypeError, KeyError):
        valid = False
    if not valid:
        raise DataError('"command" is not the record of a command', source=source)
    return Command(words, inputs, flags)


def digest_of_file(path: str | Path) -> str:
    with open_file(str(path)) as file:
        return digest_of(file)


def digest_of_folder(folder: Path, *, checkpoint: bool = False) -> str:
    """The SHA-256 of the names and digests of the files, in the format of `sha256sum`."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    if checkpoint:
        files = [path for path in files if path.name in FILES or path.suffix in SUFFIXES]
    lines = [f"{digest_of_file(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()
