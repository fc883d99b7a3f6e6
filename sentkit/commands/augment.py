"""`sentkit augment`: variants of sentences."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Option

from sentkit.console import Console
from sentkit.flags import options
from sentkit.flags.outputs import Output
from sentkit.flags.rows import RowSource, input_paths

if TYPE_CHECKING:
    from sentkit.augment.catalogue import RequestedOperation
    from sentkit.formats.rows.rewriting import Sentence, VariantRows
    from sentkit.formats.rows.rows import Inputs

    # A sentence, the texts that may replace it, and the index of the one that must not.
    Source = tuple[Sentence, Sequence[str], int | None]


def augment(
    *,
    op: Annotated[
        list[str] | None,
        Option("--op", metavar="NAME[=VALUE]", help="An operation; several run one after another."),
    ] = None,
    views: Annotated[
        int,
        Option(
            "--views", metavar="N", min=1, help="Number of variants of each sentence, one row each."
        ),
    ] = 1,
    mark: Annotated[
        str | None,
        Option("--mark", metavar="TOKEN", help="Text that replaces each run of deleted words."),
    ] = None,
    synonyms: Annotated[
        list[str] | None,
        Option("--synonyms", metavar="FILE", help="Synonyms for --op synonym; repeatable."),
    ] = None,
    paraphrases: Annotated[
        str | None,
        Option("--paraphrases", metavar="FILE", help="Paraphrases for --op paraphrase."),
    ] = None,
    key: Annotated[
        str | None,
        Option(
            "--key",
            metavar="NAME",
            help="Field that connects a sentence and its paraphrases. [default: text]",
        ),
    ] = None,
    seed: options.Seed = 0,
    output_path: options.Output = "-",
    force: options.Force = False,
    replace: Annotated[
        bool,
        Option("--replace", help="Replace the sentence with the variant."),
    ] = False,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.Files = None,
    console: Console,
) -> None:
    """Make variants of sentences."""
    from sentkit.augment.catalogue import Chain, check_flags, parse_operations
    from sentkit.formats.counted import counted
    from sentkit.formats.lexicons.thesaurus import read_synonyms
    from sentkit.formats.rows.rewriting import VariantRows
    from sentkit.formats.vectors.store import common_field_names

    operations = parse_operations(op or [])
    reads = {"--synonyms": synonyms or None, "--paraphrases": paraphrases}
    check_flags(operations, {**reads, "--mark": mark, "--key": key}, views)
    output = Output(output_path, force)
    output.check_rows()
    rows = RowSource(input_paths(files), field, rejects)
    field_names = ("text", key, operations[0].field_name)
    with rows.open(console, output, field_names=field_names, reads=reads) as inputs:
        variant_rows = VariantRows(common_field_names(inputs).get("text", "text"), replace=replace)
        synonyms_of = read_synonyms(synonyms) if synonyms else {}
        chain = Chain(operations, seed, mark, synonyms_of)
        sources = sentences(inputs, variant_rows, operations[0], paraphrases, key or "text")
        with output.open() as file:
            for sentence, candidates, excluded in sources:
                for view in range(views):
                    variant, notes = chain.vary(
                        sentence.text,
                        (*sentence.views, view),
                        sentence.operations,
                        candidates,
                        excluded,
                    )
                    new_fields = {"seed": seed, "view": view, "ops": notes}
                    file.write(variant_rows.line(sentence, variant, new_fields))

    for operation, unchanged in zip(operations, chain.unchanged, strict=True):
        if unchanged:
            console.warn(f"{operation.name} did not change {unchanged} of {chain.texts} texts")
    if variant_rows.with_vectors:
        rows_with_vectors = counted(variant_rows.with_vectors, "row")
        warning = f"{rows_with_vectors} with vectors of the original texts"
        console.warn(f"{warning}; to replace them, use sentkit encode --replace")


def sentences(
    inputs: "Inputs",
    variant_rows: "VariantRows",
    operation: "RequestedOperation",
    paraphrases: str | None,
    key: str,
) -> "Iterator[Source]":
    """Each sentence with the texts that may replace it in the first operation; usually none."""
    from sentkit.formats.lexicons.thesaurus import name_in, read_paraphrases
    from sentkit.formats.rows.kinds import filled_string
    from sentkit.formats.vectors.store import common_field_names

    names_in_input = common_field_names(inputs)
    if paraphrases is not None:
        key_field = names_in_input.get(key, key)
        paraphrases_of = read_paraphrases(paraphrases, key_field, key)
        return inputs.read(
            lambda row: (
                variant_rows.read(row),
                paraphrases_of.get(name_in(row, key_field), ()),
                None,
            )
        )
    if operation.field_name is None:
        return inputs.read(lambda row: (variant_rows.read(row), (), None))
    field = names_in_input.get(operation.field_name, operation.field_name)
    if operation.kind.takes_all:
        return sentences_of_labels(inputs, variant_rows, field)
    return inputs.read(lambda row: (variant_rows.read(row), [filled_string(row, field)], None))


def sentences_of_labels(
    inputs: "Inputs", variant_rows: "VariantRows", label_field: str
) -> "Iterator[Source]":
    """Each sentence with the texts of its label. All rows are kept in memory."""
    from sentkit.formats.rows.kinds import class_value

    labelled = list(
        inputs.read(lambda row: (variant_rows.read(row), class_value(row, label_field)))
    )
    # label -> text -> its index among the texts of the label; a blank text is not a variant
    index_of_text: dict[str, dict[str, int]] = {}
    for sentence, label in labelled:
        indices = index_of_text.setdefault(label, {})
        if sentence.text.strip():
            indices.setdefault(sentence.text, len(indices))
    texts_of = {label: list(indices) for label, indices in index_of_text.items()}
    for sentence, label in labelled:
        yield sentence, texts_of[label], index_of_text[label].get(sentence.text)
