"""The flags of rows, and the numbers of rows: skipped rows and blank lines count."""

import json

import pytest

from sentkit.cli import every_command
from sentkit.errors import UsageError
from sentkit.flag_values import size
from support import in_jsonl


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("1", 1), ("1000", 1000), ("64K", 65536), ("64m", 2**26), ("2G", 2**31), (" 5M ", 5 * 2**20)],
)
def test_sizes_are_powers_of_1024(text, bytes_):
    assert size("--block-bytes", text) == bytes_


@pytest.mark.parametrize(
    "text", ["", "0", "0K", "-1", "1.5M", "64MB", "M", "1T", "9" * 18 + "G", "\u0663"]
)
def test_other_sizes_are_refused(text):
    with pytest.raises(UsageError, match="--block-bytes"):
        size("--block-bytes", text)


def test_the_flags_of_unusual_input_belong_to_cat(sentkit):
    """All other commands that read texts or vectors have --field, and all but three of them
    --rejects. Logs and reports have fixed names.
    """
    helps = {name: sentkit(*name.split(), "--help").out for name in every_command()}
    with_field = {name for name, text in helps.items() if b"--field " in text}

    for flag in (b"--from ", b"--quoting ", b"--columns "):
        assert {name for name, text in helps.items() if flag in text} == {"cat"}
    readers_of_fixed_names = {"plot curve", "plot sweep"}
    assert not readers_of_fixed_names & with_field
    assert {name for name, text in helps.items() if b"--rejects " in text} == (
        with_field - {"inspect", "report", "diff"} | readers_of_fixed_names
    )
    assert not any(b"--on-error" in text or b"--progress" in text for text in helps.values())


ROW = '{"ea":[%d,2],"eb":[%d,1],"rating":%d,"topic":"%s"}\n'
ROWS = "".join(ROW % (n, n, n, "xy"[n % 2]) for n in range(12))
PAIR = "--field embedding_a=ea --field embedding_b=eb"
ONE = "--field embedding=ea"


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (f"score {PAIR} --gold SCORE --group GROUP", {"SCORE": "rating", "GROUP": "topic"}),
        (f"plot pairs {PAIR} --gold SCORE", {"SCORE": "rating"}),
        (f"inspect - {PAIR} --gold SCORE --above 5", {"SCORE": "rating"}),
        (f"probe {ONE} --label LABEL --folds 3 --penalties 1", {"LABEL": "topic"}),
        (f"plot space {ONE} --by pca --label LABEL", {"LABEL": "topic"}),
        (f"cluster {ONE} -k 2 --truth LABEL", {"LABEL": "topic"}),
    ],
)
def test_flags_that_name_a_field_take_our_names(sentkit, command, names):
    """--field maps the field of --gold, --group, --label and --truth too."""
    mapped = []
    for name, field in names.items():
        mapped += ["--field", f"{name}={field}"]
    direct = [names.get(word, word) for word in command.split()]
    result = sentkit(*command.split(), *mapped, stdin=ROWS)

    assert result.code == 0, result.err
    assert result.out == sentkit(*direct, stdin=ROWS).out


# Lines 3, 6 and 7 are the accepted rows.
LINES = [
    "[1]",
    "",
    *([json.dumps({"embedding": v}) for v in ([1, 0], [1, "x"], [], [1, 0], [2, 0.5])]),
]


def test_skipped_rows_and_blank_lines_count(sentkit, tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(LINES) + "\n")

    def rows(*command, **flags):
        flags = [word for name, value in flags.items() for word in (f"--{name}", value)]
        result = sentkit(*command, "rows.jsonl", "--rejects", "/dev/null", *flags)
        assert result.code == 0
        return result.rows

    for command in ("duplicates", "score"):
        pairs = rows(command, threshold=0.9)
        assert [(pair["row_a"], pair["row_b"]) for pair in pairs] == [(3, 6), (3, 7), (6, 7)]
    groups = rows("duplicates", "--groups", threshold=0.9999)
    assert [row["group"] for row in groups] == [3, 3, 7]
    assert len(rows("duplicates", "--unique", threshold=0.9999)) == 2
    [cluster] = rows("cluster", "-k", 1, "--describe")
    assert sorted(near["row"] for near in cluster["nearest"]) == [3, 6, 7]
    assert [point["row"] for point in rows("plot", "space", by="pca")] == [3, 6, 7]


@pytest.mark.parametrize(
    ("command", "bad", "good"),
    [
        ("cat --name-field file", {"file": 1, "embedding": [1, 2]}, {"embedding": [1]}),
        ("score", {"similarity": 1, "embedding_a": [1], "embedding_b": [2]}, {"embedding": [1, 2]}),
        ("encode -m nano", {"text_a": 1, "text_b": "x"}, {"text": "b"}),
        ("encode -m nano", {"text": "b", "_emb": "x"}, {"text": "b"}),
    ],
)
def test_a_rejected_row_determines_nothing(sentkit, command, bad, good):
    """The next row may have another kind and width. Without a good row, the exit code is 65."""
    flags = (*command.split(), "-f", "--rejects", "/dev/null")
    result = sentkit(*flags, stdin=in_jsonl(bad, good, *[good] * (command == "score")))
    none = sentkit(*flags, stdin=in_jsonl(bad))

    assert (result.code, none.code) == (0, 65), result.err
    assert "bad rows dropped: 1;" in result.err
    problem = "no valid rows in standard input; bad rows: 1"
    assert none.told[-1] == f"sentkit {command.split()[0]}: {problem}"


def test_rows_that_are_all_bad_are_not_called_missing(sentkit, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": 1}\n{"text": 2}\n')
    result = sentkit("encode", "in.jsonl", "-m", "static", "--rejects", "bad.jsonl")

    assert result.code == 65
    assert result.told[-1] == "sentkit encode: no valid rows in in.jsonl; bad rows: 2"
