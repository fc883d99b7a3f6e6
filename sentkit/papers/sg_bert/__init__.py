"""SG-BERT (arXiv 2106.07345): a frozen copy of BERT guides its tuned copy."""
