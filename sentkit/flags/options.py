"""The flags that several commands share, with one declaration each."""

from typing import Annotated, Literal

from typer import Argument, Option

from sentkit import completion

# Input
Files = Annotated[
    list[str] | None,
    Argument(
        metavar="[FILE]...",
        help="JSONL, text, TSV, CSV or Parquet, also .gz or .zst. [default: standard input, also "
        "'-']",
    ),
]
FilesOrFolders = Annotated[
    list[str] | None,
    Argument(
        metavar="[FILE]...",
        help="JSONL, text, TSV, CSV or Parquet, also .gz or .zst; a folder of text. "
        "[default: standard input, also '-']",
    ),
]
Field = Annotated[
    list[str] | None,
    Option("--field", metavar="OURS=THEIRS", help="Read the field THEIRS as OURS; repeatable."),
]
Rejects = Annotated[
    str | None,
    Option(
        "--rejects",
        metavar="FILE",
        help="Write bad rows to FILE, with file, line and reason, and continue; /dev/null drops "
        "them.",
    ),
]

# Model
Model = Annotated[
    str,
    Option(
        "-m",
        "--model",
        metavar="MODEL",
        help="A folder, a hub name, NAME@REVISION, pkg:NAME, nano or static.",
    ),
]
ModelOrApi = Annotated[
    str,
    Option(
        "-m",
        "--model",
        metavar="MODEL",
        help="A folder, a hub name, NAME@REVISION, pkg:NAME, nano, static or http://HOST/v1#NAME.",
    ),
]
Readout = Annotated[
    str | None,
    Option(
        "--readout",
        metavar="READOUT",
        autocompletion=completion.readouts,
        help="Vector of a text: cls, mean, max, L6:mean, ...; sentkit-encode(1) lists all. "
        "[default: as the checkpoint declares]",
    ),
]
MaxLength = Annotated[
    int | None,
    Option(
        "--max-length",
        metavar="N",
        min=1,
        help="Truncate texts to N tokens, including special tokens.",
    ),
]
OnTruncate = Annotated[
    Literal["warn", "error"],
    Option("--on-truncate", help="For too long texts: truncate and count them, or fail."),
]
Normalize = Annotated[bool, Option("--normalize", help="Scale vectors to unit length.")]

# Output
Output = Annotated[
    str,
    Option("-o", "--output", metavar="PATH", help="Output path; '-' is stdout."),
]
NewFolder = Annotated[
    str,
    Option("-o", "--output", metavar="DIR", help="The folder to create."),
]
Picture = Annotated[
    str,
    Option(
        "-o",
        "--output",
        metavar="PATH",
        help="A .svg, .png or .pdf picture, or .jsonl. [default: JSON, but not on a terminal]",
    ),
]
Width = Annotated[
    float | None,
    Option(
        "--width",
        metavar="MM",
        min=30,
        max=1000,
        help="Width in millimetres. [default: 84, or 174 for several panels or many sentences]",
    ),
]
Force = Annotated[bool, Option("-f", "--force", help="Overwrite an existing output.")]
Json = Annotated[bool, Option("--json", help="Print JSON even on a terminal.")]
Replace = Annotated[bool, Option("--replace", help="Overwrite fields that a row already has.")]
Store = Annotated[
    Literal["float32", "float16", "int8", "binary"] | None,
    Option("--store", help="Numbers in a vector file; see sentkit-rows(5). [default: float32]"),
]

# Run
Precision = Annotated[
    Literal["auto", "fp32", "bf16", "int8"],
    Option(
        "--precision",
        help="auto: bf16 on a GPU that supports it well, else fp32. int8: see sentkit-encode(1).",
    ),
]
PrecisionOfFloats = Annotated[
    Literal["auto", "fp32", "bf16"],
    Option("--precision", help="auto: bf16 on a GPU that supports it well, else fp32."),
]
Device = Annotated[
    str,
    Option(
        "--device",
        metavar="auto|cpu|cuda[:N]",
        autocompletion=completion.devices,
        help="Device that runs the model. cuda was tested on one H200 with torch 2.11.",
    ),
]
ComparingDevice = Annotated[
    str,
    Option(
        "--device",
        metavar="cpu|cuda[:N]|auto",
        autocompletion=completion.devices,
        help="Device that compares vectors; the output has the same bytes on each.",
    ),
]

# Comparison
# a row can have it as a JSON number
Seed = Annotated[int, Option("--seed", metavar="N", min=0, max=2**64 - 1, help="Random seed.")]
MetricName = Literal["cosine", "dot", "euclidean", "manhattan"]
Metric = Annotated[
    MetricName,
    Option(
        "--metric",
        help="Similarity. The two distances are negated: larger is more similar.",
    ),
]
Mapped = Annotated[
    bool,
    Option(
        "--mapped",
        help="Compare vectors that sentkit whiten apply has mapped with those of the space that "
        "they were mapped to.",
    ),
]
Threshold = Annotated[
    float | None,
    Option(
        "--threshold",
        metavar="X",
        help="Only pairs or hits with a similarity of at least X; without --top, all of them.",
    ),
]
