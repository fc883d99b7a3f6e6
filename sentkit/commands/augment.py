"""`sentkit augment`: variants of sentences."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sentkit import options
from sentkit.console import Console
from sentkit.errors import UsageError

if TYPE_CHECKING:
    from sentkit.augment.catalogue import Wanted
    from sentkit.augment.chain import Chain
    from sentkit.formats.rows.rows import Inputs, Row
    from sentkit.formats.vectors.variants import Sentence, VariantRows

    Others = Callable[[Row], Sequence[str]]  # the texts that may replace a row


def augment(
    *,
    op: Annotated[
        list[str] | None,
        typer.Option("--op", metavar="NAME[=VALUE]", help="What is done; several, one after another."),
    ] = None,
    views: Annotated[int, typer.Option(min=1, metavar="N", help="Variants, and rows, of each sentence.")] = 1,
    mark: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="What stands for each run of deleted words.")
    ] = None,
    synonyms: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Where synonym finds its words; repeatable.")
    ] = None,
    paraphrases: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where paraphrase finds its sentences.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The member that sentence and paraphrase share. [default: text]"),
    ] = None,
    seed: options.Seed = 0,
    output: options.Output = "-",
    force: options.Force = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="The variant takes the place of the sentence.")
    ] = False,
    row_flags: options.RowFlags,
    quiet: options.Quiet = False,
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
    Operations on words, each with the value it has where none is given:
      delete=0.7          this share of the words goes
      span-delete=5x0.05  five spans go, each of this share of the words
      reorder=5x0.05      five pairs of such spans change places
      synonym=0.3         so many words become a synonym, of any sense
      repeat=0.32         so many words stand twice
      swap                two neighbours change places; swap=0.1: so many times
      negate              an English "not" goes or comes
      lower               no capitals
      no-punctuation      none around words; in them (don't, 3.5) it stays
    And texts of one's own, which can only come first:
      negate=NAME         the row's own member of this name
      paraphrase          one of those in --paraphrases

    A row holds "text". It becomes a pair: "text_a" is the sentence and "text_b" the
    variant; --replace puts the variant in its place. To have two variants, pipe the
    pairs into `sentkit augment --replace --field text=text_a` and another --op. All
    else passes byte for byte, and what was drawn is told in "augment" (see man 5
    sentkit-rows).

    Words lie between blanks. A share of them is rounded down, but one word at least
    where there are two, and never all of them go. A span is of one word at least, and
    there are as many as fit: of ten words span-delete leaves five. --mark '[DEL]'
    stands for each run of words that delete takes, and for each span, and is a word to
    the operations behind it. The values are those of CLEAR (arXiv:2012.15466) and, for
    repeat, of ESimCSE (arXiv:2109.04380).

    negate takes the first "not" out (can't becomes can), else sets one behind the
    first auxiliary, else "Not" before the sentence: it has no parser, so it says no
    "does not like".

    --synonyms holds rows of "word" and "synonyms" (a list, in tables with commas
    between), or of "entry" and "synset", or is a data file of WordNet (data.noun).
    Words such as "a", "in" and "who", which mean something else in a dictionary,
    are left out of its synsets; an entry of several words is never looked up.
    --paraphrases holds rows of --key and "paraphrase", several of a key or one. Both
    files are held in memory.

    A draw hangs on --seed, the text, the view and the operation's number in the row
    alone: the same text has the same variant in any file, shard or order.
    """
    from sentkit.augment.catalogue import check_flags, parse_operations
    from sentkit.formats.outputs.outputs import open_output
    from sentkit.formats.vectors.sinks import check_rows_output
    from sentkit.formats.vectors.store import common_fields, read_rows
    from sentkit.formats.vectors.variants import VariantRows

    console = Console("augment", quiet)
    wanted = parse_operations(op or [])
    others = {"--synonyms": synonyms or None, "--paraphrases": paraphrases}
    check_flags(wanted, {**others, "--mark": mark, "--key": key}, views)
    check_rows_output(output)
    with row_flags.open(
        console,
        known=("text",),
        output=output,
        force=force,
        reads={"--synonyms": synonyms, "--paraphrases": paraphrases},
    ) as inputs:
        refuse_two_of_standard_input(inputs, [*(synonyms or []), paraphrases or ""])
        rows = VariantRows(common_fields(inputs).get("text", "text"), replace=replace)
        chain = make_chain(wanted, mark, synonyms, seed)
        texts = other_texts(wanted[0], paraphrases, key or "text", inputs)

        def variants(row: "Row") -> bytes:
            return vary(rows.read(row), rows, chain, views, texts(row))

        with open_output(output, force=force) as out:
            for lines in read_rows(inputs, variants):
                out.write(lines)
    closing_words(chain, rows, console)


def refuse_two_of_standard_input(inputs: "Inputs", others: Sequence[str]) -> None:
    if [*inputs.paths, *others].count("-") > 1 and "-" in others:
        raise UsageError("standard input can be read for one thing only", advice="name a FILE for the rest")


def make_chain(
    wanted: "Sequence[Wanted]", mark: str | None, synonyms: Sequence[str] | None, seed: int
) -> "Chain":
    from sentkit.augment.catalogue import Materials
    from sentkit.augment.chain import Chain
    from sentkit.formats.lexicons.thesaurus import read_synonyms

    materials = Materials(mark, read_synonyms(synonyms) if synonyms else {})
    return Chain([each.step(materials) for each in wanted], seed)


def other_texts(first: "Wanted", paraphrases: str | None, key: str, inputs: "Inputs") -> "Others":
    """The function that returns the candidate texts of a row for the first operation; usually none."""
    from sentkit.formats.lexicons.thesaurus import name_in, read_paraphrases
    from sentkit.formats.rows.kinds import filled

    if paraphrases is not None:
        found, theirs = read_paraphrases(paraphrases, key), inputs.fields.get(key, key)
        return lambda row: found.get(name_in(row, theirs), ())
    member = first.member
    return (lambda row: [filled(row, member)]) if member is not None else lambda row: ()


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


def closing_words(chain: "Chain", rows: "VariantRows", console: Console) -> None:
    """Warn about unchanged texts and outdated vectors, which are hard to see in the output."""
    if not chain.texts:
        console.warn("no rows")
    for step, left in zip(chain.steps, chain.left, strict=True):
        if left:
            console.warn(f"{step.name} left {left} of {chain.texts} texts as they were")
    if rows.with_vectors:
        console.warn(f"rows that hold vectors of the texts before: {rows.with_vectors}")
