"""Flags that are wrong usage: one line, before any work."""

import pytest

CASES = {
    "augment": [
        ("", "--op is missing"),
        ("--op lower --op negate --views 3", "--views 3: no random choices"),
        ("--op lower --mark X", "--mark can be used only with --op delete or --op span-delete"),
        ("--op lower --views 0", "invalid value for '--views': 0 is not in the range x>=1"),
        ("--op synonym --synonyms -", "standard input can be read only once"),
    ],
    "cat": [("--field text=t --field label=t", '--field "label=t": another --field already reads "t"\n')],
    "diff": [("- -", "A and B cannot both be standard input\n")],
    "encode": [
        ("--readout median", 'unknown readout "median"'),
        ("--readout L5:cls", 'readout "L5:cls" needs more layers than the encoder has (4)'),
        ("--readout prompt,cls", "the readout prompt cannot be combined with other readouts"),
        ("--dim 257", "--dim 257: the vectors have only 256 numbers"),
        ("--max-length 2", "a maximum length of 2 tokens is too small: the special tokens use all of it"),
        ("--max-length 513", "--max-length 513: the maximum of this encoder is 512"),
        ("--precision fp8", "invalid value for '--precision'"),
        ("-o out.npy", "out.npy: unknown output format .npy"),
        ("--field text", '--field "text": expected name=theirs'),
        ("--shard=", '--shard "": the value is empty\n'),
    ],
    "score": [
        ("--group topic", "--group needs --gold\n"),
        ("--gold score --matrix", "--matrix cannot be used with --gold, which writes a report\n"),
    ],
    "search": [
        ("--corpus -", "standard input can be read only once"),
        ("--corpus c --flat --replace", "--replace cannot be used with --flat"),
        ("a --corpus c --replace", "--replace cannot be used with TEXT\n"),
        ("--corpus c --top 0", "invalid value for '--top'"),
        ("--corpus c -o out.safetensors", "out.safetensors: this output cannot be a vector file"),
    ],
    "cluster": [
        ("", "-k is missing"),
        ("-k 0", "-k 0: expected 1 or more"),
        ("-k x", '-k "x"'),
        ("-k 5..2", '-k "5..2"'),
        ("-k 4 --set sample=3", "--set sample=3 is less than the number of clusters, 4"),
        ("- --from-centroids -", "standard input can be read only once"),
        (
            "-k 2 --centroids c.jsonl --rejects ./c.jsonl",
            "--centroids c.jsonl: is also the path of --rejects",
        ),
        ("-k 2 -o ./c.jsonl --centroids c.jsonl", "--centroids c.jsonl: is also the path of -o"),
        ("-k 2 -o c.jsonl --rejects ./c.jsonl", "--rejects ./c.jsonl: is also the path of -o"),
        ("-k 2 --seed 0..2", "several seeds can be used only with"),
        ("-k 2 --seed x", '--seed "x"'),
        ("-k 2 --stability --seed 3", "--stability needs several seeds"),
        ("-k 2..3 --truth g", "--truth cannot be used with several -k, which write a report"),
        ("-k 2..3 --describe", "--describe cannot be used with several -k, which write a report"),
        ("-k 2..3 --stability", "--stability cannot be used with several -k, which write a report"),
        ("-k 2..3 --replace", "--replace cannot be used with several -k, which write a report"),
        ("-k 2..3 --centroids c.jsonl", "--centroids cannot be used with several -k"),
        ("-k 2..3 --keep-vectors", "--keep-vectors cannot be used with several -k"),
        ("-k 2 --truth g --replace", "--replace cannot be used with --truth, which writes a"),
        ("-k 2 --json", "--json can be used only with reports"),
        ("-k 2 --from-centroids c.jsonl", "--from-centroids cannot be used with -k: it only"),
        ("-k 2 --describe -o out.safetensors", "out.safetensors: this output cannot be a vector file"),
        ("-k 2 --centroids c.csv", "c.csv: unknown output format .csv"),
    ],
    "duplicates": [
        ("", "--threshold is missing"),
        ("-o x.txt --threshold 0.9", "x.txt: unknown output format .txt"),
        ("--json --metric dot", "--threshold is missing"),
        ("--unique", "--unique needs --threshold"),
        ("--threshold 1 --groups --against x", "--against cannot be used with --groups"),
        ("--threshold 2", "--threshold 2: expected a number from -1 to 1"),
        ("--threshold 1 --unique --json", "--json cannot be used with --unique"),
        ("--threshold 1 --show row", "--show row: every pair has this field"),
        ("--threshold 1 -o x.safetensors", "x.safetensors: this output cannot be a vector file"),
    ],
    "mine": [
        ("", "missing option '--corpus'"),
        ("--corpus -", "standard input can be read only once"),
        ("--corpus c --top 0", "invalid value for '--top'"),
        ("--corpus c -o x.safetensors", "x.safetensors: this output cannot be a vector file"),
    ],
}


@pytest.mark.parametrize(
    ("command", "flags", "problem"), [(name, *case) for name, cases in CASES.items() for case in cases]
)
def test_invalid_flags(sentkit, command, flags, problem):
    """A problem that ends with a newline is all of standard error."""
    done = sentkit(command, *flags.split())
    expected = f"sentkit {command}: {problem}"

    assert (done.code, done.out) == (2, b"")
    assert done.err == expected if problem.endswith("\n") else done.err.startswith(expected)
