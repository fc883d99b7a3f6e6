"""A trained folder describes itself, and other programs load it without complaint."""

import hashlib
import json
import shlex

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from commands.train.records import record_of
from sentkit.formats.checkpoints.card import card, facts
from support import contents, write_affine

PAIRS = [
    ("a man plays", "someone makes music", 3.0),
    ("rain", "the sea", 1.0),
    ("a cat", "a dog runs", 2.0),
]


@pytest.fixture
def trained(sentkit, tiny, copy_of, tmp_path, jsonl):
    """`sentkit train METHOD` on three pairs, from a base without a pooler."""
    rows = [{"text": a, "text_a": a, "text_b": b, "score": score} for a, b, score in PAIRS]
    (tmp_path / "rows.jsonl").write_bytes(jsonl(*rows))
    base = copy_of(tiny, "my-base").name
    tensors = load_file(tiny / "model.safetensors")
    for name in [name for name in tensors if name.startswith("pooler.")]:
        del tensors[name]
    save_file(tensors, tmp_path / base / "model.safetensors", {"format": "pt"})

    def run(method, *flags, output="out"):
        common = ("-m", base, "--batch", 3, "--threads", 1, "--dev", "rows.jsonl")
        result = sentkit("train", method, "rows.jsonl", "-o", output, *common, *flags)
        assert result.code == 0, result.err
        return tmp_path / output

    return run


REGRESSION = ("--set", "objective=regression", "--set", "warmup=0")
FRESH = ("--set", "head=fresh", "--set", "warmup=0")


def test_sentence_transformers_loads_it_without_a_missing_pooler(trained, sentkit):
    """No weight is drawn at random, whether the folder is trained or exported; the vectors are
    ours.
    """
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    folder = trained("sbert", *REGRESSION)
    sentkit("export", "-m", folder, "-o", "exported")
    for model in (folder, folder.parent / "exported"):
        options = json.loads((model / "sentence_bert_config.json").read_text())["model_args"]
        _, report = AutoModel.from_pretrained(model, output_loading_info=True, **options)
        encode = ("encode", "-m", model, "-q", "--precision", "fp32")
        vectors = sentkit(*encode, stdin="a cat\nrain\n").vectors()
        of_library = SentenceTransformer(str(model), device="cpu").encode(["a cat", "rain"])
        assert report["missing_keys"] == set()
        assert abs(vectors - of_library).max() < 1e-5


def test_the_card_describes_the_checkpoint(trained, tmp_path):
    """Base, method, settings, rows, scores, readout, inputs, versions, command; the same bytes each
    time.
    """
    flags = ("sbert", *REGRESSION, "--set", "prompt=query: ")
    folder = trained(*flags)
    files = contents(folder)
    text = (folder / "README.md").read_text()
    record = record_of(folder)
    trained(*flags, "-f")
    front, _, body = text.removeprefix("---\n").partition("\n---\n")
    lines = {"library_name: sentence-transformers", 'base_model: "my-base"', "- sentkit"}

    assert lines | {"pipeline_tag: sentence-similarity", "- sentence-transformers"} <= {
        *front.splitlines()
    }
    assert "# sbert, trained from my-base" in body
    assert "16 numbers, read by `mean`" in body
    for fact in (
        "| rows | 3 |",
        "| seed | 0 |",
        f"| steps | {record['step']} |",
        "`objective=regression`",
    ):
        assert fact in body
    assert record["dev_ci95"] == [None, None]  # of three pairs
    scores = f"{record['dev']:.2f} (base: {record['dev_before']:.2f})"
    assert f"| dev, Spearman x 100 | {scores} |" in body
    assert str(folder.parent) not in text
    assert {name for name, content in contents(folder).items() if content != files[name]} == {
        "README.md",
        "sentkit.json",
    }
    assert (folder / "README.md").read_text() == text.replace("query: '", "query: ' -f")
    assert f"\n\n    {record['command']}\n\n" in text.replace(" -f", "")
    assert shlex.split(record["command"])[:6] == [
        "sentkit",
        "train",
        "sbert",
        "rows.jsonl",
        "-o",
        "out",
    ]
    rows = hashlib.sha256((tmp_path / "rows.jsonl").read_bytes()).hexdigest()
    [base] = [file["sha256"] for file in record["inputs"] if file["flag"] == "-m"]

    for line in (
        f"rows.jsonl | FILE | {rows}",
        f"my-base | -m | {base}",
        f"rows.jsonl | --dev | {rows}",
    ):
        assert f"| {line} |" in text
    assert (
        f"Made with sentkit {record['made_with']['sentkit']}, torch {record['made_with']['torch']}"
        in text
    )
    assert "of at most 128 tokens" in text
    assert (
        'The prompt "query: " is added before a text. The vectors do not have unit length.' in text
    )
    without_prompt = (trained("mlm", *FRESH, output="no") / "README.md").read_text()
    assert "No prompt is added to a text." in without_prompt


def test_an_exported_checkpoint_has_a_card_of_its_own(trained, sentkit, tmp_path):
    """With its readout, prompt, length and unit length; the training is that of the checkpoint."""
    trained("sbert", *REGRESSION)
    reading = ("--readout", "cls", "--prompt", 'say "x" ', "--max-length", 9, "--normalize")
    assert sentkit("export", "-m", "out", *reading, "-o", "made").code == 0
    text = (tmp_path / "made/README.md").read_text()

    assert "# sbert, trained from my-base" in text
    assert "a vector of 16 numbers, read by `cls`, of at most 9 tokens." in text
    assert "Made by `sentkit train sbert` and `sentkit export`." in text
    assert 'The prompt "say \\"x\\" " is added before a text. The vectors have unit length.' in text
    assert "| out | -m | " in text


def test_vectors_after_a_transform_do_not_have_unit_length(trained, sentkit, tmp_path):
    """The transform is applied after all other operations."""
    trained("sbert", *REGRESSION)
    write_affine(tmp_path / "t.safetensors", np.eye(16) * 2, np.zeros(16), {})
    flags = ("--normalize", "--transform", "t.safetensors")
    assert sentkit("export", "-m", "out", *flags, "-o", "made").code == 0
    [vector] = sentkit("encode", "-m", "made", stdin="a cat").vectors()

    assert np.linalg.norm(vector) == pytest.approx(2)
    assert "The vectors do not have unit length." in (tmp_path / "made/README.md").read_text()


def test_a_card_without_a_length_has_no_comma_before_the_full_stop():
    text = card({"method": "simcse"}, "mean", width=8, max_length=None, stock=True)

    assert "a vector of 8 numbers, read by `mean`. Made by `sentkit train simcse`." in text


def test_the_interval_of_enough_pairs_is_in_the_card():
    lineage = {"dev": 61.234, "dev_ci95": [50.0, 70.5], "dev_before": 40.0}

    score = "61.23 [50.00, 70.50; 95 %] (base: 40.00)"
    assert facts(lineage, None) == [("dev, Spearman x 100", score)]
