"""Takes a file of vectors; returns figures about the distribution of the vectors."""
