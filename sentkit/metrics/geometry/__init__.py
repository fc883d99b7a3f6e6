"""Takes a file of vectors and returns figures of how the vectors are distributed."""
