"""Settings: what their values may be, and which of them do nothing beside others."""

import pytest

from sentkit.errors import UsageError
from sentkit.training.recipe import Recipe
from sentkit.training.settings import build, notes


@pytest.mark.parametrize("text", ["inf", "-inf", "Infinity", "1e999", "nan"])
def test_only_a_finite_number_is_a_number(text):
    with pytest.raises(UsageError, match=f'^lr: "{text}" is not a number$'):
        build(Recipe, {}, None, [f"lr={text}"])


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


def test_early_stop_without_a_limit_is_refused():
    """With patience=0, no score ends a run. A preset can have both."""
    cumulative = build(Recipe, {"own": {"early_stop": "cumulative", "patience": 2}}, "own", [])

    with pytest.raises(UsageError, match=r"^early_stop has no effect with patience=0$"):
        build(Recipe, {}, None, ["early_stop=cumulative"])
    assert (cumulative.early_stop, cumulative.patience) == ("cumulative", 2)


def test_the_choices_of_a_recipe_exist():
    """A recipe does not import torch, so it repeats these names. The optimizers are tested in loop/."""
    from sentkit.model.transformer.device import PRECISIONS
    from sentkit.training import recipe
    from sentkit.training.loop import optimizers

    assert set(recipe.SCHEDULES) == optimizers.SCHEDULES.keys()
    assert set(notes(recipe.Recipe)["precision"].choices) == set(PRECISIONS)
