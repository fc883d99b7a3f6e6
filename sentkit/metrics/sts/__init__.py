"""Takes pairs of vectors with gold scores; returns correlations with intervals."""
