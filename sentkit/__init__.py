"""sentkit: sentence embeddings as small Unix commands over rows of text and vectors."""

__version__ = "0.1.0"
