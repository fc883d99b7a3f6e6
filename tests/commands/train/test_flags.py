"""The flags of `sentkit train`: settings, precedence, and refusals before the first step."""

from itertools import chain

from sentkit.training.catalogue import METHODS


def test_every_method_is_listed_with_its_settings(sentkit):
    listed = sentkit("train", "--list").out.decode()
    for name in METHODS:
        settings = sentkit("train", name, "--list").out.decode()
        words = " ".join(settings.split())
        origins = ("[paper]", "[released code]", "[our choice]")
        assert name in listed
        assert "epochs=" in words
        assert sum(words.count(origin) for origin in origins) >= 20


def test_the_methods_are_in_three_groups(on_terminal):
    """Each method is in one of them; the columns have equal places."""
    lines = on_terminal("train", "--list")
    names = {}
    for group in "\n".join(lines).split("\n\n"):
        heading, *methods = group.split("\n")
        names[heading.partition("  ")[0]] = [line.split()[0] for line in methods]

    assert list(names) == ["for products", "without labels", "of papers"]
    assert names["for products"] == ["contrast", "distill", "classify", "sbert", "cosent", "angle"]
    assert names["without labels"][:3] == ["simcse", "tsdae", "mlm"]
    assert {"sg-bert", "consert", "pairsupcon", "defsent", "defsent-plus"} < {*names["of papers"]}
    assert sorted(chain(*names.values())) == sorted(METHODS)
    assert {line.find("description") for line in lines} == {-1, 16}
