"""`sentkit export`: a checkpoint that declares its readout."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from sentkit import completion
from sentkit.console import Console
from sentkit.errors import UsageError
from sentkit.flags import options
from sentkit.flags.outputs import Output, check_paths, model_paths
from sentkit.process import typed_words, version_of

if TYPE_CHECKING:
    from sentkit.formats.checkpoints.folders import Checkpoint
    from sentkit.model.reading import ReadingOptions


def export(
    *,
    output_path: options.NewFolder,
    force: options.Force = False,
    model: options.Model = "nano",
    readout: options.Readout = None,
    max_length: options.MaxLength = None,
    prompt: Annotated[
        str | None,
        Option("--prompt", metavar="TEXT", help="Text to add before every input text."),
    ] = None,
    prompt_name: Annotated[
        str | None,
        Option(
            "--prompt-name",
            metavar="NAME",
            help="A prompt of the checkpoint, such as query. [default: as the checkpoint declares]",
        ),
    ] = None,
    normalize: options.Normalize = False,
    transform: Annotated[
        str | None,
        Option(
            "--transform",
            metavar="PATH",
            help="A transform file to apply after all other operations.",
        ),
    ] = None,
    template: Annotated[
        str | None,
        Option(
            "--template",
            metavar="NAME|TEXT",
            autocompletion=completion.templates,
            help="For the readout prompt: a template name, or text with [X] and [MASK].",
        ),
    ] = None,
    full_stop: Annotated[
        Literal["none", "promptbert", "sncse"] | None,
        Option(
            "--full-stop",
            help="Rule that adds missing final punctuation. [default: as in the template's paper]",
        ),
    ] = None,
    store: Annotated[
        Literal["float32", "float16", "int8"] | None,
        Option(
            "--store",
            help="Numbers of the weights; int8: only the table of a static model. [default: as "
            "they are]",
        ),
    ] = None,
    console: Console,
) -> None:
    """Write a checkpoint that declares its readout."""
    from sentkit.formats.checkpoints.command_record import command_record, inputs_of
    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.formats.rows.kinds import split_by_side
    from sentkit.model.reading import ReadingOptions

    output = Output(output_path, force)
    if split_by_side(prompt or ""):
        advice = "prompts by side are for encode, and for train --set prompt"
        raise UsageError("--prompt: a checkpoint declares one prompt for all texts", advice=advice)
    reading = ReadingOptions(
        readout=readout,
        template=template,
        full_stop=full_stop,
        prompt=prompt,
        prompt_name=prompt_name,
        max_length=max_length,
        normalize=normalize,
        transform=transform,
    )

    # The base. It may be the folder that -f replaces.
    checkpoint = read_checkpoint(model, static=True)
    reads: dict[str, str | list[str] | None] = {"--transform": transform}
    if Path(output.path).resolve() != checkpoint.folder.resolve():  # -f replaces the checkpoint
        reads["-m"] = model_paths(model)
    check_paths(console, {"-o": output.path}, reads)

    # The new folder, with the record of this command.
    lineage = {
        "parents": [model, *checkpoint.parents],
        **command_record(
            typed_words(), inputs_of({"-m": model, "--transform": transform}), checkpoint
        ),
        "made_with": {"sentkit": version_of("sentkit")},
    }
    if checkpoint.declaration.is_static:
        export_static(checkpoint, reading, store, output, lineage, console)
    else:
        export_transformer(checkpoint, reading, store, output, lineage, console)


def lineage_without_command(checkpoint: "Checkpoint") -> dict[str, Any]:
    """sentkit.json without the keys of the command that made the checkpoint."""
    from sentkit.formats.checkpoints.command_record import OF_COMMAND

    return {
        name: value for name, value in checkpoint.sentkit_json.items() if name not in OF_COMMAND
    }


def export_static(
    checkpoint: "Checkpoint",
    reading: "ReadingOptions",
    store: str | None,
    output: Output,
    lineage: dict[str, Any],
    console: Console,
) -> None:
    """Write a static model with other numbers. It has no readout to declare."""
    import numpy as np

    from sentkit.formats.checkpoints.writing import new_folder, write_static_folder
    from sentkit.formats.lexicons.model2vec import LEAST_COSINE, coarse_rows, stored_as
    from sentkit.model.reading import ReadingOptions
    from sentkit.model.static.models import WordTable, read_static_folder
    from sentkit.transforms.steps import Normalize

    if store is None or reading != ReadingOptions():
        problem = f"{checkpoint.name} is a static model, for which export has only --store"
        raise UsageError(problem, advice="sentkit export -m MODEL --store float16 -o DIR")
    model = read_static_folder(checkpoint, ReadingOptions())
    if store == "int8" and not any(isinstance(step, Normalize) for step in model.steps):
        problem = f"--store int8: the vectors of {checkpoint.name} do not have unit length"
        raise UsageError(problem, advice="use --store float16")
    vectors = model.open_vectors()
    assert isinstance(vectors, WordTable), "a folder has a table"
    with new_folder(output.path, force=output.force) as folder:
        table = stored_as(vectors.table, store)
        if not np.isfinite(table.rows).all():
            problem = f"--store {store}: the numbers of {checkpoint.name} are too large for it"
            raise UsageError(problem, advice="use --store float32")
        coarse_count = coarse_rows(vectors.table, table)
        if coarse_count:
            console.warn(
                f"--store {store}: {coarse_count} of {len(table.rows)} vectors of tokens have a"
                f" cosine below {LEAST_COSINE} to those of {checkpoint.name}; use another --store"
            )
        write_static_folder(
            folder, checkpoint, table, lineage_without_command(checkpoint) | lineage
        )


def export_transformer(
    checkpoint: "Checkpoint",
    reading: "ReadingOptions",
    store: str | None,
    output: Output,
    lineage: dict[str, Any],
    console: Console,
) -> None:
    from sentkit.formats.checkpoints.folders import is_adapter
    from sentkit.formats.checkpoints.writing import new_folder
    from sentkit.model.checkpoint.export import (
        declare_encoder,
        encoder_class,
        without_language_head,
        write_card,
        write_folder,
    )
    from sentkit.model.checkpoint_reading import plan_reading
    from sentkit.model.transformer.encoder import TransformerEncoder
    from sentkit.model.transformer.weights import read_weights

    if store == "int8":
        problem = "--store int8 is only for static models"
        raise UsageError(problem, advice="use --store float16, and encode --precision int8")
    plan = plan_reading(checkpoint, reading)
    console.warn(*plan.notes(checkpoint.name))
    encoder = TransformerEncoder(checkpoint, plan, device="cpu", precision="fp32")
    declaration = declare_encoder(encoder)
    adapted = store is None and is_adapter(checkpoint.transformer_folder)  # its files are copied
    tensors = {} if adapted else read_weights(checkpoint.transformer_folder, checkpoint.name)
    exported_tensors = tensors
    if declaration.inexpressible is None:
        exported_tensors = without_language_head(tensors, encoder.body, checkpoint.config)
    has_fewer_tensors = len(exported_tensors) < len(tensors)
    if has_fewer_tensors:
        config = {**checkpoint.config, "architectures": [encoder_class(encoder.body)]}
        checkpoint = replace(checkpoint, config=config)
    changed_tensors = None  # the files are copied
    if store is not None or has_fewer_tensors:
        changed_tensors = exported_tensors
    with new_folder(output.path, force=output.force) as folder:
        write_folder(
            folder, checkpoint, declaration, lineage, changed_tensors, store, documents=True
        )
        # the card of the base states another readout, prompt or length
        if "method" in checkpoint.sentkit_json:
            exported = {"parents": checkpoint.parents, "exported": True}
            write_card(
                folder, lineage_without_command(checkpoint) | lineage | exported, declaration
            )
    if declaration.inexpressible is not None:
        console.warn(
            f"modules.json was not written: {declaration.inexpressible},"
            " and sentence-transformers has no module for this"
        )
