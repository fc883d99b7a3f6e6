"""Takes a checkpoint and token ids and returns one vector for each text."""
