"""Takes a model name or folder and returns its files and its declared readout; writes such
folders.
"""
