"""The factor of the learning rate, and the steps that are scored on --dev, by hand."""

import math
from dataclasses import replace
from decimal import Decimal

import pytest

from sentkit.errors import UsageError
from sentkit.training.data.corpus import Order
from sentkit.training.loop.optimizers import schedule_factor, warmup_steps
from sentkit.training.loop.trainer import check_rates


def test_the_rates_of_sg_bert():
    """5e-5 over 1079 steps, of which 108 warm up: 2.98146e-5 at step 500."""
    for step, rate in {0: 0.0, 54: 2.5e-5, 108: 5e-5, 500: 5e-5 * 579 / 971, 1079: 0.0}.items():
        assert 5e-5 * schedule_factor("linear", step, 1079, 108) == pytest.approx(rate, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("constant", [1, 1, 1, 1, 1, 1, 1, 1]),
        ("warmup-constant", [0, 0.5, 1, 1, 1, 1, 1, 1]),
        ("linear", [0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0]),
    ],
)
def test_six_steps_with_two_of_warmup(name, factors):
    """The eighth is beyond the end, where nothing becomes negative. Zero steps do not divide by
    zero.
    """
    assert [schedule_factor(name, step, 6, 2) for step in range(8)] == factors
    assert schedule_factor(name, 0, 0, 0) == factors[-1]


def test_warmup_is_rounded_up():
    """Of the written decimal number: 0.07 * 100 is 7.000000000000001 in floats, and 7 steps all the
    same.
    """
    for share in (0.1, 0.07, 0.0, 1.0, 1e-05):
        for total in (50, 100, 1079, 1080, 1081, 100_000):
            assert warmup_steps(share, total) == math.ceil(Decimal(str(share)) * total)


def test_ct_lowers_the_rate_four_times():
    """The published rates of 1e-5, 8e-6 and so on, which change at the steps 500, 1000, 1500 and
    2000.
    """
    steps = (0, 499, 500, 1000, 1500, 2000, 8000)
    factors = [schedule_factor("ct", step, 9000, 0) for step in steps]

    assert factors == pytest.approx([1, 1, 0.8, 0.6, 0.4, 0.2, 0.2], rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "rows", "steps"),
    [
        ({}, 22, [0, 4, 8, 11, 12, 16, 20, 22, 24, 28, 32, 33]),
        ({"eval_every": 0}, 22, [0, 11, 22, 33]),
        ({"patience": 9}, 22, [0, 11, 22, 33]),  # counts epochs, as in earlier versions
        ({"eval_every": 30}, 22, [0, 11, 22, 30, 33]),
        ({}, 9000, sorted({*range(0, 13_501, 1000), 4500, 13_500})),
        ({"steps": 5}, 22, [*range(6)]),
    ],
)
def test_a_run_is_scored_at_the_ends_of_epochs_and_about_ten_times(small, settings, rows, steps):
    """At least every thousand steps. An epoch of 22 rows has 11 steps."""
    trainer = small("contrast", epochs=3, **settings)
    trainer.run = replace(trainer.run, dev=object())
    trainer.order = Order(rows, 2, 3, seed=0, max_steps=trainer.recipe.steps)

    assert [n for n in range(trainer.order.steps + 1) if trainer.evaluates(n)] == steps


@pytest.mark.parametrize(
    ("settings", "rows", "advice"),
    [
        ({}, 12, "use a smaller --batch, more --epochs or --set warmup=0"),
        ({}, 3, "use more --epochs or --set warmup=0"),  # which are no two batches
        ({"epochs": 50, "steps": 1}, 12, "use more steps or --set warmup=0"),
        ({"epochs": None, "steps": 1}, 12, "use more steps or --set warmup=0"),
        ({"steps": 1}, 12, "use --set warmup=0"),  # one epoch also has only one step
    ],
)
def test_the_advice_of_a_run_with_only_warmup_steps_gives_it_more_steps(
    small, settings, rows, advice
):
    trainer = small("contrast", count=rows, batch=12, warmup=0.1)
    run = replace(trainer.run, settings=replace(trainer.recipe, **settings))
    with pytest.raises(UsageError, match="in the only step, which is a warm-up step") as caught:
        check_rates(run, run.corpus)

    assert caught.value.advice == advice
