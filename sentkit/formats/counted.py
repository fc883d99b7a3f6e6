"""A number with its noun, for messages."""


def counted(number: int, noun: str) -> str:
    """Such as "1 row" and "2 rows"."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"
