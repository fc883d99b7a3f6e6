"""The script that writes the tables of tests/benchmarks/README.md."""

import importlib.util
import re

from support import ROOT

FOLDER = ROOT / "tests/benchmarks"
README = (FOLDER / "README.md").read_text()


def runner():
    spec = importlib.util.spec_from_file_location("benchmarks_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_script_has_its_lines_in_the_document():
    names = [name for name in re.findall("<!-- (.*) -->", README) if name != "end"]

    assert sorted(runner().scripts("texts", "test", "dev", "folder", "static")) == sorted(names)


def test_only_the_lines_of_one_script_are_replaced():
    text = "A\n<!-- one -->\n\nold\n\n<!-- end -->\nB\n<!-- two -->\n<!-- end -->\nC\n"

    first = runner().with_block(text, "one", "new\n")
    both = runner().with_block(first, "two", "| other |\n")

    assert first == "A\n<!-- one -->\n\nnew\n\n<!-- end -->\nB\n<!-- two -->\n<!-- end -->\nC\n"
    assert both == first.replace("<!-- two -->\n", "<!-- two -->\n\n| other |\n\n")
