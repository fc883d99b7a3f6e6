"""A checkpoint and a test set -> a result. Results can be kept in a folder and read again."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson

from sentkit.arrays import Float64
from sentkit.errors import DataError, SentkitError, UsageError
from sentkit.formats.files import open_input, read_object
from sentkit.formats.outputs.outputs import open_output, published_together
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import TextParser, class_of, scored
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import digest, label_of
from sentkit.formats.vectors.sinks import VectorOutput
from sentkit.formats.vectors.store import rows_in
from sentkit.formats.vectors.vectors import VectorReader
from sentkit.labels.clusters.clustering_run import ClusteringRun, agreement_records
from sentkit.labels.probes.probing import Probe, ProbeOptions
from sentkit.metrics.gold_pairs import ScoreOptions, read_gold_pairs
from sentkit.metrics.neighbours.corpus import read_search_corpus
from sentkit.metrics.neighbours.queries import Search, SearchOptions
from sentkit.metrics.reports import defined
from sentkit.metrics.retrieval import Run, id_of, read_qrels, values_of
from sentkit.metrics.statistics import pearson, spearman
from sentkit.model import Model, find_encoder
from sentkit.model.encoding import Report, TokenEncoder, tokenized_groups
from sentkit.model.reading import ReadingOptions
from sentkit.model.writing import Encoding
from sentkit.reports.suites import SUITES, TestSet
from sentkit.reports.suites import Row as ReportRow

GOLD, LABEL = "score", "label"  # fields of the test sets
SEEDS = range(10)  # of k-means, as in PairSupCon
SHOTS = 16  # rows of each class, as in PairSupCon
BLOCK = 1 << 20  # bytes
TOP = 100  # hits of a query
FOLDS = "folds"  # the name of a deviation that no paper prints
FORMAT = 2  # of a kept result; others are not read
# The names of the prompts for both sides of a search; the first that the checkpoint declares is used.
SIDES = {"queries": ("query",), "corpus": ("document", "passage", "corpus")}
FindModel = Callable[[str | None], Model]  # by the name of a prompt, or None
Models = dict[tuple[str, int], FindModel]  # by label of the row, and place of the checkpoint


@dataclass(frozen=True, slots=True)
class Result:
    """The value of one checkpoint on one test set, x 100; None if it is undefined."""

    value: float | None
    deviations: Mapping[str, float]  # by name: over folds, draws, clusterings (seeds of k-means), classifiers
    encoder: str  # the label of the space
    n: int | None = None  # rows or queries that have a value; None in results of older versions
    similarities: Float64 | None = None  # of the pairs of STS
    gold: Float64 | None = None


@dataclass(slots=True)
class Evaluator:
    """Evaluates checkpoints. `head` and `hidden` are the classifier of senteval; its seeds have one mean."""

    head: str
    hidden: int
    seeds: Sequence[int]  # of the folds and classifiers of senteval
    jobs: int
    kept: Path | None  # the folder of the results
    warn: Callable[[str], None]
    digests: dict[str, str] = field(default_factory=dict)  # of files
    report: Report = lambda rows, tokens: None  # of the encoding

    def evaluate(self, encoder: TokenEncoder | None, model: Model, test: TestSet, find: FindModel) -> Result:
        """The result from the folder, if it has one of the same vectors, rows and settings.

        `encoder` is None if the space depends on the texts. `find` returns the model with a declared prompt.
        """
        if self.kept is None or encoder is None:
            return self.compute(encoder, model, test, find)
        path = self.kept / f"{test.suite}-{test.name}-{self.key(encoder, test, prompts_of(model))}.json"
        if path.is_file():
            return read_result(path)
        result = self.compute(encoder, model, test, find)
        path.parent.mkdir(parents=True, exist_ok=True)
        with published_together(), open_output(str(path), force=True) as out:
            out.write(orjson.dumps(record_of(result)) + b"\n")
        return result

    def evaluate_all(
        self,
        models: Models,
        tests: Sequence[TestSet],
        failed: Callable[[str, str | None], None],
        done: Callable[[], None],
    ) -> tuple[dict[tuple[str, int, str, str], Result], int]:
        """The results of all checkpoints, and the number of evaluations that failed, each with a message."""
        found: dict[tuple[str, int, str, str], Result] = {}
        for (label, place), find in models.items():
            model = find(None)
            whole = model.tokenizer.whole
            encoder = None if whole else model.encoder()
            for test in tests:
                try:
                    result = self.evaluate(encoder, find(None) if whole else model, test, find)
                    found[label, place, test.suite, test.name] = result
                except SentkitError as error:
                    failed(f'row "{label}", {test.suite}: {error}', error.advice)
                done()
        return found, len(models) * len(tests) - len(found)

    def key(self, encoder: TokenEncoder, test: TestSet, prompts: Mapping[str, str]) -> str:
        """The number of threads changes only the last bits of a vector, so it is not a part of the key."""
        record = encoder.specs[0].full
        source = {name: value for name, value in record.items() if name not in ("model", "threads")}
        files = [self.digest_of(path) for path in test.files]
        settings: dict[str, Any] = {}
        if test.suite == "clustering":
            settings = {"seeds": list(SEEDS)}
        elif test.suite == "senteval":
            settings = {"head": self.head, "hidden": self.hidden, "seeds": list(self.seeds)}
        elif test.suite == "few-shot":
            settings = {"shots": SHOTS, "draws": ProbeOptions(LABEL).samples}
        elif test.suite == "retrieval":
            settings = {"top": TOP, "prompts": dict(prompts)}
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
        with TemporaryDirectory(prefix="sentkit-report-") as folder:
            files = [path for path in test.files if path != test.parts.get("qrels")]
            made = {path: f"{folder}/{place}.safetensors" for place, path in enumerate(files)}
            labels = []
            for source, path in made.items():
                model_of_part = model
                if test.suite == "retrieval":
                    side = "queries" if source == test.parts["queries"] else "corpus"
                    prompt = next((name for name in SIDES[side] if name in prompts_of(model)), None)
                    model_of_part = model if prompt is None else find(prompt)
                labels.append(self.encode(encoder, model_of_part, source, path, test))
            if test.suite == "retrieval":
                value, n = retrieved(made, test)
                return Result(value, {}, labels[0], n)
            with named_after(test.path):
                return self.score(made, test, labels[0])

    def encode(
        self, encoder: TokenEncoder | None, model: Model, source: str, path: str, test: TestSet
    ) -> str:
        """Write a vector file of the rows, after a check of their scores or classes. Return its label."""
        inputs = Inputs([source], fields=test.fields, vector_file=rows_in)
        texts = TextParser(test.fields)
        has_pairs, gold = SUITES[test.suite].has_pairs, test.fields.get(GOLD, GOLD)

        def parse(row: Row) -> tuple[Row, tuple[str, ...]]:
            if has_pairs:
                scored(row, gold)
            elif test.suite != "retrieval":
                class_of(row, LABEL)
            row, found = texts(row)
            title = row.values.get("title") if test.suite == "retrieval" else None
            return row, (f"{title} {found[0]}".strip(), *found[1:]) if title else found

        groups = tokenized_groups(inputs.blocks(parse), model.tokenizer, inputs.rejects)
        encoder = encoder or model.encoder()
        encoding = Encoding(encoder, model.tokenizer, texts, VectorOutput(replace=True))
        with published_together():
            tally = encoding.to_outputs(groups, [path], self.report, inputs.rejects)
        for remark in encoder.remarks(tally):
            self.warn(f"{model.name}: {source}: {remark}")
        return label_of(encoder.specs[0].emb)

    def score(self, made: Mapping[str, str], test: TestSet, label: str) -> Result:
        """The result from the vector files of the test set."""
        path = made[test.path]
        inputs = Inputs([path], vector_file=rows_in)
        if SUITES[test.suite].has_pairs:
            gold = ScoreOptions(test.fields.get(GOLD, GOLD))
            pairs = read_gold_pairs(inputs, path, gold, paired=False)
            correlation = spearman if SUITES[test.suite].value == "spearman" else pearson
            value = 100.0 * correlation(pairs.similarities, pairs.gold)
            return Result(defined(value), {}, label, len(pairs), pairs.similarities, pairs.gold)
        if test.suite == "clustering":
            run = ClusteringRun(inputs=inputs, warn=self.warn, seeds=SEEDS)
            *_, last = agreement_records(run, LABEL)
            return Result(last["acc_mean"], named("clusterings", last["acc_sd"]), label, last["n"])
        files = {part: made[source] for part, source in test.parts.items()}
        if test.suite == "few-shot":
            options = ProbeOptions(LABEL, shots=SHOTS, jobs=self.jobs)
            records = [Probe(inputs, path, options, test=files.get("test")).report()]
        else:
            options = ProbeOptions(LABEL, self.head, self.hidden, jobs=self.jobs)
            tested, dev = files.get("test"), files.get("dev")
            every = (replace(options, seed=seed) for seed in self.seeds)
            records = [Probe(inputs, path, each, test=tested, dev=dev).report() for each in every]
        if unfinished := sum(record.get("not_converged", 0) for record in records):
            self.warn(f"{label}: {test.path}: {unfinished} fits did not converge")
        values = [record["accuracy"] for record in records]
        deviations = named("classifiers", statistics.stdev(values) if len(values) > 1 else None)
        inner = [record["sd"] for record in records if "sd" in record]
        name = "draws" if test.suite == "few-shot" else FOLDS
        deviations |= named(name, statistics.fmean(inner) if inner else None)
        n = records[0].get("n_test", records[0]["n"])
        return Result(statistics.fmean(values), deviations, label, n)


def named(name: str, deviation: float | None) -> dict[str, float]:
    return {} if deviation is None else {name: deviation}


def find_models(rows: Sequence[ReportRow], **machine: str) -> Models:
    """Functions that find the models of all checkpoints, which are found once as a check."""
    models: Models = {}
    for row in rows:
        for place, (name, transform) in enumerate(zip(row.models, row.transforms, strict=True)):
            own = ReadingOptions(readout=row.readout, transform=transform)

            def find(prompt: str | None, name: str = name, own: ReadingOptions = own) -> Model:
                return find_encoder(name, replace(own, prompt_name=prompt), **machine)  # type: ignore[arg-type]

            models[row.label, place] = find
            if (count := len(find(None).readouts)) > 1:
                raise UsageError(f'row "{row.label}": expected one readout, found {count}')
    return models


def prompts_of(model: Model) -> Mapping[str, str]:
    """The prompts that the checkpoint of a model declares."""
    checkpoint = getattr(model, "checkpoint", None)
    return {} if checkpoint is None else checkpoint.declared.prompts


def retrieved(made: Mapping[str, str], test: TestSet) -> tuple[float, int]:
    """The mean nDCG@10 x 100 of the queries in the corpus, and their number."""
    path, qrels_path = made[test.parts["queries"]], test.parts["qrels"]
    inputs = Inputs([path], vector_file=rows_in)
    qrels = read_qrels(Inputs([qrels_path]), qrels_path)
    corpus = read_search_corpus(inputs.other(made[test.path]))
    search = Search(VectorReader(inputs), corpus, SearchOptions(top=TOP), inputs, source=path)
    run = Run(test.parts["queries"], qrels)
    for queries, found in search.blocks():
        for query, hits in zip(queries, found, strict=True):
            rows = (search.corpus.row(place) for place, _ in hits)
            run.add(id_of(query, inputs, "query"), [id_of(row, inputs, "document") for row in rows])
    values = values_of(run, qrels_path, missing_is_zero=False)[:, 0]
    return float(values.mean()), len(values)


@contextmanager
def named_after(source: str) -> Iterator[None]:
    """Errors of the temporary vector file name its source."""
    try:
        yield
    except DataError as error:
        raise DataError(error.problem, source=source, advice=error.advice) from error


def record_of(result: Result) -> dict[str, Any]:
    record: dict[str, Any] = {"encoder": result.encoder, "value": result.value}
    record |= {"deviations": dict(result.deviations), "n": result.n}
    if result.similarities is not None and result.gold is not None:
        record |= {"similarities": result.similarities.tolist(), "gold": result.gold.tolist()}
    return record


KEPT = {"value": float | int | None, "deviations": dict, "encoder": str}  # in the file of a result


def read_result(path: Path) -> Result:
    """A kept result. Any other JSON object is an error, because the folder is only for results."""
    record = read_object(path)
    for name, kinds in KEPT.items():
        if not isinstance(record.get(name, ...), kinds):
            problem = f'not a result of sentkit report: "{name}" is missing or not of its type'
            raise DataError(problem, source=str(path), advice="remove the file")
    arrays = [np.array(record[name], np.float64) for name in ("similarities", "gold") if name in record]
    n = record.get("n", len(arrays[0]) if arrays else None)
    return Result(record["value"], record["deviations"], record["encoder"], n, *arrays)
