"""Takes a path and returns a file to write. The output appears under its name only when it is
complete.
"""
