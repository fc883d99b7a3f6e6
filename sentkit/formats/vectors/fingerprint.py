"""The fingerprint of a space: what must be equal for two vectors to be comparable.

`_emb` is `label:hash`, such as `minilm/mean/n:a1b2c3d4e5f6`. The label is for people. The hash is the SPACE:
the tensors, the tokenizer, the readout, and each step that follows (cut to a dimension, unit length, a
transform) chained on: SPACE' = H(SPACE, step). So a filter that sees only `_emb` comes to the same hash as
`encode` with the same step, and as a checkpoint with that step built in. What may differ within one space
(prefix, maximal length, precision) is recorded beside it and not hashed.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from sentkit.formats.rows.lines import json_type

DIGITS = 12
HASH = rf"[0-9a-f]{{{DIGITS}}}"
LABEL = r"[!-=?-~]+"  # printable ASCII, no blanks; ">" only before a hash
EMB = re.compile(rf"{LABEL}(?:>{HASH}(?:{LABEL})?)*:{HASH}")


def digest(value: Any) -> str:
    """Twelve hexadecimal digits of a JSON value in canonical form."""
    raw = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(raw, digest_size=DIGITS // 2).hexdigest()


def name_for_label(name: str) -> str:
    """The last part of a model's name, in characters that need no quoting anywhere."""
    name = re.sub(r"@refs/(\w+)/", r"@\1-", name)  # a revision of the hub, as `tiny@refs/pr/1`
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name.rstrip("/").rpartition("/")[2]) or "model"


@dataclass(frozen=True, slots=True)
class Spec:
    """Where vectors come from. `record` is kept in vector files; only `space` decides what may be mixed."""

    label: str
    space: str
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def emb(self) -> str:
        return f"{self.label}:{self.space}"

    @property
    def full(self) -> dict[str, Any]:
        """All that is known, as a vector file keeps it."""
        return {"_emb": self.emb, **self.record}

    def noting(self, **more: Any) -> "Spec":
        """The same space with more on record."""
        return Spec(self.label, self.space, {**self.record, **more})

    def after(self, suffix: str, step: str) -> "Spec":
        """The spec of the vectors once a step, which adds this to the label and has this hash, is applied."""
        done = [*self.record.get("steps", ()), f"{suffix}:{step}"]
        return Spec(self.label + suffix, digest([self.space, step]), {**self.record, "steps": done})


UNNAMED = Spec("unnamed", digest("unnamed"))  # the space of vectors that come without _emb


def emb_problem(emb: object) -> str | None:
    """Why this is no `_emb` that sentkit writes; None if it is one, or is absent (None).

    Two malformed names could be equal by chance (both hashes empty) and would pass for one space.
    """
    if emb is None or (isinstance(emb, str) and EMB.fullmatch(emb)):
        return None
    shown = f'"{emb:.60}"' if isinstance(emb, str) else json_type(emb)
    return f'"_emb" is {shown}, expected LABEL:HASH with {DIGITS} hexadecimal digits'


def space_of(emb: str) -> str:
    """The hash in an `_emb`: what comes after its last colon."""
    return emb.rpartition(":")[2]


def is_space(word: str) -> bool:
    """Whether this is the hash of a space."""
    return re.fullmatch(HASH, word) is not None


def lands_in(emb: str) -> str | None:
    """The other space that vectors were trained into, where the end of their label says one.

    `ckpt/pooler>0123456789ab:a1b2c3d4e5f6` are vectors of the space a1b2c3d4e5f6, to be held against those of
    0123456789ab too. A step that follows adds to the label, and so ends this.
    """
    landing = re.search(rf">({HASH})\Z", emb.rpartition(":")[0])
    return landing[1] if landing else None


def shown(emb: str | None) -> str:
    """An `_emb` as an error names it: `ckpt/cls (a1b2…)`."""
    if emb is None:
        return "without _emb"
    label, _, space = emb.rpartition(":")
    return f"{label or '?'} ({space[:4]}…)"
