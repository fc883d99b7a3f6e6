"""`sentkit probe`: the accuracy of a classifier on frozen vectors."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Annotated

from typer import Argument, Option

from sentkit.console import Console, TaskProgress, watch_rows
from sentkit.errors import UsageError
from sentkit.flag_values import classifier_head
from sentkit.flags import options
from sentkit.flags.outputs import Output
from sentkit.flags.rows import RowSource, input_paths
from sentkit.flags.rules import needs, refuse_together
from sentkit.process import threads_of_environment, usable_cpus

FOLDS = 10
SAMPLES = 5


def probe(
    *,
    label: Annotated[
        str,
        Option(
            "--label",
            metavar="NAME",
            help='The field with the class of a row, as in {"label": "positive"}.',
        ),
    ],
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: Annotated[
        list[str] | None,
        Argument(metavar="[TRAIN]...", help="Rows with vectors; '-' is standard input."),
    ] = None,
    test: Annotated[
        str | None,
        Option("--test", metavar="FILE", help="Test rows."),
    ] = None,
    dev: Annotated[
        str | None,
        Option(
            "--dev",
            metavar="FILE",
            help="With --test: rows to choose the penalty on, and when a network stops.",
        ),
    ] = None,
    head: Annotated[
        str,
        Option(
            "--head",
            metavar="NAME",
            help="logreg: regression; senteval: network of SentEval; senteval:50 has 50 hidden "
            "units.",
        ),
    ] = "logreg",
    penalties: Annotated[
        str | None,
        Option(
            "--penalties",
            metavar="X,Y,...",
            help="Values to try: C for logreg, L2 for senteval. [default: as SentEval]",
        ),
    ] = None,
    folds: Annotated[
        int | None,
        Option("--folds", metavar="N", min=3, help="Number of folds. [default: 10]"),
    ] = None,
    few_shot: Annotated[
        int | None,
        Option("--few-shot", metavar="N", min=1, help="Train on N rows of each class, with C = 1."),
    ] = None,
    samples: Annotated[
        int | None,
        Option(
            "--samples", metavar="N", min=1, help="With --few-shot: number of draws. [default: 5]"
        ),
    ] = None,
    seed: Annotated[
        int,
        Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Random seed."),
    ] = 1111,
    output_path: options.Output = "-",
    force: options.Force = False,
    json: options.Json = False,
    console: Console,
) -> None:
    """Train a classifier on frozen vectors and test it."""
    needs({"--dev": dev}, {"--test": test})
    refuse_together(
        {"--dev": dev, "--penalties": penalties, "--folds": folds}, {"--few-shot": few_shot}
    )
    refuse_together({"--folds": folds}, {"--dev": dev})
    needs({"--few-shot": few_shot}, {"--head logreg": head == "logreg"})
    needs({"--samples": samples}, {"--few-shot": few_shot})
    paths = input_paths(files)
    if test is not None and len(paths) > 1:
        raise UsageError(f"--test accepts only one TRAIN file; {len(paths)} are given")
    head_name, hidden_units = classifier_head(head)
    penalty_values = None
    if penalties is not None:
        penalty_values = parse_penalties(penalties)
        if test is not None and len(penalty_values) == 1:
            if folds is not None:
                raise UsageError("--folds has no effect with --test and one penalty")
            if dev is not None and head_name == "logreg":
                raise UsageError("--dev has no effect on a regression with one penalty")
    from sentkit.formats.files import check_input, is_safetensors
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.labels import Watch
    from sentkit.labels.probes.probing import Probe, ProbeOptions, Record, columns

    # The output is the classifier, and the report is printed; otherwise the output is the report.
    output = Output(output_path, force)
    report_output = output
    writes_classifier = is_safetensors(output.path)
    if writes_classifier:
        if len(paths) > 1 or head_name != "logreg" or few_shot is not None:
            expected = "one TRAIN file and --head logreg, without --few-shot"
            raise UsageError(f"-o {output.path}: a classifier needs {expected}")
        report_output = Output("-", force)
    report_output.check_rows()
    rows = RowSource(paths, field, rejects)
    probe_options = ProbeOptions(
        label=rows.name_in_input(label),
        head=head_name,
        hidden=hidden_units,
        folds=folds or FOLDS,
        shots=few_shot,
        samples=samples or SAMPLES,
        penalties=penalty_values,
        seed=seed,
        jobs=threads_of_environment() or usable_cpus(),
    )
    for path in (dev, test):
        if path is not None:
            check_input(path)

    field_names = (*VECTOR_FIELDS, label)
    with (
        rows.open(
            console, output, field_names=field_names, reads={"--test": test, "--dev": dev}
        ) as inputs,
        output.open() if writes_classifier else nullcontext() as classifier_file,
    ):
        watch_rows(console, inputs)
        tasks = TaskProgress(console, "fits")
        watch = Watch(tasks.begin, tasks.add)

        def records() -> Iterator[Record]:
            for path in inputs.paths:
                probe = Probe(inputs, path, probe_options, test=test, dev=dev, watch=watch)
                record = probe.report(classifier_file).record
                if "not_converged" in record:
                    console.warn(
                        f"{record['file']}: {record['not_converged']} fits did not converge"
                    )
                yield record

        report_output.write_records(
            records(),
            columns,
            as_table=report_output.on_terminal and not json,
            labels=["file", "encoder"],
            optional=["encoder"],
        )


def parse_penalties(text: str) -> list[float]:
    """Parse positive numbers separated by commas; remove duplicates."""
    try:
        penalties = [float(number) for number in text.split(",")]
    except ValueError:
        penalties = []
    if not penalties or not all(math.isfinite(penalty) and penalty > 0 for penalty in penalties):
        raise UsageError(
            f'--penalties "{text}"', advice="expected positive numbers, for example 0.5,1,2"
        )
    return list(dict.fromkeys(penalties))
