"""Takes a path and returns a file to write; it appears whole under its name, or not at all."""
