"""Takes files and streams and returns rows, vectors and checkpoints."""
