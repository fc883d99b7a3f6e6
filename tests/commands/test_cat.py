"""`cat`: rows and vector files joined, and one turned into the other without a byte lost."""

import numpy as np


def test_an_array_in_any_order_has_its_rows(sentkit):
    for number, order in enumerate("CF"):
        np.save(f"{number}.npy", np.array([[1, 2, 3], [4, 5, 6]], np.float64, order=order))
        done = sentkit("cat", f"{number}.npy")

        assert (done.code, done.vectors().tolist()) == (0, [[1, 2, 3], [4, 5, 6]])
