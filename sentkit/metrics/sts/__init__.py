"""Takes pairs of vectors with gold scores and returns correlations with intervals."""
