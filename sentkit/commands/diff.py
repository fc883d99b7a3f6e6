"""`sentkit diff`: how two encodings of the same texts differ."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from sentkit.console import Console, RowProgress, print_table, print_text, show, slow
from sentkit.digits import significant
from sentkit.errors import AnswerIsNo, UsageError
from sentkit.flags import options
from sentkit.flags.outputs import Output
from sentkit.flags.rows import RowSource
from sentkit.flags.rules import needs, refuse_together
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from sentkit.formats.rows.block import RowBlock
    from sentkit.formats.rows.rows import Inputs
    from sentkit.metrics.differences import Difference
    from sentkit.model import Model
    from sentkit.model.checkpoint.causes import Result
    from sentkit.model.checkpoint_model import CheckpointModel

SAMPLE = 5000  # vectors, for the neighbours and the similarities
EXPLAINED = 64  # texts that a model encodes under each variant
MEASURES = {"cosine": ("cosine", "lowest"), "neighbours": ("neighbours", "mean")}  # of --fail-under


def diff(
    *,
    a: Annotated[
        str,
        Argument(
            metavar="A", help="Vector file or folder, rows with vectors, or .npy; '-' is stdin."
        ),
    ],
    b: Annotated[
        str | None,
        Argument(metavar="[B]", help="The same rows, encoded in another way."),
    ] = None,
    model: Annotated[
        str | None,
        Option(
            "-m",
            "--model",
            metavar="MODEL",
            help="Instead of B: the model that should give the vectors of A.",
        ),
    ] = None,
    precision: options.PrecisionOfFloats = "fp32",
    device: options.Device = "auto",
    texts: Annotated[
        str | None,
        Option(
            "--texts",
            metavar="FILE",
            help="The texts of the rows of A in the same order, if A has none, as .npy.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        Option(
            "--key", metavar="FIELD", help="Match rows by this field. [default: by their order]"
        ),
    ] = None,
    top: Annotated[
        int,
        Option("--top", metavar="K", min=1, help="Neighbours to compare."),
    ] = 10,
    worst: Annotated[
        int,
        Option("--worst", metavar="N", min=0, help="Also list the N rows that differ most."),
    ] = 0,
    fail_under: Annotated[
        list[str] | None,
        Option(
            "--fail-under",
            metavar="MEASURE=X",
            help="Exit code 1 if the lowest cosine (cosine=0.99) or the mean overlap "
            "(neighbours=0.9) is "
            "below X; repeatable.",
        ),
    ] = None,
    json: options.Json = False,
    field: options.Field = None,
    console: Console,
) -> None:
    """Compare two encodings of the same texts, or one with a model."""
    refuse_together({"B": b, "--key": key}, {"--model": model})
    flags_of_model = {
        "--precision": precision != "fp32",
        "--device": device != "auto",
        "--texts": texts,
    }
    needs(flags_of_model, {"--model": model})
    limits = parse_limits(fail_under or [])
    if b is None and model is None:
        raise UsageError("B or -m MODEL is missing")
    if a == b == "-":
        raise UsageError("A and B cannot both be standard input")
    if a == texts == "-":
        raise UsageError("A and --texts cannot both be standard input")
    if model is not None:
        limit_threads(of_libraries=1)  # each thread computes batches of its own
    from sentkit.formats.files import check_input
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.differences import difference
    from sentkit.metrics.matches import Sides

    field_names = (*VECTOR_FIELDS, "entry")
    rows = RowSource((), field)
    for path in (a, b, texts):
        if path is not None:
            check_input(path)
    rows.warn_of_prompts(console, [a, b])
    inputs_of_a = rows.inputs([a], field_names)

    output = Output()
    as_table = output.on_terminal and not json
    sizes = {"top": top, "sample": SAMPLE, "worst": worst}
    with output.open() as file:
        with slow(console, f"comparing {a} and {b or model}"):
            if model is not None:
                texts_of_a = None if texts is None else rows.inputs([texts], field_names)
                record = compared_with(
                    model, device, precision, inputs_of_a, texts_of_a, sizes, console
                )
            elif b is not None:
                inputs_of_b = rows.inputs([b], field_names)
                record = difference(Sides(inputs_of_a, inputs_of_b), key, **sizes).record
        show([record], lines, file, as_table=as_table, texts=("measure",))
    if as_table:
        print_worst(record.get("worst") or [])
        if model is not None:
            print_text([record["explanation"]["text"]])
    check_limits(record, limits)


def print_worst(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of the rows that differ most."""
    if not rows:
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = list[list[str]]()
    for row in rows:
        cells.append(
            [number(row[name]) if name in MEASURES else str(row.get(name, "")) for name in columns]
        )
    texts = [name for name in columns if name not in (*MEASURES, "row")]
    print_table(columns, cells, texts=texts)


