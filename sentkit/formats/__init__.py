"""Bytes <-> values: rows, vectors, checkpoint folders. The only layer that opens files."""
