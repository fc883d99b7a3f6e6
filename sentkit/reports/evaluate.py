"""The rows of a table, each with its checkpoints; a checkpoint and a test set -> a result, which is
kept.
"""

import glob
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson

from sentkit.arrays import Float64
from sentkit.errors import CannotCreateError, DataError, NoInputError, SentkitError, UsageError
from sentkit.formats.files import MARKS, exists, is_folder, open_input, read_object
from sentkit.formats.outputs.outputs import check_creatable, open_output, published_together
from sentkit.formats.rows.block import Row as FileRow
from sentkit.formats.rows.kinds import TextParser
from sentkit.formats.rows.rows import Rejects
from sentkit.formats.vectors.fingerprint import (
    digest,
    label_of,
    name_for_label,
    without_machine,
)
from sentkit.formats.vectors.store import open_inputs
from sentkit.formats.vectors.writers import VectorOutput
from sentkit.metrics.reports import defined
from sentkit.model import Model, find_encoder, is_endpoint
from sentkit.model.encoding import Report, TokenEncoder
from sentkit.model.groups import RowGroup, tokenized_groups
from sentkit.model.reading import ReadingOptions
from sentkit.model.runs.writing import Encoding
from sentkit.reports.suites import CORRELATIONS, SUITES, Result, Settings, TestSet

SEED = re.compile(r"seed-(\d+)")
ROW = re.compile(r"(?:([^/=]+)=)?(.+?)(?:#([^#@]+)(?:@(.+))?)?")
ROW_OF_API = re.compile(r"(?:([^/=]+)=)?(https?://.+)", re.IGNORECASE)
BYTES_PER_READ = 1 << 20
FORMAT = 2  # of a stored result; others are not read
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
    """Parse [NAME=]CHECKPOINT[#READOUT[@TRANSFORM]]. Those with the same name and readout are one
    row.
    """
    rows: dict[tuple[str, str | None], Row] = {}
    for argument in arguments:
        given_name, model, readout, transform = split_argument(argument)
        models = checkpoints_of(model)
        models_of_rows = [models]
        if given_name is None:  # the checkpoints that a pattern matches can be of several methods
            models_of_rows = by_folder_of_seeds(models)
        for models_of_row in models_of_rows:
            transforms = (transform,) * len(models_of_row)
            name = given_name or name_of_checkpoints(models_of_row)
            row = Row(name, readout, tuple(models_of_row), transforms)
            earlier = rows.get((name, readout))
            if earlier is not None:
                row = joined_rows(earlier, row, has_given_name=given_name is not None)
            check_checkpoints(row)
            rows[name, readout] = row
    row_of_label: dict[str, Row] = {}
    for row in rows.values():
        earlier = row_of_label.setdefault(row.label, row)
        if earlier is not row:  # a name can contain "#"
            raise error_of_equal_names(earlier)
    return list(rows.values())


def error_of_equal_names(row: Row) -> UsageError:
    """The error about another row with the label of this one."""
    advice = f"give each a name, for example first={row.models[0]}"
    return UsageError(f'two rows have the name "{row.label}"', advice=advice)


def name_of_checkpoints(models: Sequence[str]) -> str:
    """The name of a row without a given one: that of the folder of seeds, or of the checkpoint."""
    [model, *_] = models
    if seed_of(model) is not None:
        return folder_of_seed(model).name
    if is_endpoint(model):
        _, _, model_of_api = model.partition("#")
        return name_for_label(model_of_api)
    return Path(model).name or model


def joined_rows(earlier: Row, row: Row, *, has_given_name: bool) -> Row:
    """The row with further seeds: of the same folder, or of the same given name."""
    models = (*earlier.models, *row.models)
    is_same_row = has_given_name
    if not has_given_name and all(seed_of(model) is not None for model in row.models):
        is_same_row = len(set(map(folder_of_seed, models))) == 1
    if not is_same_row:
        raise error_of_equal_names(earlier)
    return Row(row.name, row.readout, models, earlier.transforms + row.transforms)


def check_checkpoints(row: Row) -> None:
    """Refuse a row that has a checkpoint twice."""
    seen: set[tuple[str, str | None]] = set()
    for model, transform in zip(row.models, row.transforms, strict=True):
        if (model, transform) in seen:
            raise UsageError(f'row "{row.label}": {model} is given twice')
        seen.add((model, transform))


def split_argument(argument: str) -> tuple[str | None, str, str | None, str | None]:
    """The name, the checkpoint, the readout and the transform of a row."""
    api = ROW_OF_API.fullmatch(argument)
    if api is not None:
        return api[1], api[2], None, None
    match = None if exists(Path(argument)) else ROW.fullmatch(argument)  # a path can have = and #
    if match is None:
        return None, argument, None, None
    name, model, readout, transform = match.groups()
    return name, model, readout, transform


