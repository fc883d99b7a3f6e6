"""Takes the words of a text and a seed; returns a variant of the text."""
