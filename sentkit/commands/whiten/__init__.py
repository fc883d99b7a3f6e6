"""Fit, apply and merge transforms of a vector space.

\b
Examples:
  sentkit whiten fit titles.safetensors --dim 2 -o T.safetensors
  sentkit encode titles.txt | sentkit whiten apply -t whitening.safetensors

A transform is fitted once, kept with what it was fitted on, and applied to
other vectors of the same space: by `sentkit whiten apply`, by `sentkit encode
--transform`, or built into a checkpoint by `sentkit export --transform`.
"""
