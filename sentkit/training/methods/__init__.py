"""Takes a batch of examples and returns a loss. A file has related methods; `papers/` has more."""
