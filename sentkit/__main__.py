"""`python -m sentkit`."""

from sentkit.cli import main

main()
