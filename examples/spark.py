"""Encode rows with Spark: python examples/spark.py ROWS.jsonl OUT [MODEL [FILES]]

It needs `pip install pyspark pandas pyarrow` and Java. A row has a unique "id" and a "text". OUT is
a folder of JSON lines with the vectors, in the order of the ids. The rows are sorted before they
are encoded, because a sort computes its input twice. OUT has FILES files.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, FloatType, StringType, StructType

import sentkit


def main(rows, out, model="nano", files=8):
    # A task receives the arguments and loads the weights. In bf16, a vector depends slightly on its
    # batch.
    encoder = sentkit.Encoder(model, precision="fp32")

    def encode(frames):
        for frame in frames:
            vectors = encoder.encode(frame["text"].tolist())
            yield frame.assign(embedding=list(vectors), _emb=encoder.space)

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the first python3 of PATH
    spark = SparkSession.builder.getOrCreate()
    table = spark.read.json(rows)
    schema = StructType([*table.schema])
    schema = schema.add("embedding", ArrayType(FloatType()))
    schema = schema.add("_emb", StringType())
    table = table.repartitionByRange(int(files), "id").sortWithinPartitions("id")
    table.mapInPandas(encode, schema).write.json(out)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
