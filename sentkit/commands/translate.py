"""`sentkit translate`: the texts of rows, translated by a sequence-to-sequence model."""

from dataclasses import dataclass
from typing import Annotated

from sentkit.console import Console, RowProgress
from sentkit.errors import UsageError
from sentkit.flags import Needs, Range, options
from sentkit.flags.rows import RowFlags
from sentkit.training.settings import ours, parsed

GROUP = 1024  # rows; a translation takes a thousand times as long as a vector


@dataclass(frozen=True)
class SearchSettings:
    """The settings of the search for a translation; None is as the model declares."""

    beams: int | None = ours(None, "number of beams; 1 is greedy", least=1)
    max_new_tokens: int | None = ours(None, "maximum tokens of the output", least=1)
    temperature: float = ours(1.0, "of a sample; lower values favour likely tokens", above=0)
    top_p: float | None = ours(None, "total probability of the tokens of a sample", above=0, most=1)


OF_SAMPLES = ("temperature", "top_p")


def translate(
    *,
    model: str,
    keep: str | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    prefix: str = "",
    sample: bool = False,
    seed: Annotated[int, Range(min=0), Needs("--sample")] = 0,
    max_length: options.Count = None,
    set_: list[str] | None = None,
    on_truncate: options.OnTruncate = "warn",
    device: str = "auto",
    output: options.OutputFlags,
    replace: Annotated[bool, Needs("--keep")] = False,
    row_flags: RowFlags,
    console: Console,
) -> None:
    """Translate texts with a sequence-to-sequence model.

    Flags:
      -m, --model SEQ2SEQ: A checkpoint folder, a hub name, or pkg:NAME.
      --keep NAME: Field for the original text.
      --source-lang CODE: For multilingual models: the language of the input.
      --target-lang CODE: For multilingual models: the language of the output.
      --prefix TEXT: Text to add before every input text, for example for T5.
      --sample: Draw each token at random instead of a beam search.
      --seed N: With --sample: random seed.
      --set NAME=VALUE: Change the search; repeatable: beams (as the model declares, else 4; 1 is greedy),
          max_new_tokens, and with --sample temperature (1) and top_p.
    """
    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.formats.rows.kinds import holds_vectors
    from sentkit.formats.rows.rewriting import OneText
    from sentkit.formats.vectors.store import common_fields

    settings = parsed(SearchSettings, set_ or [])
    if sample and (settings.get("beams") or 1) > 1:
        raise UsageError("--sample cannot be used with several beams")
    if not sample and (name := next((name for name in settings if name in OF_SAMPLES), None)):
        raise UsageError(f"--set {name} needs --sample")
    options.check_name("--keep", keep)
    output.check_rows()  # before a model is loaded, which can take a minute
    checkpoint = read_checkpoint(model)
    from sentkit.model.encoding import Tally, tokenized_groups
    from sentkit.model.translation import Translator

    with row_flags.open(
        console, output, known=OneText.FIELDS, reads={"-m": options.model_paths(model)}
    ) as inputs:
        texts = OneText(common_fields(inputs), keep, replace=replace)
        console.note(f"loading {checkpoint.name}")
        translator = Translator(
            checkpoint,
            device=device,
            source_lang=source_lang,
            target_lang=target_lang,
            prefix=prefix,
            max_length=max_length,
            sample=sample,
            seed=seed,
            **settings,
        )
        console.warn(*translator.notes)
        how = "sampled" if sample else f"{translator.beams} beams"
        lengths = f"reads {translator.read} tokens, writes {translator.written}"
        console.note(f"{how}, {lengths}, {translator.device}, {translator.precision}")
        groups = tokenized_groups(
            inputs.blocks(texts), translator.source, inputs.rejects, on_truncate=on_truncate, largest=GROUP
        )
        tally, progress, full, stale = Tally(), RowProgress(console, inputs=inputs), 0, 0
        with output.open() as out:
            for group, translated in translator.groups(groups):
                for row, made in zip(group.rows, translated, strict=True):
                    out.write(texts.put(row, None if made is None else made.text) + b"\n")
                    full += made is not None and made.full
                    stale += holds_vectors(row)
                out.flush()  # the reader of the pipe gets each group immediately
                progress.add(len(group.rows), tally.add(group))
    for count, words in (
        (tally.truncated, f"were truncated to {translator.read} tokens (--on-truncate error refuses them)"),
        (full, f"have a translation truncated to {translator.written} tokens (--set max_new_tokens=N)"),
        (tally.empty, "have an empty text, which was not translated"),
        (stale, "have a vector of the original text (use sentkit encode --replace)"),
    ):
        if count:
            console.warn(f"{count} of {tally.rows} rows {words}")
    if translator.halved:
        halved = f"batches were split in two {translator.halved} times because of the memory of the device"
        console.warn(halved)
