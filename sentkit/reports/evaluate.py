"""The rows of a table, each with its checkpoints; a checkpoint and a test set -> a result, which is kept."""

import glob
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson

from sentkit.errors import DataError, NoInputError, SentkitError, UsageError
from sentkit.formats.files import MARKS, exists, is_folder, open_input, read_object
from sentkit.formats.outputs.outputs import open_output, published_together
from sentkit.formats.rows.block import Row as FileRow
from sentkit.formats.rows.kinds import TextParser
from sentkit.formats.vectors.fingerprint import digest, label_of
from sentkit.formats.vectors.store import open_inputs
from sentkit.formats.vectors.writers import VectorOutput
from sentkit.model import Model, find_encoder
from sentkit.model.encoding import Report, TokenEncoder, tokenized_groups
from sentkit.model.reading import ReadingOptions
from sentkit.model.writing import Encoding
from sentkit.reports.suites import SUITES, Result, Settings, TestSet

SEED = re.compile(r"seed-(\d+)")
ROW = re.compile(r"(?:([^/=]+)=)?(.+?)(?:#([^#@]+)(?:@(.+))?)?")
BLOCK = 1 << 20  # bytes
FORMAT = 2  # of a kept result; others are not read
FindModel = Callable[[str | None], Model]  # by the name of a prompt, or None
Models = list[tuple[str, FindModel]]  # of the checkpoints of all rows, with the label of the row
Results = dict[tuple[str, str, str], list[Result]]  # by label, suite, and name of the test set


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the checkpoints are the seeds of one method."""

    name: str
    readout: str | None  # None: as each checkpoint declares
    models: tuple[str, ...]
    transforms: tuple[str | None, ...]  # of the vectors of each model

    @property
    def label(self) -> str:
        return self.name if self.readout is None else f"{self.name}#{self.readout}"


def rows_of(arguments: Sequence[str]) -> list[Row]:
    """Parse [NAME=]CHECKPOINT[#READOUT[@TRANSFORM]]. Those with the same name and readout are one row."""
    rows: dict[tuple[str, str | None], Row] = {}
    for argument in arguments:
        found = None if exists(Path(argument)) else ROW.fullmatch(argument)  # a path can have = and #
        name, model, readout, transform = found.groups() if found else (None, argument, None, None)
        models = checkpoints_of(model)
        folder = Path(models[0])
        are_seeds = all(seed_of(each) is not None for each in models)
        usual = folder.absolute().parent.name if are_seeds else Path(model).name or model
        key, transforms = (name or usual, readout), (transform,) * len(models)
        if key in rows and not (name or are_seeds):
            problem = f'two rows have the name "{rows[key].label}"'
            raise UsageError(problem, advice=f"give each a name, for example first={rows[key].models[0]}")
        before = rows.get(key, Row(*key, (), ()))
        row = Row(*key, (*before.models, *models), (*before.transforms, *transforms))
        if len(set(zip(row.models, row.transforms, strict=True))) < len(row.models):
            raise UsageError(f'row "{row.label}": {model} is given twice')
        rows[key] = row
    return list(rows.values())


def checkpoints_of(model: str) -> list[str]:
    """The checkpoint itself, those that a pattern matches, or the folders seed-N of a folder of runs."""
    folder = Path(model)
    if not MARKS.isdisjoint(model) and not exists(folder):
        found = by_seed(path for path in glob.glob(model) if is_folder(Path(path)))  # noqa: PTH207
        if not found:
            raise NoInputError(f"{model}: no folder matches this pattern")
        return found
    if is_folder(folder) and not any(folder.glob("*.json")):
        return by_seed(str(path) for path in folder.glob("seed-*") if SEED.fullmatch(path.name)) or [model]
    return [model]


def by_seed(paths: Iterable[str]) -> list[str]:
    """Sorted by number, so that seed-10 follows seed-9. Folders of unfinished runs are left out."""
    complete = (path for path in paths if not path.rstrip("/").endswith(".part"))
    return sorted(complete, key=lambda path: (seed_of(path) or 0, path))


def seed_of(model: str) -> int | None:
    match = SEED.fullmatch(Path(model).name)
    return int(match[1]) if match else None


def find_baseline(rows: Sequence[Row], name: str) -> Row:
    found = [row for row in rows if name in (row.label, row.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f'"{row.label}"' for row in rows)
    raise UsageError(f'--baseline "{name}": {len(found)} rows have this name', advice=f"the rows are {names}")


def find_models(rows: Sequence[Row], **machine: str) -> Models:
    """Functions that find the models of all checkpoints, which are found once as a check."""
    models: Models = []
    for row in rows:
        for name, transform in zip(row.models, row.transforms, strict=True):
            own = ReadingOptions(readout=row.readout, transform=transform)

            def find(prompt: str | None, name: str = name, own: ReadingOptions = own) -> Model:
                return find_encoder(name, replace(own, prompt_name=prompt), **machine)  # type: ignore[arg-type]

            models.append((row.label, find))
            if (count := len(find(None).readouts)) > 1:
                raise UsageError(f'row "{row.label}": expected one readout, found {count}')
    return models


def prompts_of(model: Model) -> Mapping[str, str]:
    """The prompts that the checkpoint of a model declares."""
    checkpoint = getattr(model, "checkpoint", None)
    return {} if checkpoint is None else checkpoint.declared.prompts


@dataclass(slots=True)
class Evaluator:
    """Evaluates checkpoints."""

    settings: Settings
    kept: Path | None  # the folder of the results
    digests: dict[str, str] = field(default_factory=dict)  # of files
    report: Report = lambda rows, tokens: None  # of the encoding

    def evaluate_all(
        self,
        models: Models,
        tests: Sequence[TestSet],
        failed: Callable[[str, str | None], None],
        done: Callable[[], None],
    ) -> tuple[Results, int]:
        """The results of all checkpoints, and the number of evaluations that failed, each with a message."""
        found: Results = {}
        for label, find in models:
            model = find(None)
            whole = model.tokenizer.whole  # the space depends on the texts
            encoder = None if whole else model.encoder()
            for test in tests:
                try:
                    result = self.evaluate(encoder, find(None) if whole else model, test, find)
                    found.setdefault((label, test.suite, test.name), []).append(result)
                except SentkitError as error:
                    failed(f'row "{label}", {test.suite}: {error}', error.advice)
                done()
        return found, len(models) * len(tests) - sum(map(len, found.values()))

    def evaluate(self, encoder: TokenEncoder | None, model: Model, test: TestSet, find: FindModel) -> Result:
        """The result, from the folder or kept there, unless the space depends on the texts (no `encoder`)."""
        if self.kept is None or encoder is None:
            return self.compute(encoder, model, test, find)
        path = self.kept / f"{test.suite}-{test.name}-{self.key(encoder, test, prompts_of(model))}.json"
        if path.is_file():
            return read_result(path)
        result = self.compute(encoder, model, test, find)
        path.parent.mkdir(parents=True, exist_ok=True)
        record: dict[str, Any] = {"encoder": result.encoder, "value": result.value}
        record |= {"deviations": dict(result.deviations), "n": result.n}
        if result.similarities is not None and result.gold is not None:
            record |= {"similarities": result.similarities.tolist(), "gold": result.gold.tolist()}
        if result.queries is not None:
            record["queries"] = result.queries.tolist()
        with published_together(), open_output(str(path), force=True) as out:
            out.write(orjson.dumps(record) + b"\n")
        return result

    def key(self, encoder: TokenEncoder, test: TestSet, prompts: Mapping[str, str]) -> str:
        """The number of threads changes only the last bits of a vector, so it is not a part of the key."""
        record, suite = encoder.specs[0].full, SUITES[test.suite]
        source = {name: value for name, value in record.items() if name not in ("model", "threads")}
        files = [self.digest_of(path) for path in test.files]
        settings = suite.settings(self.settings) | ({"prompts": dict(prompts)} if suite.prompts else {})
        return digest([FORMAT, source, encoder.precision, files, test.suite, settings | dict(test.fields)])

    def digest_of(self, path: str) -> str:
        if path not in self.digests:
            whole = blake2b(digest_size=16)
            with open_input(path) as file:
                while block := file.read(BLOCK):
                    whole.update(block)
            self.digests[path] = whole.hexdigest()
        return self.digests[path]

    def compute(self, encoder: TokenEncoder | None, model: Model, test: TestSet, find: FindModel) -> Result:
        suite, parts = SUITES[test.suite], {"rows": test.path, **test.parts}
        with TemporaryDirectory(prefix="sentkit-report-") as folder:
            files = {part: f"{folder}/{part}.safetensors" for part in parts if part != "qrels"}
            labels = []
            for part, path in files.items():
                names = (name for name in suite.prompts.get(part, ()) if name in prompts_of(model))
                prompt = next(names, None)
                own = model if prompt is None else find(prompt)
                labels.append(self.encode(encoder, own, parts[part], path, test))
            try:
                return replace(suite.evaluate(files, test, self.settings), encoder=labels[0])
            except DataError as error:
                sources = {path: parts[part] for part, path in files.items()}
                source = sources.get(error.source, error.source)
                raise DataError(error.problem, source=source, advice=error.advice) from error

    def encode(
        self, encoder: TokenEncoder | None, model: Model, source: str, path: str, test: TestSet
    ) -> str:
        """Write a vector file of the rows, after a check of their scores or classes. Return its label."""
        inputs = open_inputs([source], fields=test.fields)
        texts, suite = TextParser(test.fields), SUITES[test.suite]

        def parse(row: FileRow) -> tuple[FileRow, tuple[str, ...]]:
            suite.check(row, test.fields)
            row, found = texts(row)
            title = row.values.get("title") if suite.prompts else None
            return row, (f"{title} {found[0]}".strip(), *found[1:]) if title else found

        groups = tokenized_groups(inputs.blocks(parse), model.tokenizer, inputs.rejects)
        encoder = encoder or model.encoder()
        encoding = Encoding(encoder, model.tokenizer, texts, VectorOutput(replace=True))
        with published_together():
            tally = encoding.to_outputs(groups, [path], self.report, inputs.rejects)
        for remark in encoder.remarks(tally):
            self.settings.warn(f"{model.name}: {source}: {remark}")
        return label_of(encoder.specs[0].emb)


KEPT = {"value": float | int | None, "deviations": dict, "encoder": str}  # in the file of a result


def read_result(path: Path) -> Result:
    """A kept result. Any other JSON object is an error, because the folder is only for results."""
    record = read_object(path)
    if not all(isinstance(record.get(name, ...), kinds) for name, kinds in KEPT.items()):
        raise DataError("not a result of sentkit report", source=str(path), advice="remove the file")
    names = ("similarities", "gold", "queries")
    arrays = {name: np.array(record[name], np.float64) for name in names if name in record}
    n = record.get("n", len(arrays["gold"]) if "gold" in arrays else None)
    return Result(record["value"], record["deviations"], n, record["encoder"], **arrays)
