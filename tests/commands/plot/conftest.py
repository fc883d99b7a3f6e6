"""The numbers of a picture, and the texts of an SVG file."""

from xml.etree import ElementTree

import pytest

from support import SVG


@pytest.fixture
def plot(sentkit):
    """The records of a picture from a run without messages."""

    def run(*arguments, **given):
        done = sentkit("plot", *arguments, **given)
        assert (done.code, done.err) == (0, "")
        return done.rows

    return run


@pytest.fixture
def svg(sentkit, tmp_path):
    """The texts of a picture that the program draws."""
    pytest.importorskip("matplotlib")

    def run(*arguments, **given):
        path = tmp_path / "picture.svg"
        done = sentkit("plot", *arguments, "-f", "-o", path, **given)
        assert (done.code, done.out) == (0, b""), done.err
        root = ElementTree.fromstring(path.read_bytes())
        return ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]

    return run
