"""ConSERT (arXiv 2105.11741): a contrast of augmented views."""
