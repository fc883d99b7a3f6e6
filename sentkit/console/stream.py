"""Standard error: all text for people is written here."""

import contextlib
import os
import re
import sys

# Control characters, line separators, bidirectional embeddings, overrides and isolates, lone surrogates.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
BYTES = range(0xDC80, 0xDD00)  # how Python represents bytes of a file name that are not UTF-8
ERASE = "\r\033[K"

_open_line = False  # the last line on the terminal is a progress bar


def escape(text: str) -> str:
    r"""Text that is safe to print: a character that controls the terminal or reorders a line is escaped.

    The escape character becomes \x1b, a newline \n, U+202E \u202e, a byte of a file name that is not UTF-8
    \xff.
    """
    return UNSAFE.sub(lambda match: _escaped(match[0]), text)


def _escaped(character: str) -> str:
    code = ord(character)
    if character in NAMED:
        return NAMED[character]
    if code in BYTES:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def write_line(text: str) -> None:
    """A line of text; a progress bar on the last line is erased first."""
    close_bar()
    _write(f"{escape(text)}\n")


def write_bar(text: str, width: int) -> None:
    """Replace the progress bar. The text is cut to the width of the terminal."""
    global _open_line
    _write(f"{ERASE}{escape(text)[: width - 1]}")
    _open_line = True


def close_bar() -> None:
    """Erase the progress bar, if there is one."""
    global _open_line
    if _open_line:
        _write(ERASE)
        _open_line = False


def on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _write(text: str) -> None:
    """A failure is ignored: it must not change an output or an exit code."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()
