"""Takes a checkpoint and the tokens of a few texts and returns vectors, without torch."""
