"""The numbers of a picture, and the texts and places of an SVG file."""

import re
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
    """The texts, the places of the markers and the bytes of a picture that the program draws."""
    pytest.importorskip("matplotlib")

    def run(*arguments, **given):
        path = tmp_path / "picture.svg"
        done = sentkit("plot", *arguments, "-f", "-o", path, **given)
        assert (done.code, done.out) == (0, b""), done.err
        root = ElementTree.fromstring(path.read_bytes())
        texts = ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]
        places = [(float(each.get("x")), float(each.get("y"))) for each in root.iter(f"{SVG}use")]
        return texts, places, path.read_bytes()

    return run


@pytest.fixture
def png_size(sentkit, tmp_path):
    """The width and height in pixels of a picture in PNG."""
    pytest.importorskip("matplotlib")

    def run(*arguments, **given):
        path = tmp_path / "picture.png"
        done = sentkit("plot", *arguments, "-f", "-o", path, **given)
        assert done.code == 0, done.err
        head = path.read_bytes()[:24]
        assert re.match(rb"\x89PNG", head)
        return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])

    return run
