"""Makes checkpoint folders: files of their base, static models, the record of the command, and the README.md.

`model/checkpoint/export.py` writes the declaration and the weights of transformers.
"""

import hashlib
import json
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

from sentkit.errors import CannotCreateError
from sentkit.escaping import without_secrets
from sentkit.formats.checkpoints.folders import INCLUDED, Checkpoint, find_model, with_end_token
from sentkit.formats.checkpoints.modules import PROMPTS
from sentkit.formats.files import (
    as_unicode,
    digest_of,
    is_folder,
    is_input_file,
    open_file,
    read_object,
    readable,
    write_json,
)
from sentkit.formats.lexicons.model2vec import Table, write_table
from sentkit.formats.outputs.temporary import private_folder, publish_folder

BESIDE_WEIGHTS = ("*.json", "*.txt", "*.model", "LICENSE*")
REWRITTEN = {"modules.json", "sentkit.json", "sentence_bert_config.json", PROMPTS}
INDEXES = {"model.safetensors.index.json", "pytorch_model.bin.index.json"}


@contextmanager
def new_folder(folder: Path, *, force: bool) -> Iterator[Path]:
    """Yield a temporary folder; rename it to `folder` at the end. `force` replaces a folder of sentkit."""
    name, folder = folder, folder.resolve()
    if folder.exists() and not (force and (folder / "sentkit.json").is_file()):
        if (folder / "sentkit.json").is_file():
            raise CannotCreateError(f"{name}: already exists", advice="use -f to overwrite it")
        problem = f"{name}: already exists and is not a checkpoint of sentkit"
        raise CannotCreateError(problem, advice="choose another -o")
    if Path.cwd().is_relative_to(folder):
        raise CannotCreateError(f"{name}: is the current folder, which cannot be replaced")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with private_folder(folder, str(name)) as part:
        yield part
        publish_folder(part, folder, force=force, name=str(name))


def copy_files(source: Path, folder: Path, patterns: Iterable[str], but: Set[str]) -> None:
    """Copy the files that match the patterns to the same places in another folder."""
    for pattern in patterns:
        for file in source.glob(pattern):
            if file.is_file() and file.name not in but:
                copy = folder / file.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)


def carry(checkpoint: Checkpoint, folder: Path, patterns: Sequence[str], but: Set[str] = REWRITTEN) -> None:
    """Copy the files of the transformer that match the patterns."""
    copy_files(checkpoint.transformer, folder, patterns, but)
    if (folder / "tokenizer.json").is_file():
        rules = read_object(folder / "tokenizer.json")
        changed = with_end_token(rules, checkpoint.transformer)
        if changed is not rules:
            write_json(folder / "tokenizer.json", changed)


def write_static_folder(
    folder: Path, checkpoint: Checkpoint, table: Table, lineage: Mapping[str, Any]
) -> None:
    """Fill an empty folder with a static model: a new table in its type, and the other files of its base."""
    patterns = (f"**/{pattern}" for pattern in BESIDE_WEIGHTS)
    copy_files(checkpoint.folder, folder, patterns, but={"sentkit.json", *INDEXES})
    place = folder / checkpoint.transformer.relative_to(checkpoint.folder)
    write_table(place, checkpoint.transformer, table)
    if (place / "config.json").is_file():
        of_table = {"hidden_dim": table.rows.shape[1], "embedding_dtype": table.rows.dtype.name}
        own = {name: value for name, value in of_table.items() if name in checkpoint.config}
        write_json(place / "config.json", checkpoint.config | own)
    write_json(folder / "sentkit.json", lineage)


FILE, MODEL, METHOD = "FILE", "-m", "METHOD"  # METHOD: the file of a user's method
# Files of a checkpoint that determine its vectors. Its README and sentkit.json are not among them.
SUFFIXES = (".safetensors", ".bin", ".model")
FILES = ("config.json", "tokenizer.json", "vocab.txt", "adapter_config.json")
# Keys of sentkit.json about the command. `this_run` is there if the command makes several checkpoints.
OF_COMMAND = ("command", "this_run", "inputs", "made_with")


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
        if not is_input_file(self.path):
            return None
        with open_file(self.path) as file:
            return digest_of(file)


