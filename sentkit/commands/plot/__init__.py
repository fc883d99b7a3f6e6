"""Draw the pictures of papers from vectors, reports and logs.

\b
Examples:
  sentkit plot space titles.safetensors --by pca
  sentkit plot pairs a.safetensors --gold score

Without -o, a terminal shows a sketch, and a pipe gets the numbers of the picture as
JSON. -o FIGURE.svg (or .png, .pdf) writes a picture for a paper; it needs the
package matplotlib: pip install 'sentkit[plot]'.
"""

SUBCOMMANDS = ("space", "pairs", "heat", "axes", "words", "curve", "sweep", "masking", "domains", "scale")
