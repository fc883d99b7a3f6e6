"""The first table of README.md, from one command: python tests/benchmarks/run.py TEXTS.txt[.gz]"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    for name, arguments in (("start", []), ("encode", sys.argv[1:]), ("pairs", []), ("memory", [])):
        print(f"\n## {name}\n", flush=True)
        subprocess.run([sys.executable, str(HERE / f"{name}.py"), *arguments], check=True)


if __name__ == "__main__":
    main()
