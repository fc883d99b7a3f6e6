"""`sentkit translate`: the texts of rows, translated by a sequence-to-sequence model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

from sentkit.console import Console, RowProgress
from sentkit.errors import UsageError
from sentkit.flags import options
from sentkit.flags.rows import RowFlags
from sentkit.flags.rules import Needs, Range
from sentkit.training.settings import ours, parsed

if TYPE_CHECKING:
    from sentkit.formats.rows.kinds import OneText
    from sentkit.model.translation.options import TranslationOptions
    from sentkit.model.translation.translate import Counts, Translated, Translator

GROUP = 1024  # rows; a translation takes a thousand times as long as a vector


@dataclass(frozen=True)
class TranslatorMachine(options.MachineFlags):
    """The device and the number format of a translator.

    --precision: auto: bf16 on a GPU that supports it well, else fp32.
    """

    precision: Literal["auto", "fp32", "bf16"] = "auto"


@dataclass(frozen=True)
class SearchSettings:
    """The settings of the search for a translation; None is as the model declares."""

    beams: int | None = ours(None, "number of beams; 1 is greedy", least=1)
    max_new_tokens: int | None = ours(None, "maximum tokens of the output", least=1)
    temperature: float = ours(1.0, "of a sample; lower values favour likely tokens", above=0)
    top_p: float | None = ours(None, "total probability of the tokens of a sample", above=0, most=1)


OF_SAMPLES = ("temperature", "top_p")


@dataclass(frozen=True)
class TranslationFlags:
    """The languages, the search and the lengths of a translation.

    --source-lang CODE: For multilingual models: the language of the input.
    --target-lang CODE: For multilingual models: the language of the output.
    --prefix TEXT: Text to add before every input text, for example for T5.
    --sample: Draw each token at random instead of a beam search.
    --seed N: With --sample: random seed.
    --set NAME=VALUE: Change the search; repeatable: beams (as the model declares, else 4; 1 is greedy),
        max_new_tokens, and with --sample temperature (1) and top_p.
    """

    source_lang: str | None = None
    target_lang: str | None = None
    prefix: str = ""
    sample: bool = False
    seed: Annotated[int, Range(min=0), Needs("--sample")] = 0
    max_length: options.Count = None
    set_: list[str] | None = None

    def options(self) -> "TranslationOptions":
        """The flags as a model takes them; raises UsageError if a value is wrong."""
        from sentkit.model.translation.options import TranslationOptions

        settings = parsed(SearchSettings, self.set_ or [])
        if self.sample and (settings.get("beams") or 1) > 1:
            raise UsageError("--sample cannot be used with several beams")
        if not self.sample and (name := next((name for name in settings if name in OF_SAMPLES), None)):
            raise UsageError(f"--set {name} needs --sample")
        flags = {name: value for name, value in vars(self).items() if name != "set_"}
        return TranslationOptions(**flags, **settings)


def translate(
    *,
    model: str,
    keep: str | None = None,
    translation: TranslationFlags,
    on_truncate: options.OnTruncate = "warn",
    machine: TranslatorMachine,
    output: options.OutputFlags,
    replace: Annotated[bool, Needs("--keep")] = False,
    row_flags: RowFlags,
    run: options.RunFlags,
) -> None:
    """Translate texts with a sequence-to-sequence model.

    \b
    Examples:
      sentkit translate titles.txt -m EN-DE --keep text_a -o german.jsonl
      sentkit translate titles.txt -m EN-DE | sentkit translate -m DE-EN
      sentkit translate pairs.jsonl -m EN-DE --field text=text_b --sample --seed 7

    Most used: [FILE]... -m --keep --source-lang --target-lang --sample --field -o

    The translation replaces "text". All other fields are copied byte for byte. Two
    translations in a pipe make a paraphrase (back-translation). If the first one has
    --keep text_a, the rows are then pairs: sentkit encode --field text_b=text. Each run
    translates one text of a row; for pairs, --field text=text_b selects it. An empty
    text stays empty.

    The model is a sequence-to-sequence checkpoint of transformers: Marian (OPUS-MT),
    T5, M2M100, NLLB, mBART, FSMT and others. sentkit includes none. A translation
    depends only on its text, so equal texts have equal translations. A sample depends
    on --seed and on all texts of the input. Each input row gives one output row, in the
    same order and in constant memory.

    Flags:
      -m, --model SEQ2SEQ: A checkpoint folder, a hub name, or pkg:NAME.
      --keep NAME: Field for the original text.
    """
    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.formats.rows.kinds import OneText
    from sentkit.formats.vectors.store import common_fields
    from sentkit.model.encoding import default_budget, tokenized_groups
    from sentkit.model.translation.translate import Counts, Translator, translate_groups

    console = run.console("translate")
    translation_options = translation.options()
    options.check_name("--keep", keep)
    output.check_rows()  # before a model is loaded, which can take a minute
    checkpoint = read_checkpoint(model)
    with row_flags.open(
        console, output, known=OneText.FIELDS, reads={"-m": options.model_paths(model)}
    ) as inputs:
        texts = OneText(common_fields(inputs), keep, replace=replace)
        console.note(f"loading {checkpoint.name}")
        translator = Translator(checkpoint, translation_options, **vars(machine))
        report_limits(translator, console)
        groups = tokenized_groups(
            inputs.blocks(texts),
            translator.source,
            inputs.rejects,
            refuse_truncation=on_truncate == "error",
            largest=GROUP,
        )
        budget = default_budget(translator.device.type)
        counts, progress = Counts(), RowProgress(console)
        progress.share = inputs.meter.share
        with output.open() as out:
            for group in translate_groups(groups, translator, budget):
                write(group, texts, out)
                progress.add(len(group.rows), counts.take(group))
    progress.done()
    report_totals(counts, translator, console)


def write(group: "Translated", texts: "OneText", out: BinaryIO) -> None:
    for row, made in zip(group.rows, group.made, strict=True):
        out.write(texts.put(row, None if made is None else made.text) + b"\n")
    out.flush()  # the reader of the pipe gets each group immediately


def report_limits(translator: "Translator", console: Console) -> None:
    console.warn(*translator.notes)
    limits = translator.limits
    how = "sampled" if translator.options.sample else f"{limits.beams} beams"
    lengths = f"reads {limits.read} tokens, writes {limits.written}"
    console.note(f"{how}, {lengths}, {translator.device}, {translator.precision}")


def report_totals(counts: "Counts", translator: "Translator", console: Console) -> None:
    rows, limits = counts.rows, translator.limits
    for count, words in (
        (counts.truncated, f"were truncated to {limits.read} tokens (--on-truncate error refuses them)"),
        (counts.full, f"have a translation truncated to {limits.written} tokens (--set max_new_tokens=N)"),
        (counts.empty, "have an empty text, which was not translated"),
        (counts.stale, "have a vector of the original text (use sentkit encode --replace)"),
    ):
        if count:
            console.warn(f"{count} of {rows} rows {words}")
    if translator.halved:
        halved = f"batches were split in two {translator.halved} times because of the memory of the device"
        console.warn(halved)
