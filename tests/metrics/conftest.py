"""Small blocks for the searches."""

import pytest

from sentkit.metrics import device
from sentkit.metrics import similarity as rounding
from sentkit.metrics.neighbours import pairs, search


@pytest.fixture
def small_blocks(monkeypatch):
    """A few dozen rows need many blocks, and their candidates exceed the limit."""
    monkeypatch.setattr(rounding, "CANDIDATES", 4)
    monkeypatch.setattr(search, "ROWS_PER_BLOCK", 5)
    monkeypatch.setattr(search, "MAX_CANDIDATES", 20)
    monkeypatch.setattr(pairs, "ROWS_PER_SEARCH", 7)
    monkeypatch.setattr(pairs, "FIRST_ROWS", 3)
    monkeypatch.setattr(pairs, "MAX_CANDIDATES", 4)
    monkeypatch.setattr(device, "ROWS_PER_BLOCK", 16)
    monkeypatch.setattr(device, "GROUP", 2)
    monkeypatch.setattr(device, "SPARE", 2)
