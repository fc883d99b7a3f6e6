"""Takes JSONL, plain text, TSV or CSV and returns rows that keep their bytes."""
