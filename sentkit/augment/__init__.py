"""Takes the words of a text and a seed and returns a variant of the text."""
