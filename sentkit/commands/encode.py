"""`sentkit encode`: a vector for every row."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from sentkit.console import Console, RowProgress, in_words
from sentkit.digits import in_byte_units, in_clock_time
from sentkit.flag_values import Shard, parse_shard, size
from sentkit.flags import options
from sentkit.flags.encode import (
    FolderOptions,
    earlier_encoder,
    earlier_precision,
    existing_folder,
    has_file_per_readout,
    open_earlier,
    requests_or_threads,
    reusable_vectors,
    stopping,
    tokenizer_and_windows,
)
from sentkit.flags.outputs import Output, model_paths
from sentkit.flags.rows import RowSource, input_paths
from sentkit.flags.rules import needs

if TYPE_CHECKING:
    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.vectors.folders import FolderRun
    from sentkit.model.groups import EncodeStats, RowGroup
    from sentkit.model.runs.writing import Encoding


# The names of a plan on a terminal, if those of the JSON differ. A useful task writes one block or
# more.
PLAN_NAMES = {
    "bytes_estimate": "disk",
    "seconds_estimate": "time",
    "seconds_estimate_bf16": "time with --precision bf16",
    "seconds_estimate_fp32": "time with --precision fp32",
    "memory_estimate": "memory",
    "blocks": "blocks to write",
    "all_blocks": "blocks (useful tasks)",
}


def encode(
    *,
    model: options.ModelOrApi = "nano",
    readout: options.Readout = None,
    max_length: options.MaxLength = None,
    prompt: Annotated[
        str | None,
        Option(
            "--prompt",
            metavar="TEXT",
            help="Text to add before every input text, or by side: a='query: ',b='passage: '.",
        ),
    ] = None,
    prompt_name: Annotated[
        str | None,
        Option(
            "--prompt-name",
            metavar="NAME",
            help="A prompt of the checkpoint, such as query, or by side: a=query,b=document. "
            "[default: as the checkpoint declares]",
        ),
    ] = None,
    normalize: options.Normalize = False,
    dim: Annotated[
        int | None,
        Option(
            "--dim",
            metavar="N",
            min=1,
            help="Keep the first N numbers, at unit length again if they had it (unlike "
            "truncate_dim).",
        ),
    ] = None,
    on_truncate: Annotated[
        Literal["warn", "mark", "error", "window", "chunks"],
        Option(
            "--on-truncate",
            help="For too long texts: truncate and count them, also mark each row, fail, or encode "
            "overlapping windows (window: their mean; chunks: a row for each).",
        ),
    ] = "warn",
    window: Annotated[
        str | None,
        Option(
            "--window",
            metavar="N[:STRIDE]",
            help="Tokens of a window, and to the next one. [default: the maximum length, half of "
            "its text]",
        ),
    ] = None,
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    threads: Annotated[
        int | None,
        Option(
            "--threads",
            metavar="N",
            min=1,
            help="CPU threads. [default: SENTKIT_THREADS, else all CPUs] Of an API: requests at a "
            "time. [default: 4]",
        ),
    ] = None,
    batch_tokens: Annotated[
        int | None,
        Option("--batch-tokens", metavar="N", min=1, help="Tokens per batch. [default: by device]"),
    ] = None,
    dry_run: Annotated[
        bool,
        Option(
            "-n",
            "--dry-run",
            help="Only count rows; estimate tokens, bytes, time and memory.",
        ),
    ] = False,
    output_path: options.Output = "-",
    force: options.Force = False,
    vector_format: Annotated[
        Literal["list", "base64"],
        Option("--vectors", envvar="SENTKIT_VECTORS", help="Format of vectors in JSONL."),
    ] = "list",
    store: options.Store = None,
    resume: Annotated[
        bool,
        Option("--resume", help="With -o DIR/: write only the missing blocks."),
    ] = False,
    shard: Annotated[
        str | None,
        Option(
            "--shard",
            metavar="I/N|auto",
            help="With -o DIR/: part I of N; auto: of Slurm, MPI, torchrun.",
        ),
    ] = None,
    block_bytes: Annotated[
        str | None,
        Option(
            "--block-bytes",
            metavar="SIZE",
            help="With -o DIR/: input of a block. [default: 512K]",
        ),
    ] = None,
    reuse: Annotated[
        list[str] | None,
        Option(
            "--reuse",
            metavar="OLD",
            help="Copy vectors of equal texts from a vector file or folder; repeatable.",
        ),
    ] = None,
    replace: options.Replace = False,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.FilesOrFolders = None,
    console: Console,
) -> None:
    """Add a vector to every row."""
    needs(
        {"--window": window},
        {"--on-truncate window or chunks": on_truncate in ("window", "chunks")},
    )
    from sentkit.formats.files import read_run

    output = Output(output_path, force)
    output.check_encoding(vector_format)
    run = read_run(output.path)  # of an existing vector folder
    requests = requests_or_threads(model, threads, run)
    from sentkit.formats.rows.kinds import FIELDS
    from sentkit.formats.vectors.store import common_field_names, encoded_files
    from sentkit.formats.vectors.writers import VectorOutput, output_paths
    from sentkit.model import find_encoder
    from sentkit.model.groups import tokenized_groups, whole_if_small
    from sentkit.model.reading import ReadingOptions
    from sentkit.model.runs.writing import EncodeParser, Encoding, new_field_names

    folder_flags = {"--resume": resume, "--shard": shard, "--block-bytes": block_bytes}
    existing = existing_folder(output, run, folder_flags)
    in_folder = existing is not None or output.path.endswith("/")
    folder_options = FolderOptions(
        resume,
        None if shard is None else parse_shard(shard),
        None if block_bytes is None else size("--block-bytes", block_bytes),
    )
    reading = ReadingOptions(
        readout=readout,
        prompt=prompt,
        prompt_name=prompt_name,
        by_side=True,
        max_length=max_length,
        normalize=normalize,
        dim=dim,
    )
    rows = RowSource(input_paths(files, text_folders=True), field, rejects)
    with stopping(
        console, output.path, in_vector_folder=in_folder, dry_run=dry_run
    ) as stop_by_signal:
        # The model: its tokenizer and configuration; `encoder` reads the weights.
        stores = open_earlier(reuse or [], output, rows.open_vector_file)
        earlier = earlier_encoder(run, stores)
        text_model = find_encoder(
            model,
            reading,
            device=(folder_options.shard or Shard()).device(device),
            precision=precision,
            recorded_precision=earlier_precision(earlier, precision),
            requests=requests,
        )
        stop_by_signal.adapt_to(text_model.readouts)
        console.loading(text_model.name, text_model.notes)
        tokenizer, windows = tokenizer_and_windows(text_model, on_truncate, window, batch_tokens)

        # The outputs: blocks of a vector folder, or a file for each readout.
        in_folder = in_folder and not has_file_per_readout(
            text_model, folder_options, existing, output
        )
        vector_output = VectorOutput(vector_format, force=force, replace=replace, store=store)
        paths = [output.path]
        if not in_folder:
            paths = output_paths(
                output.path, text_model.readouts, vector_output, force=force or dry_run
            )

        opened = rows.open(
            console,
            output,
            field_names=FIELDS,
            reads={"-m": model_paths(model), "--reuse": reuse},
            writes={"-o": paths},
            append=in_folder,
            dry_run=dry_run,
        )
        with opened as inputs:
            # Rows with their texts, then tokens. A folder and a dry run read their own blocks of
            # rows.
            one_text = "a chunk" if windows.get("chunks") else None
            parser = EncodeParser(
                common_field_names(inputs),
                new_fields=new_field_names(inputs, tokenizer, on_truncate),
                replace=replace,
                one_text=one_text,
                prompts=text_model.prompt_of_side,
            )
            groups: Iterator[RowGroup] = iter(())
            tokens_of_small_input = None
            if not in_folder and not dry_run:
                blocks = inputs.blocks(parser)
                groups = tokenized_groups(
                    blocks, tokenizer, inputs.rejects, on_truncate=on_truncate
                )
                if not stores:  # old and new vectors have the same precision
                    groups, tokens_of_small_input = whole_if_small(groups)

            # Vectors.
            encoder = text_model.encoder(tokens_of_small_input)
            dtype = store or ("float32" if existing is None else existing.store)
            encoding = Encoding(
                encoder,
                tokenizer,
                parser,
                vector_output,
                batch_tokens=batch_tokens,
                on_truncate=on_truncate,
                window_settings=windows,
                encoded_inputs=encoded_files(inputs),
                reusable=reusable_vectors(stores, text_model, encoder, windows, dtype, console),
            )

            # The writer.
            progress = RowProgress(console, inputs=inputs, unit=tokenizer.unit)
            if dry_run and in_folder:
                print_plan_of_folder(
                    folder_options, existing, output.path, encoding, inputs, progress
                )
                return
            if dry_run:
                print_plan_of_files(output.path, encoding, inputs, progress)
                return
            progress.begin(encoder)
            if in_folder:
                stats = write_folder(
                    folder_options,
                    existing,
                    output.path,
                    encoding,
                    inputs,
                    progress,
                    stop_by_signal.check,
                )
            else:
                stats = encoding.to_outputs(groups, paths, progress.add, inputs.rejects)
    progress.done()
    if stats.rows or not in_folder:
        progress.encoded(stats, encoder)
        console.report(*encoding.count_messages(stats))


def print_plan_of_files(
    path: str, encoding: "Encoding", inputs: "Inputs", progress: RowProgress
) -> None:
    """Print the plan of --dry-run for an output other than a vector folder."""
    from sentkit.model.runs.plan import plan_of

    blocks = [inputs.blocks(encoding.parser)]
    plan = plan_of(blocks, encoding, inputs.rejects, path, progress.add)
    del plan["blocks"], plan["all_blocks"]
    progress.done()
    print_plan(plan)


def print_plan_of_folder(
    options: FolderOptions,
    existing: "FolderRun | None",
    path: str,
    encoding: "Encoding",
    inputs: "Inputs",
    progress: RowProgress,
) -> None:
    """Print the plan of --dry-run for a vector folder; `existing` is this folder if it exists."""
    from sentkit.errors import NoRowsError
    from sentkit.formats.vectors.folders import compare
    from sentkit.model.runs.folder_writer import settings_of
    from sentkit.model.runs.plan import plan_of

    if existing is not None and (options.resume or options.shard is not None):
        compare(existing, settings_of(encoding, inputs, options.block_bytes))
    blocks = options.planned_blocks(inputs, encoding.parser, existing)
    plan = plan_of(blocks, encoding, inputs.rejects, f"{path}/", progress.add)
    writes_all = options.shard is None and not options.resume
    if not plan["all_blocks"] or (writes_all and not plan["rows"]):
        raise NoRowsError(inputs.paths)
    if options.shard is not None:
        warn_of_empty_shards(progress.console, plan["all_blocks"], options.shard.count)
    progress.done()
    print_plan(plan)


def print_plan(plan: dict[str, Any]) -> None:
    """Print a JSON object, or a table on a terminal."""
    units: dict[str, Callable[[Any], str]] = {
        "bytes_estimate": in_byte_units,
        "memory_estimate": in_byte_units,
        "seconds_estimate": in_clock_time,
        "seconds_estimate_bf16": in_clock_time,
        "seconds_estimate_fp32": in_clock_time,
    }
    pairs = list[tuple[str, str]]()
    for name, value in plan.items():
        shown_name = PLAN_NAMES.get(name, name.replace("_", " "))
        if name in units and value is not None:
            pairs.append((shown_name, units[name](value)))
        else:
            pairs.append((shown_name, in_words(value, "unknown")))
    output = Output()
    output.write_record(plan, as_table=output.on_terminal, pairs=pairs)


def warn_of_empty_shards(console: Console, blocks: int, shards: int) -> None:
    if blocks >= shards:
        return
    have = "has" if shards - blocks == 1 else "have"
    console.warn(f"{shards - blocks} of {shards} shards {have} no block: {few_blocks(blocks)}")


def few_blocks(blocks: int) -> str:
    """The number of blocks, which is too small for the shards, with advice."""
    there = "is" if blocks == 1 else "are"
    return f"there {there} {blocks} (use --shard I/{blocks}, or smaller --block-bytes)"


def write_folder(
    options: FolderOptions,
    existing: "FolderRun | None",
    path: str,
    encoding: "Encoding",
    inputs: "Inputs",
    progress: RowProgress,
    check_stop: Callable[[], None],
) -> "EncodeStats":
    """Write the blocks of a shard, and return the counts of the rows that were written.

    `existing` is the folder if it was there when the command began.
    """
    from sentkit.model.runs.folder_writer import BlockWriter

    shard = options.shard or Shard()
    writer = BlockWriter(
        path.rstrip("/") or "/",
        encoding,
        inputs,
        None if options.shard is None else shard.has,
        block_bytes=options.block_bytes,
        resume=options.resume,
        existing=existing,
    )
    progress.share = writer.share
    blocks = writer.folder.offsets[-1]
    if blocks == 1 and writer.count is not None and not writer.existing:  # not of a stream
        block_size = in_byte_units(writer.folder.block_bytes)
        if writer.folder.inputs[0]["grid"] == "rows":
            block_size = f"{writer.folder.block_rows:,} rows"
        stopped = f"the input is one block, of up to {block_size}, so a stop"
        progress.console.note(
            f"{stopped} loses all of its rows; a smaller --block-bytes keeps more"
        )
    writer.run(progress.add, check_stop)
    counts = writer.count_message(f"shard {shard}: " if shard.count > 1 else "")
    if writer.count == 0:
        counts += f": {few_blocks(blocks)}"
    progress.console.report(counts)
    if encoding.reusable is not None and shard.count == 1 and not writer.complete:
        encoding.reusable.count_unneeded()
    return writer.stats
