"""Takes texts with vectors from elsewhere and returns the changes of a checkpoint that give them.

`settings.py` names the changes, `passes.py` encodes texts under them, `padding.py` reads padded
batches, and `search.py` tries them in turn.
"""
