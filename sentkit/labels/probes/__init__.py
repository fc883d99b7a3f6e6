"""A classifier on frozen vectors, as SentEval has it (arXiv 1803.05449)."""
