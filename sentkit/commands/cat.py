"""`sentkit cat`: joins rows and converts their format."""

from typing import Annotated, Literal

from sentkit.flags import options
from sentkit.flags.rows import UnusualFlags
from sentkit.flags.rules import Named, Range, Variable


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
    run: options.QuietFlags,
) -> None:
    """Join rows and vector files, and convert between them.

    \b
    Examples:
      sentkit cat part1.jsonl part2.safetensors -o all.safetensors
      sentkit cat titles.safetensors -o small.safetensors --store int8
      sentkit cat new.jsonl old.jsonl --name-field file | sentkit score
      sentkit cat a.csv --field text_a=sent1 --field text_b=sent2 | sentkit encode

    Most used: [FILE]... --head --field --name-field --rejects -o -f

    The suffix of the output determines its format: a vector file (.safetensors), Parquet
    (.parquet), TSV or CSV (.tsv, .csv, without vectors) or JSONL. --field renames fields
    in the output. A vector file has float32 unless --store selects another kind, see
    sentkit-rows(5). All vectors must be of one space. A vector file made from rows
    records only the name of its space. Rows without vectors pass through. With several
    files, the command reports the number of files and rows on stderr. A terminal shows
    only the first numbers of a vector.

    Flags:
      --head N: Write only the first N rows.
      --name-field NAME: Add a field with the file of each row, as for --group.
      --vectors: Format of vectors in JSONL. [default: as in the input; list for vector files]
    """
    from sentkit.formats.rows.kinds import LEARNED, VECTORS
    from sentkit.formats.vectors.sinks import VectorOutput, convert

    console = run.console("cat")
    options.check_name("--name-field", name_field)
    with row_flags.open(console, output, known=(*LEARNED, *VECTORS)) as inputs:
        form = VectorOutput(force=output.force, replace=True, store=store)
        rows = convert(inputs, output.path, form, head=head, encoding=encoding, name_field=name_field)
    if len(inputs.paths) > 1:
        console.report(f"joined {len(inputs.paths)} files, {rows} rows")
