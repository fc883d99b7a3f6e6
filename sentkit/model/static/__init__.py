"""Takes texts and a table of word vectors and returns one vector for each text. No torch."""
