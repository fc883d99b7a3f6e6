"""Refusals of commands on vectors: rows that do not fit, and invalid values of flags."""

import pytest

PAIR = '"text_a":"a","text_b":"b","embedding_a":[1,0],"embedding_b":[0.8,0.6]'
ONE = '{"embedding":[1,0]}'
WIDE = '{"text":"x","embedding":[1,0,0]}'
UNEVEN = '{"embedding_a":[1],"embedding_b":[1,2]}'
TRIPLET = '{"embedding_anchor":[1],"embedding_positive":[1],"embedding_negative":[1]}'
FILES = {
    "one.jsonl": '{"text":"x","embedding":[1,0]}',
    "bare.jsonl": ONE,
    "wide.jsonl": WIDE,
    "named.jsonl": '{"text":"x","embedding":[1,0],"_emb":"m:100000000000"}',
    "pair.jsonl": f"{{{PAIR}}}",
    "large.jsonl": f'{ONE}\n{{"embedding":[1,1e39]}}',
    "text.jsonl": '{"text":"a"}',
    "empty.jsonl": "",
}
NAMED = '{"embedding":[1,2],"_emb":"a/cls:a1b2c3d4e5f6"}\n'
NOT_CLOSEST = "-:1: --top, --threshold and --matrix need sentences, but this row is a pair"
OTHER = "-:2: the vectors of this row are {}, the vectors of the first row are a/cls (a1b2…)"


@pytest.fixture(autouse=True)
def files(tmp_path):
    for name, lines in FILES.items():
        (tmp_path / name).write_text(lines)


@pytest.mark.parametrize(
    ("words", "row", "problem"),
    [
        ("cluster -k 3", f"{ONE}\n{ONE}", "-: -k 3 is larger than the number of rows, 2"),
        ("cluster -k 1", f"{{{PAIR}}}", "-:1: expected 1 vector, this row has 2"),
        ("cluster -k 1", '{"embedding":[1e30]}', "-:1: the vector has a value above 1e+15"),
        ("cluster -k 1 --truth g", ONE, '-:1: "g" is missing'),
        ("cluster -k 1 --truth g", '{"embedding":[1],"g":1}\n' * 2, '-: "g" is the same in all 2 rows'),
        ("cluster -k 2..3", "\n{}", "-:2: this row has no vector"),
        ("mine --corpus one.jsonl", ONE, "-:1: this row has 1 vector, expected 2"),
        ("mine --corpus empty.jsonl", FILES["pair.jsonl"], "no rows in empty.jsonl"),
        ("mine --corpus bare.jsonl", FILES["pair.jsonl"], 'bare.jsonl:1: "text" is missing'),
        ("mine --corpus wide.jsonl", FILES["pair.jsonl"], "-:1: the pair has 2 numbers, the vectors of wide"),
        ("mine --corpus named.jsonl", FILES["pair.jsonl"], "-:1: the vectors of the pair are without _emb, "),
        ("search --corpus wide.jsonl", ONE, "-:1: the query has 2 numbers, the vectors of wide.jsonl have 3"),
        ("search --corpus one.jsonl", f"{{{PAIR}}}", "-:1: expected 1 vector, this row has 2"),
        ("search --corpus pair.jsonl", ONE, "pair.jsonl:1: expected 1 vector, this row has 2"),
        ("search --corpus large.jsonl", ONE, "large.jsonl:2: a vector contains NaN or infinity"),
        ("search --corpus text.jsonl", ONE, "text.jsonl:1: this row has no vector"),
        ("search --corpus empty.jsonl", ONE, "no rows in empty.jsonl"),
        ("score --gold g --group t", f'{{{PAIR},"g":1}}', '-:1: "t" is missing'),
        ("score", NAMED + NAMED.replace("cls:a1b2", "mean:9f00"), OTHER.format("a/mean (9f00…)")),
        ("score", NAMED + ONE, OTHER.format("without _emb")),
        ("score", f"{ONE}\n{WIDE}", "-:2: this vector has 3 numbers, the vector of the first row has 2"),
        ("score", UNEVEN, "-:1: the vectors of this row have different lengths"),
        ("score", TRIPLET, "-:1: this row is a triplet; score reads pairs and sentences"),
        *((f"score {flag}", f"{{{PAIR}}}", NOT_CLOSEST) for flag in ("--top=3", "--threshold=0", "--matrix")),
    ],
)
def test_rows_that_do_not_fit_are_bad_data(sentkit, words, row, problem):
    done = sentkit(*words.split(), stdin=row)

    assert (done.code, done.out) == (65, b"")
    assert done.told[0].startswith(f"sentkit {words.split()[0]}: {problem}")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("score --threshold -1.5", "--threshold -1.5: expected a number from -1 to 1"),
        ("score --threshold 1 --metric euclidean", "--threshold 1: expected 0 or less: distances are"),
        ("score --top 0", "invalid value for '--top'"),
        ("score -o out.safetensors", "out.safetensors: this output cannot be a vector file"),
        ("score -o out.csv", "out.csv: unknown output format .csv"),
        ("search a --corpus one.jsonl --device tpu", 'unknown device "tpu"'),
        ("search a --corpus one.jsonl --threshold 1.1", "--threshold 1.1: expected a number from -1 to 1"),
    ],
)
def test_invalid_values_are_wrong_usage(sentkit, words, problem):
    done = sentkit(*words.split(), stdin=ONE)

    assert (done.code, done.out) == (2, b"")
    assert done.told[0].startswith(f"sentkit {words.split()[0]}: {problem}")
