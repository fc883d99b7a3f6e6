"""Vectors -> labels, in numpy."""
