"""The guard of the private operations of torch in `cpu_operations.py` and `cuda_operations.py`.

Another version of torch can change or remove them. So their users compare them with the public
operations on this machine, once, before the first use, and run the public operations, or fp32 in
place of integers, if the results differ or the private operation is absent.
"""

from collections.abc import Callable


def private_works(check: Callable[[], bool]) -> bool:
    """Return true if the private operations exist here and their results pass the check."""
    try:
        return check()
    except (ImportError, AttributeError, RuntimeError, TypeError, OSError):
        return False
