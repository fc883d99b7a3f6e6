"""Settings: what their values may be, and which of them do nothing beside others."""

import pytest

from sentkit.errors import UsageError
from sentkit.training.recipe import Recipe
from sentkit.training.settings import build, notes


def test_a_constant_rate_has_no_warmup():
    with pytest.raises(UsageError, match=r"^schedule=constant has no warmup$") as caught:
        build(Recipe, {}, None, ["schedule=constant", "warmup=0.1"])

    assert caught.value.advice == "use schedule=warmup-constant, or warmup=0"


@pytest.mark.parametrize(
    ("schedule", "warmup"), [("constant", 0.0), ("warmup-constant", 0.1), ("linear", 0.1)]
)
def test_other_schedules_have_one(schedule, warmup):
    settings = build(Recipe, {}, None, [f"schedule={schedule}", f"warmup={warmup}"])

    assert (settings.schedule, settings.warmup) == (schedule, warmup)


def test_a_preset_can_have_a_limit_and_early_stop():
    """Without patience=0, with which no score ends a run."""
    cumulative = build(Recipe, {"own": {"early_stop": "cumulative", "patience": 2}}, "own", [])

    assert (cumulative.early_stop, cumulative.patience) == ("cumulative", 2)


def test_the_choices_of_a_recipe_exist():
    """A recipe does not import torch, so it repeats these names. The optimizers are tested in loop/."""
    from sentkit.model.transformer.device import PRECISIONS
    from sentkit.training import recipe
    from sentkit.training.loop import optimizers

    assert set(recipe.SCHEDULES) == optimizers.SCHEDULES.keys()
    assert set(notes(recipe.Recipe)["precision"].choices) == set(PRECISIONS)
