"""The number of a row in an output is that of a message about it: skipped rows and blank lines count."""

import json

import pytest

# Lines 3, 6 and 7 are the accepted rows.
LINES = ["[1]", "", *([json.dumps({"embedding": v}) for v in ([1, 0], [1, "x"], [], [1, 0], [2, 0.5])])]
NUMBERS = [3, 6, 7]


@pytest.fixture
def ended(sentkit, tmp_path):
    """Run a command that skips bad rows on the file rows.jsonl."""
    (tmp_path / "rows.jsonl").write_text("\n".join(LINES) + "\n")

    def run(*arguments):
        done = sentkit(*arguments, "--rejects", "/dev/null")
        assert done.code == 0
        return done.rows

    return run


@pytest.mark.parametrize("command", ["duplicates", "score"])
def test_pairs_of_rows(ended, command):
    pairs = ended(command, "rows.jsonl", "--threshold", 0.9)

    assert [(pair["row_a"], pair["row_b"]) for pair in pairs] == [(3, 6), (3, 7), (6, 7)]


def test_groups_of_duplicates(ended):
    assert [row["group"] for row in ended("duplicates", "rows.jsonl", "--threshold", 0.9999, "--groups")] == [
        3, 3, 7
    ]  # fmt: skip
    assert len(ended("duplicates", "rows.jsonl", "--threshold", 0.9999, "--unique")) == 2


def test_rows_near_the_centre_of_a_cluster(ended):
    [found] = ended("cluster", "rows.jsonl", "-k", 1, "--describe")

    assert sorted(near["row"] for near in found["nearest"]) == NUMBERS


def test_points_of_a_picture(ended):
    assert [point["row"] for point in ended("plot", "space", "rows.jsonl", "--by", "pca")] == NUMBERS


def test_hits_of_a_search(sentkit, tmp_path):
    """Every row of a corpus must be valid, but it can have blank lines and a header."""
    row = '{"embedding":[1,0]}'
    (tmp_path / "blank.jsonl").write_text(f"\n{row}\n\n{row}\n")
    (tmp_path / "table.tsv").write_text("id\tembedding\n1\tAACAPwAAAAA=\n2\tAACAPwAAAAA=\n")
    sentkit("cat", "blank.jsonl", "-o", "v.safetensors")
    expected = {"blank.jsonl": [2, 4], "table.tsv": [2, 3], "v.safetensors": [1, 2]}
    found = {
        corpus: [hit["row"] for hit in sentkit("search", "--corpus", corpus, stdin=row).rows[0]["hits"]]
        for corpus in expected
    }

    assert found == expected


def test_rows_of_several_files_have_their_file(sentkit, tmp_path):
    """Also if all rows are from one of them."""
    for name, lines in (("a", LINES[2:3]), ("b", ["", *LINES[5:]]), ("none", [])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    pairs = sentkit("score", "a.jsonl", "b.jsonl", "--threshold", 0.9999).rows
    alone = sentkit("score", "b.jsonl", "none.jsonl", "--threshold", 0.9).rows
    [cluster] = sentkit("cluster", "a.jsonl", "b.jsonl", "-k", 1, "--describe").rows

    assert pairs == [
        {"file_a": "a.jsonl", "row_a": 1, "file_b": "b.jsonl", "row_b": 2, "similarity": 1},
    ]
    assert [(pair["file_a"], pair["row_a"], pair["row_b"]) for pair in alone] == [("b.jsonl", 2, 3)]
    assert {(near["file"], near["row"]) for near in cluster["nearest"]} == {
        ("a.jsonl", 1),
        ("b.jsonl", 2),
        ("b.jsonl", 3),
    }
