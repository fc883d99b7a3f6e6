"""How a checkpoint is read: from the flags, else from its declaration, else defaults. No torch."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sentkit.arrays import Float32
from sentkit.errors import UsageError, declared_in
from sentkit.formats.checkpoints.folders import DEEPEST, Checkpoint
from sentkit.formats.checkpoints.modules import StoredDeclaration
from sentkit.formats.checkpoints.readout import CONV, NAMED, Readout, parse_readout, parse_readouts
from sentkit.formats.files import shown_path
from sentkit.formats.vectors.fingerprint import Space, digest, name_for_label
from sentkit.model.reading import (
    ReadingOptions,
    all_steps,
    prompts_of,
    space_after_steps,
)
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.architecture import UnsupportedArchitecture, read_architecture
from sentkit.transforms.steps import Normalize, Step, Truncate, read_transform

LONGEST = 512  # tokens, if a checkpoint declares no length
WIDTHS = ("hidden_size", "dim", "d_model", "n_embd")
DEPTHS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer")


@dataclass(frozen=True, slots=True)
class Reading:
    readouts: tuple[Readout, ...]
    tokenizer: Tokenizer
    prompt_of_side: Mapping[
        str, str
    ]  # the prompt of each side; empty: all texts have that of the tokenizer
    declared_steps: tuple[str, ...]  # declared by the checkpoint
    declared_dim: int | None  # declared; applied after these steps if the options have no dim
    options: ReadingOptions
    dropped_steps: tuple[str, ...]  # declared steps that belong to another readout
    readout_is_declared: bool  # False: no readout was given or declared; see `default_readout`
    # messages about values for which the files of the checkpoint differ, and no option is given
    conflicts: tuple[str, ...]

    def notes(self, name: str) -> list[str]:
        """Return messages about automatic choices; `name` is the name of the checkpoint."""
        notes = []
        if not self.readout_is_declared:
            used = self.readouts[0].name
            notes.append(f"{name} declares no readout: using {used} (--readout selects another)")
        if self.dropped_steps:
            steps = ", ".join(self.dropped_steps)
            problem = "the steps after the declared readout are not applied to another readout"
            notes.append(f"{name}: {problem}: {steps}")
        notes += [f"{name}: {conflict}" for conflict in self.conflicts]
        return notes


def plan_reading(checkpoint: Checkpoint, options: ReadingOptions) -> Reading:
    """Return how a checkpoint is read. Errors must appear before encoding starts and in a
    dry run.
    """
    declared = checkpoint.declaration
    depth = depth_of(checkpoint.config)

    # The readouts and the prompt.
    if options.readout is not None:
        readouts = parse_readouts(options.readout, depth)
    else:
        readouts = [declared.readout or default_readout(checkpoint.config)]
        with declared_in(str(checkpoint.folder / declared.source)):
            readouts[0].layers_in(depth)
    prompt, sides = prompts_of(declared, options)
    all_prompts = "".join([prompt, *sides.values()])
    check_readouts(readouts, declared, options, all_prompts)
    if options.transform is not None:
        read_transform(options.transform)

    # `--dim`, if the declared steps keep the width, so that the width in config.json is final:
    # otherwise the weights have to be read first.
    width = width_of(checkpoint.config) * max(len(readout.joined_readouts) for readout in readouts)
    keeps_width = set(declared.step_names) <= {"normalise"} and declared.convolution is None
    width_is_known = width > 0
    if options.dim is not None and keeps_width and width_is_known and width < options.dim:
        raise UsageError(f"--dim {options.dim}: the vectors have only {width} numbers")

    # The declared steps belong to the declared readout, so another readout does not use them.
    # Without a declared readout, they belong to any.
    is_declared_readout = declared.readout is None or all(
        same(readout, declared.readout, depth) for readout in readouts
    )
    declared_dim = None
    if is_declared_readout and options.dim is None:
        declared_dim = declared.dim

    # The tokens, in a template for the readout `prompt`.
    in_template = any(readout.reduction == "token" for readout in readouts)
    tokenizer = plan_tokens(checkpoint, options, prompt, in_template=in_template)
    flags = (options.max_length, options.prompt, options.prompt_name, options.readout)
    has_flag = any(value is not None for value in flags)
    with declared_in(file_of_declaration(checkpoint), unless=has_flag):
        for side_prompt in [prompt, *sides.values()]:
            check_room(tokenizer.with_prompt(side_prompt))
    return Reading(
        readouts=tuple(readouts),
        tokenizer=tokenizer,
        prompt_of_side=sides,
        declared_steps=declared.step_names if is_declared_readout else (),
        declared_dim=declared_dim,
        dropped_steps=() if is_declared_readout else steps_without_readout(declared, options),
        options=options,
        readout_is_declared=options.readout is not None or declared.readout is not None,
        conflicts=conflicts_without(options, declared.conflicts),
    )


def conflicts_without(options: ReadingOptions, conflicts: Mapping[str, str]) -> tuple[str, ...]:
    """The messages about values that no option replaces."""
    is_replaced = {
        "prompt": options.prompt is not None or options.prompt_name is not None,
        "dim": options.dim is not None,
        "max_length": options.max_length is not None,
    }
    return tuple(text for name, text in conflicts.items() if not is_replaced.get(name))


def check_readouts(
    readouts: Sequence[Readout], declared: StoredDeclaration, options: ReadingOptions, prompt: str
) -> None:
    """Refuse readouts that cannot be combined with each other, with the prompt or with a
    template.
    """
    through_template = [readout.reduction == "token" for readout in readouts]
    need_prompt = any(
        readout.pooled or readout.reduction in ("token", CONV) for readout in readouts
    )
    if prompt and not declared.prompt_is_read and need_prompt:
        problem = "the readout of this checkpoint does not use the tokens of the prompt (--prompt),"
        problem += " but the readouts pooler, prompt and conv need them"
        raise UsageError(problem, advice="use --prompt '' or another --readout")
    alone = "run sentkit encode once for {} and once for the others"
    if any(through_template) and not all(through_template):
        problem = "the readout prompt cannot be combined with other readouts"
        raise UsageError(problem, advice=alone.format("prompt"))
    for readout in readouts:
        has_other_width = readout.reduction == CONV or len(readout.joined_readouts) > 1
        if has_other_width and len(readouts) > 1:
            problem = f"the readout {readout.name} cannot be combined with others"
            advice = alone.format(readout.name)
            raise UsageError(f"{problem}, because its vectors have another length", advice=advice)
    has_template = options.template is not None or options.full_stop is not None
    if has_template and not any(through_template):
        raise UsageError("a template and its full stops can be used only with the readout prompt")


def steps_without_readout(declared: StoredDeclaration, options: ReadingOptions) -> tuple[str, ...]:
    """Return the declared steps as messages name them, which another readout does not have."""
    if declared.dim is None or options.dim is not None:
        return declared.step_names
    return (*declared.step_names, f"the first {declared.dim} numbers")


def default_readout(config: Mapping[str, Any]) -> Readout:
    """Return the readout of a checkpoint without a declaration, as sentence-transformers chooses
    it.

    In a causal language model, only the last token attends to the whole text.
    """
    names = config.get("architectures")
    class_name = str(names[0]) if isinstance(names, list) and names else ""
    if class_name.endswith("ForCausalLM") and config.get("is_causal", True):
        return NAMED["last"]
    return NAMED["mean"]


def same(readout: Readout, other: Readout, depth: int) -> bool:
    """Return true if both names select the same readout: `mean` is `L6:mean` if there are six
    layers.
    """
    same_layers = set(readout.layers_in(depth)) == set(other.layers_in(depth))
    return same_layers and readout.reduction == other.reduction


def plan_tokens(
    checkpoint: Checkpoint, options: ReadingOptions, prompt: str, in_template: bool
) -> Tokenizer:
    declared = checkpoint.declaration
    source = str(checkpoint.folder / declared.source)
    length = max_length(checkpoint, options.max_length)
    with declared_in(source, unless=options.max_length is not None):
        tokenizer = Tokenizer(
            checkpoint, max_length=length, prompt=prompt, lowercase=declared.lowercase
        )
        if not declared.prompt_is_read:
            tokenizer.skip_prompt()
    if in_template:
        template = options.template
        full_stop = options.full_stop
        if options.template is None:  # the declared full-stop rule belongs to the declared template
            template = declared.template
            full_stop = options.full_stop or declared.full_stop
        flags = (options.readout, options.template, options.full_stop)
        has_flag = any(value is not None for value in flags)
        with declared_in(source, unless=has_flag):
            tokenizer.set_template(template, full_stop)
    return tokenizer


def check_room(tokenizer: Tokenizer) -> None:
    """Raise a UsageError if the prompt or the template leaves no room for a token of a text."""
    if tokenizer.truncates_start:  # the prompt is truncated first
        tokenizer = tokenizer.with_prompt("")
    names: list[str] = []
    if tokenizer.prompt:
        names.append("the prompt")
    if tokenizer.template is not None:
        names.append("the template")
    if not names:
        return
    [example] = tokenizer.locate(["a"])
    count = example.repeated_count
    if count < tokenizer.max_length:
        return
    around = " and ".join(names)
    problem = f"a maximum length of {tokenizer.max_length} tokens leaves no room for a text"
    advice = f"use a maximum length of {count + 1} or more, or shorten {around}"
    raise UsageError(f"{problem}: {around} and the special tokens have {count}", advice=advice)


def depth_of(config: Mapping[str, Any]) -> int:
    """Return the number of blocks, or 0 if no known key contains it."""
    for name in DEPTHS:
        depth = config.get(name)
        if isinstance(depth, int) and 0 < depth <= DEEPEST:
            return depth
    return 0


def width_of(config: Mapping[str, Any]) -> int:
    """Return the width of a token state, or 0 if no known key contains it."""
    for name in WIDTHS:
        width = config.get(name)
        if isinstance(width, int):
            return width
    return 0


def max_length(checkpoint: Checkpoint, chosen: int | None) -> int:
    """Return the length limit in tokens, including special tokens; `chosen` is the value of the
    flag.
    """
    limit = position_limit(checkpoint)
    if chosen is not None:
        if limit is not None and chosen > limit:
            raise UsageError(f"--max-length {chosen}: the maximum of this encoder is {limit}")
        return chosen
    maximum = most_tokens(checkpoint.config, checkpoint.config_file)
    declared = checkpoint.declaration.max_length or maximum or LONGEST
    if limit:
        return min(declared, limit)
    return declared


def position_limit(checkpoint: Checkpoint) -> int | None:
    """Return the number of tokens that no text can exceed; None if it is unknown, and for rotary
    positions of a packed encoder, which have no end.
    """
    try:
        architecture = read_architecture(checkpoint.config, checkpoint.config_file)
    except UnsupportedArchitecture:
        return most_tokens(checkpoint.config, checkpoint.config_file)
    return None if architecture.rotary_bases else architecture.max_tokens


def most_tokens(config: Mapping[str, Any], source: str) -> int | None:
    """Return the largest number of tokens that the encoder has positions for, or None if
    unknown.
    """
    try:
        return read_architecture(config, source).max_tokens
    except UnsupportedArchitecture:
        positions = config.get("max_position_embeddings")
        if positions is None and "n_embd" in config:  # GPT-2 and its relatives
            positions = config.get("n_positions")
    if type(positions) is not int or positions < 1:
        return None
    # Tables of 514 rows, such as MPNet's, use positions from padding_id + 1.
    if positions % 8 == 2:
        return positions - 2
    return positions


def hash_of_weights(
    weights: Mapping[str, Any],
    as_float32: Callable[[Any], Float32],
    *,
    with_pooler: bool,
    threads: int,
) -> str:
    """Return 32 hex digits that depend only on names, shapes and values; tensors are converted one
    by one.
    """
    names = sorted(name for name in weights if with_pooler or not name.startswith("pooler."))

    def digest_of(name: str) -> bytes:
        raw = np.ascontiguousarray(as_float32(weights[name])).reshape(-1).view(np.uint8)
        return hashlib.blake2b(raw.data, digest_size=16).digest()

    with ThreadPoolExecutor(threads) as pool:  # hashlib releases the interpreter lock
        digests = list(pool.map(digest_of, names))
    content = hashlib.blake2b(digest_size=16)
    for name, digest_of_tensor in zip(names, digests, strict=True):
        content.update(f"{name} {by(weights[name].shape)}\n".encode() + digest_of_tensor)
    return content.hexdigest()


def by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "one number"


def steps_of_checkpoint(
    checkpoint: Checkpoint,
    reading: Reading,
    width_of_readout: int,
    read_layer: Callable[[Path], Step],
) -> list[Step]:
    """Return the steps of a checkpoint and of the flags."""
    declared = declared_steps(checkpoint, reading, read_layer)
    return all_steps(fitting_steps(checkpoint, declared, width_of_readout), reading.options)


def declared_steps(
    checkpoint: Checkpoint, reading: Reading, read_layer: Callable[[Path], Step]
) -> list[Step]:
    """Read the steps of a checkpoint, without those of the flags."""
    steps: list[Step] = []
    for name in reading.declared_steps:
        if name == "normalise":
            steps.append(Normalize())
        else:
            steps.append(read_layer(checkpoint.folder / name))
    if reading.declared_dim is not None:
        steps.append(Truncate(reading.declared_dim))
    return steps


def fitting_steps(
    checkpoint: Checkpoint, steps: Sequence[Step], width_of_readout: int
) -> list[Step]:
    """Return the declared steps for vectors of this width, or raise a DataError if they do not fit.

    As in sentence-transformers, a truncation to the width or more keeps all numbers.
    """
    fitting: list[Step] = []
    width = width_of_readout
    with declared_in(file_of_declaration(checkpoint)):
        for step in steps:
            if isinstance(step, Truncate) and step.dim >= width:
                continue
            width = step.output_width(width)
            fitting.append(step)
    return fitting


def file_of_declaration(checkpoint: Checkpoint) -> str:
    return str(checkpoint.folder / checkpoint.declaration.source)


def space_of_readout(
    checkpoint: Checkpoint,
    reading: Reading,
    readout: Readout,
    weights: str,
    hashed_values: Sequence[Any],
    steps: Sequence[Step],
    *,
    layers: Sequence[int],
    kernels: str = "",
    machine: Mapping[str, Any],
) -> Space:
    """Return the origin of the vectors behind the steps.

    `weights` and `kernels` are hashes of the encoder and of its convolution, `hashed_values` the
    config values that change the vectors of equal weights, `layers` those of the readout.
    `machine` is recorded, not hashed.
    """
    tokenizer = reading.tokenizer
    pooler = checkpoint.declaration.pooler
    read_as: list[Any] = [sorted(layers), readout.reduction]
    if tokenizer.template is not None:
        read_as.append(tokenizer.template.text)
    if readout.pooled and pooler.activation != "tanh":
        read_as.append(pooler.activation)
    if readout.reduction == CONV:
        read_as.append(kernels)
    record: dict[str, Any] = {
        "model": shown_path(checkpoint.name),
        "weights": weights,
        "tokenizer": tokenizer.hash,
        "readout": readout.name,
        "template": None,
        "full_stop": None,
        "prompt": reading.prompt_of_side or tokenizer.prompt,
        "max_length": tokenizer.max_length,
        **machine,
    }
    if tokenizer.template is not None:
        record["template"] = tokenizer.template.text
        record["full_stop"] = tokenizer.template.full_stop
    # What a declaration changes without a flag is recorded only where it has an effect.
    if tokenizer.truncates_start:
        record["truncation_side"] = "left"
    if not tokenizer.reads_prompt and record["prompt"]:
        record["prompt_is_read"] = False
    label = f"{name_for_label(checkpoint.name)}/{readout.name}"
    if pooler.lands_in and readout.reduction == parse_readout(pooler.readout).reduction:
        # the pooler was trained with this readout to match another space
        label += f">{pooler.lands_in}"
    space = Space(label, digest([weights, hashed_values, tokenizer.hash, read_as]), record)
    return space_after_steps(steps, space, reading.options.transform)
