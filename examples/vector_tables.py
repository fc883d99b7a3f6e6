"""The nearest rows of a Parquet table in DuckDB, polars or LanceDB:

python examples/vector_tables.py duckdb|polars|lancedb CORPUS.parquet QUERIES.parquet [TOP]

Both tables come from `sentkit encode ROWS -o FILE.parquet`: "embedding" is a list of fixed size.
The script prints a JSON line with the cosines and the texts for each query, best first. It needs
`pip install` of the program, and pyarrow. `sentkit search` refuses vectors of another space; here,
compare "_emb" yourself.
"""

import json
import sys

import numpy as np
import pyarrow.parquet as pq


def with_duckdb(corpus, queries, top):
    import duckdb

    size = pq.read_schema(corpus).field("embedding").type.list_size
    nearest = f"""
        SELECT text, array_cosine_similarity(embedding::FLOAT[{size}], ?::FLOAT[{size}]) AS cosine
        FROM read_parquet(?) ORDER BY cosine DESC LIMIT ?"""
    for query in vectors(queries):
        rows = duckdb.execute(nearest, [query.tolist(), corpus, top]).fetchall()
        yield [{"text": text, "cosine": cosine} for text, cosine in rows]


def with_polars(corpus, queries, top):
    import polars

    rows = unit(vectors(corpus))
    texts = polars.scan_parquet(corpus).select("text")
    for query in unit(vectors(queries)):
        cosines = polars.LazyFrame({"cosine": rows @ query})
        table = polars.concat([texts, cosines], how="horizontal")
        nearest = table.sort("cosine", descending=True).head(top)
        yield nearest.collect().to_dicts()


def with_lancedb(corpus, queries, top):
    import lancedb

    table = lancedb.connect("memory://").create_table("corpus", pq.read_table(corpus))
    for query in vectors(queries):
        search = table.search(query, vector_column_name="embedding")
        rows = search.distance_type("cosine").limit(top).to_list()
        yield [{"text": row["text"], "cosine": 1 - row["_distance"]} for row in rows]


def vectors(path):
    column = pq.read_table(path, columns=["embedding"])["embedding"].combine_chunks()
    return column.values.to_numpy().reshape(len(column), -1)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


PROGRAMS = {"duckdb": with_duckdb, "polars": with_polars, "lancedb": with_lancedb}


def main(program, corpus, queries, top=10):
    for hits in PROGRAMS[program](corpus, queries, int(top)):
        print(json.dumps({"hits": hits}, ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5) or sys.argv[1] not in PROGRAMS:
        sys.exit(f"usage: {__doc__.splitlines()[2]}")
    main(*sys.argv[1:])
