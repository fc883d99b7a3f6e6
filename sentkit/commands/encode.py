"""`sentkit encode`: a vector for every row."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentkit.console import Console, RowProgress
from sentkit.errors import UsageError
from sentkit.flags import options
from sentkit.flags.folders import FolderFlags
from sentkit.flags.rows import RowFlags
from sentkit.flags.windows import LongTextFlags
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from sentkit.model import Encoder
    from sentkit.model.text.stream import RowGroup, Tally


def encode(
    *,
    model: options.Model = "nano",
    reading: options.ReadingFlags,
    long_texts: LongTextFlags,
    machine: options.MachineFlags,
    batch_tokens: options.BatchTokens = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "-n", "--dry-run", help="Only count rows, tokens, truncated rows and batches; no vectors."
        ),
    ] = False,
    output: options.VectorOutputFlags,
    folder: FolderFlags,
    replace: options.Replace = False,
    row_flags: RowFlags,
    run: options.RunFlags,
) -> None:
    """Add a vector to every row.

    \b
    Examples:
      printf 'a cat\\na dog\\n' | sentkit encode
      sentkit encode pairs.jsonl -m CHECKPOINT | sentkit score --gold score
      sentkit encode titles.csv --field text=title -o titles.safetensors
      sentkit encode pairs.jsonl -m BASE --readout 'L*:cls,L*:mean' -o sweep
      sentkit encode titles.txt -o titles.safetensors --store int8
      sentkit encode titles.txt -o DIR/ --shard 1/4 --resume
      sentkit encode titles.txt --on-truncate window --window 128 --chunks
      sentkit encode pairs.jsonl -m words:binary | sentkit score --gold score

    A row has "text", or "text_a" and "text_b", or "anchor" and "positive", also with
    "negative". The command copies all other fields byte for byte. It adds "embedding"
    (for a pair "embedding_a" and "embedding_b", and so on) and "_emb", the name of the
    space. --replace removes all old vectors of a row. The output has one row for each
    input row (or with --chunks, for each window), in the same order. The memory use is
    constant. A terminal shows only the first numbers of a vector; a pipe and a file get
    all of them.

    --store makes a vector file smaller: float16 to a half, int8 to a quarter, and
    binary, which keeps only the signs, to 1/32 of the size of the vectors in float32.
    Other commands read the numbers as float32; sentkit-rows(5) describes the loss.
    For int8, the command needs temporary space for the vectors in float32.

    --readout accepts several readouts, separated by commas; L* means every layer. The
    command then reads the rows once and writes one vector file per readout into the
    folder of -o.

    The readout wk (SBERT-WK) weights the layers of each token by their difference from
    neighbouring layers, and then the tokens. It reads layer 4 and all above it;
    L0+L1+L2+L3+L4:wk reads these layers, at least five. The first two layers that it
    reads have no neighbours before them, as in the released code. With wk-clip, the
    second has one.

    The readout conv needs a checkpoint with a convolution over the token states, as
    "train is-bert" writes: the vector is the mean of its features.

    --leave-out is a file with one token per line, or rows with "token", as "sentkit plot
    words" writes them. The model reads these tokens, but the readouts mean, max and
    mean-sqrt leave them out, as in figure 4 of ConSERT. A text of only such tokens keeps
    all of them. The space depends on the tokens. For a static model of WORDS, they are
    words of that file.

    A checkpoint can declare prompts by name, often query and document; "sentkit inspect"
    shows them. --prompt-name selects one. Without it, the prompt that the checkpoint
    declares as default is added before every text, or none.

    A text with more tokens than --max-length is truncated, and a warning counts such
    rows. With --on-truncate window, it is encoded in overlapping windows of --window
    tokens. Each window has the special tokens and the prompt, and --stride is the
    number of tokens from one window to the next. The vector of the text is the weighted
    mean of its windows: a token that is in k windows counts 1/k in each of them. The
    operations after the readout, such as --normalize, apply to this mean. With the
    default --window, all other texts have the same vectors as without the flag, to the
    last bit.

    With --chunks, each window is a row. A text is split if it is longer than a window.
    The rows have all fields of the text, and "chunk" (0, 1, 2 ...), "start" and "end":
    the characters of the window are text[start:end], counted in Unicode code points. If
    such rows are encoded again without --chunks, each row gets the vector of the whole
    text and loses these fields.
    With --on-truncate late, the model reads the whole text, and the vector of a chunk
    is the mean (or --readout max, mean-sqrt) of the token states of its window. A text
    with more tokens than --max-length is then an error; --on-error skip skips it.

    With --precision auto, the model runs in bf16 if the hardware supports it well. An
    input of fewer than 32 rows is encoded with numpy in fp32 if that takes less time
    than the import of torch; never with bf16, a CUDA device or a vector folder. In
    fp32, the numbers are equal to those of torch except for rounding (about 1e-6).

    --precision int8 computes the matrix products with 8-bit integers, for CPUs with
    AVX512-VNNI. For all-MiniLM-L6-v2, it takes less than half the time of bf16 without
    AMX, but with AMX it takes more time than bf16. It is less precise: the lowest cosine
    with fp32 on STS-B is 0.995. The scales come from texts of the package. The lowest
    and the mean cosine with fp32 on these texts are recorded in a vector file as
    int8_cosine; a warning reports a lowest cosine below 0.99. The space is the same as
    with fp32, so queries in fp32 can search a corpus in int8. If the CPU or torch has
    no fast products of integers, a warning reports it and bf16 or fp32 is used. Models
    that run through transformers, static models and CUDA devices are refused.

    With a slash at the end, -o DIR/ is a vector folder: one vector file for each block
    of the input, written by any number of processes. A process that is killed loses at
    most its current block, and --resume continues. Other commands read the folder as
    one vector file. "sentkit check DIR" lists missing blocks. The settings are in
    DIR/run.json, and other settings or inputs are an error. SIGTERM, SIGHUP, SIGUSR1,
    SIGUSR2 and Ctrl-C finish the current block, at most ten seconds, and exit with 75.

    A checkpoint is a Hugging Face or sentence-transformers folder. sentkit itself runs
    BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT and ELECTRA. Other encoders, the
    encoders of T5 models, and decoders such as Qwen3-Embedding, e5-mistral or
    EmbeddingGemma run through transformers. Without a declared readout, a causal
    language model has the readout last, the state of the last token, and any other
    model has mean. The last token is an end token if tokenizer.json adds one, or if a
    tokenizer of Llama or Gemma declares add_eos_token. These modules of
    sentence-transformers are supported: Pooling (the vectors of several modes
    are joined); CNN before a mean; WeightedLayerPooling with equal weights; Dense
    (Identity, Tanh, GELU, ReLU, SiLU, Sigmoid), LayerNorm and Normalize; StaticEmbedding.
    A declared truncate_dim is applied after them. Any other module, a CrossEncoder or a
    SparseEncoder is an error. If the folder contains a LoRA adapter
    (adapter_config.json), it is added to the weights. NAME@REVISION selects a branch, a
    tag or a commit of a model on the hub.

    A static model has one vector per word. The vector of a text is the mean of its word
    vectors; with --readout max, it is the maximum of each number. Static models need
    only numpy. For a static model, MODEL is one of these:

    \b
    FOLDER         a model2vec folder (default of --max-length: 512 tokens), or
                   a StaticEmbedding folder (unknown tokens also have a vector)
    WORDS          word vectors as text, in the format of word2vec, GloVe or
                   fastText (.vec), also .gz or .zst
    WORDS.npy      word vectors as a numpy array with one line of numbers per
                   word. The words are in WORDS.txt, one word per line, or in
                   the only column of WORDS.parquet (needs pyarrow)
    words:binary   bag of words without word vectors: one number per word of all
                   rows, 1 if the text contains the word, otherwise 0. The
                   cosine of these vectors is the baseline of the STS tasks of
                   SemEval. All rows are kept in memory before the first output

    With WORDS, texts are split at whitespace. Each piece is looked up as written, then
    in lower case. A piece that is not found is split into words and runs of
    punctuation, which are looked up in the same way. Words without a vector are
    ignored, and a warning reports their number. A text without known words gets a
    vector of zeros. words:binary uses the words and runs of punctuation in lower case.
    """
    limit_threads(machine.threads)
    from sentkit.formats.rows.kinds import FIELDS, TextParser
    from sentkit.formats.vectors.sinks import output_paths
    from sentkit.formats.vectors.store import Store, common_fields, is_store
    from sentkit.model import find_encoder
    from sentkit.model.encoding import Encoding
    from sentkit.model.text.stream import Tally, prepare, whole_if_small

    console = run.console("encode")
    in_folder = folder.applies_to(output, row_flags, dry_run=dry_run)
    device = folder.parsed_shard().device(machine.device)
    with folder.stopping(console, active=in_folder) as check_stop:
        text_model = find_encoder(model, reading.options(), device=device, precision=machine.precision)
        report_loading(text_model.name, text_model.notes, console)
        to_folder = in_folder and not folder.is_sweep(output, text_model)
        paths, form = [output.path], output.form(replace=replace)
        if not to_folder:
            paths = output_paths(output.path, text_model.readouts, form, force=form.force or dry_run)
        elif text_model.tokenizer.whole:
            raise UsageError(f"{model} needs all rows at once, so it cannot write a vector folder")
        tokenizer, windows = long_texts.tokenizer_of(text_model)
        reads = {
            "-m": options.model_paths(model),
            "--transform": reading.transform,
            "--leave-out": reading.leave_out,
        }
        with row_flags.open(console, output, known=FIELDS, reads=reads, writes={"-o": paths}) as inputs:
            progress, tally = RowProgress(console, run.progress), Tally()
            progress.share = inputs.meter.share
            texts = TextParser(common_fields(inputs), one_text="--chunks" if long_texts.chunks else None)
            groups = prepare(
                inputs.read(texts), tokenizer, inputs.rejects, refuse_truncation=long_texts.refuses
            )
            if dry_run:
                print_plan(groups, tally, batch_tokens or text_model.budget)
                return
            # All blocks of a vector folder have the same precision.
            groups, tokens = (groups, None) if to_folder else whole_if_small(groups)
            encoder = text_model.encoder(tokens)
            report_spaces(encoder, console)
            encoding = Encoding(
                encoder,
                tokenizer,
                fields=texts.fields,
                budget=batch_tokens or encoder.budget,
                form=form,
                refuse_truncation=long_texts.refuses,
                marks=run.verbose,
                windows=windows,
                encoded={path for path in inputs.paths if is_store(path) and Store(path).emb},
            )
            if to_folder:
                tally = folder.write(output.path, encoding, inputs, batch_tokens, progress, check_stop)
            else:
                encoding.to_outputs(groups, texts, paths, tally, progress.add)
    progress.done()
    if tally.rows or not to_folder:
        report_totals(tally, encoder, windows, console)


def print_plan(groups: Iterable["RowGroup"], tally: "Tally", budget: int) -> None:
    """Print the plan of --dry-run as one JSON object."""
    import orjson

    from sentkit.formats.outputs.outputs import open_output
    from sentkit.model.text.batching import plan_batches

    count = 0
    for group in groups:
        tally.add(group.of(places) for _, places in group.rows)
        count += len(plan_batches(group.tokens, budget)[1])
    counts = {"rows": tally.rows, "texts": tally.texts, "tokens": tally.tokens, "cut_rows": tally.truncated}
    if tally.windows:
        counts |= {"split_rows": tally.split, "windows": tally.windows}
    with open_output("-", force=False) as out:
        out.write(orjson.dumps({**counts, "batches": count}) + b"\n")


def report_loading(name: str, notes: Iterable[str], console: Console) -> None:
    """Print notes before torch is imported, which takes one or two seconds."""
    console.note(f"loading {name}")
    for note in notes:
        console.warn(note)


def report_spaces(encoder: "Encoder", console: Console) -> None:
    for note in encoder.notes:
        console.warn(note)
    spaces = ", ".join(spec.emb for spec in encoder.specs[:3]) + (" ..." if len(encoder.specs) > 3 else "")
    console.note(f"{spaces}: {encoder.width} numbers, {encoder.device}, {encoder.precision}")


def report_totals(tally: "Tally", encoder: "Encoder", windows: Mapping[str, Any], console: Console) -> None:
    """Print the counts of rows; `windows` has the settings of windows, or is empty."""
    if not tally.rows:
        console.warn("no rows")
    elif windows:
        split = f"{tally.split} of {tally.rows} rows were split"
        if tally.windows:
            split += f" into {tally.windows} windows"
        if windows["chunks"]:
            split += f", {tally.texts} rows were written"
        console.report(f"{split} (--window {windows['window']} --stride {windows['stride']})")
    for remark in encoder.remarks(tally):
        console.warn(remark)
