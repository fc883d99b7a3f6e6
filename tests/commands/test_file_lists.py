"""Many input files: --files-from, and patterns that the shell did not expand."""

import os
from pathlib import Path

import pytest

from support import in_jsonl

NAMES = ("b.jsonl", "a.jsonl", "sub/c.jsonl", "d [1].jsonl", "e\nf.jsonl", "g*.jsonl", "gh.jsonl")


@pytest.fixture
def files():
    """Files with one row each, which has the name of the file."""
    Path("sub").mkdir()
    for name in NAMES:
        Path(name).write_text(in_jsonl({"text": name}))
    Path(os.fsdecode(b"\xff.jsonl")).write_text('{"text":"ff"}\n')


def names_of(done):
    assert done.code == 0, done.err
    return [row["text"] for row in done.rows]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"b.jsonl\na.jsonl\n", ["b.jsonl", "a.jsonl"]),
        (b"sub/c.jsonl\n\nb.jsonl", ["sub/c.jsonl", "b.jsonl"]),
        (b"a.jsonl\na.jsonl\n", ["a.jsonl", "a.jsonl"]),
        (b"e\nf.jsonl\0b.jsonl\0", ["e\nf.jsonl", "b.jsonl"]),
        (b"g*.jsonl\n", ["g*.jsonl"]),
        (b"d [1].jsonl\n\xff.jsonl\n", ["d [1].jsonl", "ff"]),
    ],
)
def test_the_files_of_a_list_are_read_in_its_order(sentkit, files, content, expected):
    Path("list").write_bytes(content)

    assert names_of(sentkit("cat", "--files-from", "list")) == expected
    assert names_of(sentkit("cat", "--files-from", "-", stdin=content)) == expected
    Path("list").write_bytes(content + (b"-\0" if b"\0" in content else b"\n-\n"))
    in_list = sentkit("cat", "--files-from", "list", stdin='{"text":"in"}\n')
    assert names_of(in_list) == [*expected, "in"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "problem"),
    [
        (("--files-from", "none"), "", 66, "none: no such file"),
        (("--files-from", "-"), "", 65, "-: no file names"),
        (("--files-from", "-"), "a.jsonl\nx.jsonl\n", 66, "x.jsonl: no such file"),
        (("--files-from", "-"), "-\n", 2, "standard input is the list of files, so it cannot be"),
        (("--files-from", "-", "a.jsonl"), "a.jsonl\n", 2, "--files-from and FILE cannot be used together"),
        (("--files-from", "a.jsonl"), "", 66, '{"text": "a.jsonl"}: no such file'),
        (("--files-from", "list", "-o", "list", "-f"), "", 2, "-o list: would overwrite the input list"),
        (("--files-from", "list", "-o", "a.jsonl", "-f"), "", 2, "-o a.jsonl: would overwrite the input"),
        (("x*.jsonl",), "", 66, "x*.jsonl: no file matches this pattern"),
        (("*b",), "", 66, "*b: no file matches this pattern"),
        (("a.jsonl", "-o", "[a].jsonl"), "", 0, None),
        (("[a-b].jsonl", "-o", "a.jsonl", "-f"), "", 2, "-o a.jsonl: would overwrite the input a.jsonl"),
    ],
)  # fmt: skip
def test_wrong_lists_are_refused(sentkit, files, arguments, stdin, code, problem):
    Path("list").write_text("a.jsonl\n")
    before = Path("a.jsonl").read_bytes()
    done = sentkit("cat", *arguments, stdin=stdin)

    assert done.code == code
    assert done.err.startswith("" if problem is None else f"sentkit cat: {problem}")
    assert Path("a.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (("[ab].jsonl",), ["a.jsonl", "b.jsonl"]),
        (("sub/*", "?.jsonl"), ["sub/c.jsonl", "a.jsonl", "b.jsonl", "ff"]),
        (("**/c.jsonl",), ["sub/c.jsonl"]),
        (("g*.jsonl",), ["g*.jsonl"]),
        (("g[*].jsonl", "g[h].jsonl"), ["g*.jsonl", "gh.jsonl"]),
        (("d [1].jsonl",), ["d [1].jsonl"]),
        (("s*", "sub/c*"), None),
    ],
)
def test_a_pattern_is_read_in_sorted_order(sentkit, files, patterns, expected):
    """A file with the name of the pattern has priority. Folders do not match."""
    done = sentkit("cat", *patterns)

    if expected is None:
        assert done.told == ["sentkit cat: s*: no file matches this pattern"]
    else:
        assert names_of(done) == expected


def test_a_pattern_matches_vector_folders(sentkit, files):
    for name in ("one", "two"):
        sentkit("encode", "-q", "-o", f"{name}/", stdin=name + "\n")
    Path("other").mkdir()

    assert names_of(sentkit("cat", "-q", "[ot]*")) == ["one", "two"]
