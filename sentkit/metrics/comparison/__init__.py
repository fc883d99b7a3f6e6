"""Takes two encodings of the same texts and returns their differences, or a map between them."""
