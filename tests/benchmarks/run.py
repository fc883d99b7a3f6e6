"""Measure the tables of README.md about encode, score, start and memory, and write them there.

python tests/benchmarks/run.py TEXTS.txt[.gz] [TEST.jsonl DEV.jsonl FOLDER STATIC]

With the other arguments, also the tables of other runtimes, static models and whole processes; see
runtimes.py, static.py and processes.py. STATIC is a folder of model2vec. The output of each script
replaces the lines between <!-- NAME --> and <!-- end -->. The run takes twenty minutes of CPU time.
"""

import argparse
import os
import platform
import subprocess
import sys
import textwrap
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
README = HERE / "README.md"
COMMAND = "python tests/benchmarks/run.py TEXTS.txt TEST.jsonl DEV.jsonl FOLDER STATIC"
INSTRUCTIONS = ("avx2", "avx512_f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


def machine():
    import torch

    capabilities = torch.cpu.get_capabilities()
    names = ", ".join(name for name in INSTRUCTIONS if capabilities.get(name))
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{os.cpu_count()} cores of {capabilities['cpu_name']} with {names}; {versions}."


def with_block(text, name, lines):
    """Replace the lines between <!-- NAME --> and the next <!-- end -->."""
    before, start, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    assert end, f"README.md has no lines for {name}"
    return f"{before}{start}\n{lines.strip()}\n\n{end}{after}"


def output_of(script, *arguments, python=sys.executable):
    done = subprocess.run(
        [python, str(HERE / f"{script}.py"), *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def scripts(texts, *peers):
    """Functions that measure, by the names of their lines in README.md."""
    measures = {
        "machine": machine,
        "start": lambda: output_of("processes"),
        "encode": lambda: output_of("encode", texts),
        "pairs": lambda: output_of("pairs"),
    }
    if peers:
        test, dev, folder, static = peers
        python = f"{folder}/venv/bin/python"
        measures |= {
            "runtimes": lambda: output_of("runtimes", test, dev, folder),
            "processes": lambda: output_of("processes", texts, python, static, folder),
            "static": lambda: output_of("static", static, texts, python=python),
        }
    return measures | {"memory": lambda: output_of("memory")}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", metavar="TEXTS")
    parser.add_argument("peers", metavar="TEST DEV FOLDER STATIC", nargs="*")
    arguments = parser.parse_args()
    if len(arguments.peers) not in (0, 4):
        parser.error("expected TEXTS, or TEXTS with TEST, DEV, FOLDER and STATIC")
    for path in (arguments.texts, *arguments.peers[:2]):  # FOLDER can be new
        if not Path(path).is_file():
            parser.error(f"{path}: no such file")
    for name, measure in scripts(arguments.texts, *arguments.peers).items():
        lines = measure().strip()
        if name != "machine":
            lines += f"\n\n{measured_line(name)}"
        print(f"\n## {name}\n\n{lines}", flush=True)
        README.write_text(with_block(README.read_text(), name, lines))


def measured_line(name):
    """The date, the machine and the command, as examples/evidence.py reads them."""
    threads = "on" if name == "runtimes" else "with one thread of"
    line = f"Measured on {date.today()} {threads} the machine above: `{COMMAND}`."
    return textwrap.fill(line, 120, break_on_hyphens=False)


if __name__ == "__main__":
    main()
