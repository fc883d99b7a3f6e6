"""The rows and development pairs that `sentkit train` reads, and those that it refuses."""

import pytest

from support import PAIRS, in_jsonl

OTHERS = [{"text_a": f"x {n}", "text_b": "y"} for n in range(3)]
OTHERS += [{"text_a": "The market fell.", "text_b": "Birds fly south"}]
LEAK = "dev.jsonl: the training rows contain {} of 8 pairs, and both texts of {} others; the first is line {}"


@pytest.mark.parametrize(
    ("rows", "leak"),
    [
        ([{"text": "A man plays a guitar."}, {"text": "birds  fly south"}, {"text": "tea"}], None),
        ([{"text": "rain"}, {"text": "x"}, {"text": "A dog runs!"}], (0, 1, "4, in rows.jsonl:3")),
        (OTHERS, (1, 0, "7, in rows.jsonl:4")),
    ],
)
def test_rows_with_pairs_of_dev_give_a_warning(sentkit, tiny, dev, tmp_path, rows, leak):
    (tmp_path / "rows.jsonl").write_text(in_jsonl(*rows))
    flags = ("--batch", 3, "--threads", 1, "--dev", "dev.jsonl")
    done = sentkit("train", "simcse", "rows.jsonl", "-m", tiny, "-o", "out", *flags)

    assert done.code == 0
    warnings = [line.partition("warning: ")[2] for line in done.told if "training rows contain" in line]
    assert warnings == ([] if leak is None else [LEAK.format(*leak)])


def test_field_is_also_for_the_dev_pairs(train, tmp_path, dev):
    rows = [{"left": row["text_a"], "right": row["text_b"], "rating": row["score"]} for row in PAIRS]
    (tmp_path / "rows.jsonl").write_text(in_jsonl(*rows))
    fields = [f"--field={pair}" for pair in ("text_a=left", "text_b=right", "score=rating")]
    done = train("--dev", "rows.jsonl", *fields, rows="rows.jsonl")
    other = train("--dev", dev, *fields, rows="rows.jsonl", output="two")

    advice = "  name the field, for example --field text_a=title, which applies to all files"
    assert done.code == 0
    assert 'dev.jsonl:1: --dev needs "text_a" (here "left")' in other.told[0]
    assert other.told[1] == advice
