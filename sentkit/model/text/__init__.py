"""Takes texts and returns token ids in groups and batches of similar length. No torch."""
