"""Texts whose words are all different, so that each can be followed."""

from collections.abc import Callable

import pytest

from sentkit.augment.draw import Draw


@pytest.fixture
def words() -> Callable[[int], list[str]]:
    return lambda n: [f"w{place}" for place in range(n)]


@pytest.fixture
def draw() -> Callable[[int], Draw]:
    return lambda key=0: Draw(b"test %d" % key)
