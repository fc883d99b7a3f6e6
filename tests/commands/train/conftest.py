"""A quick run of `sentkit train`, with nine texts and eight development pairs."""

from importlib import import_module

import pytest

from support import PAIRS, TEXTS

# They import the function by its name. Imported first during a test of `train`, they would keep the
# replacement for all later tests.
USERS_OF_RESAMPLES = (
    "sentkit.metrics.comparison.space_map",
    "sentkit.metrics.retrieval",
    "sentkit.reports.measure",
)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """For the intervals of --dev and --test, which take a third of the time of a small training."""
    for module in USERS_OF_RESAMPLES:
        import_module(module)
    monkeypatch.setattr("sentkit.metrics.statistics.resamples_for", lambda pairs, count=50: count)


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(text + "\n" for text in TEXTS))
    return path


@pytest.fixture
def dev(tmp_path, jsonl):
    path = tmp_path / "dev.jsonl"
    path.write_bytes(jsonl(*PAIRS))
    return path


@pytest.fixture
def train(sentkit, tiny, texts):
    """`sentkit train simcse texts.txt -m TINY -o out` with more flags."""

    def run(*flags, method="simcse", rows=texts, model=tiny, output="out", threads=1):
        quick = ["--batch", 3, "-q"]
        if threads is not None:
            quick += ["--threads", threads]
        return sentkit("train", method, rows, "-m", model, "-o", output, *quick, *flags)

    return run
