"""Takes texts and returns token ids. No torch."""
