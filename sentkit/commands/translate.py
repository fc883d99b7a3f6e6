"""`sentkit translate`: the texts of rows, translated by a sequence-to-sequence model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from sentkit import completion
from sentkit.console import Console, RowProgress
from sentkit.errors import UsageError
from sentkit.flags import options
from sentkit.flags.outputs import Output, model_paths
from sentkit.flags.rows import RowSource, input_paths
from sentkit.flags.rules import check_name, needs
from sentkit.training.settings import ours, parsed

if TYPE_CHECKING:
    from sentkit.model.groups import EncodeStats
    from sentkit.model.translation import Translator

GROUP = 1024  # rows; a translation takes a thousand times as long as a vector


@dataclass(frozen=True)
class SearchSettings:
    """The settings of the search for a translation; None is the value that the model declares."""

    beams: int | None = ours(None, "number of beams; 1 is greedy", least=1)
    max_new_tokens: int | None = ours(None, "maximum tokens of the output", least=1)
    temperature: float = ours(1.0, "of a sample; lower values favour likely tokens", above=0)
    top_p: float | None = ours(None, "total probability of the tokens of a sample", above=0, most=1)


OF_SAMPLES = ("temperature", "top_p")


def translate(
    *,
    model: Annotated[
        str,
        Option(
            "-m", "--model", metavar="SEQ2SEQ", help="A checkpoint folder, a hub name, or pkg:NAME."
        ),
    ],
    keep: Annotated[
        str | None,
        Option("--keep", metavar="NAME", help="Field for the original text."),
    ] = None,
    source_lang: Annotated[
        str | None,
        Option(
            "--source-lang",
            metavar="CODE",
            help="For multilingual models: the language of the input.",
        ),
    ] = None,
    target_lang: Annotated[
        str | None,
        Option(
            "--target-lang",
            metavar="CODE",
            help="For multilingual models: the language of the output.",
        ),
    ] = None,
    prefix: Annotated[
        str,
        Option(
            "--prefix",
            metavar="TEXT",
            help="Text to add before every input text, for example for T5.",
        ),
    ] = "",
    sample: Annotated[
        bool,
        Option("--sample", help="Draw each token at random instead of a beam search."),
    ] = False,
    seed: Annotated[
        int,
        Option("--seed", metavar="N", min=0, help="With --sample: random seed."),
    ] = 0,
    max_length: options.MaxLength = None,
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            autocompletion=completion.settings_of(SearchSettings),
            help="Change the search; repeatable: beams (as the model declares, else 4; 1 is "
            "greedy), max_new_tokens, and with --sample temperature (1) and top_p.",
        ),
    ] = None,
    on_truncate: options.OnTruncate = "warn",
    device: options.Device = "auto",
    output_path: options.Output = "-",
    force: options.Force = False,
    replace: options.Replace = False,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.Files = None,
    console: Console,
) -> None:
    """Translate texts with a sequence-to-sequence model."""
    # The rules between the flags.
    needs({"--seed": seed != 0}, {"--sample": sample})
    needs({"--replace": replace}, {"--keep": keep})
    settings = parsed(SearchSettings, set_ or [])
    if sample and (settings.get("beams") or 1) > 1:
        raise UsageError("--sample cannot be used with several beams")
    needs({f"--set {name}": name in settings for name in OF_SAMPLES}, {"--sample": sample})
    check_name("--keep", keep)
    from sentkit.formats.checkpoints.folders import read_checkpoint
    from sentkit.formats.rows.kinds import holds_vectors
    from sentkit.formats.rows.rewriting import OneText
    from sentkit.formats.vectors.store import common_field_names

    output = Output(output_path, force)
    output.check_rows()  # before a model is loaded, which can take a minute
    checkpoint = read_checkpoint(model)
    from sentkit.model.groups import EncodeStats, tokenized_groups
    from sentkit.model.translation import Translator

    rows = RowSource(input_paths(files), field, rejects)
    with rows.open(
        console, output, field_names=OneText.FIELDS, reads={"-m": model_paths(model)}
    ) as inputs:
        texts = OneText(common_field_names(inputs), keep, replace=replace)

        # The model.
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
        decoding = "sampled" if sample else f"{translator.beams} beams"
        lengths = f"reads {translator.read} tokens, writes {translator.written}"
        console.note(f"{decoding}, {lengths}, {translator.device}, {translator.precision}")

        # Rows with their texts, tokens, translations, and rows with the new texts.
        groups = tokenized_groups(
            inputs.blocks(texts),
            translator.source,
            inputs.rejects,
            on_truncate=on_truncate,
            largest=GROUP,
        )
        stats = EncodeStats()
        progress = RowProgress(console, inputs=inputs)
        truncated_translations = 0
        stale_vectors = 0  # of the original texts
        with output.open() as file:
            for group, translations in translator.groups(groups):
                for row, translation in zip(group.rows, translations, strict=True):
                    text = None
                    if translation is not None:
                        text = translation.text
                        truncated_translations += translation.full
                    file.write(texts.put(row, text) + b"\n")
                    stale_vectors += holds_vectors(row)
                file.flush()  # the reader of the pipe gets each group immediately
                progress.add(len(group.rows), stats.add(group))
    warn_of_counts(console, translator, stats, truncated_translations, stale_vectors)


def warn_of_counts(
    console: Console,
    translator: "Translator",
    stats: "EncodeStats",
    truncated_translations: int,
    stale_vectors: int,
) -> None:
    long_text = f"were truncated to {translator.read} tokens (--on-truncate error refuses them)"
    long_translation = (
        f"have a translation truncated to {translator.written} tokens (--set max_new_tokens=N)"
    )
    counts = {
        long_text: stats.truncated,
        long_translation: truncated_translations,
        "have an empty text, which was not translated": stats.empty,
        "have a vector of the original text (use sentkit encode --replace)": stale_vectors,
    }
    for words, count in counts.items():
        if count:
            console.warn(f"{count} of {stats.rows} rows {words}")
    if translator.halved:
        times = f"{translator.halved} times because of the memory of the device"
        console.warn(f"batches were split in two {times}")
