"""Takes texts and a sequence-to-sequence checkpoint and returns translated texts."""
