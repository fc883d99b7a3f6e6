"""Takes a corpus of vectors; returns the closest rows, pairs and retrieval scores."""
