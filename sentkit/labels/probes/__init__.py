"""Takes rows with vectors and classes and returns the accuracy of a classifier, as SentEval
does.
"""
