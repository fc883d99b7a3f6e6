"""The single changes of a checkpoint that other programs make, by mistake or by a setting."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sentkit.formats.checkpoints.readout import CONV, NAMED, WK_REDUCTIONS, parse_readout
from sentkit.model.causes.passes import VariantEncoder
from sentkit.model.causes.settings import (
    LENGTHS,
    PROMPTS,
    SPECIAL,
    WEIGHTS,
    Variant,
    shown,
)
from sentkit.model.causes.truncation import change_of_limit
from sentkit.model.checkpoint_reading import same
from sentkit.model.query_encoder import recorded_options
from sentkit.model.reading import width_after_steps
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.readouts import width_of_vectors
from sentkit.transforms.steps import Linear, Norm, Truncate


def recorded_changes(encoder: VariantEncoder, record: Mapping[str, Any]) -> list[Variant]:
    """The changes with which vectors were made, as their file records them."""
    options = recorded_options(record)
    tokenizer = encoder.reading.tokenizer
    declared = encoder.declared
    of_texts = []
    if options.prompt is not None and options.prompt != tokenizer.prompt:
        of_texts.append(change_of_prompt(options.prompt, tokenizer.prompt))
    if options.max_length is not None and options.max_length != tokenizer.max_length:
        of_texts.append(change_of_limit(options.max_length, tokenizer.max_length))
    changes = [*that_change_tokens(encoder, of_texts)]
    if options.readout not in (None, declared.readout) and options.template is None:
        changes.append(
            Variant(
                f"readout {options.readout} instead of {declared.readout}",
                {"readout": options.readout},
            )
        )
    if options.normalize and not declared.unit:
        changes.append(change_of_lengths(encoder))
    if options.dim is not None and Truncate(options.dim) not in encoder.steps:
        changes.append(first_numbers(encoder, options.dim))
    return changes


def first_numbers(encoder: VariantEncoder, width: int) -> Variant:
    name = f"the first {width} numbers"
    if encoder.declared.unit:
        name += ", at unit length again"
    return Variant(name, {"dim": width})


def all_variants(encoder: VariantEncoder, width: int) -> list[Variant]:
    """The changes that can give vectors of this width, the more frequent ones first.

    Of changes that give the same vectors, the first one is the cause.
    """
    return [
        *variants_of_vectors(encoder, width),
        *variants_of_texts(encoder),
        *variants_of_network(encoder),
        *variants_of_readout(encoder),
    ]


def variants_of_vectors(encoder: VariantEncoder, width: int) -> Iterator[Variant]:
    declared = encoder.declared
    yield change_of_lengths(encoder)
    if any(isinstance(step, Linear | Norm) for step in encoder.steps):
        yield Variant("no layers behind the readout", {"dense": False})
    if any(isinstance(step, Truncate) for step in encoder.steps):
        yield Variant("all numbers", {"dim": 0})
    width_of_readout = width_of_vectors(encoder.body, encoder.reading.readouts)
    if width >= width_after_steps(encoder.steps, width_of_readout):
        return
    yield first_numbers(encoder, width)
    if declared.unit:
        changes = {"dim": width, "again": False}
        yield Variant(f"the first {width} numbers, not at unit length again", changes)


def change_of_lengths(encoder: VariantEncoder) -> Variant:
    """The vectors without unit length, or with it: not as declared."""
    unit = encoder.declared.unit
    return Variant("no unit length" if unit else "unit length", {"unit": not unit})


def variants_of_texts(encoder: VariantEncoder) -> Iterator[Variant]:
    """Changes of the tokens that change those of these texts."""
    tokenizer = encoder.reading.tokenizer
    declared_prompt = tokenizer.prompt
    possible = [change_of_prompt("", declared_prompt)]
    prompts = dict.fromkeys([*encoder.checkpoint.declaration.prompts.values(), *PROMPTS])
    if declared_prompt:
        name = f"the prompt {shown(declared_prompt)} twice"
        possible.append(Variant(name, {"prompt": 2 * declared_prompt}))
    for prompt in prompts:
        if prompt and prompt != declared_prompt:
            possible.append(change_of_prompt(prompt, declared_prompt))
    possible += [change_of_limit(length, tokenizer.max_length) for length in LENGTHS]
    kept = "start" if tokenizer.truncates_start else "end"
    possible.append(Variant(f"long texts truncated at the {other_end(kept)}", {"other_end": True}))
    possible.append(Variant("lower case", {"lower": True}))
    possible.append(Variant("no lower case", {"lower": False}))
    possible.append(Variant("accents removed", {"strip": True}))
    possible.append(Variant("accents kept", {"strip": False}))
    possible.append(Variant("no lower case, accents removed", {"lower": False, "strip": True}))
    possible.append(Variant("lower case, accents removed", {"lower": True, "strip": True}))
    for special, name in SPECIAL.items():
        if special != "unread":
            possible.append(Variant(name, {"special": special}))
    return that_change_tokens(encoder, possible)


def change_of_prompt(prompt: str, declared: str) -> Variant:
    name = "no prompt"
    if prompt:
        name = f"prompt {shown(prompt)}"
    if declared:
        name += f" instead of {shown(declared)}"
    return Variant(name, {"prompt": prompt})


def other_end(end: str) -> str:
    return "start" if end == "end" else "end"


def that_change_tokens(encoder: VariantEncoder, possible: Iterable[Variant]) -> Iterator[Variant]:
    """The variants that the model has, and under which these texts have other tokens."""
    for variant in possible:
        if encoder.changes_tokens(encoder.declared.changed_by([variant])):
            yield variant


def variants_of_network(encoder: VariantEncoder) -> Iterator[Variant]:
    yield Variant(SPECIAL["unread"], {"special": "unread"})
    body = encoder.body
    if not isinstance(body, Bert):
        return
    if body.positions is not None:
        for shift in (1, -1, -2):
            if body.architecture.position_offset + shift >= 0:
                yield Variant(f"positions shifted by {shift:+}", {"shift": shift})
    if body.architecture.causal:
        yield Variant("no causal mask", {"causal": False})
    else:
        yield Variant("a causal mask", {"causal": True})
    yield Variant("states before the last norm", {"last_norm": False})


def variants_of_weights(encoder: VariantEncoder) -> list[Variant]:
    return [Variant(name, {"weights": weights}) for weights, name in WEIGHTS.items()]


def variants_of_readout(encoder: VariantEncoder) -> Iterator[Variant]:
    declared = encoder.reading.readouts[0]
    depth = encoder.body.depth
    names = [name for name in NAMED if name not in ("prompt", "pooler:cls", CONV, *WK_REDUCTIONS)]
    names += [f"L{layer}:{name}" for layer in range(depth) for name in ("mean", "cls", "last")]
    for readout in map(parse_readout, names):
        is_possible = encoder.body.has_pooler or not readout.pooled
        if is_possible and not same(readout, declared, depth):
            yield Variant(
                f"readout {readout.name} instead of {declared.name}", {"readout": readout.name}
            )
