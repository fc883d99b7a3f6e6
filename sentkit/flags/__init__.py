"""Takes the values of a command line and returns sources of rows and outputs; checks rules between
flags.
"""
