"""Text for a terminal: unsafe characters are escaped, and widths are measured in columns."""

import re
import shutil
from collections.abc import Collection, Sequence

GAP = 2  # columns between those of a table
SHORTEST = 8  # columns of a name, at least, if it is truncated
LEGIBLE = 14  # columns of a name, for which optional columns are left out
MINUS = "minus "  # before the name of a baseline, in the head of a column of differences
# Control characters, line separators, bidirectional embeddings, overrides and isolates, lone
# surrogates.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
ACCOUNT = re.compile(r"(?<=://)[^/\s]*@")  # in a URL, before the name of the server
QUERY = re.compile(r"(://[^\s?]*\?)[^\s'\"]*?(?=['\"]|:\d+: |: |\s|$)")
# before the name in a line below another one, or in the head of a column
LEAD = re.compile(r" *(?:minus )?")
SHORTEST_CUT = 5  # columns of a name that lost both ends and its middle
BYTES = range(0xDC80, 0xDD00)  # how Python represents bytes of a file name that are not UTF-8


def escape(text: str) -> str:
    r"""Escape text for messages and tables: the escape character becomes \x1b, a newline \n, U+202E
    \u202e.

    A byte of a file name that is not UTF-8 becomes \xff.
    """
    return UNSAFE.sub(lambda match: _escaped(match[0]), text)


def without_secrets(text: str) -> str:
    """Remove the account and the query from each URL in a text: they can have passwords and
    signatures.
    """
    if "://" not in text:
        return text
    return QUERY.sub(r"\1...", ACCOUNT.sub("", text))


def _escaped(character: str) -> str:
    code = ord(character)
    if character in NAMED:
        return NAMED[character]
    if code in BYTES:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}"


def columns_of(text: str) -> int:
    """The number of terminal columns: 猫 takes two, a combining accent none."""
    from rich.cells import cell_len

    return cell_len(text)


def cut_or_fill(text: str, columns: int, *, right: bool = False) -> str:
    """The text in exactly so many terminal columns: cut, or with blanks after it (before it if
    `right`).
    """
    from rich.cells import set_cell_size

    room = columns - columns_of(text)
    if right and room > 0:
        return " " * room + text
    return set_cell_size(text, max(0, columns))


def escape_json(line: str) -> str:
    r"""Escape a line of JSON, so that it remains JSON: U+009B becomes \u009b."""
    return UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def widths_of(
    lengths: Sequence[int], names: Sequence[bool], optional: Sequence[int], room: int
) -> dict[int, int]:
    """The width of each column that is shown, by its index. Columns of names can shrink.

    Optional columns are left out until the others fit with names of LEGIBLE characters. Then the
    widest column of names shrinks until all columns fit or none can shrink.
    """
    widths = dict(enumerate(lengths))
    for optional_column in optional:
        legible_widths = [
            min(width, LEGIBLE) if names[column] else width for column, width in widths.items()
        ]
        if sum(legible_widths) + GAP * (len(widths) - 1) <= room:
            break
        del widths[optional_column]
    while sum(widths.values()) + GAP * (len(widths) - 1) > room:
        shrinkable = [(width, column) for column, width in widths.items() if names[column]]
        widest, column = max(shrinkable, default=(0, 0))
        if widest <= SHORTEST:
            break
        widths[column] -= 1
    return widths


def shortened(text: str, width: int) -> str:
    """The begin and the end of a text that is too long, because paths and texts differ at one of
    them.
    """
    from rich.cells import set_cell_size

    if columns_of(text) <= width:
        return text
    end_width = (width - 1) * 2 // 3
    begin = set_cell_size(text, width - 1 - end_width)
    reversed_end = set_cell_size(text[::-1], end_width)
    return f"{begin}…{reversed_end[::-1]}"


def look_alike(texts: Collection[str], width: int) -> bool:
    """Whether some of these different texts are the same when they are cut to this width."""
    from rich.cells import set_cell_size

    begins = {set_cell_size(text, width - 1) for text in texts}  # an ellipsis follows
    return len(begins) < len(texts)


def label_cells(cells: Sequence[str], width: int) -> list[str]:
    """The cells of a column of names in at most `width` columns; cells that differ still differ."""
    long_cells = {cell for cell in cells if columns_of(cell) > width}
    leads = {cell: LEAD.match(cell)[0] for cell in long_cells}  # type: ignore[index] # it matches any text
    names = {cell: cell.removeprefix(leads[cell]) for cell in long_cells}
    labels: dict[str, str] = {}
    for lead in set(leads.values()):
        room = max(width - len(lead), SHORTEST_CUT)
        of_names = labels_of(set(names.values()), room)
        labels |= {cell: lead + of_names[names[cell]] for cell in long_cells if leads[cell] == lead}
    return [shortened(labels.get(cell, cell), width) for cell in cells]


def labels_of(names: Collection[str], width: int) -> dict[str, str]:
    """A label of at most `width` columns for each name; different names have different labels.

    Labels lose first what the names share at their ends, by whole words, then also within words.
    """
    ordered = sorted(names)
    if len(ordered) < 2:
        return {name: shortened(name, width) for name in ordered}
    for by_words in (True, False):
        labels = without_shared_ends(ordered, width, by_words=by_words)
        if len(set(labels.values())) == len(ordered):
            return labels

    # Names of one label differ only in their middle, which other names do not share.
    groups: dict[str, list[str]] = {}
    for name, label in labels.items():
        groups.setdefault(label, []).append(name)
    for group in groups.values():
        if 1 < len(group) < len(ordered):
            labels |= labels_of(group, width)

    # Too little room, or labels of different groups that are equal by chance: they get numbers.
    taken = set[str]()
    for number, (name, label) in enumerate(labels.items(), start=1):
        if label in taken:
            mark = f"~{number}"
            labels[name] = cut_or_fill(label, width - len(mark)).rstrip() + mark
        taken.add(labels[name])
    return labels


def without_shared_ends(names: Sequence[str], width: int, *, by_words: bool) -> dict[str, str]:
    """Labels without the end, the begin, or both, that all names share: the first way with enough
    room.
    """
    before = shared_letters(names)
    after = shared_letters([name[before:][::-1] for name in names])
    if by_words:
        first = names[0]
        while before and first[before - 1].isalnum():
            before -= 1
        while after and first[-after].isalnum():
            after -= 1
    whole_names = {name: name for name in names}
    kept_begin = {name: f"{name[: len(name) - after]}…" if after else name for name in names}
    kept_ends = [{name: f"…{name[start:]}" for name in names} for start in range(1, before + 1)]
    for labels in (whole_names, kept_begin, *kept_ends):
        if all(columns_of(label) <= width for label in labels.values()):
            return labels
    mark_before = "…" if before else ""
    mark_after = "…" if after else ""
    room = width - len(mark_before) - len(mark_after)
    labels = {}
    for name in names:
        middle = shortened(name[before : len(name) - after], room)
        labels[name] = f"{mark_before}{middle}{mark_after}"
    return labels


def shared_letters(names: Sequence[str]) -> int:
    """The number of letters at the begin that all names share."""
    count = 0
    for letters in zip(*names, strict=False):
        if len(set(letters)) > 1:
            break
        count += 1
    return count


def short_head(head: str, width: int, names: set[str]) -> str:
    """The head of the column "minus NAME", where the name differs from other names of the table."""
    name = head.removeprefix(MINUS)
    longer = {
        other for other in names if not other.startswith(" ") and len(other) > width - len(MINUS)
    }
    return MINUS + labels_of(longer | {name}, width - len(MINUS))[name]


def terminal_width() -> int:
    return shutil.get_terminal_size().columns
