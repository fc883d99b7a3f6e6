"""Refuses a tokenizer.json whose rules multiply a text: a short one would take all memory of the
library.

The bound is that of one character. A step after another multiplies it.
"""

import base64
import binascii
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sentkit.errors import DataError

# Largest number of characters, or copies of a text, from one character; real tokenizers have 1 to
# 6.
MOST_GROWTH = 64
MOST_ADDED = 1024  # characters before each text; real tokenizers add one
# Unicode itself has one character that NFKC and the charsmaps of sentencepiece replace by 18.
LONGEST_OF_UNICODE = 18
BYTES_OF_CHARACTER = 4  # of UTF-8: a byte-level step writes a character for each
# Without one of these, a regular expression matches at least one character.
MAY_MATCH_NOTHING = re.compile(r"[*?|^$]|\(\?|\\[bBAZzGK]|\{0|\{,")
INNER = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}


def check_growth(rules: Mapping[str, Any], source: str) -> None:
    """Refuse rules whose steps may multiply a text. The library refuses steps that have another
    form.
    """
    for name, inner in INNER.items():
        growth = 1.0
        added = 0
        for step in steps_of(rules.get(name), inner):
            growth *= growth_of(step, name)
            added += added_by(step)
        if growth > MOST_GROWTH:
            problem = f'the steps of "{name}" make up to {growth:,.0f} characters of one'
            raise DataError(f"{problem}, at most {MOST_GROWTH} are supported", source=source)
        if added > MOST_ADDED:
            problem = f'the steps of "{name}" add {added:,} characters to each text'
            raise DataError(f"{problem}, at most {MOST_ADDED:,} are supported", source=source)


def steps_of(step: object, inner: str) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a sequence, also of one in another sequence."""
    waiting = [step]
    while waiting:
        step = waiting.pop()
        if not isinstance(step, Mapping):
            continue
        inner_steps = step.get(inner)
        if isinstance(inner_steps, list):
            waiting += inner_steps
        else:
            yield step


def growth_of(step: Mapping[str, Any], name: str) -> float:
    """Return the largest number of characters that a step makes of one. Unicode's own growth counts
    as 1. `name` is the part of tokenizer.json with the step, such as normalizer.
    """
    match step.get("type"):
        case "Replace":
            return growth_of_replacement(step.get("pattern"), step.get("content"))
        case "Precompiled":
            return max(
                1.0, longest_of_charsmap(step.get("precompiled_charsmap")) / LONGEST_OF_UNICODE
            )
        case "ByteLevel" if name in ("normalizer", "pre_tokenizer"):
            return BYTES_OF_CHARACTER
        case "TemplateProcessing":
            return max(1, copies_of_text(step.get("single")), copies_of_text(step.get("pair")))
    return 1


def growth_of_replacement(pattern: object, content: object) -> float:
    if not isinstance(pattern, Mapping) or not isinstance(content, str):
        return 1
    text = pattern.get("String")
    if isinstance(text, str) and text:
        return max(1, math.ceil(len(content) / len(text)))
    regex = pattern.get("Regex")
    if isinstance(regex, str) and regex and not MAY_MATCH_NOTHING.search(regex):
        return max(1, len(content))
    return 1 + len(content)  # between all characters


def longest_of_charsmap(charsmap: object) -> int:
    """Return the number of characters of the longest replacement in a charsmap of sentencepiece.

    It has the size of a trie in four bytes, the trie, and the replacements with a zero byte after
    each.
    """
    if not isinstance(charsmap, str):
        return 0
    try:
        content = base64.b64decode(charsmap)
    except (binascii.Error, ValueError):
        return 0
    trie_size = int.from_bytes(content[:4], "little")
    replacements = content[4 + trie_size :].split(b"\0")
    return max(len(replacement.decode(errors="replace")) for replacement in replacements)


def copies_of_text(template: object) -> int:
    """Return how often a template has the same text."""
    if not isinstance(template, list):
        return 0
    items = [
        item["Sequence"] for item in template if isinstance(item, Mapping) and "Sequence" in item
    ]
    names = [text.get("id") for text in items if isinstance(text, Mapping)]
    return max(names.count("A"), names.count("B"))


def added_by(step: Mapping[str, Any]) -> int:
    """Return the number of characters that a step adds to each text."""
    prepended = step.get("prepend")
    if step.get("type") == "Prepend" and isinstance(prepended, str):
        return len(prepended)
    return 0
