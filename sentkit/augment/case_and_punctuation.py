"""Words without what is around them: punctuation, capitals."""

from collections.abc import Sequence
from unicodedata import category

from sentkit.augment.draw import Draw
from sentkit.augment.steps import Changed

CURLY = chr(0x2019)  # the apostrophe of typesetters
SPOKEN = frozenset("#%&@")  # punctuation to Unicode, and words to whoever reads aloud


def bare(word: str) -> tuple[str, str, str]:
    """What stands before the word itself, the word, and what stands behind it: `("don't),`."""
    if word.isalnum():
        return "", word, ""
    start, end = 0, len(word)
    while start < end and is_punctuation(word[start]):
        start += 1
    while start < end and is_punctuation(word[end - 1]):
        end -= 1
    return word[:start], word[start:end], word[end:]


def is_punctuation(letter: str) -> bool:
    return category(letter)[0] == "P" and letter not in SPOKEN


def capitalised(word: str) -> str:
    """With a capital first letter, and the others as they are."""
    return word[:1].upper() + word[1:]


def plain(word: str) -> str:
    """In lower case, with the apostrophe of typewriters."""
    return word.lower().replace(CURLY, "'")


def written_like(model: str, word: str) -> str:
    """The word in the capitals of the model."""
    if len(model) > 1 and model.isupper():
        return word.upper()
    return capitalised(word) if model[:1].isupper() else word


def no_punctuation(words: Sequence[str], draw: Draw) -> Changed:
    """Words lose what is around them, and nothing within; a text of nothing else stays."""
    left = [core for _, core, _ in map(bare, words) if core]
    return left or words, {}


def lower(words: Sequence[str], draw: Draw) -> Changed:
    return [word.lower() for word in words], {}
