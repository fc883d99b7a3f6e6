"""Draw entries of a dictionary at random, each with all of its definitions.

Input: JSONL rows with "entry" and "definition", from a file (also .gz) or stdin; `sentkit cat`
converts TSV
and CSV. Output: the rows of the drawn entries, unchanged and in the order of the input.

A sample of rows instead of entries would leave most entries with one definition, and nothing would
teach an encoder that several definitions share an entry. The draw depends on --seed and the
spelling of the entries,
not on their order: a smaller sample with the same seed is a part of a larger one.
"""

import argparse
import gzip
import json
import os
import sys
from collections import defaultdict
from hashlib import blake2b
from pathlib import Path


def main() -> None:
    arguments = parse()
    rows = list(read(arguments.file))
    definitions = defaultdict(set)
    sizes = defaultdict(int)
    for entry, definition, _ in rows:
        definitions[entry].add(" ".join(definition.split()))
        sizes[entry] += 1
    candidates = [entry for entry in sizes if len(definitions[entry]) >= arguments.min_definitions]
    candidates.sort(key=lambda entry: digest(f"{arguments.seed}\n{entry}"))
    drawn = set(candidates[: arguments.entries])
    if arguments.rows is not None:
        drawn = set(fitting(candidates, sizes, arguments.rows))
    lines = [line for entry, _, line in rows if entry in drawn]
    sys.stdout.buffer.writelines(lines)
    sys.stdout.buffer.flush()
    counts = f"{len(drawn)} of {len(sizes)} entries, {len(lines)} of {len(rows)} rows"
    print(f"sample_dictionary.py: {counts}", file=sys.stderr)


def parse():
    parser = argparse.ArgumentParser(
        description="Draw entries of a dictionary at random, each with all of its definitions."
    )
    parser.add_argument(
        "file", nargs="?", default="-", help='JSONL with "entry" and "definition"; default: stdin'
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--entries", type=positive, metavar="N", help="number of entries to draw; default: all"
    )
    size.add_argument(
        "--rows", type=positive, metavar="N", help="draw entries until the next would exceed N rows"
    )
    parser.add_argument(
        "--min-definitions",
        type=positive,
        default=1,
        metavar="N",
        help="draw only entries with N or more different definitions; default: 1",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed; default: 0")
    return parser.parse_args()


def positive(text):
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number above 0')
    return int(text)


def read(name):
    """Each row as (entry, definition, line)."""
    number = 0
    try:
        with opened(name) as file:
            for line in file:
                number += 1
                row = json.loads(line)
                yield row["entry"] + "", row["definition"] + "", line.rstrip(b"\r\n") + b"\n"
    except (OSError, EOFError) as error:
        sys.exit(f"sample_dictionary.py: {name}: {getattr(error, 'strerror', None) or error}")
    except (ValueError, KeyError, TypeError):
        problem = 'expected JSON with "entry" and "definition"'
        sys.exit(f"sample_dictionary.py: {name}: line {number}: {problem}")


def opened(name):
    if name == "-":
        return sys.stdin.buffer
    if name.endswith(".gz"):
        return gzip.open(name, "rb")
    return Path(name).open("rb")


def digest(text):
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def fitting(candidates, sizes, limit):
    """The first candidates with no more than this many rows together."""
    total = 0
    for entry in candidates:
        total += sizes[entry]
        if total > limit:
            return
        yield entry


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # `| head`: close stdout where Python's exit cannot fail on it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)
