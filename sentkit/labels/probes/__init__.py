"""Takes rows with vectors and classes; returns the accuracy of a classifier, as in SentEval."""
