"""The last line of a help text names the man page, in a checkout and where a wheel was installed."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from support import ROOT


def help_of(command, path):
    command = [sys.executable, "-m", "sentkit", *command.split(), "--help"]
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.check_output(command, cwd=path, env=environment, text=True)


def page_in_help(command, path):
    """The words of the line, as a shell reads them."""
    head, _, line = help_of(command, path).rpartition("\n\n")
    assert "Full manual" not in head
    assert line.startswith("Full manual: man ")
    return shlex.split(line.removeprefix("Full manual: "))


@pytest.fixture
def installed(tmp_path):
    """A folder as pip fills it: the package, its record, and the pages two folders higher."""
    prefix = tmp_path / "a prefix"
    site, pages = prefix / "lib/site-packages", prefix / "share/man/man1"
    record = site / "sentkit-9.dist-info"
    record.mkdir(parents=True)
    pages.mkdir(parents=True)
    (site / "sentkit").symlink_to(ROOT / "sentkit")
    (record / "METADATA").write_text("Metadata-Version: 2.4\nName: sentkit\nVersion: 9\n")
    lines = ["sentkit/__init__.py,,\n"]
    for page in (ROOT / "man/man1").glob("*.1"):
        shutil.copy(page, pages)
        lines.append(f"../../share/man/man1/{page.name},,\n")
    (record / "RECORD").write_text("".join(lines))
    return site, pages


@pytest.mark.parametrize("command", ["", "whiten fit", "whiten"])
def test_help_names_the_page_of_the_checkout(command):
    name = " ".join(["sentkit", *command.split()]).replace(" ", "-")

    assert page_in_help(command, ROOT) == ["man", str(ROOT / "man/man1" / f"{name}.1")]


@pytest.mark.parametrize("command", ["build-entries", "whiten apply"])
def test_help_names_the_installed_page(command, installed):
    """Also in a folder with a blank in its name."""
    site, pages = installed
    name = "-".join(["sentkit", *command.split()])

    assert page_in_help(command, site) == ["man", str(pages / f"{name}.1")]


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_man_shows_the_named_page(installed):
    done = subprocess.run(page_in_help("encode", installed[0]), capture_output=True, text=True, check=True)

    assert "Add a vector to every row." in done.stdout


def test_a_page_that_is_not_installed_is_not_named(installed):
    site, pages = installed
    shutil.rmtree(pages)

    assert "Full manual" not in help_of("encode", site)
