"""Fit and apply transforms of a vector space.

\b
Examples:
  sentkit whiten fit titles.safetensors --dim 2 -o T.safetensors
  sentkit encode titles.txt | sentkit whiten apply -t whitening.safetensors

A transform is fitted once and stored with a description of its vectors. It is
then applied to other vectors of the same space: by `sentkit whiten apply`, by
`sentkit encode --transform`, or as a part of a checkpoint by `sentkit export
--transform`.
"""

SUBCOMMANDS = ("fit", "apply")
