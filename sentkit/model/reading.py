"""How a checkpoint will be read: as the flags say, else as it declares, else by a stated choice. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sentkit.errors import UsageError, declared_in
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.formats.checkpoints.readout import NAMED, Readout, parse_readouts
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.architecture import DEEPEST, NotPacked, read_architecture
from sentkit.transforms.affine import read_affine

LONGEST = 512  # tokens, where a checkpoint says nothing at all
WIDTHS = ("hidden_size", "dim", "d_model", "n_embd")
DEPTHS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user's flags ask for; None and empty mean that the checkpoint decides."""

    readout: str | None = None  # several, for a sweep, with commas between
    template: str | None = None
    full_stop: str | None = None
    prompt: str | None = None
    max_length: int | None = None
    normalise: bool = False
    dim: int | None = None
    transform: str | None = None  # an affine file


@dataclass(frozen=True, slots=True)
class Reading:
    readouts: tuple[Readout, ...]
    tokenizer: Tokenizer
    steps: tuple[str, ...]  # as the checkpoint declares them
    normalise: bool
    dim: int | None
    transform: str | None
    left_behind: tuple[str, ...]  # steps declared for another readout than the one asked for
    declared: bool  # False: nothing said how to read this checkpoint, and mean was taken
    chosen: bool  # by a flag, and not by the checkpoint

    def notes(self, name: str) -> list[str]:
        """What a person should know of how a checkpoint of that name is read."""
        found = []
        if not self.declared:
            found.append(f"{name} does not say how it is read: mean is taken (--readout says otherwise)")
        if self.left_behind:
            steps = ", ".join(self.left_behind)
            found.append(f"{name} declares steps for another readout, which are left out: {steps}")
        return found


def plan_reading(checkpoint: Checkpoint, wishes: Wishes) -> Reading:
    said, depth = checkpoint.declared, depth_of(checkpoint.config)
    if wishes.readout is not None:
        readouts = parse_readouts(wishes.readout, depth)
    else:
        readouts = [said.readout or NAMED["mean"]]
        with declared_in(str(checkpoint.folder / said.source)):
            readouts[0].resolved(depth)
    through_template = [readout.reduction == "token" for readout in readouts]
    left_out = not said.prompt_is_read and bool(said.prompt if wishes.prompt is None else wishes.prompt)
    if left_out and any(readout.pooled or readout.reduction == "token" for readout in readouts):
        problem = "leaves the prompt's tokens out, and pooler and prompt read one of them"
        raise UsageError(f"this checkpoint {problem}", advice="use --prompt '', or another readout")
    if any(through_template) and not all(through_template):
        raise UsageError("the readout prompt reads other texts than the rest: encode it by itself")
    if (wishes.template or wishes.full_stop) and not any(through_template):
        raise UsageError("--template and --full-stop belong to --readout prompt")
    check_steps(checkpoint, wishes)
    # Another readout than the declared one leaves the steps made for that one behind.
    own = said.readout is None or all(same(readout, said.readout, depth) for readout in readouts)
    return Reading(
        readouts=tuple(readouts),
        tokenizer=plan_tokens(checkpoint, wishes, in_template=any(through_template)),
        steps=said.steps if own else (),
        left_behind=() if own else said.steps,
        normalise=wishes.normalise,
        dim=wishes.dim,
        transform=wishes.transform,
        declared=wishes.readout is not None or said.readout is not None,
        chosen=wishes.readout is not None,
    )


def check_steps(checkpoint: Checkpoint, wishes: Wishes) -> None:
    """What is wrong with the wished steps is said before any work, and in a dry run too."""
    if wishes.transform is not None:
        read_affine(wishes.transform)
    width = width_of(checkpoint.config)
    dense = set(checkpoint.declared.steps) - {"normalise"}  # after one, the width is another
    if wishes.dim is not None and not dense and wishes.dim > width > 0:
        raise UsageError(f"--dim {wishes.dim}: the vectors have {width} numbers")


def same(readout: Readout, other: Readout, depth: int) -> bool:
    """Two names of one readout, as `mean` and `L6:mean` of six layers are."""
    layers = [set(each.resolved(depth)) for each in (readout, other)]
    return layers[0] == layers[1] and readout.reduction == other.reduction


def plan_tokens(checkpoint: Checkpoint, wishes: Wishes, *, in_template: bool) -> Tokenizer:
    said = checkpoint.declared
    prompt = said.prompt if wishes.prompt is None else wishes.prompt
    place = str(checkpoint.folder / said.source)
    length = max_length(checkpoint, wishes.max_length)
    with declared_in(place, unless=wishes.max_length is not None):
        tokenizer = Tokenizer(checkpoint, max_length=length, prompt=prompt, lowercase=said.lowercase)
        if prompt and not said.prompt_is_read:
            tokenizer.skip_prompt()
    if in_template:
        # Another template than the declared one comes with a full-stop rule of its own.
        full_stop = wishes.full_stop or (None if wishes.template else said.full_stop)
        asked = bool(wishes.readout or wishes.template or wishes.full_stop)
        with declared_in(place, unless=asked):
            tokenizer.set_template(wishes.template or said.template, full_stop)
    return tokenizer


def depth_of(config: Mapping[str, Any]) -> int:
    """The number of blocks, under the names that architectures give it."""
    sizes = (config.get(name) for name in DEPTHS)
    return next((size for size in sizes if isinstance(size, int) and 0 < size <= DEEPEST), 0)


def width_of(config: Mapping[str, Any]) -> int:
    """The width of a state, under the names that architectures give it."""
    return next((config[name] for name in WIDTHS if isinstance(config.get(name), int)), 0)


def max_length(checkpoint: Checkpoint, wish: int | None) -> int:
    """Tokens of a text, special ones included: the wish, or what is declared, within what the encoder has."""
    most = most_tokens(checkpoint.config)
    if wish is None:
        return min(checkpoint.declared.max_length or most or LONGEST, most or 1 << 30)
    if most is not None and wish > most:
        raise UsageError(f"--max-length {wish}: this encoder has {most} positions")
    return wish


def most_tokens(config: Mapping[str, Any]) -> int | None:
    """The longest text the encoder has positions for, as far as its config says it."""
    try:
        return read_architecture(config).max_tokens
    except NotPacked:
        positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or positions < 1:
        return None
    # Tables of 514 rows, as MPNet's, begin at padding_id + 1.
    return positions - 2 if positions % 8 == 2 else positions
