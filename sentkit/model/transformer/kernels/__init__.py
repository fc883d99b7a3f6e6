"""Takes the blocks of an encoder and returns blocks that compute the same in less time."""
