"""Takes a batch of examples and returns a loss. Each paper or objective is one file."""
