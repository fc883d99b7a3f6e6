"""The setting `dims`: also train the first dimensions of a vector (Matryoshka, arXiv 2205.13147)."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sentkit.errors import UsageError
from sentkit.training.recipe import Recipe
from sentkit.training.settings import ours


@dataclass(frozen=True, kw_only=True)
class Dims(Recipe):
    """The settings of a method with a loss that compares sentence vectors."""

    dims: str | None = ours(
        None,
        "widths such as 256,128,64: also add the loss of the vectors cut to each width; for encode --dim",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = widths_of(self)
        if any(width < 1 for width in widths):
            raise UsageError(f"dims={self.dims}: a width is 1 or more")
        if any(left <= right for left, right in pairwise(widths)):
            raise UsageError(
                f"dims={self.dims}: the widths do not decrease", advice="for example dims=256,128,64"
            )


def widths_of(settings: Any) -> list[int]:
    """Return the widths of the setting, or none for a method without it."""
    text = getattr(settings, "dims", None)
    try:
        return [] if text is None else [int(word) for word in text.split(",")]
    except ValueError as error:
        problem = f'dims: "{text}" is not a list of whole numbers'
        raise UsageError(problem, advice="for example dims=256,128,64") from error


def check_widths(settings: Any, width: int) -> None:
    """Raise a UsageError for widths that are not smaller than that of the encoder."""
    large = [each for each in widths_of(settings) if each >= width]
    if large:
        problem = f"dims={settings.dims}: the vectors have {width} dimensions, which are always trained"
        raise UsageError(problem, advice="give smaller widths only")
