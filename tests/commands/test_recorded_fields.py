"""Vector files record what their rows call their texts."""

import json

import pytest

from support import in_jsonl

PAIRS = [("a cat", "a dog"), ("the cat", "a cat sat"), ("a dog", "the dog")]
TITLES = b"id,title\n1,a cat\n2,a dog\n3,a cat sat\n"
NEWS = b'{"headline":"the dog"}\n{"headline":"the cat"}\n'


@pytest.fixture
def files(sentkit, tmp_path):
    """t.safetensors and n.safetensors, each with another field mapping, and p.safetensors without one."""
    (tmp_path / "words.txt").write_text("a 1 0 0\ncat 0 2 0\ndog 0 0 3\nsat 1 1 1\nthe 1 2 3\n")
    for name, field, rows, form in (
        ("t", "title", TITLES, "csv"),
        ("n", "headline", NEWS, "jsonl"),
        ("p", "text", b"a plain text\n", "txt"),
    ):
        (tmp_path / f"{name}.{form}").write_bytes(rows)
        flags = ("-m", "words.txt", "--field", f"text={field}", "-o", f"{name}.safetensors", "-q")
        done = sentkit("encode", f"{name}.{form}", *flags)
        assert done.code == 0, done.err


def spec(sentkit, path):
    return json.loads(sentkit("inspect", path, "--json", "--no-geometry").out)["spec"]


def test_training_reads_the_recorded_fields(sentkit, tiny):
    """Rows, --dev and --test of `train` can be vector files, as for other commands."""
    for name, texts in (("rows", ("one", "two")), ("dev", ("left", "right"))):
        rows = [
            {texts[0]: one, texts[1]: other, "score": score} for score, (one, other) in enumerate(PAIRS * 2)
        ]
        fields = [f"--field=text_{side}={text}" for side, text in zip("ab", texts, strict=True)]
        done = sentkit("encode", *fields, "-o", f"{name}.safetensors", "-q", stdin=in_jsonl(*rows))
        assert done.code == 0, done.err
    quick = ("--batch", "3", "--epochs", "1", "--threads", "1", "-q", "-m", tiny, "--dev", "dev.safetensors")

    for method, test in (("simcse", ()), ("classify", ("--preset", "stsb", "--test", "dev.safetensors"))):
        done = sentkit("train", method, "rows.safetensors", "-o", method, *quick, *test)
        assert done.code == 0, done.err
