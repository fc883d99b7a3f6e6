"""The tables of README.md about encode, from one command.

python tests/benchmarks/run.py TEXTS.txt[.gz] [TEST.jsonl DEV.jsonl FOLDER STATIC]

With the other arguments, also the tables of other runtimes and of whole processes; see runtimes.py and
processes.py. STATIC is a folder of model2vec.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    texts, *others = sys.argv[1:]
    scripts = {"start": [], "encode": [texts], "pairs": [], "memory": []}
    if others:
        test, dev, folder, static = others
        scripts["runtimes"] = [test, dev, folder]
        scripts["processes"] = [texts, f"{folder}/venv/bin/python", static, folder]
    for name, arguments in scripts.items():
        print(f"\n## {name}\n", flush=True)
        subprocess.run([sys.executable, str(HERE / f"{name}.py"), *arguments], check=True)


if __name__ == "__main__":
    main()
