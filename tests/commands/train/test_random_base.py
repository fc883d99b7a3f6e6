"""A base with random weights, which the manual of `train` writes with transformers."""

import re
import textwrap

import numpy as np
from safetensors.torch import load_file

from commands.train.records import log_of, record_of
from support import ROOT


def test_the_lines_of_the_manual_write_a_base_that_mlm_trains(sentkit, tiny, texts, tmp_path):
    """At first as good as guessing among all words: the logarithm of their number."""
    page = (ROOT / "sentkit/pages/train.txt").read_text()
    [lines] = re.findall(
        r"(?:^  .*\n)*^  from transformers import .*\n(?:^  .*\n)*", page, re.MULTILINE
    )
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    code = textwrap.dedent(lines).replace("TOKENIZER", str(tiny))
    exec(compile(code, "page", "exec"), {})
    recipe = ("--set", "max_length=16", "--batch", 3, "--lr", 0.01, "--threads", 1)
    result = sentkit("train", "mlm", texts, "-m", "BASE", "-o", "out", "--epochs", 30, *recipe)
    losses = [row["loss"] for row in log_of() if "loss" in row]
    trained = load_file("out/model.safetensors")
    base = load_file("BASE/model.safetensors")

    assert result.code == 0, result.err
    assert abs(losses[0] - np.log(16384)) < 0.1
    assert np.mean(losses[-10:]) < 0.75 * losses[0]
    assert record_of()["parents"] == ["BASE"]
    assert {name for name, tensor in base.items() if tensor.shape != trained[name].shape} == set()
