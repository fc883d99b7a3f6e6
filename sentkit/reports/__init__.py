"""Takes checkpoints and a folder of test sets and returns the tables of the papers with their values."""
