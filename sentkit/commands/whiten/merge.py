"""`sentkit whiten merge`: merges transforms of shards."""

from typing import Annotated

import typer

from sentkit.commands.whiten.fit import TransformFlags
from sentkit.flags import options


def merge(
    *,
    transforms: Annotated[
        list[str], typer.Argument(metavar="TRANSFORM...", help="A transform from sentkit whiten fit.")
    ],
    output: TransformFlags,
    run: options.RunFlags,
) -> None:
    """Merge transforms that were fitted to parts of the data.

    \b
    Examples:
      sentkit whiten merge shard1.safetensors shard2.safetensors -o T.safetensors

    Most used: TRANSFORM... -o -f

    The result is that of one fit to the vectors of all parts. It is computed from the
    moments (count, mean, scatter) that each transform stores, so the vectors are not
    needed. All transforms must be of one kind, with the same --dim or --remove, and
    fitted to vectors of one space. ica and flow store no moments and are refused.
    """
    from sentkit.transforms.fitting import merge_transforms

    console = run.console("whiten merge")
    output.check()
    options.check_paths(console, {"-o": output.path}, {"FILE": transforms})
    output.write(merge_transforms(transforms), console)
