"""`sentkit cat`: joins rows and converts their format."""

from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from sentkit import completion
from sentkit.console import Console
from sentkit.errors import UsageError
from sentkit.flags import options
from sentkit.flags.outputs import Output
from sentkit.flags.rows import RowSource, input_paths
from sentkit.flags.rules import check_name

if TYPE_CHECKING:
    from sentkit.formats.rows.rows import Inputs


def cat(
    *,
    head: Annotated[
        int | None,
        Option("--head", metavar="N", min=0, help="Write only the first N rows."),
    ] = None,
    name_field: Annotated[
        str | None,
        Option(
            "--name-field",
            metavar="NAME",
            help="Add a field with the file of each row, as for --group.",
        ),
    ] = None,
    encoding: Annotated[
        Literal["list", "base64"] | None,
        Option(
            "--vectors",
            envvar="SENTKIT_VECTORS",
            help="Format of vectors in JSONL. [default: as in the input; list for vector files]",
        ),
    ] = None,
    store: options.Store = None,
    output_path: options.Output = "-",
    force: options.Force = False,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.FilesOrFolders = None,
    format_: Annotated[
        str | None,
        Option(
            "--from",
            metavar="FORMAT",
            autocompletion=completion.input_formats,
            help="Input format: jsonl, text, tsv, ...; sentkit-cat(1) lists all. [default: by "
            "suffix]",
        ),
    ] = None,
    quoting: Annotated[
        Literal["none", "csv"] | None,
        Option(
            "--quoting",
            help="For TSV and CSV. csv: fields may be quoted; none: a quote is text. [default: by "
            "format]",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        Option(
            "--columns",
            metavar="A,B,...",
            help="For TSV and CSV without a header: the names of the columns.",
        ),
    ] = None,
    console: Console,
) -> None:
    """Join rows and vector files, and convert between them."""
    from sentkit.formats.counted import counted
    from sentkit.formats.rows.kinds import LEARNED, VECTORS
    from sentkit.formats.vectors.conversion import convert
    from sentkit.formats.vectors.writers import VectorOutput

    check_name("--name-field", name_field)
    check_format(format_)
    output = Output(output_path, force)
    output.check_encoding(encoding)
    names = [] if columns is None else columns.split(",")
    rows = RowSource(input_paths(files, text_folders=True), field, rejects, format_, quoting, names)
    with rows.open(console, output, field_names=(*LEARNED, *VECTORS)) as inputs:
        check_table_flags(inputs, quoting, columns)
        count = convert(
            inputs,
            output.path,
            VectorOutput(force=force, replace=True, store=store),
            head=head,
            encoding_in_jsonl=encoding,
            name_field=name_field,
        )
    if len(inputs.paths) > 1:
        console.report(f"joined {len(inputs.paths)} files, {counted(count, 'row')}")


def check_format(name: str | None) -> None:
    from sentkit.formats.rows.rows import FORMATS

    if name is not None and name not in FORMATS:
        raise UsageError(f'--from: unknown format "{name}"', advice=f"one of {', '.join(FORMATS)}")


def check_table_flags(inputs: "Inputs", quoting: str | None, columns: str | None) -> None:
    """Refuse flags of TSV and CSV for other formats, and columns with an empty or a
    repeated name.
    """
    from sentkit.formats.rows.rows import FORMATS

    tables = {name for name, entry in FORMATS.items() if entry.layout == "table"}
    has_tables = tables & {inputs.format_of(path) for path in inputs.paths}
    for flag, value in {"--quoting": quoting, "--columns": columns}.items():
        if value is not None and not has_tables:
            problem = f"{flag} can be used only with TSV and CSV input"
            raise UsageError(problem, advice="to read TSV, use --from tsv")
    if not all(inputs.columns) or len(set(inputs.columns)) < len(inputs.columns):
        raise UsageError(f'--columns "{columns}": expected different names, such as text,label')
