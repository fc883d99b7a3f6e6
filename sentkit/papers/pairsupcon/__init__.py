"""PairSupCon (arXiv 2109.05424): contrast and classification of NLI pairs."""
