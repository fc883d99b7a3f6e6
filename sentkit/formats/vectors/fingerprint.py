"""The fingerprint of a space. Two vectors are comparable only if their fingerprints are equal.

`_emb` is `label:hash`, such as `minilm/mean/n:a1b2c3d4e5f6`. The label is for people. The hash
identifies the
space: it covers the tensors, the tokenizer and the readout. Each later step (truncation to a
dimension, unit length, a transform) adds to the hash: H(space, step). So a filter needs only `_emb`
to compute the same hash as `encode` with that step, or as a checkpoint that includes the step.
Properties that can differ within one space (prompt, maximum length, precision) are recorded, but
not hashed.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from sentkit.formats.rows.lines import json_type

DIGITS = 12
# A label without transforms, which it names by "+whitening" and the like; "L1+L12:mean" is a
# readout.
MODEL_LABEL = re.compile(
    r"(?!.*\+(?!L[0-9]))(?!.*~mapped)(?P<model>[^/>]+)/(?P<readout>[^/>]+)(?P<steps>(?:/[^/>]+)*):[0-9a-f]+"
)
API = "api"  # in place of a readout, of vectors from a model behind an API
HASH = rf"[0-9a-f]{{{DIGITS}}}"
LABEL = r"[!-=?-~]+"  # printable ASCII without blanks; ">" only before a hash
INT8_LOSS = "int8_cosine"  # in a record: cosines between vectors of --precision int8 and fp32
EMB = re.compile(rf"{LABEL}(?:>{HASH}(?:{LABEL})?)*:{HASH}")


def digest(value: Any) -> str:
    """Hash a JSON value in canonical form. Returns twelve hexadecimal digits."""
    raw = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(raw, digest_size=DIGITS // 2).hexdigest()


def name_for_label(name: str) -> str:
    """The last part of a model name, with only characters that need no quotes in a shell or URL."""
    name = re.sub(r"@refs/(\w+)/", r"@\1-", name)  # a hub revision such as `tiny@refs/pr/1`
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name.rstrip("/").rpartition("/")[2]) or "model"


@dataclass(frozen=True, slots=True)
class Space:
    """The space of vectors. They are comparable if `hash` is equal. Vector files store also
    `metadata`.
    """

    label: str
    hash: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.label}:{self.hash}"

    @property
    def full_metadata(self) -> dict[str, Any]:
        """All properties, in the form that a vector file stores."""
        return {"_emb": self.name, **self.metadata}

    def after_step(self, suffix: str, step: str) -> "Space":
        """The space after one more step; `step` is its hash. `suffix` is appended to the label, or
        replaces it if it begins with "=".
        """
        steps = [*self.metadata.get("steps", ()), f"{suffix}:{step}"]
        return Space(
            label=label_after(self.label, suffix, step),
            hash=digest([self.hash, step]),
            metadata={**self.metadata, "steps": steps},
        )


# The end of the label of vectors that a map moved to another space, behind the `_emb` of that one:
# `minilm/mean/n:a1b2c3d4e5f6~mapped:0123456789ab`.
MAPPED = "~mapped"
# About a comparison that only --mapped permits.
MAPPED_NOTE = "mapped vectors are compared with those of the other space, so neighbours differ"


def label_after(label: str, suffix: str, step: str) -> str:
    """The label after a step. A step after a map is also a step of the space that it maps to."""
    if suffix.startswith("="):
        return suffix.removeprefix("=")
    target = label.removesuffix(MAPPED)
    if target == label:
        return label + suffix
    target_label, _, target_hash = target.rpartition(":")
    return f"{target_label}{suffix}:{digest([target_hash, step])}{MAPPED}"


UNNAMED = Space("unnamed", digest("unnamed"))  # the space of vectors without _emb

SIGN = "/sign"  # the step of vectors that are stored as sign bits: +1 above zero, otherwise -1


def spec_of_signs(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of the signs of vectors, which are another space. The signs of signs are the same
    vectors.

    A spec is the description of its space that a vector file stores, as in `Space.full_metadata`.
    """
    label, _, hash_of_space = (spec.get("_emb") or UNNAMED.name).rpartition(":")
    if label.endswith(SIGN):
        return dict(spec)
    metadata = {name: value for name, value in spec.items() if name != "_emb"}
    signs = Space(label, hash_of_space, metadata).after_step(SIGN, digest(SIGN)).full_metadata
    if not {"model", "steps"} & spec.keys():
        del signs["steps"]  # unknown earlier steps: a list of only this step would be wrong
    return signs