def compared_with(
    name: str,
    device: str,
    precision: str,
    inputs: "Inputs",
    texts: "Inputs | None",
    sizes: Mapping[str, int],
    console: Console,
) -> dict[str, Any]:
    """The report about the vectors of a file and those of a model, with the cause if they differ.

    `texts` are those of the rows of the file, if it does not have them.
    """
    import numpy as np

    from sentkit.formats.rows.rows import Rejects
    from sentkit.metrics.differences import difference
    from sentkit.metrics.matches import SidesOfModel
    from sentkit.model import find_encoder, is_endpoint
    from sentkit.model.encoding import Tally, tokenized_groups
    from sentkit.model.query_encoder import encode_list
    from sentkit.model.reading import ReadingOptions

    if is_endpoint(name) and precision == "fp32":
        precision = "auto"  # fp32 is the default of this command, and the server's is unknown
    model = find_encoder(name, ReadingOptions(), device=device, precision=precision)
    console.warn(*model.notes)
    encoder = model.encoder()
    tally = Tally()
    progress = RowProgress(console, inputs=inputs)
    console.warn(*encoder.notes)

    def encode(rows: "RowBlock") -> Any:
        groups = tokenized_groups([rows], model.tokenizer, Rejects())
        encoded_groups = encode_list(groups, encoder, tally, progress.add)
        return np.concatenate([group.vectors[0] for group in encoded_groups])

    sides = SidesOfModel(inputs, name, encode, texts)
    sides.readers[1].emb = encoder.specs[0].emb
    sides.readers[1].width = encoder.width
    difference_of_model = difference(sides, None, **sizes, examples=EXPLAINED)
    console.warn(*encoder.remarks(tally))
    if sides.blank:
        console.warn(f"{sides.blank} rows with a blank text are left out")
    explanation = explained(difference_of_model, model, console)
    return {**difference_of_model.record, "explanation": explanation}


def explained(difference: "Difference", model: "Model", console: Console) -> dict[str, Any]:
    """Whether the vectors of A are those of the model, or what explains the difference.

    The order of the rows, a factor of the lengths and changes of the model are tried in this order.
    """
    from sentkit.metrics.differences import common_factor, row_order
    from sentkit.model import is_endpoint
    from sentkit.model.checkpoint.causes import EQUAL
    from sentkit.model.checkpoint_model import CheckpointModel

    record = difference.record
    file = record["a"]["file"]
    file = "standard input" if file == "-" else file
    cosine = record.get("cosine")
    same_direction = cosine is not None and 1 - cosine["lowest"] <= EQUAL
    if same_direction:
        ratios = record["norm_ratio"]  # of the model by A
        if all(
            abs(math.log(ratios[name])) <= math.sqrt(2 * EQUAL) for name in ("lowest", "highest")
        ):
            return {
                "equal": True,
                "text": f"{file} has the vectors that {model.name} gives as declared",
            }
        factor = common_factor(1 / ratios["highest"], 1 / ratios["lowest"])
        if factor is not None and len(difference.sample) > 1:
            text = f"{file} has the directions of {model.name} as declared{with_factor(factor)}"
            return {
                "equal": False,
                "explained": True,
                "text": text,
                "changes": [],
                "factor": factor,
            }
    order = row_order(difference.sample, difference.rows)
    if order is not None:
        text = (
            f"{file} has the vectors of {model.name} as declared, with its {order.name}: "
            f"{order.example}"
        )
        explanation = {"equal": False, "explained": True, "text": text, "changes": [order.name]}
        if order.factor is not None and abs(math.log(order.factor)) > math.sqrt(2 * EQUAL):
            explanation |= {"text": text + with_factor(order.factor), "factor": order.factor}
        return explanation
    if isinstance(model, CheckpointModel):
        return explained_by_changes(difference, model, file, console, same_direction=same_direction)
    kind = "a model behind an API" if is_endpoint(model.name) else "a static model"
    text = f"no cause is known for the difference from {model.name}, {kind}"
    if same_direction:
        text = lengths_only(file, model.name)
    return {"equal": False, "text": text}


