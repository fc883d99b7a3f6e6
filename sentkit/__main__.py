"""The entry point: the process is prepared before the commands, and typer with them, are imported."""

from sentkit.process import prepare


def main() -> None:
    prepare()
    from sentkit.cli import main

    main()


if __name__ == "__main__":
    main()
