"""`sentkit export`: a checkpoint that declares its readout."""

from typing import Annotated

import typer

from sentkit import options
from sentkit.console import Console


def export(
    output: Annotated[str, typer.Option("-o", "--output", metavar="DIR", help="The folder to make.")],
    model: options.Model = "nano",
    readout: options.Readout = None,
    template: options.Template = None,
    full_stop: options.FullStop = None,
    prompt: options.Prompt = None,
    max_length: options.MaxLength = None,
    normalize: options.Normalize = False,
    transform: options.Transform = None,
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a checkpoint that declares how it is read.

    \b
    Examples:
      sentkit export -m BASE --readout mean-last2 -o ckpt
      sentkit export -m CHECKPOINT --transform whitening.safetensors -o whitened
      sentkit export --prompt 'query: ' --normalize -o queries

    The weights stay as they are. What comes out is a Hugging Face folder with
    sentkit.json, and with the modules of sentence-transformers where these can
    say it: averaged layers as WeightedLayerPooling, a pooler or a transform as
    Dense, unit length as Normalize. For the readout prompt they cannot, and no
    modules.json is written.
    """
    from pathlib import Path

    from sentkit.formats.checkpoints.export import export_checkpoint
    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.model.checkpoint.declaration import declaration_of
    from sentkit.model.checkpoint_model import open_encoder
    from sentkit.model.reading import Wishes, plan_reading

    console = Console("export", quiet)
    checkpoint = read_checkpoint(model)
    reads = {"--transform": transform}
    if Path(output).resolve() != checkpoint.folder.resolve():  # -f replaces the checkpoint
        reads["-m"] = options.model_path(model)
    options.check_paths(console, {"-o": output}, reads)
    wishes = Wishes(
        readout, template, full_stop, prompt, max_length, normalise=normalize, transform=transform
    )
    reading = plan_reading(checkpoint, wishes)
    for note in reading.notes(model):
        console.warn(note)
    encoder = open_encoder(checkpoint, reading, device="cpu", precision="fp32")
    declaration = declaration_of(encoder)
    lineage = {"parents": [model, *checkpoint.parents]}
    export_checkpoint(checkpoint, Path(output), declaration, lineage, force=force)
    if declaration.inexpressible is not None:
        console.warn(
            f"no modules.json: {declaration.inexpressible}, and sentence-transformers has no module for that"
        )
