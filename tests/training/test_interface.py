"""The interface of a method stays small: every member is one that the author of a method must know."""

from torch import nn

from sentkit.training.method import Method

MOST = 25


def test_the_interface_has_few_members():
    own = {name for name in vars(Method) if not name.startswith("_")} | {"body", "settings"}
    inherited = set(dir(nn.Module))

    assert len(own - inherited) <= MOST, sorted(own - inherited)
