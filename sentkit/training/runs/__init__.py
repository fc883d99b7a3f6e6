"""Takes the flags of `train` and the rows and returns one finished checkpoint folder for
each seed.
"""
