"""Text -> text: pure functions that make a variant of a sentence from its words and a draw."""
