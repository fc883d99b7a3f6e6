"""`sentkit augment`: variants of sentences."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from sentkit.console import Console
from sentkit.flags import Range, options
from sentkit.flags.rows import RowFlags

if TYPE_CHECKING:
    from sentkit.augment.catalogue import RequestedOperation
    from sentkit.formats.rows.rewriting import Sentence, VariantRows
    from sentkit.formats.rows.rows import Inputs

    Found = tuple[Sentence, Sequence[str], int | None]  # with the texts that may replace it, but for one


def augment(
    *,
    op: list[str] | None = None,
    views: Annotated[int, Range(min=1)] = 1,
    mark: str | None = None,
    synonyms: list[str] | None = None,
    paraphrases: str | None = None,
    key: str | None = None,
    seed: options.Seed = 0,
    output: options.OutputFlags,
    replace: bool = False,
    row_flags: RowFlags,
    console: Console,
) -> None:
    """Make variants of sentences.

    Flags:
      --op NAME[=VALUE]: An operation; several run one after another.
      --views N: Number of variants of each sentence, one row each.
      --mark TOKEN: Text that replaces each run of deleted words.
      --synonyms FILE: Synonyms for --op synonym; repeatable.
      --paraphrases FILE: Paraphrases for --op paraphrase.
      --key NAME: Field that connects a sentence and its paraphrases. [default: text]
      --replace: Replace the sentence with the variant.
    """
    from sentkit.augment.catalogue import Chain, check_flags, parse_operations
    from sentkit.formats.lexicons.thesaurus import read_synonyms
    from sentkit.formats.rows.rewriting import VariantRows
    from sentkit.formats.vectors.store import common_fields

    operations = parse_operations(op or [])
    reads = {"--synonyms": synonyms or None, "--paraphrases": paraphrases}
    check_flags(operations, {**reads, "--mark": mark, "--key": key}, views)
    output.check_rows()
    with row_flags.open(console, output, known=("text",), reads=reads) as inputs:
        fields = common_fields(inputs)
        rows = VariantRows(fields.get("text", "text"), replace=replace)
        known = read_synonyms(synonyms) if synonyms else {}
        chain = Chain(operations, seed, mark, known)
        found = sentences(inputs, rows, operations[0], paraphrases, key or "text")
        with output.open() as out:
            for sentence, candidates, own in found:
                for view in range(views):
                    numbers = (*sentence.views, view)
                    variant, notes = chain.vary(sentence.text, numbers, sentence.operations, candidates, own)
                    out.write(rows.line(sentence, variant, {"seed": seed, "view": view, "ops": notes}))
    for operation, unchanged in zip(operations, chain.unchanged, strict=True):
        if unchanged:
            console.warn(f"{operation.name} did not change {unchanged} of {chain.texts} texts")
    if rows.with_vectors:
        warning = f"{rows.with_vectors} rows contain vectors of the original texts"
        console.warn(f"{warning}; to replace them, use sentkit encode --replace")


def sentences(
    inputs: "Inputs", rows: "VariantRows", first: "RequestedOperation", paraphrases: str | None, key: str
) -> "Iterator[Found]":
    """Each sentence with the texts that may replace it in the first operation; usually none.

    For texts of the rows with its label, all rows are kept in memory.
    """
    from sentkit.formats.lexicons.thesaurus import name_in, read_paraphrases
    from sentkit.formats.rows.kinds import class_of, filled
    from sentkit.formats.vectors.store import common_fields

    name = first.field_name
    if paraphrases is not None:
        known, theirs = read_paraphrases(paraphrases, key), common_fields(inputs).get(key, key)
        return inputs.read(lambda row: (rows.read(row), known.get(name_in(row, theirs), ()), None))
    if not first.kind.takes_all:
        return inputs.read(lambda row: (rows.read(row), [filled(row, name)] if name else (), None))
    found = list(inputs.read(lambda row: (rows.read(row), class_of(row, first.value))))
    places: dict[str, dict[str, int]] = {}  # label -> text -> its place among the texts of the label
    for sentence, name in found:
        own = places.setdefault(name, {})
        own.setdefault(sentence.text, len(own))
    texts = {name: list(own) for name, own in places.items()}
    return ((sentence, texts[name], places[name][sentence.text]) for sentence, name in found)
