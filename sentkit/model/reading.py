"""The reading options of any model, from the flags, and the steps after its readout. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.modules import StoredDeclaration
from sentkit.formats.files import shown_path
from sentkit.formats.rows.kinds import split_by_side
from sentkit.formats.vectors.fingerprint import Space
from sentkit.transforms.steps import Normalize, Step, Truncate, check_fitted, read_transform


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """Reading options from the flags. None selects the declaration of the checkpoint."""

    readout: str | None = None  # or several, separated by commas
    template: str | None = None
    full_stop: str | None = None
    prompt: str | None = None
    prompt_name: str | None = None  # of a declared prompt
    by_side: bool = False  # the prompt, or its name, can be one for each side: a=query,b=document
    max_length: int | None = None
    normalize: bool = False
    dim: int | None = None
    transform: str | None = None  # an affine file

    def __post_init__(self) -> None:
        for name, text in (("prompt", self.prompt), ("template", self.template)):
            try:
                (text or "").encode()
            except UnicodeEncodeError as error:
                raise UsageError(f"the {name} is not valid UTF-8") from error


def prompts_of(declared: StoredDeclaration, options: ReadingOptions) -> tuple[str, dict[str, str]]:
    """Return the prompt that is added before every text, or that of the first side, and those by
    side.
    """
    name = options.prompt_name
    text = options.prompt
    if name is not None and text is not None:
        raise UsageError("--prompt and --prompt-name cannot be used together")
    by_side: dict[str, str] = {}  # prompts, or their names
    if options.by_side and name not in declared.prompts:
        by_side = split_by_side(text or "") or split_by_side(name or "")
    if name is not None and by_side:
        by_side = {
            side: declared_prompt(declared, name_of_side) for side, name_of_side in by_side.items()
        }
    if by_side:
        return next(iter(by_side.values())), by_side
    if name is not None:
        return declared_prompt(declared, name), {}
    return declared.prompt if text is None else text, {}


def declared_prompt(declared: StoredDeclaration, name: str) -> str:
    if name not in declared.prompts:
        available = ", ".join(declared.prompts)
        advice = f"available: {available}" if available else "give the text of a prompt"
        raise UsageError(f'the model declares no prompt with the name "{name}"', advice=advice)
    return declared.prompts[name]


def all_steps(declared: Sequence[Step], options: ReadingOptions) -> list[Step]:
    """Return the declared steps, truncation to `dim`, normalization and the transform, in this
    order.

    A final declared normalization moves after the truncation, so that truncated vectors have unit
    length.
    """
    steps = list(declared)
    is_normalized = bool(steps) and isinstance(steps[-1], Normalize)
    if is_normalized:
        steps.pop()
    if options.dim is not None:
        steps.append(Truncate(options.dim))
    if is_normalized or options.normalize:
        steps.append(Normalize())
    if options.transform is not None:
        steps.append(read_transform(options.transform))
    return steps


def width_after_steps(steps: Sequence[Step], width: int) -> int:
    """Return the vector width after the steps; raise an error if a step does not fit."""
    for step in steps:
        width = step.output_width(width)
    return width


def space_after_steps(steps: Sequence[Step], spec: Space, transform: str | None) -> Space:
    """Return `spec` with the steps added."""
    for step in steps:
        if step is steps[-1] and transform is not None:
            check_fitted(transform, spec.name)
        spec = spec.after_step(step.suffix, step.hash)
    if transform is None:
        return spec
    return replace(spec, metadata={**spec.metadata, "transform": shown_path(transform)})
