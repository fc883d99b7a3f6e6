"""The forms of a picture: files, JSON, and a sketch on a terminal."""

import io
import json
import math
import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from sentkit.plots.drawing import draw
from sentkit.plots.picture import Axis, Grid, Panel, Picture, Series
from sentkit.plots.sketch import sketch
from support import SVG, in_jsonl

VECTORS = "".join(f'{{"text":"t{n}","embedding":[{n},{n * n % 7}]}}\n' for n in range(6))
SPACE = ("space", "--by", "pca")


def test_another_process_writes_the_same_svg(svg, program, tmp_path):
    """No date, no random names, and no settings of the user."""
    _, _, ours = svg(*SPACE, stdin=VECTORS)
    (tmp_path / "matplotlibrc").write_text("font.size: 20\nsvg.fonttype: path\n")
    done = program("plot", *SPACE, "-o", "other.svg", stdin=VECTORS.encode())

    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "other.svg").read_bytes() == ours


@pytest.mark.parametrize(("width", "pixels"), [((), 992), (("--width", "174"), 2055)])
def test_a_picture_has_its_width(png_size, width, pixels):
    """84 millimetres at 300 dots per inch are 992 dots."""
    assert png_size(*SPACE, *width, stdin=VECTORS)[0] == pytest.approx(pixels, abs=2)


def test_pdf_has_no_date(sentkit, tmp_path):
    pytest.importorskip("matplotlib")
    files = []
    for name in ("a.pdf", "b.pdf"):
        assert sentkit("plot", *SPACE, "-o", name, stdin=VECTORS).code == 0
        files.append((tmp_path / name).read_bytes())

    assert files[0] == files[1]
    assert files[0].startswith(b"%PDF")
    assert b"CreationDate" not in files[0]


def test_jsonl_has_the_numbers_of_standard_output(sentkit, tmp_path):
    """An existing file is refused before any work."""
    done = sentkit("plot", *SPACE, "-o", "numbers.jsonl", stdin=VECTORS)

    assert (done.code, done.out, done.err) == (0, b"", "")
    numbers = (tmp_path / "numbers.jsonl").read_bytes()
    assert numbers == sentkit("plot", *SPACE, stdin=VECTORS).out
    done = sentkit("plot", *SPACE, "-o", "numbers.jsonl", stdin="not JSON")
    assert (done.code, done.told[0]) == (73, "sentkit plot space: numbers.jsonl: already exists")
    assert (tmp_path / "numbers.jsonl").read_bytes() == numbers


