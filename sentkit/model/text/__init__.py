"""Takes texts and returns token ids in windows and batches of similar length. No torch."""
