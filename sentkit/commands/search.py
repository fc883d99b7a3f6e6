"""`sentkit search`: the corpus rows most similar to each query."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from sentkit.console import Console, print_table, slow
from sentkit.errors import UsageError
from sentkit.flags import options
from sentkit.flags.rows import StreamFlags
from sentkit.flags.rules import Excludes, Needs

if TYPE_CHECKING:
    from sentkit.metrics.neighbours.queries import Search
    from sentkit.model.query_encoder import EncodedTexts

TOP = 10  # hits, by default
NOT_GIVEN = (None, False, "auto")  # values of flags that are not given


@dataclass(frozen=True)
class QueryFlags(StreamFlags):
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Query texts, encoded with MODEL.")
    ] = None
    queries: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Rows with vectors; '-' is standard input. [default: -, without TEXT]"
        ),
        Excludes("TEXT"),
    ] = None

    @property
    def paths(self) -> list[str]:
        return [] if self.texts else [self.queries or "-"]


@dataclass(frozen=True)
class BinaryFlags:
    """The second pass over a corpus of sign bits."""

    candidates: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="For a binary corpus: rows by Hamming distance per query. [default: 40 x K]",
        ),
    ] = None
    rescore: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="For a binary corpus: exact vectors of its rows, to compare candidates with."
        ),
    ] = None

    def check(self, top: int | None) -> None:
        if top is None and self.candidates is not None:
            raise UsageError("--candidates has no effect with --threshold without --top")
        if top is not None and self.candidates is not None and self.candidates < top:
            raise UsageError(f"--candidates {self.candidates}: expected at least --top, {top}")


def search(
    *,
    query: QueryFlags,
    corpus: Annotated[
        str,
        typer.Option(metavar="FILE", help="Rows with vectors; only vector files are not kept in memory."),
    ],
    top: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Maximum number of hits per query. [default: 10]")
    ] = None,
    threshold: options.Threshold = None,
    metric: options.Metric = "cosine",
    binary: BinaryFlags,
    flat: Annotated[
        bool,
        typer.Option(
            "--flat", help="Write one row per hit: fields of the query with _a, of the hit with _b, and rank."
        ),
    ] = False,
    output: options.ReportFlags,
    replace: Annotated[options.Replace, Excludes("--flat"), Excludes("TEXT")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            metavar="MODEL",
            help="For TEXT: the model, if the corpus does not name it, or if it has moved."
            " [default: as recorded, else nano]",
        ),
        Needs("TEXT"),
    ] = None,
    machine: Annotated[options.MachineFlags, Needs("TEXT")],
    run: options.QuietFlags,
) -> None:
    """Find the most similar rows of a corpus for each query.

    \b
    Examples:
      echo a dog | sentkit encode | sentkit search --corpus titles.safetensors
      sentkit search "a dog" "a cat" --corpus titles.safetensors
      sentkit search --queries q.jsonl --corpus titles.safetensors --top 3
      sentkit search --queries q.jsonl --corpus titles.safetensors --flat

    Most used: [TEXT]... --queries --corpus --top --threshold --flat --json
    """
    from sentkit.formats.files import check_input
    from sentkit.formats.vectors.sinks import check_rows_output
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS, VectorReader
    from sentkit.metrics.neighbours.queries import Search, SearchOptions

    console = run.console("search")
    options.check_threshold(threshold, metric)
    if top is None and threshold is None:
        top = TOP
    binary.check(top)
    as_rows = not flat and not output.as_table
    search_options = SearchOptions(
        metric,
        top,
        threshold,
        rescore=binary.rescore,
        candidates=binary.candidates,
        new=["hits"] if as_rows and not replace else [],
    )
    check_rows_output(output.path)
    for path in filter(None, (corpus, binary.rescore)):
        check_input(path)
    query.take_snapshots([*filter(None, (corpus, binary.rescore))])
    encoded = query_texts(query.texts, model, corpus, machine, console) if query.texts else None
    weights = options.model_paths(encoded.model.name) if encoded else None
    with (
        query.open(
            console,
            output,
            known=(*VECTOR_FIELDS, "entry", "id"),
            reads={"--corpus": corpus, "--rescore": binary.rescore, "-m": weights},
        ) as inputs,
        output.open() as out,
    ):
        source = query.paths[0] if query.paths else "TEXT"
        with slow(console, f"reading {corpus}"):
            answered = Search(encoded or VectorReader(inputs), corpus, search_options, inputs, source=source)
        if flat:
            for window in answered.windows():
                for query_hits in window:
                    out.writelines(answered.flat(query_hits))
                out.flush()
        elif output.as_table:
            show_hits(answered)
        else:
            write_hits(answered, out, replace=replace)
    for remark in encoded.remarks if encoded else ():
        console.warn(remark)


def query_texts(
    texts: list[str],
    model: str | None,
    corpus: str,
    machine: options.MachineFlags,
    console: Console,
) -> "EncodedTexts":
    """The queries as rows with vectors, which are computed when the search reads them."""
    from sentkit.formats.vectors.store import Store, is_store
    from sentkit.model.query_encoder import EncodedTexts, Recorded, find_query_encoder

    recorded = Recorded(corpus, Store(corpus).spec if is_store(corpus) else {})
    encoder, declared = find_query_encoder(
        model, recorded, device=machine.device, precision=machine.precision
    )
    console.note(f"loading {encoder.name}")
    for note in encoder.notes:
        console.warn(note)
    prompt = getattr(encoder.tokenizer, "prompt", "")
    if prompt and prompt == recorded.prompt:
        problem = f'the prompt of the corpus, "{prompt}", is added to TEXT'
        console.warn(f"{problem}; for another one, pipe: sentkit encode --prompt ... | sentkit search")
    elif prompt:
        console.note(f'the prompt "{prompt}" is added to TEXT')
    for text in texts:
        if is_file(text):
            console.warn(
                f'"{text}" is used as a query text; to read the file with this name, use --queries {text}'
            )
    return EncodedTexts(texts, encoder, declared, recorded.spec.get("weights"))


def is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # the text is too long or contains a NUL byte
        return False


def write_hits(search: "Search", out: BinaryIO, *, replace: bool) -> None:
    for window in search.windows():
        for query_hits in window:
            hits = b"[%b]" % b",".join(search.corpus.hit(*each) for each in query_hits.hits)
            out.write(query_hits.query.add([(b"hits", hits)], replace=replace) + b"\n")
        out.flush()  # the reader of a slow pipe gets each window immediately


def show_hits(search: "Search") -> None:
    """Print a line for each hit, with the query in the first line."""
    columns = ["query", search.metric, "row", "hit"]
    rows = []
    for query_hits in search:
        query = search.called(query_hits.query)
        for row, similarity in query_hits.hits:
            rows.append([query, f"{similarity:.4f}", *search.cells(row)])
            query = ""
    if rows:
        print_table(columns, rows, texts=["query", "hit"])
