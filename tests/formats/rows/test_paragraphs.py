"""Paragraphs of text and Markdown as rows."""

import json

import pytest

from sentkit.errors import DataError
from sentkit.formats.rows.rows import Inputs, Rejects

NOTES = """# A heading
The first line of a paragraph
  and its second one.

- an item
  that is wrapped
- another item
1. a number
> a quote

Title
=====
Text below
---
```python
code = 1
```
| cell | cell |
|------|------|
the end"""
ROWS = [
    (1, "# A heading"),
    (2, "The first line of a paragraph and its second one."),
    (5, "- an item that is wrapped"),
    (7, "- another item"),
    (8, "1. a number"),
    (9, "> a quote"),
    (11, "Title"),
    (13, "Text below"),
    (16, "code = 1"),
    (18, "| cell | cell |"),
    (20, "the end"),
]


def rows_of(path, **options):
    read = Inputs([str(path)], format="paragraphs", **options)
    return [(row.number, row.values["text"]) for row in read.read(lambda row: row)]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_paragraph_is_a_row_with_the_number_of_its_first_line(tmp_path, end):
    path = tmp_path / "notes.md"
    path.write_bytes(NOTES.replace("\n", end).encode())

    assert rows_of(path) == ROWS


def test_paragraphs_do_not_depend_on_the_reads(tmp_path, monkeypatch):
    path = tmp_path / "notes.txt"
    path.write_text("".join(f"word {n} {'ü' * (n % 9)}\n" + "\n" * (n % 3 == 0) for n in range(90)))
    expected = rows_of(path)

    assert len(expected) == 31
    assert expected[1] == (3, "word 1 ü word 2 üü word 3 üüü")
    for size in (1, 7, 100):
        monkeypatch.setattr("sentkit.formats.rows.lines.READ", size)
        assert rows_of(path) == expected


def test_a_paragraph_that_is_too_long_or_not_text_is_a_bad_row(tmp_path):
    """Its other lines are not a second row."""
    path = tmp_path / "notes.txt"
    path.write_bytes(b"short\n\n" + b"a line of text\n" * 5 + b"\nabc\xff\ndef\n\nthe end\n")
    rejects = Rejects(skip=True)

    assert rows_of(path, rejects=rejects, longest=40) == [(1, "short"), (12, "the end")]
    assert rejects.count == 2
    with pytest.raises(DataError, match=r"notes.txt:3: a row of more than 40 bytes"):
        rows_of(path, longest=40)
    assert len(rows_of(path, rejects=Rejects(skip=True), longest=74)) == 3


def test_a_folder_is_its_text_files(tmp_path, monkeypatch, capfdbinary):
    """`encode` reads lines, and `search` reads Markdown by paragraph; a folder without texts is an error."""
    from sentkit.cli import status

    files = {
        "b.txt": "a dog barks\n",
        "a/notes.md": "# Animals\nthe cat sleeps\non the warm mat\n",
        "a/z.rst": "the sea\n",
        ".git/x.txt": "hidden\n",
        "a/.x.md": "hidden\n",
        "c.json": "{}",
        "data.bin": "0",
    }
    for name, text in files.items():
        (tmp_path / "notes" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "notes" / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert status(["encode", "notes", "-m", "static"]) == 0
    encoded = [json.loads(line)["text"] for line in capfdbinary.readouterr().out.splitlines()]
    assert encoded == ["# Animals", "the cat sleeps", "on the warm mat", "the sea", "a dog barks"]
    assert status(["search", "an animal that sleeps", "notes", "-m", "static", "--json"]) == 0
    [query] = capfdbinary.readouterr().out.splitlines()
    hits = [(hit["file"], hit["row"], hit["text"]) for hit in json.loads(query)["hits"]]
    assert sorted(hits) == [
        ("notes/a/notes.md", 1, "# Animals"),
        ("notes/a/notes.md", 2, "the cat sleeps on the warm mat"),
        ("notes/a/z.rst", 1, "the sea"),
        ("notes/b.txt", 1, "a dog barks"),
    ]
    (tmp_path / "empty").mkdir()
    assert status(["encode", "empty"]) == 66
    assert b"empty: is a folder without text files (.txt, .text, .md," in capfdbinary.readouterr().err
