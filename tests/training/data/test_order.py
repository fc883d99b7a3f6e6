"""The rows of each step, against plain loops."""

import numpy as np
import pytest

from sentkit.training.data.corpus import Order, stream

SIZES = (11, 5, 23)
FILES = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], SIZES)).astype(np.int32)
SEED = 7


def order_of(batches, batch=4, smallest=2, files=FILES):
    return Order(
        rows=len(files),
        batch=batch,
        epochs=3,
        seed=SEED,
        smallest_batch=smallest,
        batches=batches,
        files=files,
    )


def loop_of_epoch(epoch, batches, batch, smallest):
    """The batches of an epoch: those of each file, and then the turns of the files."""
    permutation = stream(SEED, epoch, "order").permutation(len(FILES)).tolist()
    waiting = []
    for file in range(3):
        rows = [row for row in permutation if FILES[row] == file]
        cut = [rows[start : start + batch] for start in range(0, len(rows), batch)]
        waiting.append([rows for rows in cut if len(rows) >= smallest])
    ordered = []
    if batches == "by-file":
        turns = [file for file in range(3) for _ in waiting[file]]
        turns = [turns[i] for i in stream(SEED, epoch, "files").permutation(len(turns))]
        ordered = [waiting[file].pop(0) for file in turns]
    elif batches == "round-robin":
        while all(waiting):
            ordered += [file_batches.pop(0) for file_batches in waiting]
    else:
        counts = [len(file_batches) for file_batches in waiting]
        done = [0, 0, 0]
        while any(waiting):
            # The file whose next batch is due first.
            due = [(done[file] + 0.5) / counts[file] for file in range(3)]
            file = min((file for file in range(3) if waiting[file]), key=due.__getitem__)
            ordered.append(waiting[file].pop(0))
            done[file] += 1
    return ordered


@pytest.mark.parametrize("batches", ["by-file", "proportional", "round-robin"])
@pytest.mark.parametrize(("batch", "smallest"), [(4, 2), (4, 1), (3, 2), (30, 2), (1, 1)])
def test_the_batches_of_each_file_against_a_loop(batches, batch, smallest):
    order = order_of(batches, batch, smallest)
    expected = []
    for epoch in range(3):
        expected += loop_of_epoch(epoch, batches, batch, smallest)

    assert [order.at(step).tolist() for step in range(order.steps)] == expected
    assert all(len({FILES[row] for row in rows}) == 1 for rows in expected)


def test_any_step_is_known_without_those_before():
    """So a resumed run continues with the same rows."""
    for batches in ("by-file", "proportional", "round-robin"):
        whole = order_of(batches)
        rows = [whole.at(step).tolist() for step in range(whole.steps)]
        assert [order_of(batches).at(step).tolist() for step in range(whole.steps)] == rows


def test_an_epoch_has_each_row_at_most_once():
    """Of 11, 5 and 23 rows in fours: 3, 1 (a last row is alone) and 6 batches."""
    for batches, steps in {"by-file": 10, "proportional": 10, "round-robin": 3}.items():
        order = order_of(batches)
        rows = np.concatenate([order.at(step) for step in range(order.epoch_steps)])

        assert order.epoch_steps == steps
        assert len(set(rows.tolist())) == len(rows)
    rows = np.concatenate([order_of("by-file").at(step) for step in range(10)])
    assert len(rows) == 38
    evenly = order_of("proportional")
    assert [int(FILES[evenly.at(step)[0]]) for step in range(10)] == [2, 0, 2, 2, 0, 1, 2, 2, 0, 2]


def test_mixed_batches_are_a_permutation_of_all_rows():
    order = Order(rows=39, batch=4, epochs=2, seed=SEED)
    epoch = stream(SEED, 1, "order").permutation(39).tolist()

    assert order.epoch_steps == 10
    assert [order.at(10 + step).tolist() for step in range(10)] == [
        epoch[start : start + 4] for start in range(0, 39, 4)
    ]
