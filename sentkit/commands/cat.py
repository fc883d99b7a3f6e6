"""`sentkit cat`: joins rows and converts their format."""

from typing import Annotated, Literal

from sentkit.console import Console
from sentkit.flags import Named, Range, Variable, options
from sentkit.flags.rows import UnusualFlags


def cat(
    *,
    head: Annotated[int | None, Range(min=0)] = None,
    name_field: str | None = None,
    encoding: Annotated[
        Literal["list", "base64"] | None, Named("--vectors"), Variable("SENTKIT_VECTORS")
    ] = None,
    store: options.Store = None,
    output: options.OutputFlags,
    row_flags: UnusualFlags,
    console: Console,
) -> None:
    """Join rows and vector files, and convert between them.

    Flags:
      --head N: Write only the first N rows.
      --name-field NAME: Add a field with the file of each row, as for --group.
      --vectors: Format of vectors in JSONL. [default: as in the input; list for vector files]
    """
    from sentkit.formats.rows.kinds import LEARNED, VECTORS
    from sentkit.formats.vectors.conversion import convert
    from sentkit.formats.vectors.writers import VectorOutput

    options.check_name("--name-field", name_field)
    with row_flags.open(console, output, known=(*LEARNED, *VECTORS)) as inputs:
        form = VectorOutput(force=output.force, replace=True, store=store)
        rows = convert(inputs, output.path, form, head=head, encoding=encoding, name_field=name_field)
    if len(inputs.paths) > 1:
        console.report(f"joined {len(inputs.paths)} files, {rows} rows")
