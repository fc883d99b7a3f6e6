"""A long run is told of the precision that is faster on this CPU, unless fp32 was chosen.

The advice is captured here instead of being measured after ten seconds.
"""

import pytest

from sentkit.console import ProgressWriter
from sentkit.model.transformer.kernels import precision_gain


@pytest.fixture
def advice(monkeypatch):
    """What a long run would be told, on a CPU with this speed of bf16 relative to fp32."""
    advised = []
    monkeypatch.setattr(ProgressWriter, "advise", lambda self, advice: advised.append(advice))

    def told(speed_of_bf16):
        monkeypatch.setattr(precision_gain, "speed_ratio", lambda new, old: speed_of_bf16)
        return [line for line in (measure() for measure in advised) if line is not None]

    return told


@pytest.mark.parametrize(
    ("precision", "speed_of_bf16", "lines"),
    [
        ("auto", 4.0, ["bf16 takes about 0.25 x the time on this CPU"]),
        ("auto", 0.5, []),
        ("bf16", 0.5, ["fp32 takes about 0.50 x the time on this CPU"]),
        ("bf16", 4.0, []),
        ("fp32", 4.0, []),
    ],
)
def test_the_faster_precision(sentkit, train, tiny, advice, precision, speed_of_bf16, lines):
    train("--set", f"precision={precision}")
    assert advice(speed_of_bf16) == [f"--set precision={line}" for line in lines]

    texts = b"".join(b"a cat %d\n" % number for number in range(40))
    sentkit("encode", "-m", tiny, "--precision", precision, stdin=texts)
    both = [f"--set precision={line}" for line in lines] + [f"--precision {line}" for line in lines]
    assert advice(speed_of_bf16) == both


@pytest.mark.parametrize(
    ("precision", "speed_of_bf16", "other"),
    [("auto", 4.0, "bf16"), ("bf16", 0.5, "fp32"), ("fp32", 4.0, None)],
)
def test_a_plan_has_the_time_with_the_faster_precision(
    sentkit, tiny, monkeypatch, precision, speed_of_bf16, other
):
    monkeypatch.setattr(precision_gain, "speed_ratio", lambda new, old: speed_of_bf16)
    [plan] = sentkit("encode", "-n", "-m", tiny, "--precision", precision, stdin=b"a cat\n").rows

    estimates = {name for name in plan if name.startswith("seconds_estimate_")}
    assert estimates == ({f"seconds_estimate_{other}"} if other else set())
