"""Takes sentences or labelled pairs and returns the loss of ConSERT, a contrast of
augmented views.
"""
