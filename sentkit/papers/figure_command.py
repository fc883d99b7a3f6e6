"""The command line of a paper's figures: `python -m sentkit.papers.NAME.figures FIGURE FILE... [-o
PICTURE] [-f]`.

Each function of figures.py from paths, and keyword arguments, to a picture is a figure. Without -o,
the output is JSON.
"""

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from sentkit.console import Console
from sentkit.errors import SentkitError
from sentkit.flags.outputs import PictureOutput, check_paths
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import open_inputs
from sentkit.plots.picture import Picture
from sentkit.plots.reports import Value

Figure = Callable[..., Picture]


def main(module_name: str, arguments: Sequence[str] | None = None) -> None:
    """Draw one figure of a module, figures.py of a paper. `arguments` are those of the process."""
    figures = figures_of(sys.modules[module_name])
    paper = Path(sys.modules[module_name].__file__ or "").parent.name
    parser = argparse.ArgumentParser(prog=f"python -m sentkit.papers.{paper}.figures")
    subparsers = parser.add_subparsers(dest="figure", metavar="FIGURE", required=True)
    for figure in figures.values():
        add_figure(subparsers, figure)
    values = vars(parser.parse_args(arguments))
    figure = figures[values.pop("figure")]
    console = Console(f"{paper}.figures")
    try:
        output = PictureOutput(path=values.pop("output"), force=values.pop("force"))
        files = values.pop("files")
        output.check()
        check_paths(console, {"-o": output.path}, {"FILE": files})
        output.write(figure(files, **values), console)
    except SentkitError as error:
        console.error(str(error), error.advice)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # `... | head -3` is correct use. Python's exit cannot fail on this stdout again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def figures_of(module: ModuleType) -> dict[str, Figure]:
    """The functions of a module that return a picture, in their order in the file."""
    figures: dict[str, Figure] = {}
    for name, function in vars(module).items():
        if not inspect.isfunction(function) or function.__module__ != module.__name__:
            continue
        if inspect.signature(function).return_annotation is Picture:
            figures[name] = function
    return figures


def add_figure(subparsers: Any, figure: Figure) -> None:
    """Declare the arguments of a figure: files, -o, -f, and a flag for each keyword argument."""
    text = inspect.getdoc(figure) or ""
    parser = subparsers.add_parser(figure.__name__, help=text.splitlines()[0], description=text)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument(
        "-o", "--output", metavar="PICTURE", default="-", help=".svg, .png, .pdf or .jsonl"
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite an existing output")
    _, *keywords = inspect.signature(figure).parameters.values()  # without the paths
    for keyword in keywords:
        flag = f"--{keyword.name}"
        if keyword.annotation is bool:
            parser.add_argument(flag, action="store_true")
        elif keyword.default is keyword.empty:
            parser.add_argument(flag, metavar="NAME", required=True)
        else:
            parser.add_argument(flag, metavar="NAME", default=keyword.default)


def rows_of(paths: Sequence[str]) -> Inputs:
    """The rows of files, in any format."""
    return open_inputs(paths)


def mean_with_deviation(values: Sequence[Value]) -> Value:
    """The mean of the scores of several runs, with their standard deviation (of a sample)."""
    if len(values) == 1:
        return values[0]
    numbers = np.array([value.value for value in values])
    mean = float(numbers.mean())
    deviation = float(numbers.std(ddof=1))
    return Value(values[0].row, mean, (mean - deviation, mean + deviation))
