"""`sentkit predict`: the class or the score of every row."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from sentkit.console import Console, RowProgress
from sentkit.errors import UsageError
from sentkit.flags import options
from sentkit.flags.rows import RowFlags
from sentkit.flags.rules import Named
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from sentkit.formats.rows.block import Row
    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.rows.splice import NewFields
    from sentkit.model.classifier import ClassifierModel


def predict(
    *,
    model: str,
    every: Annotated[bool, Named("--all")] = False,
    name: str | None = None,
    machine: options.MachineFlags,
    output: options.OutputFlags,
    replace: bool = False,
    row_flags: RowFlags,
    run: options.QuietFlags,
) -> None:
    """Add the class or the score of a classifier to every row.

    \b
    Examples:
      sentkit predict titles.txt -m CLASSIFIER
      sentkit predict pairs.jsonl -m CROSSENCODER --name relevance
      sentkit probe reviews.safetensors --label label -o ratings.safetensors
      sentkit predict more.safetensors -m ratings.safetensors --name predicted

    Most used: [FILE]... -m --all --name --field --replace -o

    A row with "text", or with "text_a" and "text_b", gets "label", the most probable
    class, and "probability". A head with one output gives "score". A file of sentkit
    probe -o classifies rows with vectors of its space, and their vectors are left out.

    Flags:
      --all: Add "probabilities": that of each class, in place of "probability".
      -m, --model CLASSIFIER: A folder or hub name with a classification head, or a file of sentkit probe -o.
      --name NAME: Field of the class or the score. [default: label or score]
    """
    # As in `encode`, each thread computes batches of its own.
    limit_threads(None, of_libraries=1)
    import numpy as np

    from sentkit.formats.rows.kinds import FIELDS
    from sentkit.formats.vectors.store import is_store
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS, VectorRow, without_vectors

    console = run.console("predict")
    options.check_name("--name", name)
    output.check_rows()
    of_vectors = is_store(model)
    known, progress = VECTOR_FIELDS if of_vectors else FIELDS, RowProgress(console)
    with row_flags.open(console, output, known=known, reads={"-m": options.model_paths(model)}) as inputs:
        progress.share = inputs.meter.share
        if of_vectors:
            from sentkit.labels.probes.saved import read_classifier

            classifier = read_classifier(model)
            answers = classifier.answers
            groups: Iterator[tuple[list[Any], Any]] = classifier.outputs(inputs)
        else:
            from sentkit.model.classifier import ClassifierModel

            text_model = ClassifierModel(model, machine.device, machine.precision)
            answers, groups = text_model.answers, outputs_of(text_model, inputs, console)

        if answers.classes and name == ("probabilities" if every else "probability"):
            raise UsageError(f"--name {name}: this field is for the probability", advice="use another name")

        def put(item: tuple["Row | VectorRow", Any, "NewFields"]) -> bytes:
            row, values, fields = item
            bare = without_vectors(row.row, row.names) if isinstance(row, VectorRow) else row
            if not np.isfinite(values).all():  # JSON cannot represent NaN
                raise bare.error("an output of the classifier is NaN or infinity")
            return bare.add(fields, replace=replace) + b"\n"

        with output.open() as out:
            for rows, outputs in groups:
                items = zip(rows, outputs, answers.fields(outputs, name, every=every), strict=True)
                out.writelines(inputs.rejects.each(items, put, lambda item: item[0].input_line))
                out.flush()  # the reader of the pipe gets each group immediately
                progress.add(len(rows), 0)
    progress.done()


def outputs_of(
    text_model: "ClassifierModel", inputs: "Inputs", console: Console
) -> Iterator[tuple[list["Row"], Any]]:
    """Yield groups of rows with the outputs of the head (n, k)."""
    from sentkit.formats.vectors.store import common_fields
    from sentkit.model.classifier import RowTexts
    from sentkit.model.encoding import encode_groups
    from sentkit.model.text.groups import Tally, prepare

    console.note(f"loading {text_model.name}")
    groups = prepare(inputs.blocks(RowTexts(common_fields(inputs))), text_model.tokenizer, inputs.rejects)
    classifier, tally = text_model.load(), Tally()
    console.warn(*classifier.notes)
    console.note(f"{classifier.width} outputs, {classifier.device}, {classifier.precision}")
    for group in encode_groups(groups, classifier, classifier.budget):
        tally.add(group)
        yield list(group.rows), group.vectors[0][:, 0]
    console.warn(*classifier.remarks(tally))
