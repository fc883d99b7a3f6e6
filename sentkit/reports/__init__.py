"""Takes checkpoints and test sets and returns a table of values, and the published tables of
papers.
"""
