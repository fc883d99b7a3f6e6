"""Takes vectors of a batch and returns one loss value for each anchor."""
