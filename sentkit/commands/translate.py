"""`sentkit translate`: the texts of rows, translated by a sequence-to-sequence model."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer

from sentkit import options
from sentkit.console import Console, Progress
from sentkit.errors import UsageError

if TYPE_CHECKING:
    from sentkit.formats.vectors.texts import OneText
    from sentkit.model.translation.options import Sampling
    from sentkit.model.translation.translate import Counts, Translated, Translator

LARGEST = 1024  # rows of a window; a translation takes a thousand times as long as a vector


def translate(
    *,
    model: Annotated[
        str,
        typer.Option(
            "-m", "--model", metavar="SEQ2SEQ", help="A checkpoint folder, a hub name, or pkg:NAME."
        ),
    ],
    keep: Annotated[
        str | None, typer.Option(metavar="NAME", help="The member that takes the text as it came.")
    ] = None,
    source_lang: Annotated[
        str | None, typer.Option(metavar="CODE", help="Of a model of many languages: the one to read.")
    ] = None,
    target_lang: Annotated[
        str | None, typer.Option(metavar="CODE", help="Of a model of many languages: the one to write.")
    ] = None,
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="Words set before every text, as T5 wants them.")
    ] = "",
    beams: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="1 is greedy. [default: what the model declares, or 4]"),
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw each token, in place of a search.")] = False,
    temperature: Annotated[
        float | None, typer.Option(metavar="X", help="With --sample: below 1 is less daring. [default: 1]")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="With --sample: of the K most likely tokens.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(metavar="P", help="With --sample: of the likeliest that make up P.")
    ] = None,
    seed: options.Seed = 0,
    max_length: options.MaxLength = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens written. [default: as declared, or as many as read]"),
    ] = None,
    on_truncate: Annotated[
        Literal["warn", "error"], typer.Option(help="A text that is too long is cut and counted, or refused.")
    ] = "warn",
    precision: Annotated[
        Literal["auto", "fp32", "bf16"], typer.Option(help="auto: bf16 on a GPU made for it.")
    ] = "auto",
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda[:N]", help="Where the model runs.")] = "auto",
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens x beams at once. [default: by device]")
    ] = None,
    threads: options.Threads = None,
    output: options.Output = "-",
    force: options.Force = False,
    replace: options.Replace = False,
    row_flags: options.RowFlags,
    progress: options.Progress = "auto",
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Pass texts through a model that writes others.

    \b
    Examples:
      sentkit translate titles.txt -m EN-DE --keep text_a -o german.jsonl
      sentkit translate titles.txt -m EN-DE | sentkit translate -m DE-EN
      sentkit translate pairs.jsonl -m EN-DE --field text=text_b --sample --seed 7

    The translation stands in the place of "text"; what else a row holds passes
    through byte for byte. Two of them in a pipe make a paraphrase
    (back-translation); where the first one has --keep text_a, the rows go on as
    pairs: sentkit encode --field text_b=text. One text of a row is translated in a
    run; of pairs --field text=text_b says which. An empty text passes as it is.

    The model is a sequence-to-sequence checkpoint of transformers: Marian (OPUS-MT),
    T5, M2M100, NLLB, mBART, FSMT and others; none comes with sentkit. A translation
    depends on its text alone, not on the texts beside it, and a sample on --seed
    and its text: equal texts are translated alike. One row out for each row in, in
    order, in constant memory.
    """
    options.limit_threads(threads)
    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.formats.outputs.outputs import open_output
    from sentkit.formats.vectors.store import common_fields, read_rows
    from sentkit.formats.vectors.texts import OneText
    from sentkit.model.text.batching import default_budget
    from sentkit.model.text.stream import prepare
    from sentkit.model.translation.options import Manner
    from sentkit.model.translation.translate import Counts, Translator, translate_windows

    console = Console("translate", quiet, verbose)
    sampling = sampling_of(sample, seed, temperature, top_k, top_p, beams)
    check_keep(keep, replace=replace)
    check_output(output, force=force)
    checkpoint = read_checkpoint(model)
    with row_flags.open(
        console, known=OneText.FIELDS, output=output, force=force, reads={"-m": options.model_path(model)}
    ) as inputs:
        texts = OneText(common_fields(inputs), keep, replace=replace)
        console.note(f"loading {checkpoint.name}")
        manner = Manner(beams, sampling, max_length, max_new_tokens, source_lang, target_lang, prefix)
        translator = Translator(checkpoint, manner, device=device, precision=precision)
        describe(translator, console)
        windows = prepare(
            read_rows(inputs, texts),
            translator.source,
            inputs.rejects,
            refuse_cut=on_truncate == "error",
            largest=LARGEST,
        )
        budget = batch_tokens or default_budget(translator.device.type)
        counts, reports = Counts(), Progress(console, progress)
        reports.share = inputs.meter.share
        with open_output(output, force=force) as out:
            for window in translate_windows(windows, translator, budget):
                write(window, texts, out)
                reports.add(len(window), counts.take(window))
    reports.done()
    closing_words(counts, translator, console)


