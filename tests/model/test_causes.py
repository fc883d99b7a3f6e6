"""The search for the changes of a model that explain other vectors, with vectors made by hand."""

from types import SimpleNamespace

import numpy as np

from sentkit.model.causes.search import Search
from sentkit.model.causes.settings import Variant

TEXTS = 20
WIDTH = 16


class VectorsByChange:
    """In place of a VariantEncoder: the settings are the names of the changes, and each set of
    changes has given vectors. All other sets give vectors of their own.
    """

    def __init__(self, vectors_of: dict[frozenset[str], np.ndarray]) -> None:
        self.vectors_of = vectors_of
        self.declared = SimpleNamespace(
            changed_by=lambda changes: frozenset(variant.name for variant in changes)
        )

    def lengths(self) -> np.ndarray:
        return np.full(TEXTS, 10)

    def encode(self, settings_list, texts, width):
        for names in settings_list:
            seed = sum("".join(sorted(names)).encode())
            others = random_vectors(seed)
            yield self.vectors_of.get(names, others)[texts]


def random_vectors(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((TEXTS, WIDTH)).astype(np.float32)


def test_two_changes_are_found_though_another_first_change_explains_more_of_the_few_texts():
    """`prompt` alone gives six vectors, and with `y` those of all texts that are tried with it.
    `readout` alone gives none, and with `x` all of them.
    """
    target = random_vectors(0)
    with_prompt = random_vectors(1)
    with_prompt[12:18] = target[12:18]
    tried_with_prompt = [*range(8), *range(12, 16)]  # eight that differ, and four that do not
    vectors_of = {
        frozenset({"prompt"}): with_prompt,
        frozenset({"readout"}): random_vectors(2),
        frozenset({"readout", "x"}): target,
    }
    second_changes = [Variant(f"y{i}", {"y": i}) for i in range(4)]
    for i, variant in enumerate(second_changes):
        vectors = random_vectors(3 + i)
        vectors[tried_with_prompt] = target[tried_with_prompt]
        vectors_of[frozenset({"prompt", variant.name})] = vectors

    prompt = Variant("prompt", {"prompt": 1})
    readout = Variant("readout", {"readout": 1})
    search = Search(VectorsByChange(vectors_of), target, random_vectors(9))
    singles = search.screened([(prompt,), (readout,)], ())
    variants = [prompt, readout, *second_changes, Variant("x", {"x": 1})]
    explanation = search.of_more_changes(variants, singles, search.verified(singles))
    assert explanation.best.name == "with readout and x"
    assert explanation.explained_texts == TEXTS
