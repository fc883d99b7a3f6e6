"""The path of a command's man page, in a checkout or in an installation.

`man sentkit` finds a page only if its folder is on MANPATH or belongs to an activated environment. `man PATH`
always shows it.
"""

from pathlib import Path


def page_of(command: str) -> Path | None:
    """The man page of a command, such as `sentkit encode`; None if it is not installed."""
    name = f"{command.replace(' ', '-')}.1"
    in_checkout = Path(__file__).parent.parent / "man/man1" / name
    if in_checkout.is_file():
        return in_checkout
    from importlib.metadata import PackageNotFoundError, files

    try:
        installed = files("sentkit") or []
    except PackageNotFoundError:
        return None
    places = (Path(str(file.locate())).resolve() for file in installed if file.name == name)
    return next((place for place in places if place.is_file()), None)
