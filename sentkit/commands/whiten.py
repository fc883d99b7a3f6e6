"""Fit and apply transforms of a vector space."""

import math
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from sentkit.console import Console, slow
from sentkit.errors import UsageError
from sentkit.flags import options
from sentkit.flags.outputs import Output, check_paths
from sentkit.flags.rows import RowSource, input_paths
from sentkit.flags.rules import needs, refuse_together

if TYPE_CHECKING:
    from sentkit.transforms.fitting import Fitted

ITERATIONS = 1000  # of ica, by default
TOLERANCE = 1e-4
EPOCHS = 1  # of flow, by default
BATCH = 32
LEARNING_RATE = 1e-3


def fit(
    *,
    output_path: Annotated[
        str,
        Option(
            "-o",
            "--output",
            metavar="PATH",
            help="The transform to create, .safetensors; '-' is stdout.",
        ),
    ],
    force: options.Force = False,
    kind: Annotated[
        Literal[
            "whitening",
            "zca",
            "pca",
            "svd",
            "center",
            "standardize",
            "abtt",
            "ica",
            "flow",
            "map",
            "merge",
        ],
        Option(
            "--kind",
            help="Kind of transform; map: from the space of the first FILE to that of the second; "
            "merge: add up the fits of shards.",
        ),
    ] = "whitening",
    dim: Annotated[
        int | None,
        Option(
            "--dim",
            metavar="K",
            min=1,
            help="For whitening, pca, svd, ica: numbers to keep. [default: all]",
        ),
    ] = None,
    remove: Annotated[
        int | None,
        Option(
            "--remove",
            metavar="N",
            min=1,
            help="For abtt: directions to remove. [default: one per 100 numbers]",
        ),
    ] = None,
    scale: Annotated[
        str,
        Option(
            "--scale",
            metavar="NUMBER|auto",
            help="For ica: factor of the result; auto: keep the mean deviation of the vectors.",
        ),
    ] = "1",
    variance: Annotated[
        Literal["unit", "arbitrary"],
        Option(
            "--variance", help="For ica, before --scale: 1, or 1 / rows as in scikit-learn < 1.3."
        ),
    ] = "unit",
    seed: Annotated[
        int,
        Option("--seed", metavar="N", min=0, max=2**32 - 1, help="For ica, flow: random seed."),
    ] = 0,
    iterations: Annotated[
        int,
        Option("--iterations", metavar="N", min=1, help="For ica: maximum number of iterations."),
    ] = ITERATIONS,
    tolerance: Annotated[
        float,
        Option("--tolerance", metavar="X", help="For ica: convergence tolerance."),
    ] = TOLERANCE,
    keep_width: Annotated[
        bool,
        Option(
            "--keep-width",
            help="For ica: set components above the rank to 0 instead of removing them.",
        ),
    ] = False,
    keep_signs: Annotated[
        bool,
        Option(
            "--keep-signs",
            help="For ica: keep the signs of scikit-learn instead of positive skewness.",
        ),
    ] = False,
    epochs: Annotated[
        int,
        Option("--epochs", metavar="N", min=1, help="For flow: passes over the vectors."),
    ] = EPOCHS,
    batch: Annotated[
        int,
        Option("--batch", metavar="N", min=1, help="For flow: vectors per step."),
    ] = BATCH,
    lr: Annotated[
        float,
        Option("--lr", metavar="X", help="For flow: learning rate."),
    ] = LEARNING_RATE,
    key: Annotated[
        str | None,
        Option(
            "--key",
            metavar="FIELD",
            help="For map: match rows by this field. [default: by their order]",
        ),
    ] = None,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.Files = None,
    console: Console,
) -> None:
    """Fit a transform to vectors."""
    flags_of_ica = {
        "--scale": scale != "1",
        "--variance": variance != "unit",
        "--iterations": iterations != ITERATIONS,
        "--tolerance": tolerance != TOLERANCE,
        "--keep-width": keep_width,
        "--keep-signs": keep_signs,
    }
    flags_of_flow = {
        "--epochs": epochs != EPOCHS,
        "--batch": batch != BATCH,
        "--lr": lr != LEARNING_RATE,
    }
    with_dim = kind in ("whitening", "pca", "svd", "ica")
    needs({"--dim": dim}, {"--kind whitening or pca or svd or ica": with_dim})
    needs({"--remove": remove}, {"--kind abtt": kind == "abtt"})
    needs(flags_of_ica, {"--kind ica": kind == "ica"})
    needs(flags_of_flow, {"--kind flow": kind == "flow"})
    needs({"--seed": seed != 0}, {"--kind ica or flow": kind in ("ica", "flow")})
    refuse_together({"--variance": variance != "unit"}, {"--scale auto": scale == "auto"})
    needs({"--key": key}, {"--kind map": kind == "map"})
    refuse_together({"--field": field, "--rejects": rejects}, {"--kind merge": kind == "merge"})
    refuse_together({"--rejects": rejects}, {"--kind map": kind == "map"})
    if not 0 < tolerance < 1:
        raise UsageError(f"--tolerance {tolerance}: expected a number between 0 and 1")
    if lr <= 0:
        raise UsageError(f"--lr {lr}: expected a number above 0")
    factor = parse_scale(scale)
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.transforms.fitting import fit_transform, merge_transforms
    from sentkit.transforms.kinds import FitOptions

    output = Output(output_path, force)
    check_transform_output(output)
    rows = RowSource(input_paths(files), field, rejects)
    if kind == "merge":
        if "-" in rows.paths:
            raise UsageError("--kind merge needs files: transforms of sentkit whiten fit")
        check_paths(console, {"-o": output.path}, {"FILE": rows.paths})
        write_transform(merge_transforms(rows.paths), output, console)
        return
    if kind == "map":
        fit_map_of_files(rows, key, output, console)
        return
    fit_options = FitOptions(
        dim,
        remove,
        seed,
        factor,
        variance,
        iterations,
        tolerance,
        keep_width,
        keep_signs,
        epochs=epochs,
        batch=batch,
        lr=lr,
    )
    with rows.open(console, output, field_names=VECTOR_FIELDS) as inputs:
        fitted = fit_transform(inputs, kind, fit_options)
    write_transform(fitted, output, console)


