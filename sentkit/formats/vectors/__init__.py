"""Takes rows with vectors or vector files and returns arrays with their rows. Also writes both
formats.
"""
