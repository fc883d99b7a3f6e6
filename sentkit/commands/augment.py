"""`sentkit augment`: variants of sentences."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from sentkit.console import Console
from sentkit.flags import options
from sentkit.flags.rows import RowFlags
from sentkit.flags.rules import Range

if TYPE_CHECKING:
    from sentkit.augment.catalogue import Chain, RequestedOperation
    from sentkit.formats.rows.block import Row
    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.rows.variants import Sentence, VariantRows

    Others = Callable[[Row], Sequence[str]]  # the texts that may replace a row


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
    run: options.QuietFlags,
) -> None:
    """Make variants of sentences.

    \b
    Examples:
      sentkit augment titles.txt --op delete=0.3
      sentkit augment titles.txt --op synonym --synonyms thesaurus.jsonl
      sentkit augment reviews.jsonl --op same-label=label
      sentkit augment pairs.jsonl --replace --field text=text_a --op swap

    Most used: [FILE]... --op --views --synonyms --replace --seed -o

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
    from sentkit.formats.rows.variants import VariantRows
    from sentkit.formats.vectors.store import common_fields

    console = run.console("augment")
    operations = parse_operations(op or [])
    others = {"--synonyms": synonyms or None, "--paraphrases": paraphrases}
    check_flags(operations, {**others, "--mark": mark, "--key": key}, views)
    output.check_rows()
    with row_flags.open(
        console,
        output,
        known=("text",),
        reads={"--synonyms": synonyms, "--paraphrases": paraphrases},
    ) as inputs:
        fields = common_fields(inputs)
        rows = VariantRows(fields.get("text", "text"), replace=replace)
        known = read_synonyms(synonyms) if synonyms else {}
        chain = Chain([each.bind(mark, known) for each in operations], seed)
        if operations[0].kind.takes_all:
            found = with_same_label(inputs, rows, operations[0].value)
        else:
            texts = other_texts(operations[0], paraphrases, key or "text", fields)
            found = inputs.read(lambda row: (rows.read(row), texts(row)))
        with output.open() as out:
            for sentence, candidates in found:
                out.write(vary(sentence, rows, chain, views, candidates))
    report_totals(chain, rows, console)


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


def with_same_label(
    inputs: "Inputs", rows: "VariantRows", label: str
) -> "Iterator[tuple[Sentence, Sequence[str]]]":
    """Each sentence with the other texts of the rows with its label. All rows are kept in memory."""
    from sentkit.augment.catalogue import Others
    from sentkit.formats.rows.kinds import class_of

    found = list(inputs.read(lambda row: (rows.read(row), class_of(row, label))))
    places: dict[str, dict[str, int]] = {}  # label -> text -> its place among the texts of the label
    for sentence, name in found:
        own = places.setdefault(name, {})
        own.setdefault(sentence.text, len(own))
    texts = {name: list(own) for name, own in places.items()}
    return ((sentence, Others(texts[name], places[name][sentence.text])) for sentence, name in found)


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
    for step, left in zip(chain.steps, chain.left, strict=True):
        if left:
            console.warn(f"{step.name} did not change {left} of {chain.texts} texts")
    if rows.with_vectors:
        warning = f"{rows.with_vectors} rows contain vectors of the original texts"
        console.warn(f"{warning}; to replace them, use sentkit encode --replace")
