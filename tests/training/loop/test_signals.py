"""Signals: the first requests a stop, a second Ctrl-C exits, and ignored ones stay ignored."""

import signal

import pytest

from sentkit.process import STOPPING, Stopped, handle_signals


@pytest.fixture(autouse=True)
def default_signals():
    """The tests may run in the background of a shell, where SIGINT is ignored."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_requests_a_stop(number):
    """It interrupts a wait for rows, and nothing else."""
    with handle_signals() as stop:
        signal.raise_signal(number)

        assert stop.requested
    with handle_signals() as stop, pytest.raises(Stopped), stop.interruptible():
        signal.raise_signal(number)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_the_first_interrupt_is_reported_and_the_second_exits():
    notices = []
    with handle_signals(lambda: notices.append("stopping")):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)

        assert notices == ["stopping"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


@pytest.mark.parametrize("number", STOPPING)
def test_an_ignored_signal_stays_ignored(number):
    """As under nohup, and in the background of a shell."""
    signal.signal(number, signal.SIG_IGN)
    with handle_signals() as stop:
        signal.raise_signal(number)

        assert not stop.requested
