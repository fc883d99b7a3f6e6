"""`sentkit search`: the corpus rows most similar to each query."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import cached_property
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from sentkit.console import Console, RowProgress, print_table, reading
from sentkit.digits import significant
from sentkit.errors import UsageError
from sentkit.flag_values import parse_shard
from sentkit.flags import Excludes, Named, Needs, Range, excludes, options
from sentkit.flags.rows import RowFlags, StreamFlags

if TYPE_CHECKING:
    from sentkit.formats.outputs.outputs import Paths
    from sentkit.formats.rows.block import Row
    from sentkit.formats.rows.rows import Inputs
    from sentkit.metrics.neighbours.corpus import SearchCorpus
    from sentkit.metrics.neighbours.queries import Hits, Search
    from sentkit.model.query_encoder import EncodedRows

TOP = 10  # hits, by default
ONLY_PARTS = excludes(
    *("--corpus", "--shard", "--top", "--threshold", "--metric", "--flat", "--json", "--replace"),
    *("--rescore", "--candidates", "--field", "-m", "--device", "--rejects"),
)


@dataclass(frozen=True)
class QueryFlags(StreamFlags):
    """The queries, and the rows that are searched.

    [TEXT]...: Query texts. Without --corpus: one text, then the files to search, or folders of text files.
    --corpus FILE: Rows with vectors; only vector files are not kept in memory.
    --queries FILE: Rows with vectors; '-' is standard input. [default: -, without TEXT]
    """

    texts: Annotated[list[str] | None, Named("[TEXT]...")] = None
    corpus: str | None = None
    queries: Annotated[str | None, Excludes("TEXT")] = None

    def __post_init__(self) -> None:
        if self.texts and self.corpus is not None and self.rejects is not None:
            problem = "--rejects cannot be used with TEXT and --corpus: a bad row of a corpus is an error"
            raise UsageError(problem)

    @property
    def paths(self) -> list[str]:
        return [] if self.texts else [self.queries or "-"]

    def sources(self) -> "Paths":
        return {"FILE": [*self.paths, *self.files]}

    @cached_property
    def files(self) -> list[str]:
        """The files after the first TEXT, which are searched without --corpus."""
        from sentkit.formats.files import expanded

        if self.corpus is not None:
            return []
        files = list(expanded((self.texts or [])[1:], folders=True))
        if not files:
            advice = "for the lines of files: sentkit search TEXT FILE..."
            raise UsageError("--corpus FILE is missing", advice=advice)
        for path in files:
            if self.vector_file(path) is not None:
                advice = f"sentkit search TEXT --corpus {quote(path)}"
                raise UsageError(f"{path} has vectors", advice=advice)
        return files


def search(
    *,
    query: QueryFlags,
    shard: Annotated[str | None, Needs("--corpus"), excludes("--flat", "--replace", "--rejects")] = None,
    merge: Annotated[bool, Needs("TEXT"), ONLY_PARTS] = False,
    top: Annotated[int | None, Range(min=1)] = None,
    threshold: float | None = None,
    metric: options.Metric = "cosine",
    candidates: options.Count = None,
    rescore: str | None = None,
    flat: bool = False,
    output: options.ReportFlags,
    replace: Annotated[bool, Excludes("--flat"), Excludes("TEXT")] = False,
    model: Annotated[str | None, Needs("TEXT")] = None,
    device: str | None = None,
    console: Console,
) -> None:
    """Find the most similar rows of a corpus for each query.

    Flags:
      --shard I/N|auto: Search only part I of N of the vector folder --corpus.
      --merge: Join the hits of all parts: each TEXT is an output of --shard.
      --candidates N: For a binary corpus: rows by Hamming distance per query. [default: 40 x K]
      --rescore FILE: For a binary corpus: exact vectors of its rows, to compare candidates with.
      --device auto|cpu|cuda[:N]: Device that compares vectors and runs the model of TEXT. [default: cpu; for
          the model auto]
      --top K: Maximum number of hits per query. [default: 10]
      --flat: Write one row per hit: fields of the query with _a, of the hit with _b, and rank.
      -m, --model MODEL: For TEXT: the model, for files or if the corpus does not name it, or if it has moved.
          [default: as recorded; static for files]
    """
    from sentkit.formats.files import check_input
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS, VectorReader
    from sentkit.metrics.neighbours.corpus import read_search_corpus
    from sentkit.metrics.neighbours.queries import Search
    from sentkit.metrics.neighbours.shard_union import union

    if merge:
        with RowFlags(files=query.texts).open(console, output, known=()) as inputs, output.open() as out:
            out.writelines(row + b"\n" for row in union(inputs))
        return
    options.check_threshold(threshold, metric)
    if top is None and threshold is None:
        top = TOP
    check_candidates(candidates, top)
    part = None if shard is None else parse_shard(shard)
    as_rows = not flat and (part is not None or not output.as_table)
    part_of = (part.number or part.count, part.count) if part else None
    compares = options.find_device(device or "cpu")
    output.check_rows()
    reads = {"--corpus": query.corpus, "--rescore": rescore}
    stored_files = [path for path in reads.values() if path is not None]
    for path in (*query.files, *stored_files):
        check_input(path)
    of_model = device or "auto"
    encoded = None
    if query.texts and query.corpus is not None:
        stored_corpus = query.vector_file(query.corpus)
        recorded = {} if stored_corpus is None else stored_corpus.spec
        encoded = query_texts(query.texts, model, query.corpus, recorded, of_model, console)
        model = encoded.model.name
    with (
        query.open(
            console,
            output,
            known=(*VECTOR_FIELDS, "entry", "id"),
            reads={**reads, "-m": options.model_paths(model) if model else None},
        ) as inputs,
        output.open() as out,
    ):
        if query.corpus is None:
            searched = replace_fields(inputs.other(*query.files), by_paragraph=True, rejects=inputs.rejects)
            corpus, spec = encoded_corpus(searched, model, of_model, console)
            encoded = query_texts((query.texts or [])[:1], model, corpus.path, spec, of_model, console)
        else:
            with reading(console, stored := inputs.other(query.corpus)):
                corpus = read_search_corpus(stored, part_of)
        answered = Search(
            queries=encoded or VectorReader(inputs),
            corpus=corpus,
            inputs=inputs,
            source=[*query.paths, "TEXT"][0],
            metric=metric,
            top=top,
            threshold=threshold,
            exact=rescore,
            candidates=candidates,
            new=["hits", "part"][: 1 + bool(part)] if as_rows and not replace else [],
            shard=part_of,
            device=compares,
        )
        progress = RowProgress(console, inputs=inputs)
        answered.report = progress.add
        if flat or as_rows:
            write_hits(answered, out, answered.flat if flat else answered.nested)
        else:
            print_hits(answered, console)
    console.warn(*corpus.left_out, *(encoded.remarks if encoded else ()))


def check_candidates(candidates: int | None, top: int | None) -> None:
    if candidates is None:
        return
    if top is None:
        raise UsageError("--candidates has no effect with --threshold without --top")
    if candidates < top:
        raise UsageError(f"--candidates {candidates}: expected at least --top, {top}")


def query_texts(
    texts: list[str],
    model: str | None,
    corpus: str,
    spec: Mapping[str, Any],
    device: str,
    console: Console,
) -> "EncodedRows":
    """The queries as rows with vectors, which are computed when the search reads them.

    `spec` is that of the corpus.
    """
    from sentkit.formats.files import is_there
    from sentkit.model.query_encoder import Recorded, encoded_texts, find_query_encoder

    recorded = Recorded(corpus, spec)
    encoder, declared = find_query_encoder(model, recorded, device=device)
    console.note(f"loading {encoder.name}")
    console.warn(*encoder.notes)
    prompt = getattr(encoder.tokenizer, "prompt", "")
    if prompt and prompt == recorded.prompt:
        problem = f'the prompt of the corpus, "{prompt}", is added to TEXT'
        console.warn(f"{problem}; for another one, pipe: sentkit encode --prompt ... | sentkit search")
    elif prompt:
        console.note(f'the prompt "{prompt}" is added to TEXT')
    for text in texts:
        if is_there(text):
            advice = f"to read the file with this name, use --queries {quote(text)}"
            console.warn(f'"{text}" is used as a query text; {advice}')
    return encoded_texts(texts, encoder, declared=declared, weights=spec.get("weights"))


def encoded_corpus(
    inputs: "Inputs", model: str | None, device: str, console: Console
) -> "tuple[SearchCorpus, Mapping[str, Any]]":
    """The rows of files with their vectors, and the record of their space."""
    from sentkit.formats.checkpoints.folders import STATIC
    from sentkit.metrics.neighbours.corpus import SearchCorpus, in_memory
    from sentkit.model import find_encoder
    from sentkit.model.query_encoder import encoded_files
    from sentkit.model.reading import ReadingOptions

    # static ranks the texts of a few words better than nano, in less time.
    encoder = find_encoder(model or STATIC, ReadingOptions(), device=device, compares=True)
    progress = RowProgress(console, inputs=inputs)
    rows = encoded_files(inputs, encoder, progress.add)
    table = in_memory(inputs, rows, with_files=True)
    console.warn(*encoder.notes, *rows.remarks)
    return SearchCorpus(table, show_id=True), rows.record


def write_hits(search: "Search", out: BinaryIO, lines: "Callable[[Row, Hits], Iterable[bytes]]") -> None:
    """Write the lines of each query with its hits."""
    for queries, hits_of_queries in search.blocks():
        for query, hits in zip(queries, hits_of_queries, strict=True):
            out.writelines(lines(query, hits))
        out.flush()  # the reader of a slow pipe gets each block immediately


def print_hits(search: "Search", console: Console) -> None:
    """Print a table with a line for each hit and the query in the first line of its hits.

    Without a hit, the terminal of standard error shows the best similarity.
    """
    table = list[list[str]]()
    columns = ["query", search.metric, "row", "hit"]
    misses = list[float]()  # the best similarity of each query without a hit
    search.missed = misses.append
    for queries, hits_of_queries in search.blocks():
        for query, hits in zip(queries, hits_of_queries, strict=True):
            name = search.called(query)
            for row, similarity in hits:
                table.append([name, f"{similarity:.4f}", *search.cells(row)])
                name = ""
    if table and search.corpus.table.files:  # a search in files has only one query
        print_table([columns[1], "line", "hit"], [row[1:] for row in table], texts=["hit"])
    elif table:
        print_table(columns, table, texts=["query", "hit"])
    elif misses:
        console.note(f"no hits: the best similarity is {significant(max(misses))}, below --threshold")
    else:
        console.note("no hits: the vectors of all queries are zero, as those of empty texts are")
