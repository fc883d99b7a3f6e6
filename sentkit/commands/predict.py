"""`sentkit predict`: the class or the score of every row."""

from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from sentkit.console import Console, RowProgress
from sentkit.errors import NoInputError, UsageError
from sentkit.flags import options
from sentkit.flags.outputs import Output, model_paths
from sentkit.flags.rows import RowSource, input_paths
from sentkit.flags.rules import check_name, needs
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sentkit.formats.rows.kinds import TextParser
    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.vectors.vectors import VectorBlock
    from sentkit.labels.probes.classifiers import VectorClassifier
    from sentkit.model.checkpoint_model import ClassifierModel
    from sentkit.model.encoding import TokenEncoder
    from sentkit.model.text.tokens import TextTokenizer

REST = "other"  # the label of rows that no class fits


def predict(
    *,
    model: Annotated[
        str,
        Option(
            "-m",
            "--model",
            metavar="CLASSIFIER",
            help="A folder or hub name with a classification head, or a file of sentkit probe -o.",
        ),
    ],
    every: Annotated[
        bool,
        Option("--all", help='Add "probabilities": that of each class, in place of "probability".'),
    ] = False,
    name: Annotated[
        str | None,
        Option(
            "--name",
            metavar="NAME",
            help="Field of the class or the score. [default: label or score]",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        Option(
            "--threshold",
            metavar="X",
            min=0.0,
            max=1.0,
            help="A row whose most probable class has a probability below X gets the label of "
            "--rest.",
        ),
    ] = None,
    rest: Annotated[
        str,
        Option(
            "--rest",
            metavar="LABEL",
            help="The label of rows below --threshold; also one of the classes. [default: other]",
        ),
    ] = REST,
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    output_path: options.Output = "-",
    force: options.Force = False,
    replace: options.Replace = False,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.Files = None,
    console: Console,
) -> None:
    """Add the class or the score of a classifier to every row."""
    needs({"--rest": rest != REST}, {"--threshold": threshold})
    check_name("--name", name)
    # As in `encode`, each thread computes its own batches.
    limit_threads(None, of_libraries=1)
    import numpy as np

    from sentkit.formats.files import is_safetensors, is_there
    from sentkit.formats.rows.kinds import FIELDS
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.formats.vectors.writers import refuse_existing_fields, with_fields

    output = Output(output_path, force)
    output.check_rows()
    reads_vectors = is_safetensors(model)
    if is_there(model) and not reads_vectors:
        from sentkit.labels.probes.classifiers import not_a_classifier

        raise not_a_classifier(model)
    rows = RowSource(input_paths(files), field, rejects)
    field_names = VECTOR_FIELDS if reads_vectors else FIELDS
    with rows.open(
        console, output, field_names=field_names, reads={"-m": model_paths(model)}
    ) as inputs:
        # The classifier, and the blocks of rows with its outputs (n, k).
        progress = RowProgress(console, inputs=inputs)
        groups: Iterator[tuple[VectorBlock, NDArray[Any]]]
        if reads_vectors:
            from sentkit.labels.probes.classifiers import read_classifier

            classifier = read_classifier(model)
            answers = classifier.answers
            groups = outputs_of_probe(
                classifier, inputs, console, device=device, precision=precision
            )
        else:
            from sentkit.model.checkpoint_model import ClassifierModel

            text_model = ClassifierModel(model, device, precision)
            answers = text_model.answers
            groups = outputs_of_model(text_model, inputs, console)
        if answers.classes and name == ("probabilities" if every else "probability"):
            raise UsageError(
                f"--name {name}: this field is for the probability", advice="use another name"
            )
        if threshold is not None and not answers.classes:
            raise UsageError(f"--threshold needs a classifier with classes; {model} gives a score")

        with output.open() as file:
            for block, outputs in groups:
                # Bad rows: an output that is not finite, or a field that exists.
                fields = answers.fields(
                    outputs, name, every=every, threshold=threshold or 0.0, label_below=rest
                )
                is_finite = np.isfinite(outputs).all(axis=1)
                for index in np.flatnonzero(~is_finite).tolist():
                    block.rows.refuse(index, "an output of the classifier is NaN or infinity")
                names = [key.decode() for key, _ in fields[0]]
                other_name = "another --name" if name else "--name predicted"
                rename = {names[0]: other_name}  # that of the probabilities is fixed
                refuse_existing_fields(block.rows, names, replace=replace, rename=rename)

                # The lines of the good rows, without vectors.
                vector_fields = {*block.names, "_emb"} if block.names else set[str]()
                for indices in block.good_indices(inputs.rejects):
                    good = block.rows.take(indices).without(vector_fields)
                    if isinstance(indices, slice):
                        new_fields = fields[indices]
                    else:
                        new_fields = [fields[index] for index in indices]
                    file.writelines(line + b"\n" for line in with_fields(good, new_fields))
                file.flush()  # the reader of the pipe gets each group immediately
                progress.add(len(block))


def outputs_of_model(
    model: "ClassifierModel", inputs: "Inputs", console: Console
) -> "Iterator[tuple[VectorBlock, NDArray[Any]]]":
    """Yield blocks of rows with texts and their outputs (n, k)."""
    from sentkit.formats.vectors.store import common_field_names
    from sentkit.model.checkpoint_model import RowTexts

    console.note(f"loading {model.name}")
    encoder = model.load()
    console.note(f"{encoder.width} outputs, {encoder.device}, {encoder.precision}")
    texts = RowTexts(common_field_names(inputs))
    for block in encoded_blocks(inputs, texts, model.tokenizer, encoder, console):
        yield block, block.vectors[:, 0]


def outputs_of_probe(
    classifier: "VectorClassifier",
    inputs: "Inputs",
    console: Console,
    *,
    device: str,
    precision: str,
) -> "Iterator[tuple[VectorBlock, NDArray[Any]]]":
    """Yield blocks of rows and their outputs (n, k). Rows without vectors are encoded."""
    from sentkit.formats.rows.kinds import TextParser
    from sentkit.formats.vectors.first_row import from_first_row
    from sentkit.formats.vectors.store import common_field_names
    from sentkit.model import find_encoder
    from sentkit.model.query_encoder import (
        check_recorded,
        recorded,
        recorded_options,
        recorded_prompts,
        recorded_tokenizer,
    )
    from sentkit.transforms.steps import check_fitted

    with from_first_row(inputs) as (all_rows, has_vectors):
        if has_vectors:
            for flag, value in (("--device", device), ("--precision", precision)):
                if value != "auto":
                    raise UsageError(f"{flag} has no effect on rows with vectors")
            yield from classifier.outputs(all_rows)
            return

        # The model that the file of the classifier records.
        check_recorded(classifier.spec, classifier.path)
        model_name = recorded(classifier.spec, "model", str)
        command = f"sentkit encode FILE -m MODEL | sentkit predict -m {quote(classifier.path)}"
        if model_name is None:
            problem = (
                f"{classifier.path} does not name the model of its vectors, and the rows have none"
            )
            raise NoInputError(problem, advice=command)
        try:
            model = find_encoder(
                model_name,
                recorded_options(classifier.spec),
                device=device,
                precision=precision,
                download=False,  # a data file must not start one
            )
        except NoInputError as error:
            advice = (
                f"{classifier.path} was fitted on vectors of this model; if it has moved: {command}"
            )
            raise NoInputError(str(error), advice=advice) from error

        # Its vectors, which must have the space of the classifier.
        readout = model.readouts[0]
        console.report(
            f"the rows have no vectors; they are encoded with {model.name}, readout {readout}"
        )
        if classifier.spec.get("chunks") is True:
            problem = f"{classifier.path} was fitted on chunks of texts, but each text is encoded"
            pipe = "sentkit encode --on-truncate chunks ... | sentkit predict"
            console.warn(f"{problem} as a whole; for chunks, pipe: {pipe}")
        prompts = recorded_prompts(classifier.spec)
        texts = TextParser(common_field_names(all_rows), prompts=prompts)
        tokenizer = recorded_tokenizer(model, classifier.spec, classifier.path)
        encoder = model.encoder()
        check_fitted(classifier.path, encoder.spaces[0].name)
        console.warn(*model.notes)
        for block in encoded_blocks(all_rows, texts, tokenizer, encoder, console):
            for indices in classifier.checked(block).good_indices(inputs.rejects):
                good = block.take(indices)
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
    from sentkit.model.encoding import encode_groups
    from sentkit.model.groups import EncodeStats, tokenized_groups

    stats = EncodeStats()
    console.warn(*encoder.notes)
    groups = tokenized_groups(inputs.blocks(texts), tokenizer, inputs.rejects)
    for group in encode_groups(groups, encoder, encoder.tokens_per_batch):
        stats.add(group)
        yield VectorBlock(group.rows, group.vectors[0], names=())
    console.warn(*encoder.warnings(stats))
