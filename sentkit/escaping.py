"""Text for a terminal: unsafe characters are escaped, and widths are measured in columns."""

import re
from collections.abc import Sequence

GAP = 2  # columns between those of a table
SHORTEST, LEGIBLE = 8, 14  # minimum width of a truncated name; width to preserve by omitting optional columns
# Control characters, line separators, bidirectional embeddings, overrides and isolates, lone surrogates.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
ACCOUNT = re.compile(r"(?<=://)[^/\s]*@")  # in a URL, before the name of the server
QUERY = re.compile(r"(://[^\s?]*\?)[^\s'\"]*?(?=['\"]|:\d+: |: |\s|$)")
BYTES = range(0xDC80, 0xDD00)  # how Python represents bytes of a file name that are not UTF-8


def escape(text: str) -> str:
    r"""Escape text for messages and tables: the escape character becomes \x1b, a newline \n, U+202E \u202e.

    A byte of a file name that is not UTF-8 becomes \xff.
    """
    return UNSAFE.sub(lambda match: _escaped(match[0]), text)


def without_secrets(text: str) -> str:
    """Remove the account and the query from each URL in a text: they can have passwords and signatures."""
    return QUERY.sub(r"\1...", ACCOUNT.sub("", text)) if "://" in text else text


def _escaped(character: str) -> str:
    code = ord(character)
    if character in NAMED:
        return NAMED[character]
    if code in BYTES:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def columns_of(text: str) -> int:
    """The number of terminal columns: 猫 takes two, a combining accent none."""
    from rich.cells import cell_len

    return cell_len(text)


def fit(text: str, columns: int, *, right: bool = False) -> str:
    """The text in exactly so many terminal columns: cut, or with blanks after it (before it if `right`)."""
    from rich.cells import set_cell_size

    room = columns - columns_of(text)
    return " " * room + text if right and room > 0 else set_cell_size(text, max(0, columns))


def escape_json(line: str) -> str:
    r"""Escape a line of JSON, so that it remains JSON: U+009B becomes \u009b."""
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def widths_of(
    lengths: Sequence[int], names: Sequence[bool], optional: Sequence[int], room: int
) -> dict[int, int]:
    """The width of each column that is shown, by its index. Columns of names can shrink.

    Optional columns are left out until the others fit with names of LEGIBLE characters. Then the widest
    column of names shrinks until all columns fit or none can shrink.
    """
    widths = dict(enumerate(lengths))
    for left_out in optional:
        least = [min(width, LEGIBLE) if names[place] else width for place, width in widths.items()]
        if sum(least) + GAP * (len(least) - 1) <= room:
            break
        del widths[left_out]
    while sum(widths.values()) + GAP * (len(widths) - 1) > room:
        shrinkable = ((width, place) for place, width in widths.items() if names[place])
        widest, place = max(shrinkable, default=(0, 0))
        if widest <= SHORTEST:
            break
        widths[place] -= 1
    return widths
