"""The manual as HTML pages: all man pages, with links that lead to files."""

import html
import re

import pytest

from support import ROOT, load_script

pages = load_script(ROOT / "examples/html_pages.py")
LINK = re.compile(r'<a href="([^"]+)"')


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages.sys, "argv", ["pages.py", str(folder)])
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


def test_an_unknown_request_is_an_error():
    with pytest.raises(ValueError, match=r"unknown request \.XY"):
        pages.Converter({}).convert([".XY"])
