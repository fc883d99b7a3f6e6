"""The last line of a help text names the man page."""

import subprocess
import sys

import pytest

from support import ROOT


@pytest.mark.parametrize("command", ["", "whiten fit", "whiten"])
def test_help_names_the_page(command):
    name = " ".join(["sentkit", *command.split()]).replace(" ", "-")
    words = [sys.executable, "-m", "sentkit", *command.split(), "--help"]
    text = subprocess.check_output(words, cwd=ROOT, text=True)

    assert text.endswith(f"\n\nFull manual: man {name}\n")
    assert (ROOT / "man/man1" / f"{name}.1").is_file()