def checkpoints_of(model: str) -> list[str]:
    """The checkpoint itself, or those of the folders that a pattern matches. A folder of runs has
    those of its folders seed-N.
    """
    if is_endpoint(model):
        return [model]
    paths = [model]
    if not MARKS.isdisjoint(model) and not exists(Path(model)):
        paths = by_seed(path for path in glob.glob(model) if is_folder(Path(path)))  # noqa: PTH207
        if not paths:
            raise NoInputError(f"{model}: no folder matches this pattern")
    return [checkpoint for path in paths for checkpoint in seeds_of_folder(path) or [path]]


def seeds_of_folder(path: str) -> list[str]:
    """The folders seed-N of a folder of runs; none of another folder."""
    folder = Path(path)
    if not is_folder(folder) or any(folder.glob("*.json")):
        return []
    return by_seed(str(path) for path in folder.glob("seed-*") if SEED.fullmatch(path.name))


def by_folder_of_seeds(models: Sequence[str]) -> list[list[str]]:
    """The checkpoints of each row: the seeds of one folder together, any other one alone."""
    models_of_row: dict[str, list[str]] = {}
    for model in models:
        key = model
        if seed_of(model) is not None:
            key = str(folder_of_seed(model))
        models_of_row.setdefault(key, []).append(model)
    return list(models_of_row.values())


def by_seed(paths: Iterable[str]) -> list[str]:
    """Sorted by number, so that seed-10 follows seed-9. Folders of unfinished runs are left out."""
    complete = (path for path in paths if not path.rstrip("/").endswith(".part"))
    return sorted(complete, key=lambda path: (seed_of(path) or 0, path))


def seed_of(model: str) -> int | None:
    match = SEED.fullmatch(Path(model).name)
    return int(match[1]) if match else None


def folder_of_seed(model: str) -> Path:
    return Path(model).absolute().parent


def find_baseline(rows: Sequence[Row], name: str) -> Row:
    matches = [row for row in rows if row.label == name]
    if not matches:  # without its readout
        matches = [row for row in rows if row.name == name]
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(f'"{row.label}"' for row in rows)
    problem = f'--baseline "{name}": {len(matches)} rows have this name'
    raise UsageError(problem, advice=f"the rows are {names}")


def find_models(rows: Sequence[Row], **machine: str) -> Models:
    """Functions that find the models of all checkpoints, which are found once as a check."""
    models: Models = []
    for row in rows:
        for name, transform in zip(row.models, row.transforms, strict=True):
            options = ReadingOptions(readout=row.readout, transform=transform)

            def find(
                prompt: str | None, name: str = name, options: ReadingOptions = options
            ) -> Model:
                options = replace(options, prompt_name=prompt)
                return find_encoder(name, options, **machine)  # type: ignore[arg-type]

            models.append((row.label, find))
            readout_count = len(find(None).readouts)
            if readout_count > 1:
                raise UsageError(f'row "{row.label}": expected one readout, found {readout_count}')
    if machine["device"].startswith("cuda"):
        # All models are transformers: the others have refused this device.
        from sentkit.model.transformer.device import pick_device

        pick_device(machine["device"])  # one error for all rows
    return models