def command_record(words: Sequence[str], inputs: Sequence[Input], base: Checkpoint | None) -> dict[str, Any]:
    """What sentkit.json keeps of the command with these words: it, its inputs with digests, and its bases."""
    return {
        "command": quoted_command(words),
        "inputs": [asdict(Input(given.flag, readable(given.path), given.digest())) for given in inputs],
        "bases": [] if base is None else commands_of_bases(base),
    }


def quoted_command(words: Sequence[str]) -> str:
    """The command line as a shell reads it, without the secrets of URLs."""
    return shlex.join(["sentkit", *map(without_secrets, map(as_unicode, words))])


def commands_of_bases(base: Checkpoint) -> list[dict[str, Any]]:
    """The commands that made the base, and its bases as it lists them; the nearest is first."""
    records = base.lineage.get("bases")
    bases = [record for record in records if is_command_record(record)] if isinstance(records, list) else []
    if is_command_record(base.lineage):
        kept = {name: base.lineage[name] for name in OF_COMMAND if name in base.lineage}
        bases.insert(0, {"model": readable(base.name), **kept})
    return bases


def is_command_record(record: Any) -> bool:
    """False for a checkpoint of another program, or of a version that recorded the command as an object."""
    return isinstance(record, dict) and isinstance(record.get("command"), str)


def inputs_of(paths: Mapping[str, str | Sequence[str] | None]) -> list[Input]:
    """The inputs of a command, from its paths by flag."""
    return [
        Input(flag, path)
        for flag, given in paths.items()
        for path in ([given] if isinstance(given, str) else given or ())
    ]


def digest_of_folder(folder: Path, *, checkpoint: bool = False) -> str:
    """The SHA-256 of the names and digests of the files, in the format of `sha256sum`."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    if checkpoint:
        files = [path for path in files if path.name in FILES or path.suffix in SUFFIXES]
    whole = hashlib.sha256()
    for path in files:
        with open_file(str(path)) as file:
            line = f"{digest_of(file)}  {path.relative_to(folder).as_posix()}\n"
        whole.update(line.encode(errors="surrogateescape"))
    return whole.hexdigest()


NOT_SETTINGS = ("method", "seed", "base", "data", "dev", "test", "entries")  # keys in the record of a run
TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "sentkit")
CLASSIFY = """```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForSequenceClassification.from_pretrained("FOLDER")
logits = model(**tokenizer("a text", "its pair", return_tensors="pt")).logits
```"""
ENCODE = "```sh\nsentkit encode texts.txt -m FOLDER -o vectors.safetensors\n```"
STOCK = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER")
vectors = model.encode(["a text"])
```"""
NOT_STOCK = "The modules of sentence-transformers cannot express this readout: use sentkit."


def base_name(name: str) -> str:
    """A hub name unchanged, or the last part of a path: its folders are meaningless on other machines."""
    path = Path(name)
    return path.resolve().name if path.exists() or path.is_absolute() or len(path.parts) > 2 else name


