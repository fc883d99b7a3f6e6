"""Takes a corpus of vectors and returns the closest rows, pairs and retrieval scores."""
