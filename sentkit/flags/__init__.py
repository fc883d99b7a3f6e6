"""Takes the values of a command line and returns frozen records of flags, each with its behaviour.

Flags that several commands share:

-o, --output PATH: Output path; '-' is stdout.
-f, --force: Overwrite an existing output.
--replace: Overwrite fields that a row already has.
--json: Print JSON even on a terminal.
--store: Numbers in a vector file; see sentkit-rows(5). [default: float32]
-m, --model MODEL: A folder, a hub name, NAME@REVISION, pkg:NAME, nano or static.
--readout READOUT: Vector of a text: cls, mean, max, L6:mean, ...; sentkit-encode(1) lists all. [default: as
    the checkpoint declares]
--max-length N: Truncate texts to N tokens, including special tokens.
--on-truncate: For too long texts: truncate and count them, or fail.
--normalize: Scale vectors to unit length.
--device auto|cpu|cuda[:N]: Device that runs the model. cuda was tested on one H200 with torch 2.11.
--threads N: CPU threads. [default: SENTKIT_THREADS, else all CPUs]
--metric: Similarity. The two distances are negated: larger is more similar.
--threshold X: Only pairs or hits with a similarity of at least X; without --top, all of them.
--seed N: Random seed.
"""