def test_without_matplotlib_a_picture_names_the_package(sentkit, monkeypatch):
    """The numbers and the sketch do not need it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = sentkit("plot", *SPACE, "-o", "a.svg", stdin=VECTORS)

    assert done.code == 69
    assert done.told == [
        "sentkit plot space: pictures need the package matplotlib",
        "  pip install 'sentkit[plot]'",
    ]
    assert sentkit("plot", *SPACE, stdin=VECTORS).code == 0


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["-o", "a.gif"], "a.gif: unknown format of a picture"),
        (["-o", "a"], "a: unknown format of a picture"),
        (["--width", "84"], "--width needs a picture"),
        (["--width", "84", "-o", "a.jsonl"], "--width needs a picture"),
        (["--json", "-o", "a.svg"], "--json cannot be used with -o a.svg"),
    ],
)
def test_wrong_outputs_are_wrong_usage(sentkit, flags, problem):
    done = sentkit("plot", *SPACE, *flags, stdin=VECTORS)

    assert (done.code, done.told[0]) == (2, f"sentkit plot space: {problem}")


def test_special_characters_of_a_text_are_safe(svg, sentkit):
    """A formula is not typeset, control characters are escaped, and the file remains XML.

    Missing glyphs are reported.
    """
    texts = ["$x_1$ & <b>", "a\u001b[31m b", "right \u202e left"]
    given, other = (
        in_jsonl(*({"text": text, "embedding": [n, 1]} for n, text in enumerate(each)))
        for each in (texts, ["猫", "dog"])
    )
    done = sentkit("plot", "heat", "-o", "a.png", stdin=other)

    assert {"$x_1$ & <b>", "a\\x1b[31m b", "right \\u202e left"} <= set(svg("heat", stdin=given)[0])
    problem = "1 characters have no glyph in the font of the picture"
    assert (done.code, done.told) == (0, [f"sentkit plot heat: warning: {problem}"])


def test_a_terminal_shows_a_sketch(on_terminal, tmp_path):
    (tmp_path / "rows.jsonl").write_text(VECTORS)
    lines = on_terminal("plot", *SPACE, "rows.jsonl", width=60)

    assert 10 < len(lines) < 24
    assert max(map(len, lines)) <= 60
    assert sum(line.count("o") for line in lines[1:-1]) >= 4
    assert json.loads(on_terminal("plot", *SPACE, "rows.jsonl", "--json")[0])["row"] == 1


def picture(**panel):
    return Picture((Panel(Axis("x", "width"), Axis("y", "height"), **panel),))


def drawn_texts(picture, width):
    """The text elements of the SVG file."""
    pytest.importorskip("matplotlib")
    file = io.BytesIO()
    draw(picture, file, "svg", width)
    return list(ElementTree.fromstring(file.getvalue()).iter(f"{SVG}text"))


def test_a_sketch_places_points_in_its_corners():
    lines = list(sketch(picture(series=(Series("", np.array([0.0, 1.0]), np.array([5.0, 7.0])),)), 40))

    assert lines[0] == "height"
    assert lines[1].startswith("7 │")
    assert lines[1].endswith("o")
    assert lines[-3].startswith("5 │o")
    assert lines[-1].split() == ["0", "width", "1"]


def test_a_sketch_of_bars_has_their_values():
    bars = Series("cls", np.array([0.0, 1.0]), np.array([2.0, 4.0]), "bars")
    panel = Panel(Axis("x", "", names=("a", "b")), Axis("y", "score"), (bars,))
    lines = list(sketch(Picture((panel,)), 40))

    assert lines[0] == "score"
    assert [line.split()[0] for line in lines[1:]] == ["a", "b"]
    assert [line.count("█") for line in lines[1:]] == [14, 29]  # of 40, without the name and the number
    assert [line.split()[-1] for line in lines[1:]] == ["2.00", "4.00"]


@pytest.mark.parametrize("y", [np.zeros(1), np.full(3, np.nan), np.zeros(0)])
def test_a_sketch_of_hardly_any_values(y):
    """One value, only missing values, and none."""
    for form in ("points", "line"):
        lines = list(sketch(picture(series=(Series("", np.arange(len(y), dtype=float), y, form),)), 30))
        assert max(map(len, lines)) <= 30


def test_a_sketch_of_few_cells_has_no_gaps():
    """Also downward: the first row of the grid is then the first line."""
    grid = Grid("v", np.eye(2), np.array([1.0, 2.0]), np.array([1.0, 2.0]), 0.0, 1.0)
    panel = Panel(Axis("x", "column"), Axis("y", "row"), grid=grid, downward=True)
    lines = list(sketch(Picture((panel,)), 23))[1:-3]

    assert lines[0] == f"1 │{'█' * 10}"
    assert lines[-1] == f"2 │{' ' * 10}{'█' * 10}"
    assert {line[3:] for line in lines} == {lines[0][3:], lines[-1][3:]}


def test_bars_without_room_have_no_values():
    """Twelve bars on 84 millimetres are too narrow for their values, but not on 174."""
    bars = tuple(Series(name, np.arange(3.0), np.full(3, 50.5), "bars") for name in "abcd")
    picture = Picture((Panel(Axis("d", "", names=tuple("xyz")), Axis("t", "t"), bars),))
    texts = [[text.text for text in drawn_texts(picture, width)] for width in (84.0, 174.0)]

    assert [each.count("50.5") for each in texts] == [0, 12]


@pytest.mark.parametrize(
    ("name", "shown", "distance"),
    [("nano", "nano", 0), (30 * "x" + "end", 30 * "x" + "end", 9.0), (99 * "x" + "end", None, 9.0)],
)
def test_a_title_without_room_is_above_the_note(name, shown, distance):
    """A line of 7.5 points is 9 points high. A very long title keeps its end."""
    axis = Axis("x", "x")
    note = "Spearman 77.6, n = 1379"
    panel = Panel(axis, axis, (Series("", np.arange(2.0), np.arange(2.0)),), title=name, note=note)
    drawn = {}
    for text in drawn_texts(Picture((panel, replace(panel, title="b"))), 120):
        height = text.get("y") or re.findall(r"[\d.]+", text.get("transform"))[1]
        drawn.setdefault(text.text or "", float(height))
    [title] = [text for text in drawn if text.endswith(name[-3:])]

    assert title == shown or (title.startswith("…") and 30 < len(title) < 50)
    assert drawn[note] - drawn[title] == pytest.approx(distance, abs=0.1)


def test_grids_have_a_shade_for_each_value():
    values = np.array([[0.0, 1.0], [0.25, np.nan]])
    grid = Grid("v", values, np.arange(2.0), np.arange(2.0), 0.0, 1.0)
    panel = Panel(Axis("x", "c"), Axis("y", "", names=("top", "low")), grid=grid, downward=True)

    assert list(sketch(Picture((panel,)), 30)) == ["top   ██", "low ░░  ", "░ 0.25   ▒ 0.5   ▓ 0.75   █ 1"]
    assert list(Picture((panel,)).records()) == [
        {"x": 0, "y": "top", "v": 0}, {"x": 1, "y": "top", "v": 1}, {"x": 0, "y": "low", "v": 0.25},
    ]  # fmt: skip
    values = np.array([[0.0, 1.0, 3.0]])
    counts = Grid("n", values, np.arange(3.0), np.zeros(1), 0.0, 3.0, log=True, label="rows")
    assert counts.shades() == pytest.approx(np.array([[0.0, 0.5, 1.0]]))
    assert list(sketch(picture(grid=counts), 30))[-1] == "░ 1   ▒ 1   ▓ 2   █ 3   rows"
    assert [counts.value_of(shade) for shade in (0.0, 0.5, 1.0)] == pytest.approx([0.0, 1.0, 3.0])


def heat_of(names, columns):
    values = np.ones((len(names), columns))
    grid = Grid("v", values, np.arange(columns) + 1.0, np.arange(len(names)) + 0.0, 0.0, 1.0)
    return Picture((Panel(Axis("x", "c"), Axis("y", "", names=tuple(names)), grid=grid, downward=True),))


def test_wide_characters_move_no_cell():
    """猫がいる takes eight columns of a terminal; a cut name does not end within a character."""
    wide = list(sketch(heat_of(["猫がいる", "a cat", "is\nn"], 1), 60))
    narrow = list(sketch(heat_of(["猫がいる", "a cat and a dog"], 20), 14))

    assert wide[:3] == ["猫がいる ██", "   a cat ██", "   is\\nn ██"]
    assert narrow[0] == f"猫がい  {'█' * 6}"
    assert narrow[1] == f"a cat a {'█' * 6}"
    bars = [Series(name, np.zeros(1), np.ones(1), "bars") for name in ("猫", "cat")]
    panel = Panel(Axis("x", "", names=("a",)), Axis("y", ""), tuple(bars))
    lines = list(sketch(Picture((panel,)), 40))
    assert lines[1:] == [f"  猫  {'█' * 25} 1.00", f"  cat {'█' * 25} 1.00"]


@pytest.mark.parametrize(
    ("columns", "width", "shown", "note"),
    [
        (100, 80, 67, "columns 68 to 100 not shown"),
        (68, 80, 67, "column 68 not shown"),
        (67, 80, 67, None),
        (100, 213, 200, None),
    ],
)
def test_a_sketch_names_the_columns_without_room(columns, width, shown, note):
    """A name keeps 12 columns of the terminal."""
    first, *rest, _ = sketch(heat_of(["the cat sleeps well"], columns), width)

    assert first == f"the cat slee {'█' * shown}"
    assert rest == ([note] if note else [])


def test_a_legend_has_round_values_at_their_shades():
    """The shade of a count grows with log(1 + count). A grid with values in its cells needs no legend."""
    grid = Grid("n", np.array([[1.0, 24.0]]), np.arange(2.0), np.zeros(1), 0.0, 24.0, log=True, label="pairs")
    places = [
        {text.text: float(text.get("y") or 0) for text in drawn_texts(picture(grid=each), 84)}
        for each in (grid, replace(grid, shown=True))
    ]
    heights = [places[0][name] for name in ("1", "3", "10")]

    assert "pairs" in places[0]
    ratio = math.log(4 / 2) / math.log(11 / 4)
    assert (heights[0] - heights[1]) / (heights[1] - heights[2]) == pytest.approx(ratio, rel=1e-4)
    assert "pairs" not in places[1]


def test_a_legend_is_read_line_by_line():
    """Seven names of one length are in several lines of this width."""
    names = [f"the encoder {letter}" for letter in "abcdefg"]
    series = tuple(Series(name, np.zeros(1), np.ones(1)) for name in names)
    panel = Panel(Axis("x", ""), Axis("y", ""), series)
    places = {
        text.text: (float(text.get("y") or 0), float(text.get("x") or 0))
        for text in drawn_texts(Picture((panel,)), 84)
        if text.text in names
    }

    assert sorted(places, key=places.__getitem__) == names
    assert 1 < len({y for y, _ in places.values()}) < len(names)
