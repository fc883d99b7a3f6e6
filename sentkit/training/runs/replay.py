"""The shell commands that made a checkpoint, from the records in sentkit.json, back to the first base."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sentkit.errors import DataError, SentkitError, UsageError, declared_in
from sentkit.formats.checkpoints.export import FILE, METHOD, Command, Input, recorded_command
from sentkit.formats.checkpoints.folders import find_model
from sentkit.formats.files import commit_in, read_object_if_there
from sentkit.training.catalogue import load
from sentkit.training.loop.processes import Processes, environment
from sentkit.training.settings import OF_DEV, Recipe, format_value, limits_of

TRAINED_WITH: dict[str, type] = {"threads": int, "device": str, "deterministic": bool, "ranks": int}
VERSIONS = ("sentkit", "torch", "cpu")


@dataclass(frozen=True, slots=True)
class Record:
    own: Mapping[str, Any]
    command: Command
    source: str

    @property
    def code(self) -> str | None:
        """The method of a user. A record can be hostile, so only the printed command may run its code."""
        words = self.command.words
        return words[-1] if words[0] == "train" and ":" in words[-1] else None

    def section(self, name: str, kinds: Mapping[str, type]) -> dict[str, Any]:
        """An object with fields of these types, or a DataError."""
        section = self.own.get(name)
        if not isinstance(section, dict) or not all(
            type(section.get(n)) is kind for n, kind in kinds.items()
        ):
            raise DataError(f'"{name}" is not a record of training', source=self.source)
        return section

    def words(self, output: str) -> list[str]:
        inputs = self.command.inputs
        words = [*self.command.words, *(operand(each.path) for each in inputs if each.flag == FILE)]
        for each in inputs:
            if each.flag.startswith("-"):
                words += option(each.flag, each.path)
        words += self.command.flags
        if self.command.words[:1] != ["train"]:
            return ["sentkit", *words, *option("-o", output)]
        made_with = self.section("made_with", TRAINED_WITH)
        run = self.section("run", {"seed": int, "method": str})
        kind = None if self.code else load(self.command.words[1]).kind.Settings
        words += [word for setting in self.settings(run, kind) for word in ("--set", setting)]
        words += ["--seed", str(run["seed"]), "--threads", str(made_with["threads"])]
        words += ["--device", made_with["device"]]
        words += ["--deterministic"] if made_with["deterministic"] else []
        words += option("-o", output)
        if made_with["ranks"] > 1:
            return ["torchrun", "--nproc-per-node", str(made_with["ranks"]), "-m", "sentkit", "--", *words]
        return ["sentkit", *words]

    def settings(self, run: Mapping[str, Any], kind: type | None) -> Iterator[str]:
        """The recorded settings that differ from the defaults here, or all without defaults."""
        has_dev = any(each.flag == "--dev" for each in self.command.inputs)
        defaults = {} if kind is None else {each.name: each.default for each in fields(kind)}
        names = list(run)  # the settings are last
        first = fields(Recipe)[0].name
        settings = {*names[names.index(first) :]} if kind is None and first in run else {*defaults}
        for name, value in run.items():
            if name in OF_DEV and not has_dev:
                continue  # a preset can change it, but it has no effect
            if name == "chunk_tokens" and name in self.own.get("made_with", ()):  # the choice of auto
                value = self.section("made_with", {name: str})[name]
                with declared_in(self.source):
                    limits_of(value)
            if name in settings and (kind is None or value != defaults[name]):
                yield f"{name}={repr(value) if isinstance(value, float) else format_value(value)}"

    def notes(self) -> Iterator[str]:
        """The versions, and those that are different here."""
        made_with = self.own.get("made_with")
        if not isinstance(made_with, dict):
            return
        yield "made with " + ", ".join(f"{name} {value}" for name, value in made_with.items())
        here = environment(Processes(), "fp32")
        changed = [name for name in VERSIONS if made_with.get(name, here[name]) != here[name]]
        if changed:
            versions = ", ".join(f"{name} {here[name]}" for name in changed)
            yield f"here: {versions}; the result can have other bytes"


def replay(name: str) -> tuple[list[str], list[str]]:
    """Return the commands that made a checkpoint and all that it needs, and why an input is not as it was."""
    folder, problems = find_model(name), list[str]()
    record = read_record(folder)
    if record is None:
        old = "run" in read_object_if_there(folder / "sentkit.json")
        advice = "an older version of sentkit made it" if old else "train and export record their command"
        raise UsageError(f"--replay needs a record of the command, but {name} has none", advice=advice)
    return [*script(name, folder, record, problems, set())], problems


def script(name: str, folder: Path, record: Record, problems: list[str], added: set[Path]) -> Iterator[str]:
    """Yield the command of a checkpoint, with comments, after those of its inputs."""
    if folder.resolve() in added:
        return
    added.add(folder.resolve())
    for each in (each for each in record.command.inputs if each.is_model):
        if each.sha256 is None:
            yield comment(f"{each.path}: not a local folder, so it is not checked")
            continue
        try:
            theirs = find_model(each.path, download=False)
        except SentkitError:
            continue  # `problem_of` reports it
        if (of_model := read_record(theirs)) is None:
            yield comment(f"{each.path}: has no record of its command; the commands start with it")
        else:
            yield from script(each.path, theirs, of_model, problems, added)
    found = [*filter(None, map(problem_of, record.command.inputs))]
    problems += found
    yield from map(comment, (*found, *record.notes()))
    if record.code:
        yield comment(f"{record.code}: only the command imports it; so --set gives all recorded settings")
    yield shlex.join(record.words(name))


def comment(text: str) -> str:
    return "# " + text.replace("\n", " ").replace("\r", " ")


def read_record(folder: Path) -> Record | None:
    """Read the record. The copy in the checkpoint replaces a user's method that is missing or has changed."""
    source = folder / "sentkit.json"
    own = read_object_if_there(source)
    command = recorded_command(own, str(source))
    if command is None:
        return None
    for each in command.inputs if len(command.words) > 1 else ():
        copy = replace(each, path=str(folder / Path(each.path).name))
        if each.flag == METHOD and problem_of(each) and not problem_of(copy):
            words = [command.words[0], f"{copy.path}:{command.words[1].rpartition(':')[2]}"]
            inputs = [copy if other is each else other for other in command.inputs]
            command = replace(command, words=words, inputs=inputs)
            break
    return Record(own, command, str(source))


def problem_of(recorded: Input) -> str | None:
    """Why an input is not available as it was. A URL is not read: its record can be hostile."""
    if "://" in recorded.path:
        return None if commit_in(recorded.path) else f"{recorded.path}: is at a URL, so it is not compared"
    if recorded.sha256 is None:
        if recorded.is_model:
            return None
        name = "standard input" if recorded.path == "-" else recorded.path
        return f"{name}: its content is not recorded"
    try:
        digest = recorded.digest()
    except SentkitError as error:
        return str(error)
    if digest is None:
        return f"{recorded.path}: is not there any more"
    return None if digest == recorded.sha256 else f"{recorded.path}: has changed since then"


def option(flag: str, value: str) -> list[str]:
    if not value.startswith("-"):
        return [flag, value]
    return [f"{flag}={value}"] if flag.startswith("--") else [flag, operand(value)]


def operand(path: str) -> str:
    """The path in a form that is not an option."""
    return f"./{path}" if path.startswith("-") and path != "-" else path
