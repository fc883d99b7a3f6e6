"""Peak memory of encode and score over ten times the rows: the high-water mark of a separate process."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from timing import make_model, print_table

PROGRAM = """
import sys
from sentkit.cli import program
program()(sys.argv[1:], standalone_mode=False)
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
"""
SIZES = (100_000, 1_000_000)
SENTENCE = "a man plays the guitar while some people sing and dance on green grass near old houses"
WORDS = SENTENCE.split(" ")


def peak(*arguments):
    """Peak megabytes."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    kilobytes = next(line for line in done.stderr.splitlines() if line.startswith("VmHWM")).split()[1]
    return int(kilobytes) / 1024


def write_rows(path, count):
    with path.open("w") as file:
        for number in range(count):
            words = [WORDS[(number * k) % len(WORDS)] for k in range(1, 6 + number % 7)]
            file.write(
                json.dumps({"text_a": " ".join(words), "text_b": f"{number} people", "score": number % 6})
                + "\n"
            )


def main():
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = str(make_model(folder / "tiny", 2, 32, 2, 64))
        found = {"`encode` to a vector file": [], "`encode` to JSONL": [], "`score --gold`": []}
        for size in SIZES:
            rows, vectors = folder / "rows.jsonl", folder / f"{size}.safetensors"
            write_rows(rows, size)
            common = ["encode", str(rows), "-m", model, "-q", "--readout", "mean", "-f", "-o"]
            found["`encode` to a vector file"].append(peak(*common, str(vectors)))
            found["`encode` to JSONL"].append(peak(*common, "/dev/null"))
            found["`score --gold`"].append(
                peak("score", str(vectors), "--gold", "score", "-f", "-o", "/dev/null")
            )
    rows = [f"{name} | {few:.0f} MB | {many:.0f} MB" for name, (few, many) in found.items()]
    print_table("peak memory, pairs and a tiny model | 100,000 rows | 1,000,000 rows", rows)


if __name__ == "__main__":
    main()
