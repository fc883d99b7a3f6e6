"""The entry point. It prepares the process before it imports typer and the commands."""

from sentkit.process import prepare


def main() -> None:
    prepare()
    from sentkit.cli import main

    main()


if __name__ == "__main__":
    main()
