"""Takes files and streams and returns rows, vectors and checkpoints. Only this layer opens files."""