def card(
    lineage: Mapping[str, Any],
    readout: str,
    *,
    width: int,
    max_length: int | None,
    stock: bool,
    prompt: str | None = None,
    unit: bool = False,
) -> str:
    """The model card as Markdown, equal for equal runs. A static model has no `prompt`."""
    parents, run = lineage.get("parents", []), lineage.get("run", {})
    base = base_name(parents[0]) if parents else None
    method, labels = lineage.get("method", "sentkit"), lineage.get("labels")
    classifier = labels is not None
    library = "sentence-transformers" if stock and not classifier else "transformers"
    task = "text-classification" if classifier else "sentence-similarity"
    header = ["---", f"library_name: {library}", f"pipeline_tag: {task}", "tags:"]
    header += [f"- {tag}" for tag in (TAGS if stock else TAGS[1:])]
    header += [] if base is None else [f"base_model: {json.dumps(base)}"]  # a JSON string is valid YAML
    parts = ["\n".join([*header, "---"]), f"# {method}, trained from {base or 'random weights'}"]
    if classifier:
        what = f"one of {len(labels)} labels" if labels else "a score"
        parts.append(f"A sequence classification model: a text or a pair gets {what}.")
    length = "" if max_length is None else f", of at most {max_length} tokens"
    exported = " and `sentkit export`" if lineage.get("exported") else ""
    vectors = f"A sentence encoder: a text becomes a vector of {width} numbers, read by `{readout}`{length}."
    parts.append(f"{vectors} Made by `sentkit train {method}`{exported}.")
    if prompt is not None:
        quoted = json.dumps(prompt, ensure_ascii=False)
        before = f"The prompt {quoted} is added before" if prompt else "No prompt is added to"
        parts.append(f"{before} a text. The vectors {'have' if unit else 'do not have'} unit length.")
    settings = (f"`{name}={said(value)}`" for name, value in run.items() if name not in NOT_SETTINGS)
    parts += ["## Training", table_of([["", ""], *facts(lineage, base)]), "Settings: " + ", ".join(settings)]
    inputs = [
        [base_name(each["path"]).replace("|", "\\|"), each["flag"], each["sha256"] or "unknown"]
        for each in lineage.get("inputs", ())
    ]
    parts += [table_of([["input", "as", "SHA-256"], *inputs])] if inputs else []
    environment = ", ".join(f"{name} {said(value)}" for name, value in lineage.get("made_with", {}).items())
    parts += [f"Made with {environment}."] if environment else []
    parts += ["## Command", *command_parts(lineage)] if is_command_record(lineage) else []
    parts += ["## Use", *([CLASSIFY] if classifier else []), ENCODE, STOCK if stock else NOT_STOCK]
    return "\n\n".join(parts) + "\n"


def command_parts(lineage: Mapping[str, Any]) -> Iterator[str]:
    """The command of the checkpoint and those of its bases, in the order in which they ran."""
    records = [lineage, *lineage.get("bases", ())]
    commands = "\n".join(record["command"] for record in reversed(records))
    yield indent(commands, "    ")  # a block that no text in a command can end
    if "this_run" in lineage:
        run = ", ".join(f"`{name}={said(value)}`" for name, value in lineage["this_run"].items())
        yield f"The last command makes several checkpoints. This is the one with {run}."


def table_of(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first row is its header."""
    lines = [f"| {' | '.join(row)} |" if any(row) else "|" + " |" * len(row) for row in rows]
    return "\n".join([lines[0], "| " + " | ".join(["---"] * len(rows[0])) + " |", *lines[1:]])


def facts(lineage: Mapping[str, Any], base: str | None) -> list[tuple[str, str]]:
    run = lineage.get("run", {})
    rows = {"method": lineage.get("method"), "base": base, "rows": lineage.get("rows")}
    rows |= {"seed": run.get("seed"), "steps": lineage.get("step")}
    before, after = lineage.get("dev_before"), lineage.get("dev")
    if after is not None:
        of_base = "" if before is None else f" (base: {before:.2f})"
        own = f"{after:.2f}{brackets(lineage.get('dev_ci95'))}"
        rows[f"dev, {lineage.get('metric', 'Spearman')} x 100"] = f"{own}{of_base}"
    for name, score in lineage.get("test", {}).items():
        if name != "rows" and score is not None:
            rows[f"test, {name} x 100"] = f"{score:.2f}{brackets(lineage.get('test_ci95', {}).get(name))}"
    return [(name, str(value)) for name, value in rows.items() if value is not None]


def brackets(limits: Sequence[float | None] | None) -> str:
    """A 95 % interval; older checkpoints have none."""
    low, high = limits or (None, None)
    return "" if low is None or high is None else f" [{low:.2f}, {high:.2f}; 95 %]"


def said(value: Any) -> str:
    """The value in the syntax of `--set`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
