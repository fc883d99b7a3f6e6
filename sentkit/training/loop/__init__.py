"""Takes a method and batches and returns trained weights; saves and restores the state."""
