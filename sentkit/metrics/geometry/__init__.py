"""Takes a file of vectors and returns figures about the distribution of the vectors."""
