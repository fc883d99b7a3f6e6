"""The command lines of the scripts: their number of arguments, and -h."""

import sys


def check_arguments(description, *, least=0, most=None):
    """Exit before any measurement: for -h or --help with the description of the script, and with
    an error if the number of arguments is another one.
    """
    arguments = sys.argv[1:]
    if "-h" in arguments or "--help" in arguments:
        print(description.strip())
        sys.exit(0)
    if len(arguments) < least or (most is not None and len(arguments) > most):
        print(description.strip(), file=sys.stderr)
        sys.exit(2)
