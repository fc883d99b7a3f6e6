"""The manual as HTML pages: all man pages, with links that lead to files."""

import html
import re
import sys

import pytest

from support import ROOT, load_script

pages = load_script(ROOT / "examples/html_pages.py")
LINK = re.compile(r'<a href="([^"]+)"')


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pages.py", str(folder)])
        pages.main()
    return folder


def test_every_man_page_is_a_page_of_the_index(folder):
    names = {path.stem for path in (ROOT / "man").glob("man*/*")}
    links = LINK.findall((folder / "index.html").read_text())

    assert {path.stem for path in folder.iterdir()} == names | {"index"}
    assert sorted(links) == sorted(f"{name}.html" for name in names)


def test_all_links_lead_to_files_and_nothing_is_loaded_from_elsewhere(folder):
    for path in folder.iterdir():
        text = path.read_text()
        for link in LINK.findall(text):
            assert (folder / link).exists()
        assert not re.search(r"""(src|href)=["']https?:""", text)


def test_the_words_of_a_page_are_those_of_its_man_page(folder):
    """Without fonts, requests and tags, and with equal white space."""
    for path in (ROOT / "man").glob("man*/*"):
        lines = path.read_text().splitlines()
        roff = []
        for line in lines[1:]:
            if not line.startswith("."):
                roff.append(pages.plain(line))
            elif line.startswith((".SH ", ".SS ", ".B ")):
                roff.append(pages.plain(line.partition(" ")[2]).strip('"'))
        body = (folder / f"{path.stem}.html").read_text().partition("</h1>")[2]
        words = html.unescape(re.sub(r"<[^>]+>", " ", body)).split()

        assert "".join(words) == "".join(" ".join(roff).split())


def test_no_page_has_a_name_of_roff_for_a_character(folder):
    for path in folder.iterdir():
        assert "\\(" not in path.read_text()
    assert pages.characters(r"0.4 \(+- 0.1") == "0.4 ± 0.1"
    with pytest.raises(ValueError, match=r"unknown character \\\(xy"):
        pages.characters(r"a \(xy b")


def test_a_page_with_a_bold_name_is_a_link():
    converter = pages.Converter({"sentkit-train": "sentkit-train.html"})

    assert converter.inline(r"\fBsentkit-train\fR(1), sentkit-train(1)") == (
        '<a href="sentkit-train.html"><b>sentkit-train</b>(1)</a>, '
        '<a href="sentkit-train.html">sentkit-train(1)</a>'
    )
    assert converter.inline(r"\fBsentkit-none\fR(1)") == "<b>sentkit-none</b>(1)"


def test_an_unknown_request_is_an_error():
    with pytest.raises(ValueError, match=r"unknown request \.XY"):
        pages.Converter({}).convert([".XY"])
