"""DefSent (arXiv 2105.04339) and DefSent+ (arXiv 2405.16153): definitions and their entries."""
