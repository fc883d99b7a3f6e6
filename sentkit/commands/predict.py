"""`sentkit predict`: the class or the score of every row."""

from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from sentkit.console import Console, RowProgress
from sentkit.errors import NoInputError, UsageError
from sentkit.flags import Named, Needs, Range, options
from sentkit.flags.rows import RowFlags
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sentkit.formats.rows.kinds import TextParser
    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.vectors.vectors import VectorBlock
    from sentkit.labels.probes.classifiers import VectorClassifier
    from sentkit.model.encoding import TokenEncoder
    from sentkit.model.text.tokens import TextTokenizer

REST = "other"  # the label of rows that no class fits


def predict(
    *,
    model: str,
    every: Annotated[bool, Named("--all")] = False,
    name: str | None = None,
    threshold: Annotated[float | None, Range(min=0.0, max=1.0)] = None,
    rest: Annotated[str, Needs("--threshold")] = REST,
    machine: options.MachineFlags,
    output: options.OutputFlags,
    replace: bool = False,
    row_flags: RowFlags,
    console: Console,
) -> None:
    """Add the class or the score of a classifier to every row.

    Flags:
      --all: Add "probabilities": that of each class, in place of "probability".
      -m, --model CLASSIFIER: A folder or hub name with a classification head, or a file of sentkit probe -o.
      --name NAME: Field of the class or the score. [default: label or score]
      --threshold X: A row whose most probable class has a probability below X gets the label of --rest.
      --rest LABEL: The label of rows below --threshold; also one of the classes. [default: other]
    """
    # As in `encode`, each thread computes batches of its own.
    limit_threads(None, of_libraries=1)
    import numpy as np

    from sentkit.formats.files import is_safetensors
    from sentkit.formats.rows.kinds import FIELDS
    from sentkit.formats.vectors.store import common_fields
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.formats.vectors.writers import refuse_existing_fields, with_fields

    options.check_name("--name", name)
    output.check_rows()
    of_vectors = is_safetensors(model)
    known = VECTOR_FIELDS if of_vectors else FIELDS
    with row_flags.open(console, output, known=known, reads={"-m": options.model_paths(model)}) as inputs:
        progress = RowProgress(console, inputs=inputs)
        groups: Iterator[tuple[VectorBlock, NDArray[Any]]]
        if of_vectors:
            from sentkit.labels.probes.classifiers import read_classifier

            classifier = read_classifier(model)
            answers = classifier.answers
            groups = outputs_of_probe(classifier, inputs, machine, console)
        else:
            from sentkit.model.checkpoint_model import ClassifierModel, RowTexts

            text_model = ClassifierModel(model, machine.device, machine.precision)
            console.note(f"loading {text_model.name}")
            answers, loaded = text_model.answers, text_model.load()
            console.note(f"{loaded.width} outputs, {loaded.device}, {loaded.precision}")
            texts = RowTexts(common_fields(inputs))
            encoded = encoded_blocks(inputs, texts, text_model.tokenizer, loaded, console)
            groups = ((block, block.vectors[:, 0]) for block in encoded)
        if answers.classes and name == ("probabilities" if every else "probability"):
            raise UsageError(f"--name {name}: this field is for the probability", advice="use another name")
        if threshold is not None and not answers.classes:
            raise UsageError(f"--threshold needs a classifier with classes; {model} gives a score")
        with output.open() as out:
            for block, outputs in groups:
                fields = answers.fields(
                    outputs, name, every=every, threshold=threshold or 0.0, label_below=rest
                )
                for place in np.flatnonzero(~np.isfinite(outputs).all(axis=1)).tolist():
                    block.rows.refuse(place, "an output of the classifier is NaN or infinity")
                refuse_existing_fields(block.rows, [key.decode() for key, _ in fields[0]], replace=replace)
                for places in block.good_places(inputs.rejects):
                    good = block.rows.take(places).without({*block.names, "_emb"} if block.names else ())
                    new = fields[places] if isinstance(places, slice) else [fields[each] for each in places]
                    out.writelines(line + b"\n" for line in with_fields(good, new))
                out.flush()  # the reader of the pipe gets each group immediately
                progress.add(len(block))


def outputs_of_probe(
    classifier: "VectorClassifier", inputs: "Inputs", machine: options.MachineFlags, console: Console
) -> "Iterator[tuple[VectorBlock, NDArray[Any]]]":
    """Yield blocks of rows and their outputs (n, k). Rows without vectors are encoded."""
    from sentkit.formats.rows.kinds import TextParser
    from sentkit.formats.vectors.first_row import from_first_row
    from sentkit.formats.vectors.store import common_fields
    from sentkit.model import find_encoder
    from sentkit.model.query_encoder import Recorded
    from sentkit.transforms.steps import check_fitted

    with from_first_row(inputs) as (begun, has_vectors):
        if has_vectors:
            yield from classifier.outputs(begun)
            return
        recorded = Recorded(classifier.path, classifier.spec)
        command = f"sentkit encode FILE -m MODEL | sentkit predict -m {quote(classifier.path)}"
        if recorded.model is None:
            problem = f"{classifier.path} does not name the model of its vectors, and the rows have none"
            raise NoInputError(problem, advice=command)
        try:  # without a download, because a data file must not start it
            model = find_encoder(recorded.model, recorded.options(), **vars(machine), download=False)
        except NoInputError as error:
            advice = f"{classifier.path} was fitted on vectors of this model; if it has moved: {command}"
            raise NoInputError(str(error), advice=advice) from error
        readout = model.readouts[0]
        console.report(f"the rows have no vectors; they are encoded with {model.name}, readout {readout}")
        texts = TextParser(common_fields(begun), prompts=model.sides)
        encoder = model.encoder()
        check_fitted(classifier.path, encoder.specs[0].emb)
        console.warn(*model.notes)
        for block in encoded_blocks(begun, texts, model.tokenizer, encoder, console):
            for places in classifier.checked(block).good_places(inputs.rejects):
                good = block.take(places)
                yield good, classifier.outputs_of(good)


def encoded_blocks(
    inputs: "Inputs",
    texts: "TextParser",
    tokenizer: "TextTokenizer",
    encoder: "TokenEncoder",
    console: Console,
) -> "Iterator[VectorBlock]":
    """Yield groups of rows, which have no vectors, with those that the encoder computes."""
    from sentkit.formats.vectors.vectors import VectorBlock
    from sentkit.model.encoding import Tally, encode_groups, tokenized_groups

    tally = Tally()
    console.warn(*encoder.notes)
    groups = tokenized_groups(inputs.blocks(texts), tokenizer, inputs.rejects)
    for group in encode_groups(groups, encoder, encoder.budget):
        tally.add(group)
        yield VectorBlock(group.rows, group.vectors[0], names=())
    console.warn(*encoder.remarks(tally))
