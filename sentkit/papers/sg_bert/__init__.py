"""Takes sentences and returns the loss of SG-BERT: a frozen copy of the encoder guides its tuned
copy.
"""
