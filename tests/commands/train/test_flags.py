"""The flags of `sentkit train`: settings, precedence, and refusals before the first step."""

from itertools import chain, pairwise

from sentkit.training.catalogue import METHODS


def test_every_method_is_listed_with_its_settings(sentkit):
    listed = sentkit("train", "--list").out.decode()
    for name in METHODS:
        told = " ".join(sentkit("train", name, "--list").out.decode().split())
        assert name in listed
        assert "epochs=" in told
        assert (
            told.count("[paper]") + told.count("[released code]") + told.count("[our choice]") >= 20
        )


def test_the_methods_are_in_three_groups(on_terminal):
    """Each method is in one of them; the columns have equal places."""
    lines = on_terminal("train", "--list")
    starts = [0, *(place + 1 for place, line in enumerate(lines) if not line), len(lines) + 1]
    groups = {lines[a].partition("  ")[0]: lines[a + 1 : b - 1] for a, b in pairwise(starts)}
    names = {heading: [line.split()[0] for line in own] for heading, own in groups.items()}

    assert list(names) == ["for products", "without labels", "of papers"]
    assert names["for products"] == ["contrast", "distill", "classify", "sbert", "cosent", "angle"]
    assert names["without labels"][:3] == ["simcse", "tsdae", "mlm"]
    assert {"sg-bert", "consert", "pairsupcon", "defsent", "defsent-plus"} < {*names["of papers"]}
    assert sorted(chain(*names.values())) == sorted(METHODS)
    assert {line.find("description") for line in lines} == {-1, 16}
