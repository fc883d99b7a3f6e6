"""Takes word-vector files, model2vec folders or thesauri and returns words with vectors or
synonyms.
"""