def space_of_signs(space: str) -> str:
    """The hash of the space of the signs of vectors, from the hash of their space."""
    return digest([space, digest(SIGN)])


def without_machine(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec without the loss of int8, the number of threads and, of older files, the kind of
    products.

    The loss is a measurement: its last digits differ between machines. The others change at most
    the last bits of vectors.
    """
    return {
        name: value
        for name, value in spec.items()
        if name not in (INT8_LOSS, "threads", "products")
    }


def emb_problem(emb: object) -> str | None:
    """The reason why an `_emb` is invalid; None if it is valid or absent (None).

    Two invalid values could have equal (for example empty) hashes, and different spaces would look
    the same.
    """
    if emb is None or (isinstance(emb, str) and EMB.fullmatch(emb)):
        return None
    shown = f'"{emb:.60}"' if isinstance(emb, str) else json_type(emb)
    return f'"_emb" is {shown}, expected LABEL:HASH with {DIGITS} hexadecimal digits'


def space_of(emb: str) -> str:
    """The hash in an `_emb`, after the last colon."""
    return emb.rpartition(":")[2]


def target_space(emb: str) -> str | None:
    """The hash of a second space that the vectors were trained to match, from the end of the label,
    or None.

    `ckpt/pooler>0123456789ab:a1b2c3d4e5f6` is in the space a1b2c3d4e5f6, and comparable with
    0123456789ab. A later step appends to the label and removes this property.
    """
    match = re.search(rf">({HASH})\Z", emb.rpartition(":")[0])
    if match is None:
        return None
    return match[1]


def space_mapped_to(emb: str | None) -> str:
    """The `_emb` of the space that vectors were mapped to; of other vectors, their own."""
    if emb is None:
        return UNNAMED.name
    label, _, _ = emb.rpartition(":")
    target = label.removesuffix(MAPPED)
    if target == label or emb_problem(target) is not None:
        return emb
    return target


def is_comparable(emb: str | None, other: str | None, *, mapped: bool = False) -> bool:
    """Whether two spaces are equal. `mapped`: vectors that were mapped to a space count as its
    vectors.
    """
    if mapped:
        return space_of(space_mapped_to(emb)) == space_of(space_mapped_to(other))
    if emb is None or other is None:
        return emb == other
    return space_of(emb) == space_of(other)


def label_of(emb: str | None) -> str:
    """The part of an `_emb` for people: `ckpt/cls`."""
    if emb is None:
        return ""
    return emb.rpartition(":")[0]


def short_label(emb: str | None) -> str:
    """Short form of an `_emb` for messages: `ckpt/cls (a1b2…)`."""
    if emb is None:
        return "without _emb"
    label, _, space = emb.rpartition(":")
    return f"{label or '?'} ({space[:4]}…)"


def is_mapped(emb: str | None) -> bool:
    """Whether vectors were mapped to another space."""
    return emb is not None and space_mapped_to(emb) != emb


def advice_on_spaces(
    emb: str | None, other: str | None, *, permits_mapped: bool = True
) -> str | None:
    """What to do about vectors of two spaces that are compared; None if nothing is known.

    `permits_mapped`: the command compares them with --mapped, if one space was mapped to the other.
    """
    if is_comparable(emb, other):  # vectors of different widths
        return None
    has_mapped = is_mapped(emb) or is_mapped(other)
    if permits_mapped and has_mapped and is_comparable(emb, other, mapped=True):
        return "search, score and cluster compare mapped vectors with --mapped"
    return edition_advice(emb, other)


def edition_advice(emb: str | None, other: str | None) -> str | None:
    """What to do about two spaces with the same label: the model has changed, but not its name."""
    if emb is None or other is None or emb.rpartition(":")[0] != other.rpartition(":")[0]:
        return None
    model = emb.partition("/")[0]
    return (
        f"these are two editions of {model}: encode all rows with one of them (-m gives its folder)"
    )


def record_of_label(emb: str) -> dict[str, Any]:
    """The model, readout and steps of a label, as a vector file records them; {} if it has none.

    A label has only the last part of the name of the model. That of vectors without _emb, after
    steps such as a normalization, names no model.
    """
    match = MODEL_LABEL.fullmatch(emb)
    if match is None or match["model"] == UNNAMED.label:
        return {}
    steps = [f"/{step}:" for step in match["steps"].split("/")[1:]]
    if match["readout"] == API:  # which -m does not have
        return {"model": match["model"], "steps": steps}
    return {"model": match["model"], "readout": match["readout"], "steps": steps}