@dataclass(slots=True)
class Evaluator:
    """Evaluates checkpoints."""

    settings: Settings
    result_folder: Path | None  # for the results of this run and earlier ones
    warn: Callable[[str], None]  # about texts, such as truncated ones
    report: Report  # of the encoding
    digests: dict[str, str] = field(default_factory=dict)  # of files

    def evaluate_all(
        self,
        models: Models,
        tests: Sequence[TestSet],
        failed: Callable[[str, str | None], None],
        done: Callable[[int], None],
    ) -> tuple[Results, int]:
        """The results of all checkpoints, and the number of evaluations that failed, each with a
        message. `models` has the label of each checkpoint, and a function that reads it.
        """
        if self.result_folder is not None:
            create_folder(self.result_folder)
        results: Results = {}
        failed_count = 0
        for label, find in models:
            model = find(None)
            # Its space consists of the words of all texts.
            depends_on_texts = model.tokenizer.needs_all_texts
            encoder = None
            if not depends_on_texts:
                try:
                    encoder = model.encoder()
                except SentkitError as error:  # such as damaged weights; other rows are evaluated
                    failed(f'row "{label}": {error}', error.advice)
                    failed_count += len(tests)
                    done(len(tests))
                    continue
            for test in tests:
                try:
                    if depends_on_texts:
                        model = find(None)
                    result = self.evaluate(encoder, model, test, find)
                    results.setdefault((label, test.suite, test.name), []).append(result)
                except ResultFolderError:
                    raise
                except SentkitError as error:
                    advice = advice_of_report(error.advice, test, self.settings)
                    failed(f'row "{label}", {test.suite}: {error}', advice)
                    failed_count += 1
                done(1)
        return results, failed_count

    def evaluate(
        self, encoder: TokenEncoder | None, model: Model, test: TestSet, find: FindModel
    ) -> Result:
        """The result: that in the folder, or a new one, which is stored there.

        Without `encoder`, the space depends on the texts, and no result is stored.
        """
        if self.result_folder is None or encoder is None:
            return self.compute(encoder, model, test, find)
        key = self.key(encoder, test, model.prompts)
        path = self.result_folder / f"{test.suite}-{test.name}-{key}.json"
        if path.is_file():
            return read_result(path, CORRELATIONS.get(SUITES[test.suite].value))
        try:
            check_creatable(str(path), force=True)
        except CannotCreateError as error:
            raise ResultFolderError(str(error)) from error
        result = self.compute(encoder, model, test, find)
        with published_together(), open_output(str(path), force=True) as file:
            file.write(orjson.dumps(record_of(result)) + b"\n")
        return result

    def key(self, encoder: TokenEncoder, test: TestSet, prompts: Mapping[str, str]) -> str:
        """The hash of all that determines a result.

        What differs between machines changes only the last bits of a vector, so it is not a part
        of the key.
        """
        suite = SUITES[test.suite]
        source = without_machine(encoder.spaces[0].full_metadata)
        del source["model"]
        # Their order tells a test file from a dev file, which is only there beside a test file.
        file_digests = [self.digest_of(path) for path in test.files]
        settings = dict(suite.settings(self.settings))
        if suite.prompts:
            settings["prompts"] = dict(prompts)
        settings |= test.fields
        return digest([FORMAT, source, encoder.precision, file_digests, test.suite, settings])

    def digest_of(self, path: str) -> str:
        if path not in self.digests:
            file_hash = blake2b(digest_size=16)
            with open_input(path) as file:
                while content := file.read(BYTES_PER_READ):
                    file_hash.update(content)
            self.digests[path] = file_hash.hexdigest()
        return self.digests[path]

    def compute(
        self, encoder: TokenEncoder | None, model: Model, test: TestSet, find: FindModel
    ) -> Result:
        """Encode the files of the test set, and evaluate their vectors.

        `find` finds the model with the prompt of a file. Without `encoder`, the space consists of
        the words of all files.
        """
        suite = SUITES[test.suite]
        files = {"rows": test.path, **test.further_files}  # by role, such as "queries" or "dev"
        sources = {role: path for role, path in files.items() if role != "qrels"}  # with texts
        if encoder is None:
            for source in sources.values():
                self.tokenized(model, source, test)  # the tokenizer collects the words
            encoder = model.encoder()

        with TemporaryDirectory(prefix="sentkit-report-") as folder:
            # A vector file of each source, with the prompt of its role.
            vector_files = {role: f"{folder}/{role}.safetensors" for role in sources}
            for role, source in sources.items():
                model_with_prompt = model
                for prompt in suite.prompts.get(role, ()):
                    if prompt in model.prompts:
                        model_with_prompt = find(prompt)
                        break
                self.encode(encoder, model_with_prompt, source, vector_files[role], test)

            try:
                result = suite.evaluate(vector_files, test, self.settings)
            except DataError as error:
                # The error names the file of the user, not the temporary one.
                source_of_file = {vector_files[role]: sources[role] for role in sources}
                if error.source not in source_of_file:  # of the judgements
                    raise
                source = source_of_file[error.source]
                raise DataError(error.problem, source=source, advice=error.advice) from error
        return replace(result, encoder=label_of(encoder.spaces[0].name))

    def encode(
        self, encoder: TokenEncoder, model: Model, source: str, vector_file: str, test: TestSet
    ) -> None:
        """Write a vector file of the rows, after a check of their scores or classes."""
        groups, parser, rejects = self.tokenized(model, source, test)
        encoding = Encoding(encoder, model.tokenizer, parser, VectorOutput(replace=True))
        with published_together():
            stats = encoding.to_outputs(groups, [vector_file], self.report, rejects)
        for remark in encoder.warnings(stats):
            self.warn(f"{model.name}: {source}: {remark}")

    def tokenized(
        self, model: Model, source: str, test: TestSet
    ) -> tuple[Iterator[RowGroup], TextParser, Rejects]:
        """The rows of a file with their tokens, the parser that reads them, and their rejects."""
        inputs = open_inputs([source], fields=test.fields)
        parser = TextParser(test.fields)
        suite = SUITES[test.suite]

        def parse(row: FileRow) -> tuple[str, ...]:
            suite.check(row, test.fields)
            texts = parser(row)
            if suite.prompts:  # of a retrieval, whose documents can have a title
                title = row.values.get("title")
                if title:
                    first_text, *other_texts = texts
                    texts = (f"{title} {first_text}".strip(), *other_texts)
            return texts

        groups = tokenized_groups(inputs.blocks(parse), model.tokenizer, inputs.rejects)
        return groups, parser, inputs.rejects


