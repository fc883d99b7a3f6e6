"""Takes rows and returns examples, token ids and batches that depend only on the seed and
the step.
"""