def fit_map_of_files(rows: RowSource, key: str | None, output: Output, console: Console) -> None:
    """Fit a map to two encodings of the same texts, and report how well it fits those of the texts
    that were held out.
    """
    from sentkit.formats.files import check_input
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.comparison.matches import Sides
    from sentkit.metrics.comparison.space_map import fit_map

    if len(rows.paths) != 2:
        advice = "for example: sentkit whiten fit --kind map OLD NEW -o map.safetensors"
        raise UsageError(f"--kind map needs two files, not {len(rows.paths)}", advice=advice)
    if rows.paths[0] == rows.paths[1]:
        raise UsageError("--kind map needs two different files")
    # Two readers without --rejects, so the paths are checked here and not by `rows.open`.
    check_paths(console, {"-o": output.path}, {"FILE": rows.paths})
    for path in rows.paths:
        check_input(path)
    # "entry" identifies a row of build-entries.
    old, new = (rows.inputs([path], (*VECTOR_FIELDS, "entry")) for path in rows.paths)
    with output.open() as file:
        with slow(console, f"fitting a map of {old.paths[0]} to {new.paths[0]}"):
            fitted_map = fit_map(Sides(old, new), key, output.path)
        fitted_map.write(file)
    console.warn(*fitted_map.warnings)
    console.report(fitted_map.report)


def parse_scale(text: str) -> float | Literal["auto"]:
    """Parse a number above 0, or `auto`."""
    if text == "auto":
        return "auto"
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise UsageError(f'--scale "{text}": expected a number above 0, or auto')
    return number


def check_transform_output(output: Output) -> None:
    """Refuse an invalid or existing output, before any work."""
    from sentkit.formats.files import is_safetensors

    if output.path != "-" and not is_safetensors(output.path):
        raise UsageError(f"{output.path}: the name of a transform ends in .safetensors")
    output.check_creatable()


def write_transform(fitted: "Fitted", output: Output, console: Console) -> None:
    with output.open() as file:
        fitted.write(file, output.path)
    console.warn(*fitted.sample.warnings, *fitted.fit.warnings)
    note = fitted.note
    console.note(f"{note['vectors']} vectors of {note['width']} numbers, {note['kept']} kept")


def apply(
    *,
    transform: Annotated[
        str,
        Option(
            "-t",
            "--transform",
            metavar="PATH",
            help="A transform from sentkit whiten fit.",
        ),
    ],
    output_path: options.Output = "-",
    force: options.Force = False,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.Files = None,
    console: Console,
) -> None:
    """Apply a transform to vectors."""
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.transforms.fitting import apply_transform

    output = Output(output_path, force)
    output.check_creatable()
    rows = RowSource(input_paths(files), field, rejects)
    with rows.open(
        console, output, field_names=VECTOR_FIELDS, reads={"--transform": transform}
    ) as inputs:
        apply_transform(inputs, transform, output.path, output.vectors(replace=True))