class ResultFolderError(CannotCreateError):
    """No evaluation can be kept, so none begins."""


def create_folder(folder: Path) -> None:
    """Create a folder, unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
        raise CannotCreateError(f"{folder}: cannot be created: {problem}") from error


FLAG = re.compile(r"--[a-z][a-z-]*")
FLAGS_OF_REPORT = {"--head", "--seed", "--precision", "--device"}  # that an advice can name


def advice_of_report(advice: str | None, test: TestSet, settings: Settings) -> str | None:
    """The advice about a test set with flags of `report`; None if it names those of other
    commands.
    """
    if advice is None:
        return None
    if test.suite == "senteval" and settings.head == "senteval":
        advice = re.sub(r"--folds (\d+)", rf"--head senteval:{settings.hidden}:\1", advice)
    flags = FLAGS_OF_REPORT
    if test.suite == "pairs":
        flags = {*flags, "--field"}
    return advice if flags.issuperset(FLAG.findall(advice)) else None


# in the file of a result
REQUIRED = {
    "value": float | int | None,
    "deviations": dict,
    "encoder": str,
}
LARGEST_ROUNDING = 1e-6  # of a value x 100
ARRAYS = ("similarities", "gold", "values")  # in that of pairs with scores; of other test sets


def record_of(result: Result) -> dict[str, Any]:
    """The content of the file of a result."""
    record: dict[str, Any] = {
        "encoder": result.encoder,
        "value": result.value,
        "deviations": dict(result.deviations),
        "n": result.n,
    }
    if result.similarities is not None and result.gold is not None:
        record["similarities"] = result.similarities.tolist()
        record["gold"] = result.gold.tolist()
    if result.values is not None:
        record["values"] = result.values.tolist()
    if result.skipped:
        record["skipped"] = result.skipped
    return record


def read_result(path: Path, correlation: Callable[..., float] | None = None) -> Result:
    """A stored result. Any other JSON object is an error, because the folder is only for
    results.

    The value of pairs is their `correlation`.
    """
    record = read_object(path)
    n = record.get("n")
    skipped = record.get("skipped", 0)
    if "n" not in record and isinstance(record.get("gold"), list):  # older versions had none
        n = len(record["gold"])
    if "queries" in record:  # the name in older versions
        record["values"] = record.pop("queries")
    try:
        arrays = {name: np.array(record[name], np.float64) for name in ARRAYS if name in record}
        is_valid = (
            all(isinstance(number, float | int) for name in arrays for number in record[name])
            and all(isinstance(record.get(name, ...), types) for name, types in REQUIRED.items())
            and all(isinstance(value, float | int) for value in record["deviations"].values())
            and isinstance(n, int | None)
            and type(skipped) is int
            and skipped >= 0
            and all(array.ndim == 1 and np.isfinite(array).all() for array in arrays.values())
            and len(arrays.get("gold", ())) == len(arrays.get("similarities", ()))
            and ("values" not in arrays or has_mean(arrays["values"], record["value"]))
        )
        if is_valid and correlation is not None and "gold" in arrays:
            value = defined(100.0 * correlation(arrays["similarities"], arrays["gold"]))
            is_valid = is_equal(record["value"], value)
    except (AttributeError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise DataError(
            "not a result of sentkit report", source=str(path), advice="remove the file"
        )
    return Result(
        record["value"],
        record["deviations"],
        n,
        record["encoder"],
        similarities=arrays.get("similarities"),
        gold=arrays.get("gold"),
        values=arrays.get("values"),
        skipped=skipped,
    )


def skipped_rows(results: Results, tests: Sequence[TestSet]) -> Iterator[str]:
    """A message for each test set that has pairs without a score."""
    skipped_of_test: dict[tuple[str, str], int] = {}
    for (_, suite, name), results_of_row in results.items():
        skipped_of_test[suite, name] = max(result.skipped for result in results_of_row)
    for test in tests:
        skipped = skipped_of_test.get((test.suite, test.name))
        if skipped:
            yield f"{test.path}: {skipped} rows without a score skipped"


def has_mean(values: Float64, mean: float | None) -> bool:
    """Whether this is the mean of the values, except for rounding."""
    return len(values) > 0 and is_equal(mean, float(values.mean()))


def is_equal(value: float | None, other: float | None) -> bool:
    """Whether two values are equal, except for rounding, or both undefined."""
    if value is None or other is None:
        return value is other
    return abs(value - other) < LARGEST_ROUNDING
