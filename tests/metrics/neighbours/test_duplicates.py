"""Groups of rows that pairs connect."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentkit.metrics.neighbours.duplicates import Groups

ROWS = 12
EDGES = st.lists(
    st.tuples(st.integers(0, ROWS - 1), st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=4)),
    max_size=9,
)


@given(EDGES)
def test_groups_are_the_connected_components(edges: list[tuple[int, list[int]]]) -> None:
    """Compared with a loop that spreads the smallest row until nothing changes."""
    groups = Groups(ROWS)
    first = list(range(ROWS))
    for row, others in edges:
        groups.join(row, np.array(others))
    for _ in range(ROWS):
        for row, others in edges:
            smallest = min(first[each] for each in (row, *others))
            for each in (row, *others):
                first[each] = smallest

    assert groups.first().tolist() == first


def test_a_long_chain_needs_no_recursion() -> None:
    groups = Groups(3000)
    for row in range(2998, -1, -1):
        groups.join(row, np.array([row + 1]))

    assert not groups.first().any()
