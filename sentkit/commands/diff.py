"""`sentkit diff`: how two encodings of the same texts differ."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from sentkit.console import Console, print_table, show, slow
from sentkit.errors import AnswerIsNo, UsageError
from sentkit.flags import options
from sentkit.flags.rows import FieldFlags
from sentkit.flags.rules import Named, Range

SAMPLE = 5000  # vectors, for the neighbours and the similarities
MEASURES = {"cosine": ("cosine", "lowest"), "neighbours": ("neighbours", "mean")}  # of --fail-under


def diff(
    *,
    first: Annotated[str, Named("A")],
    second: Annotated[str, Named("B")],
    key: str | None = None,
    top: Annotated[int, Range(min=1)] = 10,
    worst: Annotated[int, Range(min=0)] = 0,
    fail_under: list[str] | None = None,
    json: bool = False,
    field_flags: FieldFlags,
) -> None:
    """Compare two encodings of the same texts.

    \b
    Examples:
      sentkit diff old.jsonl new.jsonl
      sentkit diff old.jsonl new.jsonl --worst 3 --fail-under cosine=0.99
      sentkit encode titles.txt --precision bf16 | sentkit diff titles.safetensors -
      sentkit diff a.safetensors b.safetensors --key text_a --json

    Most used: A B --key --top --worst --fail-under --json

    The spaces may differ: a new model, version, precision or program. If the widths are
    equal, the report has the number of equal vectors, the lowest, 1st-percentile and
    mean cosine of a row, the largest difference of two numbers, and the ratio of the
    norms, B / A. For any widths, it has the share of the K nearest neighbours that a
    row keeps, and the rank correlation of the similarities of pairs of rows. These two
    come from a random sample of 5,000 rows. A terminal shows a table; otherwise the report is one
    line of JSON.

    Flags:
      A: Vector file or folder, rows with vectors, or .npy; '-' is stdin.
      B: The same rows, encoded in another way.
      --key FIELD: Match rows by this field. [default: by their order]
      --top K: Neighbours to compare.
      --worst N: Also list the N rows that differ most.
      --fail-under MEASURE=X: Exit code 1 if the lowest cosine (cosine=0.99) or the mean overlap
          (neighbours=0.9) is below X; repeatable.
    """
    from sentkit.formats.files import check_input
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.differences import difference

    output, paths = options.ReportFlags(json=json), [first, second]
    limits = limits_of(fail_under or [])
    if paths == ["-", "-"]:
        raise UsageError("A and B cannot both be standard input")
    field_flags.take_snapshots(paths)
    for path in paths:
        check_input(path)
    left, right = (field_flags.inputs([path], (*VECTOR_FIELDS, "entry")) for path in paths)
    with output.open() as out:
        with slow(Console("diff"), f"comparing {first} and {second}"):
            record = difference(left, right, key, top=top, sample=SAMPLE, worst=worst)
        show([record], lines, out, as_table=output.as_table, texts=("measure",))
    if output.as_table and record.get("worst"):
        print_worst(record["worst"])
    check_limits(record, limits)


def limits_of(given: Sequence[str]) -> dict[str, float]:
    limits = dict[str, float]()
    for each in given:
        name, _, value = each.partition("=")
        if name in limits:
            raise UsageError(f'--fail-under "{each}": {name} is given twice')
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = math.nan
        if name not in MEASURES or not math.isfinite(limits[name]):
            raise UsageError(
                f'--fail-under "{each}": expected cosine=X or neighbours=X, for example cosine=0.99'
            )
    return limits


def check_limits(record: Mapping[str, Any], limits: Mapping[str, float]) -> None:
    """Raise AnswerIsNo if a measure is below its limit or undefined."""
    for name, limit in limits.items():
        part, kind = MEASURES[name]
        value = record.get(part, {}).get(kind)
        if value is None:
            because = "the widths differ" if name == "cosine" else "there is only one vector"
            raise AnswerIsNo(f"{name} is undefined: {because}")
        if not value >= limit:  # also NaN
            raise AnswerIsNo(f"the {kind} {part} is {number(value)}, below {limit:g}")


def number(value: float | None) -> str:
    from sentkit.digits import significant

    return "undefined" if value is None else f"{significant(value)}"


def lines(record: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The lines of the table: measure, value, and the vectors that it describes."""

    def line(measure: str, value: str, source: str = "") -> dict[str, str]:
        return {"measure": measure, "value": value, "of": source}

    count = f"{record['vectors']} vectors"
    for side in ("a", "b"):
        if only := record.get(f"only_{side}"):
            yield line(f"rows only in {side.upper()}", str(only))
    if "cosine" in record:
        yield line("equal to the bit", str(record["equal"]), count)
        for name, label in {"lowest": "lowest", "p1": "1st percentile of the", "mean": "mean"}.items():
            yield line(f"{label} cosine", number(record["cosine"][name]), count)
        yield line("largest difference of two numbers", number(record["largest_difference"]), count)
        for name, value in record["norm_ratio"].items():
            yield line(f"{name} norm of B / norm of A", number(value), count)
    else:
        yield line("width of A, B", f"{record['a']['width']}, {record['b']['width']}", count)
    near, pairs = record["neighbours"], record["similarities"]
    for name in ("mean", "lowest"):
        yield line(
            f"{name} overlap of {near['top']} neighbours", number(near[name]), f"{near['rows']} sampled"
        )
    yield line("rank correlation of similarities", number(pairs["spearman"]), f"{pairs['pairs']} pairs")


def print_worst(worst: Sequence[Mapping[str, Any]]) -> None:
    columns = list(dict.fromkeys(name for each in worst for name in each))
    cells = [
        [number(each[name]) if name in MEASURES else str(each.get(name, "")) for name in columns]
        for each in worst
    ]
    texts = [name for name in columns if name not in (*MEASURES, "row")]
    print_table(columns, cells, texts=texts)
