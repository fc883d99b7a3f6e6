"""Takes labelled pairs and returns the loss of PairSupCon, a contrast and a classification of
pairs.
"""
