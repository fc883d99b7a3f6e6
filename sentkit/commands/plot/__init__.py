"""Draw pictures of vectors, reports and logs.

\b
Examples:
  sentkit plot space titles.safetensors --by pca
  sentkit plot pairs a.safetensors --gold score

Without -o, a terminal shows a sketch, and a pipe gets the numbers of the picture as
JSON. -o FIGURE.svg (or .png, .pdf) writes a picture for a paper; it needs the
package matplotlib: pip install 'sentkit[plot]'. Further figures of papers are in their
folders: python -m sentkit.papers.consert.figures --help.
"""

SUBCOMMANDS = ("space", "pairs", "heat", "curve", "sweep")
