"""`sentkit probe`: the accuracy of a classifier on frozen vectors."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Annotated

from sentkit.console import Console, TaskProgress, watch_rows
from sentkit.errors import UsageError
from sentkit.flags import Excludes, Named, Needs, Range, options
from sentkit.flags.rows import RowFlags
from sentkit.process import threads_of_environment, usable_cpus

FOLDS, SAMPLES = 10, 5


@dataclass(frozen=True)
class TrainRows(RowFlags):
    """The files of training rows.

    [TRAIN]...: Rows with vectors; '-' is standard input.
    """

    files: Annotated[list[str] | None, Named("[TRAIN]...")] = None


def probe(
    *,
    label: str,
    train: TrainRows,
    test: str | None = None,
    dev: Annotated[str | None, Needs("--test"), Excludes("--few-shot")] = None,
    head: str = "logreg",
    penalties: Annotated[str | None, Excludes("--few-shot")] = None,
    folds: Annotated[int | None, Range(min=3), Excludes("--few-shot"), Excludes("--dev")] = None,
    few_shot: Annotated[int | None, Range(min=1), Needs("--head logreg")] = None,
    samples: Annotated[int | None, Range(min=1), Needs("--few-shot")] = None,
    seed: Annotated[int, Range(min=0, max=2**32 - 1)] = 1111,
    output: options.ReportFlags,
    console: Console,
) -> None:
    """Train a classifier on frozen vectors and test it.

    Flags:
      --label NAME: The field with the class of a row, as in {"label": "positive"}.
      --test FILE: Test rows.
      --dev FILE: With --test: rows to choose the penalty on.
      --head NAME: logreg: regression; senteval: network of SentEval; senteval:50 has 50 hidden units.
      --penalties X,Y,...: Values to try: C for logreg, L2 for senteval. [default: as SentEval]
      --folds N: Number of folds. [default: 10]
      --few-shot N: Train on N rows of each class, with C = 1.
      --samples N: With --few-shot: number of draws. [default: 5]
    """
    from sentkit.formats.files import check_input, is_safetensors
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.labels import Watch
    from sentkit.labels.probes.probing import Probe, ProbeOptions, Record, columns

    if test is not None and len(train.paths) > 1:
        raise UsageError(f"--test accepts only one TRAIN file; {len(train.paths)} are given")
    name, hidden = options.head_of(head)
    values = None if penalties is None else parse_penalties(penalties)
    classifier = output.path if is_safetensors(output.path) else None
    if classifier and (len(train.paths) > 1 or name != "logreg" or few_shot is not None):
        needs = "one TRAIN file and --head logreg, without --few-shot"
        raise UsageError(f"-o {classifier}: a classifier needs {needs}")
    report = replace(output, path="-") if classifier else output
    report.check_rows()
    probe_options = ProbeOptions(
        label=train.theirs(label),
        head=name,
        hidden=hidden,
        folds=folds or FOLDS,
        shots=few_shot,
        samples=samples or SAMPLES,
        penalties=values,
        seed=seed,
        jobs=threads_of_environment() or usable_cpus(),
    )
    for path in filter(None, (dev, test)):
        check_input(path)
    reads = {"--test": test, "--dev": dev}
    with (
        train.open(console, output, known=(*VECTOR_FIELDS, label), reads=reads) as inputs,
        output.open() if classifier else nullcontext() as file,
    ):
        watch_rows(console, inputs)
        tasks = TaskProgress(console, "fits")
        watch = Watch(tasks.begin, tasks.add)

        def records() -> Iterator[Record]:
            for path in inputs.paths:
                probed = Probe(inputs, path, probe_options, test=test, dev=dev, watch=watch)
                record = probed.report(file)
                if "not_converged" in record:
                    console.warn(f"{record['file']}: {record['not_converged']} fits did not converge")
                yield record

        report.show(records(), columns, labels=["file", "encoder"], optional=["encoder"])


def parse_penalties(text: str) -> list[float]:
    """Parse positive numbers separated by commas; remove duplicates."""
    try:
        penalties = [float(part) for part in text.split(",")]
    except ValueError:
        penalties = []
    if not penalties or not all(math.isfinite(each) and each > 0 for each in penalties):
        raise UsageError(f'--penalties "{text}"', advice="expected positive numbers, for example 0.5,1,2")
    return list(dict.fromkeys(penalties))
