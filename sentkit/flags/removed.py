"""Flags that sentkit had before its first release, with the way that replaces each; until that release."""

from collections.abc import Sequence

REMOVED: dict[str, str] = {  # "COMMAND --flag", or "COMMAND --flag VALUE" for one value of a flag that stays
    "inspect --replay": "inspect prints the command of a checkpoint and those of its bases",
}


def advice_of_removed(command: str, words: Sequence[str]) -> tuple[str, str] | None:
    """The removed flag among the words of a command line, and the way that replaces it."""
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if not equals:
            value = words[i + 1] if i + 1 < len(words) else ""
        for name in (flag, f"{flag} {value}"):
            if f"{command} {name}" in REMOVED:
                return name, REMOVED[f"{command} {name}"]
    return None
