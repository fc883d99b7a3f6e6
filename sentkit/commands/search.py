"""`sentkit search`: the corpus rows most similar to each query."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from typer import Argument, Option

from sentkit import completion
from sentkit.console import Console, RowProgress, print_table, reading
from sentkit.digits import significant
from sentkit.errors import UsageError
from sentkit.flag_values import parse_shard
from sentkit.flags import options
from sentkit.flags.comparing import find_device
from sentkit.flags.outputs import Output, model_paths
from sentkit.flags.rows import RowSource, input_paths
from sentkit.flags.rules import check_threshold, needs, refuse_together

if TYPE_CHECKING:
    from sentkit.formats.rows.block import Row
    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.vectors.vector_file import VectorSource
    from sentkit.metrics.neighbours.corpus import SearchCorpus
    from sentkit.metrics.neighbours.queries import Hits, Search
    from sentkit.model.query_encoder import EncodedRows

TOP = 10  # hits, by default


def search(
    *,
    field: options.Field = None,
    rejects: options.Rejects = None,
    texts: Annotated[
        list[str] | None,
        Argument(
            metavar="[TEXT]...",
            help="Query texts. Without --corpus: one text, then the files to search, or folders of "
            "text files.",
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        Option(
            "--corpus",
            metavar="FILE",
            help="Rows with vectors; only vector files are not kept in memory.",
        ),
    ] = None,
    queries: Annotated[
        str | None,
        Option(
            "--queries",
            metavar="FILE",
            help="Rows with vectors; '-' is standard input. [default: -, without TEXT]",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        Option(
            "--shard",
            metavar="I/N|auto",
            help="Search only part I of N of the vector folder --corpus.",
        ),
    ] = None,
    merge: Annotated[
        bool,
        Option("--merge", help="Join the hits of all parts: each TEXT is an output of --shard."),
    ] = False,
    top: Annotated[
        int | None,
        Option("--top", metavar="K", min=1, help="Maximum number of hits per query. [default: 10]"),
    ] = None,
    threshold: options.Threshold = None,
    metric: options.Metric = "cosine",
    mapped: options.Mapped = False,
    candidates: Annotated[
        int | None,
        Option(
            "--candidates",
            metavar="N",
            min=1,
            help="For a binary corpus: rows by Hamming distance per query. [default: 40 x K]",
        ),
    ] = None,
    rescore: Annotated[
        str | None,
        Option(
            "--rescore",
            metavar="FILE",
            help="For a binary corpus: exact vectors of its rows, to compare candidates with.",
        ),
    ] = None,
    flat: Annotated[
        bool,
        Option(
            "--flat",
            help="Write one row per hit: fields of the query with _a, of the hit with _b, rows and "
            "rank.",
        ),
    ] = False,
    output_path: options.Output = "-",
    force: options.Force = False,
    json: options.Json = False,
    replace: options.Replace = False,
    model: Annotated[
        str | None,
        Option(
            "-m",
            "--model",
            metavar="MODEL",
            help="For TEXT: the model, for files or if the corpus does not name it, or if it has "
            "moved. [default: as recorded; static for files]",
        ),
    ] = None,
    device: Annotated[
        str | None,
        Option(
            "--device",
            metavar="auto|cpu|cuda[:N]",
            autocompletion=completion.devices,
            help="Device that compares vectors and runs the model of TEXT. "
            "[default: cpu; for the model auto]",
        ),
    ] = None,
    console: Console,
) -> None:
    """Find the most similar rows of a corpus for each query."""
    not_of_merge = {
        "--corpus": corpus,
        "--shard": shard,
        "--top": top,
        "--threshold": threshold,
        "--metric": metric != "cosine",
        "--flat": flat,
        "--json": json,
        "--replace": replace,
        "--rescore": rescore,
        "--candidates": candidates,
        "--mapped": mapped,
        "--field": field,
        "--model": model,
        "--device": device,
        "--rejects": rejects,
    }
    needs({"--merge": merge, "--model": model}, {"TEXT": texts})
    refuse_together({"--merge": merge}, not_of_merge)
    refuse_together({"--queries": queries}, {"TEXT": texts})
    needs({"--shard": shard, "--mapped": mapped}, {"--corpus": corpus})
    refuse_together(
        {"--shard": shard}, {"--flat": flat, "--replace": replace, "--rejects": rejects}
    )
    refuse_together({"--replace": replace}, {"--flat": flat, "TEXT": texts})
    refuse_together({"--json": json}, {"--flat": flat, "--shard": shard}, "; rows are always JSON")
    if texts and corpus is not None and rejects is not None:
        raise UsageError(
            "--rejects cannot be used with TEXT and --corpus: a bad row of a corpus is an error"
        )
    check_threshold(threshold, metric)
    if top is None and threshold is None:
        top = TOP
    check_candidates(candidates, top)

    output = Output(output_path, force)
    if merge:
        merge_parts(texts or [], output, console)
        return
    from sentkit.formats.files import check_input
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS, VectorReader
    from sentkit.metrics.neighbours.corpus import read_search_corpus
    from sentkit.metrics.neighbours.queries import Search

    corpus_part = parse_part(shard)
    as_table = output.on_terminal and not json and not flat and corpus_part is None
    comparing_device = find_device(device or "cpu")
    model_device = device or "auto"
    output.check_rows()
    rows = RowSource([] if texts else [queries or "-"], field, rejects, accepts_mapped=mapped)
    searched_files = files_after_text(texts or [], rows.open_vector_file) if corpus is None else []
    all_files = [*searched_files, corpus, rescore]
    for path in filter(None, all_files):
        check_input(path)

    # Query texts for a vector file; those for rows and for files are encoded after the corpus is
    # read.
    encoded_queries = None
    if texts and corpus is not None:
        store = rows.open_vector_file(corpus)
        if store is not None:
            encoded_queries = query_texts_for_file(
                texts, model, store, model_device, console, mapped=mapped
            )
            model = encoded_queries.model.name

    opened = rows.open(
        console,
        output,
        field_names=(*VECTOR_FIELDS, "entry", "id"),
        reads={
            "FILE": [*rows.paths, *searched_files],
            "--corpus": corpus,
            "--rescore": rescore,
            "-m": model_paths(model),
        },
    )
    with opened as inputs, output.open() as file:
        if corpus is not None:
            corpus_inputs = inputs.with_paths(corpus)
            with reading(console, corpus_inputs):
                search_corpus = read_search_corpus(corpus_inputs, corpus_part)
            if texts and encoded_queries is None:
                encoded_queries = query_texts_for_label(
                    texts,
                    model,
                    search_corpus.path,
                    search_corpus.space_name,
                    model_device,
                    console,
                    mapped=mapped,
                )
        else:
            search_corpus, spec = encoded_corpus(
                inputs, searched_files, model, model_device, console
            )
            [text, *_] = texts or []
            encoded_queries = query_texts(
                [text], model, search_corpus.path, spec, model_device, console
            )

        rows.warn_of_prompts(console, [corpus, rescore])
        adds_fields = not (flat or as_table or replace)
        progress = RowProgress(console, inputs=inputs)
        search = Search(
            queries=encoded_queries or VectorReader(inputs),
            corpus=search_corpus,
            inputs=inputs,
            source=rows.paths[0] if rows.paths else "TEXT",
            is_corpus=is_same_file(queries, corpus),
            metric=metric,
            top=top,
            threshold=threshold,
            exact=rescore,
            candidates=candidates,
            forbidden_fields=fields_of_hits(corpus_part) if adds_fields else [],
            shard=corpus_part,
            device=comparing_device,
            report=progress.add,
        )
        if as_table:
            print_hits(search, console)
        else:
            write_hits(search, file, search.flat if flat else search.nested)
    console.warn(*search_corpus.left_out)
    if encoded_queries is not None:
        console.warn(*encoded_queries.warnings)


def is_same_file(path: str | None, other: str | None) -> bool:
    if path is None or other is None:
        return False
    if path == other:
        return True
    return Path(path).exists() and Path(other).exists() and Path(path).samefile(other)


def parse_part(shard: str | None) -> tuple[int, int] | None:
    """The number of a part of the corpus, from 1, and the number of parts."""
    if shard is None:
        return None
    parsed = parse_shard(shard)
    return parsed.number or parsed.count, parsed.count


def fields_of_hits(corpus_part: tuple[int, int] | None) -> list[str]:
    """The fields that a query gets, which it must not have before."""
    if corpus_part is None:
        return ["hits"]
    return ["hits", "part"]


def merge_parts(paths: list[str], output: Output, console: Console) -> None:
    """Join the hits of the parts of a corpus."""
    from sentkit.metrics.neighbours.shard_union import union

    rows = RowSource(input_paths(paths))
    with rows.open(console, output, field_names=()) as inputs, output.open() as file:
        file.writelines(row + b"\n" for row in union(inputs))


def files_after_text(
    texts: list[str], vector_file: "Callable[[str], VectorSource | None]"
) -> list[str]:
    """The files after the first TEXT, which are searched without --corpus."""
    from sentkit.formats.files import expanded

    files = list(expanded(texts[1:], text_folders=True))
    if not files:
        advice = "for the lines of files: sentkit search TEXT FILE..."
        raise UsageError("--corpus FILE is missing", advice=advice)
    for path in files:
        if vector_file(path) is not None:
            advice = f"sentkit search TEXT --corpus {quote(path)}"
            raise UsageError(f"{path} has vectors", advice=advice)
    return files


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
    *,
    label: str | None = None,
) -> "EncodedRows":
    """The queries as rows with vectors, which are computed when the search reads them.

    `spec` is that of the corpus, and `label` that of its space if the spec lacks the hash of the
    weights.
    """
    from sentkit.formats.files import is_there
    from sentkit.model.query_encoder import encoded_texts, find_query_encoder, recorded

    encoder, declared = find_query_encoder(model, corpus, spec, device=device)
    console.note(f"loading {encoder.name}")
    console.warn(*encoder.notes)
    prompt = getattr(encoder.tokenizer, "prompt", "")
    if prompt and prompt == recorded(spec, "prompt", str):
        problem = f'the prompt of the corpus, "{prompt}", is added to TEXT'
        console.warn(
            f"{problem}; for another one, pipe: sentkit encode --prompt ... | sentkit search"
        )
    elif prompt:
        console.note(f'the prompt "{prompt}" is added to TEXT')
    for text in texts:
        if is_there(text):
            encode = f"sentkit encode {quote(text)} -m {quote(encoder.name)}"
            advice = f"for its texts: {encode} | sentkit search --corpus ..."
            console.warn(f'"{text}" is used as a query text; {advice}')
    return encoded_texts(
        texts, encoder, declared=declared, weights=spec.get("weights"), label=label
    )


def query_texts_for_file(
    texts: list[str],
    model: str | None,
    corpus: "VectorSource",
    device: str,
    console: Console,
    *,
    mapped: bool,
) -> "EncodedRows":
    """The queries for a vector file or folder, or with `mapped` those of the space that it was
    mapped to.
    """
    if mapped:
        return query_texts_for_label(
            texts, model, corpus.path, corpus.space_name, device, console, mapped=True
        )
    return query_texts(texts, model, corpus.path, corpus.metadata, device, console)


def query_texts_for_label(
    texts: list[str],
    model: str | None,
    corpus: str,
    emb: str | None,
    device: str,
    console: Console,
    *,
    mapped: bool,
) -> "EncodedRows":
    """The queries for a corpus that records only the label of their space, as rows do.

    `mapped`: the queries are of the space that the corpus was mapped to.
    """
    from sentkit.formats.vectors.fingerprint import record_of_label, space_mapped_to

    if mapped:
        emb = space_mapped_to(emb)
    spec = record_of_label(emb or "")
    return query_texts(texts, model, corpus, spec, device, console, label=emb)


def encoded_corpus(
    inputs: "Inputs", paths: list[str], model: str | None, device: str, console: Console
) -> "tuple[SearchCorpus, Mapping[str, Any]]":
    """The rows of files with their vectors, and the record of their space."""
    from sentkit.formats.checkpoints.folders import STATIC
    from sentkit.metrics.neighbours.corpus import SearchCorpus, read_into_memory
    from sentkit.model import find_encoder
    from sentkit.model.query_encoder import encoded_files
    from sentkit.model.reading import ReadingOptions

    # static ranks the texts of a few words better than nano, in less time.
    encoder = find_encoder(model or STATIC, ReadingOptions(), device=device, compares_vectors=True)
    texts = dataclasses.replace(
        inputs.with_paths(*paths), by_paragraph=True, rejects=inputs.rejects
    )
    progress = RowProgress(console, inputs=texts)
    rows = encoded_files(texts, encoder, progress.add)
    table = read_into_memory(texts, rows, with_files=True)
    console.warn(*encoder.notes, *rows.warnings)
    return SearchCorpus(table, show_id=True), rows.record


def write_hits(
    search: "Search", out: BinaryIO, lines: "Callable[[Row, Hits], Iterable[bytes]]"
) -> None:
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
        console.note(
            f"no hits: the best similarity is {significant(max(misses))}, below --threshold"
        )
    elif not len(search.corpus.vectors):
        console.note("no hits: the vectors of all rows of the corpus are zero")
    elif search.is_corpus and len(search.corpus.vectors) == 1:
        console.note("no hits: the corpus has no row other than the query")
    else:
        console.note("no hits: the vectors of all queries are zero, as those of empty texts are")
