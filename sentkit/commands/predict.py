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
    from numpy.typing import NDArray

    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.rows.splice import NewFields
    from sentkit.formats.vectors.vectors import VectorBlock
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
    from sentkit.formats.rows.kinds import FIELDS
    from sentkit.formats.vectors.sinks import with_fields
    from sentkit.formats.vectors.store import is_store
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS

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
            groups: Iterator[tuple[VectorBlock, NDArray[Any]]] = classifier.outputs(inputs)
        else:
            from sentkit.model.classifier import ClassifierModel

            text_model = ClassifierModel(model, machine.device, machine.precision)
            answers, groups = text_model.answers, outputs_of(text_model, inputs, console)

        if answers.classes and name == ("probabilities" if every else "probability"):
            raise UsageError(f"--name {name}: this field is for the probability", advice="use another name")

        with output.open() as out:
            for block, outputs in groups:
                fields = answers.fields(outputs, name, every=every)
                for places in marked(block, outputs, fields, replace=replace).sift(inputs.rejects):
                    good = block.rows.take(places).without({*block.names, "_emb"} if block.names else ())
                    new = fields[places] if isinstance(places, slice) else [fields[each] for each in places]
                    out.writelines(line + b"\n" for line in with_fields(good, new))
                out.flush()  # the reader of the pipe gets each group immediately
                progress.add(len(block))
    progress.done()


def marked(
    block: "VectorBlock", outputs: "NDArray[Any]", fields: "list[NewFields]", *, replace: bool
) -> "VectorBlock":
    """Mark rows with an output that JSON cannot represent, and rows that have one of the new fields."""
    import numpy as np

    from sentkit.formats.vectors.sinks import refuse_existing_fields

    for place in np.flatnonzero(~np.isfinite(outputs).all(axis=1)).tolist():
        block.rows.refuse(place, "an output of the classifier is NaN or infinity")
    refuse_existing_fields(block.rows, [name.decode() for name, _ in fields[0]], replace=replace)
    return block


def outputs_of(
    text_model: "ClassifierModel", inputs: "Inputs", console: Console
) -> "Iterator[tuple[VectorBlock, NDArray[Any]]]":
    """Yield groups of rows, which have no vectors, and the outputs of the head (n, k)."""
    from sentkit.formats.vectors.store import common_fields
    from sentkit.formats.vectors.vectors import VectorBlock
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
        yield VectorBlock(group.rows, group.vectors[0], names=()), group.vectors[0][:, 0]
    console.warn(*classifier.remarks(tally))
