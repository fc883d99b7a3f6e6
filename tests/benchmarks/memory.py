"""Peak memory of encode and score over ten times the rows: the high-water mark of a separate
process.

python tests/benchmarks/memory.py
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from timing import make_model, print_table
from usage import check_arguments

PROGRAM = f"""
import sys
sys.path.append({str(Path(__file__).parent)!r})
from sentkit.cli import program
program()(sys.argv[1:], standalone_mode=False)
from timing import peak
print(peak(), file=sys.stderr)
"""
SIZES = (100_000, 1_000_000)
SENTENCE = "a man plays the guitar while some people sing and dance on green grass near old houses"
WORDS = SENTENCE.split(" ")


def peak(*arguments):
    """Peak megabytes."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stderr.splitlines()[-1])


def write_rows(path, count):
    with path.open("w") as file:
        for number in range(count):
            text = " ".join(WORDS[(number * k) % len(WORDS)] for k in range(1, 6 + number % 7))
            row = {"text_a": text, "text_b": f"{number} people", "score": number % 6}
            file.write(f"{json.dumps(row)}\n")


def main():
    check_arguments(__doc__, most=0)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = str(make_model(folder / "tiny", 2, 32, 2, 64))
        rows = folder / "rows.jsonl"
        vectors = str(folder / "rows.safetensors")
        encode = ["encode", str(rows), "-m", model, "-q", "--readout", "mean", "-f", "-o"]
        commands = {
            "`encode` to a vector file": [*encode, vectors],
            "`encode` to JSONL": [*encode, "/dev/null"],
            "`score --gold`": ["score", vectors, "--gold", "score", "-f", "-o", "/dev/null"],
        }
        lines = {name: [name] for name in commands}
        for size in SIZES:
            write_rows(rows, size)
            for name, command in commands.items():
                lines[name].append(f"{peak(*command):.0f} MB")
    columns = "peak memory, pairs and a tiny model | 100,000 rows | 1,000,000 rows"
    print_table(columns, lines.values())


if __name__ == "__main__":
    main()
