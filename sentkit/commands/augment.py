"""`sentkit augment`: variants of sentences."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sentkit.console import Console
from sentkit.flags import options
from sentkit.flags.rows import RowFlags

if TYPE_CHECKING:
    from sentkit.augment.catalogue import RequestedOperation
    from sentkit.augment.chain import Chain
    from sentkit.formats.rows.rows import Row
    from sentkit.formats.rows.variants import Sentence, VariantRows

    Others = Callable[[Row], Sequence[str]]  # the texts that may replace a row


def augment(
    *,
    op: Annotated[
        list[str] | None,
        typer.Option("--op", metavar="NAME[=VALUE]", help="An operation; several run one after another."),
    ] = None,
    views: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of variants of each sentence, one row each.")
    ] = 1,
    mark: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Text that replaces each run of deleted words.")
    ] = None,
    synonyms: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Synonyms for --op synonym; repeatable.")
    ] = None,
    paraphrases: Annotated[
        str | None, typer.Option(metavar="FILE", help="Paraphrases for --op paraphrase.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Field that connects a sentence and its paraphrases. [default: text]"
        ),
    ] = None,
    seed: options.Seed = 0,
    output: options.OutputFlags,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the sentence with the variant.")
    ] = False,
    row_flags: RowFlags,
    run: options.QuietFlags,
) -> None:
    """Make variants of sentences.

    \b
    Examples:
      sentkit augment titles.txt --op delete=0.3
      sentkit augment titles.txt --op reorder --op lower --views 2
      sentkit augment titles.txt --op synonym --synonyms thesaurus.jsonl
      sentkit augment pairs.jsonl --replace --field text=text_a --op swap
      sentkit augment titles.txt --op delete | sentkit train simcse -o ckpt

    \b
    Operations on words, with their default values:
      delete=0.7          delete this share of the words
      span-delete=5x0.05  delete five spans, each with this share of the words
      reorder=5x0.05      exchange five pairs of such spans
      synonym=0.3         replace this share of the words with synonyms
      repeat=0.32         duplicate this share of the words
      swap                exchange two neighbours; swap=0.1: once per ten words
      negate              add or remove an English "not"
      lower               convert to lower case
      no-punctuation      remove punctuation around words (not in don't, 3.5)
    Operations that start from another text and must come first:
      negate=NAME         the field NAME of the row
      paraphrase          one of the paraphrases of the sentence in --paraphrases

    A row has "text" and becomes a pair: "text_a" is the sentence and "text_b" is the
    variant. With --replace, the variant replaces the sentence. For two variants, pipe
    the pairs into `sentkit augment --replace --field text=text_a` with another --op.
    All other fields are copied byte for byte. The field "augment" records the random
    draws (see man 5 sentkit-rows).

    Words are separated by whitespace. A share of the words is rounded down, but is at
    least one word if there are two. At least one word is always kept. A span has at
    least one word, and spans that do not fit are skipped: of ten words, span-delete
    keeps five. --mark '[DEL]' replaces each run of words that delete removes, and each
    span that span-delete removes. Later operations treat it as a word. The default
    values are from CLEAR (arXiv:2012.15466) and, for repeat, from ESimCSE
    (arXiv:2109.04380).

    negate removes the first "not" (can't becomes can). If the sentence has none, negate
    adds "not" after the first auxiliary, or "Not" before a sentence without auxiliary.
    It uses no parser, so it never writes "does not like".

    --synonyms is a file of rows with "word" and "synonyms" (a list; in tables,
    separated by commas), or with "entry" and "synset", or a data file of WordNet
    (data.noun). Words such as "a", "in" and "who", which have another meaning in a
    dictionary, are removed from its synsets. An entry of several words is never looked
    up. A synonym may have any sense of the word. --paraphrases is a file of rows with
    the field --key and "paraphrase"; several rows may have the same key. Both files are
    kept in memory.

    Draws depend only on --seed, the text, the view and the number of the operation in
    the row. The same text has the same variant in any file, shard or order.
    """
    from sentkit.augment.catalogue import check_flags, parse_operations
    from sentkit.formats.rows.variants import VariantRows
    from sentkit.formats.vectors.sinks import check_rows_output
    from sentkit.formats.vectors.store import common_fields

    console = run.console("augment")
    operations = parse_operations(op or [])
    others = {"--synonyms": synonyms or None, "--paraphrases": paraphrases}
    check_flags(operations, {**others, "--mark": mark, "--key": key}, views)
    check_rows_output(output.path)
    with row_flags.open(
        console,
        output,
        known=("text",),
        reads={"--synonyms": synonyms, "--paraphrases": paraphrases},
    ) as inputs:
        fields = common_fields(inputs)
        rows = VariantRows(fields.get("text", "text"), replace=replace)
        chain = make_chain(operations, mark, synonyms, seed)
        texts = other_texts(operations[0], paraphrases, key or "text", fields)

        def variants(row: "Row") -> bytes:
            return vary(rows.read(row), rows, chain, views, texts(row))

        with output.open() as out:
            for lines in inputs.read(variants):
                out.write(lines)
    report_totals(chain, rows, console)


def make_chain(
    operations: "Sequence[RequestedOperation]", mark: str | None, synonyms: Sequence[str] | None, seed: int
) -> "Chain":
    from sentkit.augment.catalogue import Materials
    from sentkit.augment.chain import Chain
    from sentkit.formats.lexicons.thesaurus import read_synonyms

    materials = Materials(mark, read_synonyms(synonyms) if synonyms else {})
    return Chain([each.bind(materials) for each in operations], seed)


def other_texts(
    first: "RequestedOperation", paraphrases: str | None, key: str, fields: Mapping[str, str]
) -> "Others":
    """The function that returns the candidate texts of a row for the first operation; usually none."""
    from sentkit.formats.lexicons.thesaurus import name_in, read_paraphrases
    from sentkit.formats.rows.kinds import filled

    if paraphrases is not None:
        texts, theirs = read_paraphrases(paraphrases, key), fields.get(key, key)
        return lambda row: texts.get(name_in(row, theirs), ())
    name = first.field_name
    return (lambda row: [filled(row, name)]) if name is not None else lambda row: ()


def vary(
    sentence: "Sentence", rows: "VariantRows", chain: "Chain", views: int, others: Sequence[str]
) -> bytes:
    """The rows of a sentence's variants."""
    lines = []
    for view in range(views):
        variant, notes = chain.vary(sentence.text, (*sentence.views, view), sentence.operations, others)
        run = {"seed": chain.seed, "view": view, "ops": notes}
        lines.append(rows.line(sentence, variant, run))
    return b"".join(lines)


def report_totals(chain: "Chain", rows: "VariantRows", console: Console) -> None:
    """Warn about unchanged texts and outdated vectors, which are hard to see in the output."""
    if not chain.texts:
        console.warn("no rows")
    for step, left in zip(chain.steps, chain.left, strict=True):
        if left:
            console.warn(f"{step.name} did not change {left} of {chain.texts} texts")
    if rows.with_vectors:
        warning = f"{rows.with_vectors} rows contain vectors of the original texts"
        console.warn(f"{warning}; to replace them, use sentkit encode --replace")
