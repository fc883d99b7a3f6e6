"""Rows in groups of alike vectors; what other libraries do better is imported inside functions."""
