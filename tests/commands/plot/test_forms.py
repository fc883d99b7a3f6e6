"""The forms of a picture: files and JSON; and the artists of matplotlib."""

import sys
from itertools import pairwise

import numpy as np
import pytest

from sentkit.plots.names import distinct_names, fonts_for
from sentkit.plots.picture import Axis, Grid, Panel, Picture, Series
from support import in_jsonl

VECTORS = "".join(f'{{"text":"t{n}","embedding":[{n},{n * n % 7}]}}\n' for n in range(6))
SPACE = ("space", "--by", "pca")


@pytest.mark.parametrize("form", ["svg", "png", "pdf"])
def test_equal_data_give_equal_files(sentkit, tmp_path, form):
    """No date, no random names, and no settings of the user."""
    pytest.importorskip("matplotlib")
    files = []
    for name in ("a", "b"):
        assert sentkit("plot", *SPACE, "-o", f"{name}.{form}", stdin=VECTORS).code == 0
        files.append((tmp_path / f"{name}.{form}").read_bytes())
        (tmp_path / "matplotlibrc").write_text("font.size: 20\nsvg.fonttype: path\n")

    assert files[0] == files[1]
    assert files[0].startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[form])
    assert b"Date" not in files[0]


@pytest.mark.parametrize(("width", "pixels"), [((), 992), (("--width", "174"), 2055)])
def test_a_picture_has_its_width(sentkit, tmp_path, width, pixels):
    """84 millimetres at 300 dots per inch are 992 dots. The header of a PNG has the width at byte
    16.
    """
    pytest.importorskip("matplotlib")
    assert sentkit("plot", *SPACE, *width, "-o", "a.png", stdin=VECTORS).code == 0

    head = (tmp_path / "a.png").read_bytes()[:24]
    assert int.from_bytes(head[16:20]) == pytest.approx(pixels, abs=2)


