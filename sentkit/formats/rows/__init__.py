"""Takes JSONL, plain text, TSV, CSV or Parquet and returns rows that keep their bytes."""
