"""The command lines of the tables in sessions/*.txt (see tests/sessions.py)."""

import pytest

from sessions import Player, all_cases


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.title)
def test_a_session(request, case):
    Player(request.getfixturevalue).play(case)