def explained_by_changes(
    difference: "Difference",
    model: "CheckpointModel",
    file: str,
    console: Console,
    *,
    same_direction: bool,
) -> dict[str, Any]:
    """The changes of the model that explain the difference, or that nothing does."""
    from sentkit.model.checkpoint.causes import explain

    record = difference.record
    sample = difference.examples
    console.note(
        f"the vectors differ: encoding {len(sample)} texts under each change, to find the cause"
    )
    is_explained, best, results = explain(
        model, [label["text"] for label in sample.labels], sample.a
    )
    widths = f"A has {record['a']['width']} numbers, {model.name} has {record['b']['width']}"
    declared = f"width {record['b']['width']}"
    if results and not results[0].variants:
        declared = measured(results[0])
    explanation: dict[str, Any] = {"equal": False, "explained": is_explained}
    if is_explained and best is not None:
        text = f"{file} has what {model.name} {best.name} gives"
        if best.factor is not None:
            text += with_factor(best.factor)
            explanation["factor"] = best.factor
        text = f"{text} ({measured(best)}; as declared: {declared})"
        changes = [variant.name for variant in best.variants]
    else:
        text = f"nothing explains the difference ({declared if results else widths})"
        if same_direction:
            text = lengths_only(file, model.name)
        changes = []
    return {
        **explanation,
        "text": text,
        "changes": changes,
        "texts": len(sample),
        "variants": [result.record() for result in results],
    }


def with_factor(factor: float) -> str:
    return f"; the length differs by the factor {number(factor)}"


def lengths_only(file: str, model: str) -> str:
    return (
        f"{file} has the directions of {model} as declared, but other lengths, which nothing "
        f"explains"
    )


def measured(result: "Result") -> str:
    return (
        f"mean cosine {number(result.cosines.mean())}, mean norm ratio "
        f"{number(result.ratios.mean())}"
    )


def parse_limits(flags: Sequence[str]) -> dict[str, float]:
    """The limits of --fail-under MEASURE=X by measure."""
    limits = dict[str, float]()
    for flag in flags:
        name, _, value = flag.partition("=")
        if name in limits:
            raise UsageError(f'--fail-under "{flag}": {name} is given twice')
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = math.nan
        if name not in MEASURES or not math.isfinite(limits[name]):
            expected = "cosine=X or neighbours=X, for example cosine=0.99"
            raise UsageError(f'--fail-under "{flag}": expected {expected}')
    return limits


def check_limits(record: Mapping[str, Any], limits: Mapping[str, float]) -> None:
    """Raise AnswerIsNo if a measure is below its limit or undefined."""
    for name, limit in limits.items():
        measure, statistic = MEASURES[name]
        value = record.get(measure, {}).get(statistic)
        if value is None:
            because = "the widths differ" if name == "cosine" else "there is only one vector"
            raise AnswerIsNo(f"{name} is undefined: {because}")
        if not value >= limit:  # also NaN
            raise AnswerIsNo(f"the {statistic} {measure} is {number(value)}, below {limit:g}")


def number(value: float | None) -> str:
    return "undefined" if value is None else f"{significant(value)}"


def lines(record: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The lines of the table: measure, value, and the vectors that it describes."""
    vectors = f"{record['vectors']} vectors"
    for side in "AB":
        count = record.get(f"only_{side.lower()}", 0)
        if count:
            yield line(f"rows only in {side}", str(count), "")

    if "cosine" in record:
        yield line("equal to the bit", str(record["equal"]), vectors)
        for name, label in {
            "lowest": "lowest",
            "p1": "1st percentile of the",
            "mean": "mean",
        }.items():
            yield line(f"{label} cosine", number(record["cosine"][name]), vectors)
        largest = number(record["largest_difference"])
        yield line("largest difference of two numbers", largest, vectors)
        for name, value in record["norm_ratio"].items():
            yield line(f"{name} norm of B / norm of A", number(value), vectors)
    else:
        widths = f"{record['a']['width']}, {record['b']['width']}"
        yield line("width of A, B", widths, vectors)

    neighbours = record["neighbours"]
    for name in ("mean", "lowest"):
        overlap = f"{name} overlap of {neighbours['top']} neighbours"
        yield line(overlap, number(neighbours[name]), f"{neighbours['rows']} sampled")
    similarities = record["similarities"]
    pairs = f"{similarities['pairs']} pairs"
    yield line("rank correlation of similarities", number(similarities["spearman"]), pairs)


def line(measure: str, value: str, of: str) -> dict[str, str]:
    return {"measure": measure, "value": value, "of": of}
