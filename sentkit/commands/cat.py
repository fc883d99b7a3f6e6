"""stub"""


def cat() -> None:
    """x"""
