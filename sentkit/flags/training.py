"""Flags of `sentkit train`, except those of the rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sentkit.console import Console
from sentkit.errors import UsageError
from sentkit.flag_values import assignment
from sentkit.flags import options
from sentkit.flags.rules import Named, Needs, Range

if TYPE_CHECKING:
    from sentkit.training.method import Method
    from sentkit.training.options import RandomInit


@dataclass(frozen=True)
class CheckpointFlags(options.OutputFlags):
    """The folder of the new checkpoint; the state of the run is in OUT.part.

    -o, --output DIR: The checkpoint folder to create.
    """

    path: Annotated[str, Named("--output")] = ""

    def __post_init__(self) -> None:
        options.refuse_long_name(self.path, ".part")


@dataclass(frozen=True)
class SettingFlags:
    """The settings of the method.

    --set NAME=VALUE: Change a setting; repeatable. Of equal names, the last value is used; flags such as
        --lr have priority. A list, as in lr=1e-5,3e-5, trains a run for each value.
    --preset NAME: Settings of a published recipe.
    --epochs N: Same as --set epochs=N.
    --batch N: Same as --set batch=N.
    --lr X: Same as --set lr=X.
    """

    set_: list[str] | None = None
    preset: str | None = None
    epochs: int | None = None
    batch: int | None = None
    lr: float | None = None

    def given(self, console: Console) -> dict[str, str]:
        """The value of each setting that --set or another flag gives.

        The order of options on the command line is not available here, so a flag always overrides --set.
        """
        values = {name: value for name, value in vars(self).items() if name not in ("set_", "preset")}
        given = {name: str(value) for name, value in values.items() if value is not None}
        for each in self.set_ or []:
            name, value = assignment(each)
            if name in given and value != given[name]:
                flag = f"--{name.replace('_', '-')} {given[name]}"
                console.warn(f"--set {each} has no effect: {flag} overrides it")
        return dict(map(assignment, self.set_ or [])) | given


@dataclass(frozen=True)
class StartFlags:
    """A start from random weights instead of a checkpoint.

    --init CONFIG: Start with random weights for this config.json.
    --tokenizer PATH: For --init: a tokenizer.json, or its folder.
    """

    init: Annotated[str | None, Needs("--tokenizer")] = None
    tokenizer: Annotated[str | None, Needs("--init")] = None

    def init_of(self, kind: "type[Method]", *, model_given: bool) -> "RandomInit | None":
        """The random start; raises UsageError if the flags conflict with others."""
        from sentkit.training.catalogue import METHODS
        from sentkit.training.options import RandomInit

        if self.init is None or self.tokenizer is None:
            return None
        if model_given:
            raise UsageError(
                "--init and -m cannot be used together",
                advice="--init starts with random weights, -m with a checkpoint",
            )
        if not kind.needs.random_start:
            able = ", ".join(name for name, each in METHODS.items() if each.load().needs.random_start)
            raise UsageError("this method cannot be used with --init", advice=f"these methods can: {able}")
        return RandomInit(Path(self.init), Path(self.tokenizer))


@dataclass(frozen=True)
class SavingFlags:
    """The saved state of a run.

    --resume: Continue the stopped run; if there is none, start one.
    --save-every N: Also save the state every N steps; 0: only --save-seconds.
    --save-seconds S: Save the state every S seconds; 0: after every step.
    """

    resume: bool = False
    save_every: Annotated[int, Range(min=0)] = 0
    save_seconds: Annotated[float, Range(min=0)] = 300.0
