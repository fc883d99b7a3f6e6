"""The rows and development pairs that `sentkit train` reads, and those that it refuses."""

import json

import pytest

from support import PAIRS, in_jsonl


def test_distill_reads_the_output_of_encode(sentkit, train, tiny, texts, tmp_path):
    """From a pipe. The checkpoint records the space of the teacher."""
    encoded = sentkit("encode", texts, "-m", tiny, "--readout", "cls", "-q").out
    done = train(method="distill", rows="-", stdin=encoded)
    emb = json.loads(encoded.splitlines()[0])["_emb"]

    assert (done.code, done.err) == (0, "")
    assert json.loads((tmp_path / "out/sentkit.json").read_text())["teacher"] == emb


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


def test_dedup_omits_equal_texts(train, texts, tmp_path):
    texts.write_text("a cat\na cat\na dog\nrain\n")
    train("--set", "dedup=on")

    assert json.loads((tmp_path / "out/sentkit.json").read_text())["rows"] == 3


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("", "no rows in rows.jsonl"),
        ('{"text":"one"}\n', "1 row can be used, but training needs at least 2"),
        ('{"anchor":"x"}\n', ':1: simcse needs "text", or "text_a" and "text_b"; this row has "anchor"'),
        ('{"text":"x"}\n{"text":7}\n', ':2: "text" is a number, expected a string'),
        ('{"text":"x"}\n{"body":"y"}\n', ':2: "text" is missing'),
    ],
)
def test_unsuitable_rows_are_refused(train, tmp_path, rows, problem):
    path = tmp_path / "rows.jsonl"
    path.write_text(rows)
    done = train(rows="rows.jsonl")

    assert done.code == 65
    assert problem in done.told[0]
    assert done.told[0].startswith("sentkit train: ")


def test_rejects_hold_the_line_of_the_input(train, tmp_path):
    """A text with a mask is refused after the tokenizer, when the row is JSON."""
    (tmp_path / "rows.tsv").write_text("id\ttext\n1\ta\n2\tb [MASK]\n3\tc\n4\td\n")
    flags = ("--rejects", "bad.tsv")
    done = train(*flags, rows="rows.tsv", method="promptbert")

    assert done.code == 0
    assert json.loads((tmp_path / "bad.tsv").read_text())["row"] == "2\tb [MASK]"


PAIR = '{"text_a":"x","text_b":"y"'
FORMS = '"text_a" and "text_b", or "anchor", "positive" and "negative", or "anchor" and "positive"'


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ('{"text":"x"}\n', f'dev.jsonl:1: --dev needs {FORMS}; this row has "text"'),
        (PAIR + ',"label":"neutral"}\n', 'dev.jsonl:1: "score" is missing'),
        ((PAIR + "}\n") * 3, "dev.jsonl: MRR needs at least 2 different pairs"),
        (PAIR + ',"score":"c"}\n', 'dev.jsonl:1: "score" is a string, expected a number'),
        (PAIR + ',"score":"nan"}\n', 'dev.jsonl:1: "score" is not a finite number'),
        ((PAIR + ',"score":""}\n') * 3, "dev.jsonl: 0 scored pairs: a correlation needs at least 2"),
        (PAIR + ',"score":3}\n', "dev.jsonl: 1 scored pairs: a correlation needs at least 2"),
        ((PAIR + ',"score":3}\n') * 3, 'dev.jsonl: "score" is the same in all 3 rows'),
    ],
)
def test_dev_pairs_without_a_correlation_are_refused(train, tmp_path, dev, rows, problem):
    dev.write_text(rows)
    done = train("--dev", "dev.jsonl")

    assert done.code == 65
    assert done.told[0].startswith(f"sentkit train: {problem}")


def test_ignored_labels_are_reported(sentkit, tiny, tmp_path, jsonl):
    """Contradictions would be taken for two wordings of one sentence."""
    rows = ({"text_a": row["text_a"], "text_b": row["text_b"], "label": "contradiction"} for row in PAIRS)
    (tmp_path / "nli.jsonl").write_bytes(jsonl(*rows))
    done = sentkit("train", "simcse", "nli.jsonl", "-m", tiny, "-o", "out", "--threads", 1)

    assert done.code == 0
    assert 'this method uses every pair as a positive pair and ignores "label"' in done.err


def test_a_refused_run_leaves_no_files(train, tmp_path, texts):
    before = sorted(tmp_path.iterdir())
    texts.write_text("one\n")
    for seed in ("0", "0,1"):
        assert train("--seed", seed).code == 65

    assert sorted(tmp_path.iterdir()) == before


def test_field_is_also_for_the_dev_pairs(train, tmp_path, dev):
    rows = [{"left": row["text_a"], "right": row["text_b"], "rating": row["score"]} for row in PAIRS]
    (tmp_path / "rows.jsonl").write_text(in_jsonl(*rows))
    fields = [f"--field={pair}" for pair in ("text_a=left", "text_b=right", "score=rating")]
    done = train("--dev", "rows.jsonl", *fields, rows="rows.jsonl")
    other = train("--dev", dev, *fields, rows="rows.jsonl", output="two")

    advice = "  --field applies to all files; to rename those of one: sentkit cat --field text_a=title"
    assert done.code == 0
    assert 'dev.jsonl:1: --dev needs "text_a" (here "left")' in other.told[0]
    assert other.told[1] == advice


def test_the_texts_of_pairs_become_sentences_by_a_pipe(train, sentkit, tmp_path):
    """sg-bert reads sentences; its error states the pipe, and the pipe works."""
    (tmp_path / "pairs.jsonl").write_text(in_jsonl(*PAIRS))
    done = train(rows="pairs.jsonl", method="sg-bert")
    texts = [sentkit("cat", "pairs.jsonl", "--field", f"text=text_{side}").out for side in "ab"]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(texts))

    assert done.told[1] == (
        "  to train on the texts of pairs: { sentkit cat FILE --field text=text_a; "
        "sentkit cat FILE --field text=text_b; } | sentkit train sg-bert ..."
    )
    assert train(rows="rows.jsonl", method="sg-bert").code == 0
    assert json.loads((tmp_path / "out/sentkit.json").read_text())["rows"] == 2 * len(PAIRS)