def test_without_matplotlib_a_picture_names_the_package(sentkit, monkeypatch):
    """The numbers do not need it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = sentkit("plot", *SPACE, "-o", "a.svg", stdin=VECTORS)

    assert result.code == 69
    assert result.told == [
        "sentkit plot space: pictures need the package matplotlib",
        "  pip install 'sentkit[plot]'",
    ]
    assert sentkit("plot", *SPACE, stdin=VECTORS).code == 0


def test_a_terminal_shows_only_numbers(sentkit, monkeypatch):
    monkeypatch.setattr("sentkit.flags.outputs.PictureOutput.on_terminal", True)
    result = sentkit("plot", *SPACE, stdin=VECTORS)

    assert (result.code, result.out, result.told[0]) == (
        2,
        b"",
        "sentkit plot space: a terminal shows no picture",
    )


PAIR = '{"embedding_a":[1,0],"embedding_b":[1,%d],"score":%s}\n'
REPORT = '{"encoder":"m/L%d:cls:0123456789ab","n":2,"spearman":%s}\n'


@pytest.mark.parametrize(
    ("figure", "row", "place"),
    [(["pairs", "--gold", "score"], PAIR, '-: "score" has'), (["sweep"], REPORT, "picture.svg:")],
)
def test_values_near_the_largest_number_are_refused(sentkit, figure, row, place):
    pytest.importorskip("matplotlib")
    command = ("plot", *figure, "-f", "-o", "picture.svg")
    drawn = sentkit(*command, stdin="".join(row % (n, f"{n}e299") for n in range(1, 9)))
    refused = sentkit(*command, stdin=row % (1, "1e308") + row % (2, "-1e308"))

    assert drawn.code == 0, drawn.err
    assert refused.code == 65
    assert refused.err.startswith(f"sentkit plot {figure[0]}: {place} a value of 1e+308")
    assert "too large for a picture" in refused.err


def test_the_mean_of_values_near_the_largest_number_is_one_of_them(sentkit):
    """Their sum is infinite."""
    pytest.importorskip("matplotlib")
    steps = in_jsonl(
        *({"step": step, "loss": 1.5e308, "terms": {"ct": 1.5e308}} for step in range(1, 7))
    )
    numbers = sentkit("plot", "curve", "--points", "2", stdin=steps)
    refused = sentkit("plot", "curve", "--points", "2", "-o", "picture.svg", stdin=steps)

    points = [(point["step"], point["loss"]) for point in numbers.rows]
    assert points == [(2, 1.5e308), (5, 1.5e308)]
    assert refused.code == 65
    assert "a value of 1.5e+308 is too large for a picture" in refused.err


def test_special_characters_of_a_text_are_safe(svg, sentkit):
    """A formula is not typeset, control characters are escaped, and the file remains XML."""
    texts = ["$x_1$ & <b>", "a\u001b[31m b", "right \u202e left"]
    rows = in_jsonl(*({"text": text, "embedding": [n, 1]} for n, text in enumerate(texts)))

    assert {"$x_1$ & <b>", "a\\x1b[31m b", "right \\u202e left"} <= set(svg("heat", stdin=rows))


def test_characters_without_a_font_are_named(sentkit, tmp_path, svg, monkeypatch):
    """An SVG file has the text, for which a browser has fonts. Here, all fonts have only ASCII."""
    monkeypatch.setattr("sentkit.plots.names.characters_of", lambda file: frozenset(range(128)))
    rows = in_jsonl(
        *({"text": text, "embedding": [n, 1]} for n, text in enumerate(["猫 cat", "dog"]))
    )
    result = sentkit("plot", "heat", "-o", "a.png", stdin=rows)

    assert result.code == 0
    assert "a.png: characters that no installed font has are boxes: 猫." in result.told[0]
    assert (tmp_path / "a.png").exists()
    assert "猫 cat" in svg("heat", stdin=rows)


def test_characters_that_the_usual_font_lacks_are_in_another_font():
    """DejaVu Sans has no hiragana; the STIX fonts, which come with matplotlib, have one letter of
    it.
    """
    pytest.importorskip("matplotlib")
    families, missing = fonts_for(["dog の"])

    assert (len(families), missing) == (2, set())
    assert fonts_for(["dog", "Ünïcödé", "Русский"]) == (["DejaVu Sans"], set())


def figure(*panels, width=84.0, **picture):
    pytest.importorskip("matplotlib")
    from sentkit.plots.drawing import figure_of

    return figure_of(Picture(panels, **picture), width)


def panel(*series, **fields):
    axes = {"x": Axis("x", "width"), "y": Axis("y", "height")}
    return Panel(**axes | fields, series=series)


def texts_in(figure):
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


@pytest.mark.parametrize("y", [np.zeros(1), np.full(3, np.nan), np.zeros(0)])
@pytest.mark.parametrize("form", ["points", "line"])
def test_hardly_any_values(y, form):
    """One value, only missing values, and none."""
    x = np.arange(len(y), dtype=float)
    [axes] = figure(panel(Series("", x, y, form))).axes

    [line] = axes.lines
    assert np.array_equal(line.get_xydata(), np.column_stack([x, y]), equal_nan=True)


def test_series_of_one_name_share_a_colour_and_an_entry_of_the_legend():
    """Points have a marker, lines a band for their interval; grey series have no number."""
    x = np.arange(2.0)
    first = panel(Series("a", x, x), Series("b", x, x + 1, "line", np.array([x, x + 2])))
    second = panel(Series("grey", x, x, faint=True), Series("b", x, x, "line"))
    drawn = figure(first, second)
    points, line = drawn.axes[0].lines
    grey, same_name = drawn.axes[1].lines

    assert line.get_color() == same_name.get_color() != points.get_color()
    assert (points.get_linestyle(), grey.get_color()) == ("None", "#b8b8b8")
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["a", "b", "grey"]
    [band] = drawn.axes[0].collections
    assert band.get_datalim(drawn.axes[0].transData).extents == pytest.approx([0, 0, 1, 3])


def test_long_names_that_begin_alike_differ_in_the_legend_and_beside_an_axis():
    names = tuple(f"a name that has far more letters than fit {n}" for n in range(2))
    x = np.arange(2.0)
    axis = Axis("d", "", names=names)
    drawn = figure(panel(*(Series(name, x, x) for name in names), x=axis, y=axis))
    [axes] = drawn.axes
    shown = [f"…{name[-33:]}" for name in names]

    assert [text.get_text() for text in drawn.legends[0].get_texts()] == shown
    assert [text.get_text() for text in axes.get_xticklabels()] == shown
    beside = [text.get_text() for text in axes.get_yticklabels()]
    assert [text[-5:] for text in beside] == ["fit 0", "fit 1"]


def test_pairs_are_joined_and_marked():
    """A text is beside each point with a mark, in the colour of the point."""
    series = Series("", np.arange(4.0), np.zeros(4), joined=2, marks=("1", "1", "", "2"))
    [axes] = figure(panel(series)).axes

    assert [line.get_xdata().tolist() for line in axes.lines] == [[0, 1], [2, 3], [0, 1, 2, 3]]
    assert [(text.get_text(), text.xy[0]) for text in axes.texts] == [("1", 0), ("1", 1), ("2", 3)]


def test_marks_are_not_on_each_other():
    """The first points of five pairs are close: four have room for their text, and the fifth has
    none, but its second point has it.
    """
    x = np.array([[10, 0.02 * number] for number in range(5)]).ravel()
    y = np.array([[number, 0] for number in range(5)]).ravel()
    marks = tuple("1122334455")
    drawn = figure(panel(Series("", x, y, joined=2, marks=marks)))
    [axes] = drawn.axes
    boxes = [text.get_window_extent(drawn.canvas.get_renderer()) for text in axes.texts]

    assert sorted(text.get_text() for text in axes.texts) == [*"112233445"]
    assert not any(box.count_overlaps(boxes[:number]) for number, box in enumerate(boxes))


def test_bars_have_intervals_and_values_if_they_are_wide():
    """Twelve bars on 84 millimetres are too narrow for their values, but not on 174."""
    interval = np.repeat([[40.0], [62.5]], 3, axis=1)
    bars = [Series(name, np.arange(3.0), np.full(3, 50.5), "bars", interval) for name in "abcd"]
    panel_of_bars = panel(*bars, x=Axis("d", "", names=tuple("xyz")), y=Axis("t", "t"))
    narrow, wide = (figure(panel_of_bars, width=width).axes[0] for width in (84.0, 174.0))

    assert [sum(text.get_text() == "50.5" for text in axes.texts) for axes in (narrow, wide)] == [
        0,
        12,
    ]
    centres = [bar.get_x() + bar.get_width() / 2 for bar in wide.patches]
    assert centres == pytest.approx(
        [n + shift for shift in (-0.3, -0.1, 0.1, 0.3) for n in range(3)]
    )
    [lines] = wide.containers[1].errorbar.lines[2]
    assert [segment[:, 1].tolist() for segment in lines.get_segments()] == [[40, 62.5]] * 3
    assert {text.get_text() for text in wide.get_xticklabels()} == set("xyz")


@pytest.mark.parametrize(
    ("groups", "value", "shown"), [(8, 35.7, 24), (6, -35.7, 18), (8, -35.7, 0)]
)
def test_values_of_bars_do_not_overlap(groups, value, shown):
    """On 174 millimetres, 24 bars have room for four characters each, and 18 for five."""
    bars = [Series(name, np.arange(groups * 1.0), np.full(groups, value), "bars") for name in "abc"]
    names = tuple("stuvwxyz"[:groups])
    drawn = figure(panel(*bars, x=Axis("d", "", names=names)), width=174.0)
    drawn.draw_without_rendering()
    alone = figure(panel(bars[0])).legends[0].get_texts()  # one system is named, too
    boxes = [text.get_window_extent() for text in drawn.axes[0].texts if text.get_text()]
    sides = sorted((box.x0, box.x1) for box in boxes)

    assert [text.get_text() for text in alone] == ["a"]
    assert len(boxes) == shown
    assert all(end < next_start for (_, end), (next_start, _) in pairwise(sides))


@pytest.mark.parametrize(("names", "angle"), [(("a", "b"), 0), (("images and captions",) * 4, 40)])
def test_long_names_below_a_panel_are_slanted(names, angle):
    """The picture is then higher by the height of the longest name."""
    positions = np.arange(len(names), dtype=float)
    bars = Series("", positions, np.ones_like(positions), "bars")
    drawn = figure(panel(bars, x=Axis("d", "", names=names)), height=0.7)

    assert {label.get_rotation() for label in drawn.axes[0].get_xticklabels()} == {angle}
    assert drawn.get_figheight() > 84 / 25.4 * 0.7 + (0.5 if angle else -0.01)


@pytest.mark.parametrize(
    ("title", "shown"),
    [("nano", "nano"), (40 * "x" + " end", 40 * "x" + " end"), (999 * "x" + "end", None)],
)
def test_a_title_is_above_the_note(title, shown):
    """A very long title keeps its end."""
    note = "Spearman 77.6, n = 1379"
    [axes] = figure(panel(title=title, note=note)).axes
    first, second = axes.get_title(loc="left").split("\n")

    assert second == note
    assert first == shown or (
        first.startswith("…") and first.endswith("end") and 40 < len(first) < 60
    )


def test_grids_have_a_shade_for_each_value():
    """The first row of the grid is the top one if y grows downward. A missing value is an empty
    cell.
    """
    grid = Grid(
        "v", np.array([[0.0, 1.0], [0.25, np.nan]]), np.arange(2.0) + 1, np.arange(2.0), 0.0, 1.0
    )
    panel_of_grid = panel(
        x=Axis("x", "c"), y=Axis("y", "", names=("top", "low")), grid=grid, downward=True
    )
    drawn = figure(panel_of_grid)
    collections = drawn.axes[0].collections
    [cells] = [cells for cells in collections if cells.get_array() is not None]

    assert cells.norm(cells.get_array()).tolist() == [[0, 1], [0.25, None]]
    assert cells.get_coordinates()[0, :, 0].tolist() == [0.5, 1.5, 2.5]
    assert drawn.axes[0].yaxis_inverted()
    assert list(Picture((panel_of_grid,)).records()) == [
        {"x": 1, "y": "top", "v": 0},
        {"x": 2, "y": "top", "v": 1},
        {"x": 1, "y": "low", "v": 0.25},
    ]


def test_the_shade_of_a_count_grows_with_its_logarithm():
    """log(1 + 1) is half of log(1 + 3). The bar of the shades has round values."""
    counts = Grid(
        "n", np.array([[0.0, 1, 3]]), np.arange(3.0), np.zeros(1), 0.0, 3.0, log=True, label="rows"
    )
    axes, bar = figure(panel(grid=counts)).axes
    [cells] = axes.collections

    assert cells.norm(cells.get_array())[0].tolist() == pytest.approx([0, 0.5, 1])
    assert (bar.get_ylabel(), bar.get_yticks().tolist()) == ("rows", [1, 3])


def test_values_in_the_cells_replace_the_bar_of_shades():
    """A value that is rounded to zero has no sign."""
    values = np.array([[0.5, np.nan, -0.0016]])
    grid = Grid("v", values, np.arange(3.0), np.zeros(1), 0.0, 1.0, shown=True)
    [axes] = figure(panel(grid=grid)).axes

    texts = [(text.get_text(), text.get_position()) for text in axes.texts]
    assert texts == [("0.50", (0, 0)), ("0.00", (2, 0))]


def test_a_logarithmic_axis_has_its_ticks():
    line = Series("", np.array([16.0, 64]), np.ones(2), "line")
    drawn = figure(panel(line, x=Axis("n", "texts", log=True, ticks=(16, 64))))

    assert drawn.axes[0].get_xscale() == "log"
    drawn.draw_without_rendering()
    assert {"16", "64", "texts"} <= set(texts_in(drawn))
    assert not [text for text in texts_in(drawn) if "10^" in text]


def clouds(names):
    """A group of 60 points for each name, all within a square."""
    random = np.random.default_rng(0)
    return [Series(name, *random.uniform(0, 1, (2, 60))) for name in names]


SHORT = [f"class {n}" for n in range(20)]
LONG = [f"questions about {name} and everything that belongs to it" for name in SHORT]
WIDE = [chr(ord("一") + n) + "猫" * n for n in range(20)]
VERY_LONG = [f"{name} {'x' * 60}" for name in "abcdefghijklmnopqrst"]


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("names", [SHORT[:5], SHORT, LONG, VERY_LONG, WIDE])
@pytest.mark.parametrize(("count", "width"), [(1, 84.0), (2, 174.0)])
def test_points_keep_the_frame_and_the_frame_keeps_the_picture(names, count, width):
    """The legend is below, in columns; no name is outside of the picture or on another one."""
    cloud = Panel(Axis("x", ""), Axis("y", ""), tuple(clouds(names)), has_equal_units=True)
    drawn = figure(*[cloud] * count, width=width, height=1.0)
    drawn.draw_without_rendering()
    [legend] = drawn.legends
    boxes = [text.get_window_extent() for text in legend.get_texts()]
    frames = [axes.get_window_extent() for axes in drawn.axes]
    area = sum(frame.width * frame.height for frame in frames)

    assert area > 0.6 * drawn.bbox.width * drawn.bbox.height
    for axes, frame in zip(drawn.axes, frames, strict=True):
        low_x, high_x = axes.get_xlim()
        low_y, high_y = axes.get_ylim()
        assert frame.width / (high_x - low_x) == pytest.approx(
            frame.height / (high_y - low_y), rel=1e-6
        )
        assert max(high_x - low_x, high_y - low_y) < 1.3  # the data have a range of almost 1
    for index, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.x1 <= drawn.bbox.width
        assert box.y0 >= 0
        assert box.y1 <= min(frame.y0 for frame in frames)
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])
    assert len({text.get_text() for text in legend.get_texts()}) == len(names)


def test_long_names_stay_different_and_keep_what_they_do_not_share():
    ends = [f"{'x' * 40} {end}" for end in ("cat", "dog")]
    long_names = [*LONG, *ends]
    shown = distinct_names(long_names, 20)

    assert distinct_names(["a cat", "a dog"]) == ["a cat", "a dog"]
    assert [name[-3:] for name in distinct_names(ends)] == ["cat", "dog"]
    assert len(set(shown)) == len(long_names)
    assert max(map(len, shown)) <= 20


@pytest.mark.parametrize(("count", "drawn_names"), [(20, 20), (60, 60), (100, 50)])
def test_names_beside_a_panel_do_not_overlap(count, drawn_names):
    """Of 100 names, every second one has room at the width of a page."""
    names = tuple(f"sentence {n} with some words more than fit" for n in range(count))
    grid = Grid("v", np.eye(count), np.arange(count), np.arange(count), 0.0, 1.0)
    panel_of_grid = panel(
        x=Axis("x", "row"), y=Axis("y", "", names=names), grid=grid, downward=True
    )
    drawn = figure(panel_of_grid, width=174.0, height=0.65)
    drawn.draw_without_rendering()
    boxes = [label.get_window_extent() for label in drawn.axes[0].get_yticklabels()]

    assert len(boxes) == drawn_names
    assert all(upper.y0 >= lower.y1 - 1 for upper, lower in pairwise(boxes))
    assert drawn.axes[0].get_window_extent().width > drawn.bbox.width / 2


def test_rings_have_one_entry_of_the_legend():
    """Rings of two runs around the same point have different sizes, so that both are seen."""
    x = np.arange(3.0)
    runs = [Series(name, x, x, "line", ringed=(False, True, False)) for name in "ab"]
    drawn = figure(panel(*runs), meaning_of_ring="kept")
    rings = [line for line in drawn.axes[0].lines if line.get_fillstyle() == "none"]

    assert [ring.get_xydata().tolist() for ring in rings] == [[[1, 1]]] * 2
    assert len({ring.get_markersize() for ring in rings}) == 2
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["a", "b", "kept"]
