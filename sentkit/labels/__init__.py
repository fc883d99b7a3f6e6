"""Vectors -> labels, in numpy: clusters that are found, and classes that are learnt."""
