"""The numbers of a picture, and the texts of an SVG file."""

from xml.etree import ElementTree

import pytest

from support import SVG


@pytest.fixture
def plot(sentkit):
    """The records of a picture from a run without messages."""

    def run(*arguments, **options):
        result = sentkit("plot", *arguments, **options)
        assert (result.code, result.err) == (0, "")
        return result.rows

    return run


@pytest.fixture
def svg(sentkit, tmp_path):
    """The texts of a picture that the program draws."""
    pytest.importorskip("matplotlib")

    def run(*arguments, **options):
        path = tmp_path / "picture.svg"
        result = sentkit("plot", *arguments, "-f", "-o", path, **options)
        assert (result.code, result.out) == (0, b""), result.err
        root = ElementTree.fromstring(path.read_bytes())
        return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]

    return run
