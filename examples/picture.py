"""Draw the pictures of README.md from real runs: python examples/picture.py [FOLDER]

Writes session.svg and result.svg into FOLDER, by default the folder of this script. Each command
runs in a temporary folder, and its output is a terminal of 92 columns. The last digits depend on
the hardware.
"""

import argparse
import fcntl
import io
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
COLUMNS = 92
MARGIN = 8  # columns, for image viewers with a wider font
PREPARE = (
    "sentkit encode examples/data/pairs.jsonl --precision fp32 -q -o mean.safetensors",
    "sentkit encode examples/data/pairs.jsonl --precision fp32 -q --readout cls -o cls.safetensors",
)
SESSION = (
    r"printf 'a man plays a guitar\na person makes music\nthe cat sleeps\n' |"
    "\n    sentkit encode --precision fp32 | sentkit score",
    "sentkit encode examples/data/titles.csv --field text=title --precision fp32 \\"
    "\n    -o titles.safetensors",
    "echo 'an animal that barks' | sentkit encode --precision fp32 |"
    "\n    sentkit search --corpus titles.safetensors --top 3",
    "sentkit cluster titles.safetensors -k 3 --describe --keywords 4",
)
RESULT = (
    "sentkit score cls.safetensors mean.safetensors --gold score --baseline mean.safetensors",
)


def main(folder, program=(sys.executable, "-m", "sentkit")):
    with TemporaryDirectory() as temporary:
        (Path(temporary) / "examples").symlink_to(HERE)
        programs = Path(temporary) / "bin"
        programs.mkdir()
        script = programs / "sentkit"
        script.write_text(f'#!/bin/sh\nexec {shlex.join(program)} "$@"\n')
        script.chmod(0o755)
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        environment["PATH"] = f"{programs}:{os.environ['PATH']}"
        for command in PREPARE:
            run(command, temporary, environment)
        for name, commands in (("session", SESSION), ("result", RESULT)):
            shown = [(command, run(command, temporary, environment)) for command in commands]
            (folder / f"{name}.svg").write_text(picture(name, shown))


def run(command, folder, environment):
    """The text that the command writes to the terminal; an error ends the program."""
    controller, terminal = pty.openpty()
    size = struct.pack("HHHH", 40, COLUMNS, 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
    process = subprocess.Popen(
        ["sh", "-ec", command],
        cwd=folder,
        env=environment,
        stdout=terminal,
        stderr=subprocess.PIPE,
    )
    os.close(terminal)
    output = io.BytesIO()
    try:
        while block := os.read(controller, 1 << 16):
            output.write(block)
    except OSError:  # Linux reports the closed terminal as an error
        pass
    finally:
        os.close(controller)
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(f"picture.py: {command}: {errors.decode()}")
    return output.getvalue().decode()


def picture(name, shown):
    """An SVG image of the commands and their outputs, without fonts from the network."""
    console = Console(record=True, width=COLUMNS + MARGIN, file=io.StringIO(), force_terminal=True)
    for command, output in shown:
        console.print(Text.assemble(("$ ", "green"), (command, "bold")), soft_wrap=True)
        if output:
            text = output.replace("\r\n", "\n").rstrip("\n")
            console.print(Text.from_ansi(text), soft_wrap=True)
    image = console.export_svg(title="sentkit", unique_id=name).replace("Fira Code, ", "")
    return re.sub(r"\s*@font-face \{.*?\}", "", image, flags=re.DOTALL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, nargs="?", default=HERE)
    main(parser.parse_args().folder)
