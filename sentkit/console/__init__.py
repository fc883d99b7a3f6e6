"""Takes messages, progress and records and returns nothing: it prints them for people."""

from sentkit.console.messages import Console, on_terminal
from sentkit.console.progress import (
    RowProgress,
    StepProgress,
    TaskProgress,
    follow_tasks,
    reading,
    slow,
    watch_rows,
)
from sentkit.console.tables import (
    print_described,
    print_pairs,
    print_table,
    print_text,
    show,
    terminal_width,
)

__all__ = [
    "Console", "RowProgress", "StepProgress", "TaskProgress", "follow_tasks", "on_terminal",
    "print_described", "print_pairs", "print_table", "print_text", "reading", "show", "slow",
    "terminal_width", "watch_rows",
]  # fmt: skip
