"""`sentkit export`: a checkpoint that declares its readout."""

from dataclasses import dataclass, field
from typing import Annotated

from sentkit.flags import options
from sentkit.flags.rules import Named, words_of


@dataclass(frozen=True)
class NewFolderFlags(options.OutputFlags):
    """The checkpoint that the command creates.

    -o, --output DIR: The folder to create.
    """

    path: Annotated[str, Named("--output")] = field()


def export(
    *,
    output: NewFolderFlags,
    model: str = "nano",
    reading: options.ExportFlags,
    run: options.QuietFlags,
) -> None:
    """Write a checkpoint that declares its readout.

    \b
    Examples:
      sentkit export -m BASE --readout mean-last2 -o ckpt
      sentkit export -m CHECKPOINT --transform whitening.safetensors -o whitened
      sentkit export --prompt 'query: ' --normalize -o queries

    Most used: -m --readout --prompt --normalize --transform -o -f

    The weights do not change. The output is a Hugging Face folder with sentkit.json
    and, if possible, with modules of sentence-transformers: averaged layers become
    WeightedLayerPooling, a pooler or a transform becomes Dense, and unit length becomes
    Normalize. These modules cannot express the readout prompt; in that case
    modules.json is not written. The readouts wk and wk-clip are refused.
    """
    from importlib.metadata import version
    from pathlib import Path

    from sentkit.formats.checkpoints.commands import Command, inputs_of
    from sentkit.formats.checkpoints.export import export_checkpoint
    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.model.checkpoint.declaration import declare_encoder
    from sentkit.model.reading import plan_reading
    from sentkit.model.transformer.encoder import TransformerEncoder

    console = run.console("export")
    checkpoint = read_checkpoint(model)
    reads: dict[str, str | list[str] | None] = {"--transform": reading.transform}
    if Path(output.path).resolve() != checkpoint.folder.resolve():  # -f replaces the checkpoint
        reads["-m"] = options.model_paths(model)
    options.check_paths(console, {"-o": output.path}, reads)
    plan = plan_reading(checkpoint, reading.options())
    console.warn(*plan.notes(model))
    encoder = TransformerEncoder(checkpoint, plan, device="cpu", precision="fp32")
    declaration = declare_encoder(encoder)
    lineage = {
        "parents": [model, *checkpoint.parents],
        "command": Command(
            ("export",),
            inputs_of({"-m": model, "--transform": reading.transform}),
            words_of(reading, but=("transform",)),
        ).record(),
        "made_with": {"sentkit": version("sentkit")},
    }
    export_checkpoint(checkpoint, Path(output.path), declaration, lineage, force=output.force)
    if declaration.inexpressible is not None:
        console.warn(
            f"modules.json was not written: {declaration.inexpressible},"
            " and sentence-transformers has no module for this"
        )
