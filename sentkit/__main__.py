"""The entry point. It prepares the process before it imports typer and the commands."""

import gc

from sentkit.process import prepare


def main() -> None:
    prepare()
    gc.disable()  # imports make many objects and hardly any garbage
    from sentkit.cli import main

    gc.freeze()
    gc.enable()
    main()


if __name__ == "__main__":
    main()
