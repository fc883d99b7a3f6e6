"""Takes rows and an encoder and returns the outputs of `encode`, or their plan."""
