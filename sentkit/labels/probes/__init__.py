"""Takes rows with vectors and classes and returns the accuracy of a probe, as in SentEval."""