def sampling_of(
    sample: bool,
    seed: int,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    beams: int | None,
) -> "Sampling | None":
    from sentkit.model.translation.options import Sampling

    its_own = {"--temperature": temperature, "--top-k": top_k, "--top-p": top_p}
    given = next((name for name, value in its_own.items() if value is not None), None)
    if not sample and given is not None:
        raise UsageError(f"{given} belongs to --sample")
    if not sample:
        return None
    if beams is not None and beams > 1:
        raise UsageError(f"--sample draws one text, and does not go with --beams {beams}")
    if temperature is not None and not 0 < temperature < math.inf:
        advice = "expected a number above 0; without --sample, --beams 1 takes the likeliest tokens"
        raise UsageError(f"--temperature {temperature:g}", advice=advice)
    if top_p is not None and not 0 < top_p <= 1:
        raise UsageError(f"--top-p {top_p:g}", advice="expected a number above 0, and 1 at most")
    return Sampling(seed, 1.0 if temperature is None else temperature, top_k, top_p)


def check_keep(keep: str | None, *, replace: bool) -> None:
    if keep is None and replace:
        raise UsageError("--replace belongs to --keep")
    if keep is not None and not (keep and keep.isprintable() and not {'"', "\\"} & set(keep)):
        raise UsageError(f"--keep {keep!r}", advice="expected a name that JSON writes as it is")


def check_output(output: str, *, force: bool) -> None:
    """Check the output before a model is loaded, which can take a minute."""
    from sentkit.formats.outputs.outputs import refuse_existing
    from sentkit.formats.vectors.sinks import check_rows_output

    check_rows_output(output)
    refuse_existing(output, force=force)


def write(window: Iterable["Translated"], texts: "OneText", out: BinaryIO) -> None:
    for each in window:
        out.write(texts.put(each.row, None if each.made is None else each.made.text) + b"\n")
    out.flush()  # the reader of the pipe gets each window immediately


def describe(translator: "Translator", console: Console) -> None:
    for note in translator.notes:
        console.warn(note)
    limits = translator.limits
    how = "sampled" if translator.sampling else f"{limits.beams} beams"
    lengths = f"reads {limits.read} tokens, writes {limits.written}"
    console.note(f"{how}, {lengths}, {translator.device}, {translator.precision}")


def closing_words(counts: "Counts", translator: "Translator", console: Console) -> None:
    rows, limits = counts.rows, translator.limits
    if not rows:
        console.warn("no rows")
    for count, words in (
        (counts.cut, f"were cut at {limits.read} tokens (--on-truncate error refuses)"),
        (counts.full, f"have a translation that stops at {limits.written} tokens (--max-new-tokens)"),
        (counts.empty, "have an empty text, which passed as it was"),
        (counts.stale, "hold a vector of the text as it was (sentkit encode --replace makes a new one)"),
    ):
        if count:
            console.warn(f"{count} of {rows} rows {words}")
    if translator.halved:
        console.warn(
            f"{translator.halved} batches were halved to fit the device (--batch-tokens sets their size)"
        )
