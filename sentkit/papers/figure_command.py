"""The command line of a paper's figures: `python -m sentkit.papers.NAME.figures FIGURE FILE... [-o PICTURE]`.

Each figure is a function from paths, and keyword arguments, to a picture. Without -o, the output is JSON.
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sentkit.console import Console
from sentkit.errors import SentkitError
from sentkit.flags.outputs import PictureOutput, check_paths
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import open_inputs
from sentkit.plots.picture import Picture
from sentkit.plots.reports import Value

Figure = Callable[..., Picture]


def main(*figures: Figure, arguments: Sequence[str] | None = None) -> None:
    module = inspect.getmodule(figures[0])
    paper = Path(module.__file__ or "").parent.name if module else ""
    parser = argparse.ArgumentParser(prog=f"python -m sentkit.papers.{paper}.figures")
    names = parser.add_subparsers(dest="figure", metavar="FIGURE", required=True)
    for figure in figures:
        words = inspect.getdoc(figure) or ""
        one = names.add_parser(figure.__name__, help=words.splitlines()[0], description=words)
        one.add_argument("files", nargs="+", metavar="FILE")
        one.add_argument("-o", "--output", metavar="PICTURE", default="-", help=".svg, .png, .pdf or .jsonl")
        for name, parameter in list(inspect.signature(figure).parameters.items())[1:]:
            if parameter.annotation is bool:
                one.add_argument(f"--{name}", action="store_true")
            else:
                needed = parameter.default is parameter.empty
                default = None if needed else parameter.default
                one.add_argument(f"--{name}", metavar="NAME", required=needed, default=default)
    values = vars(parser.parse_args(arguments))
    figure = {each.__name__: each for each in figures}[values.pop("figure")]
    console = Console(f"{paper}.figures")
    try:
        output = PictureOutput(path=values.pop("output"), force=True)
        files = values.pop("files")
        output.check()
        check_paths(console, {"-o": output.path}, {"FILE": files})
        output.write(figure(files, **values), console)
    except SentkitError as error:
        console.error(str(error), error.advice)
        sys.exit(error.exit_code)


def rows_of(paths: Sequence[str]) -> Inputs:
    """The rows of files, in any format."""
    return open_inputs(paths)


def merged(values: Sequence[Value]) -> Value:
    """The mean of the scores of several runs, with their standard deviation (of a sample)."""
    if len(values) == 1:
        return values[0]
    numbers = np.array([each.value for each in values])
    mean, deviation = float(numbers.mean()), float(numbers.std(ddof=1))
    return Value(values[0].row, mean, (mean - deviation, mean + deviation))
