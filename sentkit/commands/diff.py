"""`sentkit diff`: how two encodings of the same texts differ."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sentkit.console import Console, RowProgress, print_table, print_text, show, slow
from sentkit.digits import significant
from sentkit.errors import AnswerIsNo, UsageError
from sentkit.flags import Excludes, Named, Needs, Range, options
from sentkit.flags.rows import FieldFlags
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from sentkit.formats.rows.block import RowBlock
    from sentkit.formats.rows.rows import Inputs
    from sentkit.metrics.differences import Difference
    from sentkit.model import Model
    from sentkit.model.checkpoint.variants import Result
    from sentkit.model.checkpoint_model import CheckpointModel

SAMPLE = 5000  # vectors, for the neighbours and the similarities
EXPLAINED = 64  # texts that a model encodes under each variant
MEASURES = {"cosine": ("cosine", "lowest"), "neighbours": ("neighbours", "mean")}  # of --fail-under


def diff(
    *,
    first: Annotated[str, Named("A")],
    second: Annotated[str | None, Named("[B]"), Excludes("--model")] = None,
    model: str | None = None,
    precision: Annotated[Literal["auto", "fp32", "bf16"], Needs("--model")] = "fp32",
    device: Annotated[str, Needs("--model")] = "auto",
    texts: Annotated[str | None, Needs("--model")] = None,
    key: Annotated[str | None, Excludes("--model")] = None,
    top: Annotated[int, Range(min=1)] = 10,
    worst: Annotated[int, Range(min=0)] = 0,
    fail_under: list[str] | None = None,
    json: bool = False,
    field_flags: FieldFlags,
    console: Console,
) -> None:
    """Compare two encodings of the same texts, or one with a model.

    Flags:
      A: Vector file or folder, rows with vectors, or .npy; '-' is stdin.
      [B]: The same rows, encoded in another way.
      -m, --model MODEL: Instead of B: the model that should give the vectors of A.
      --texts FILE: The texts of the rows of A in the same order, if A has none, as .npy.
      --key FIELD: Match rows by this field. [default: by their order]
      --top K: Neighbours to compare.
      --worst N: Also list the N rows that differ most.
      --fail-under MEASURE=X: Exit code 1 if the lowest cosine (cosine=0.99) or the mean overlap
          (neighbours=0.9) is below X; repeatable.
    """
    if model is not None:
        limit_threads(of_libraries=1)
    from sentkit.formats.files import check_input
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.differences import Sides, difference

    output = options.ReportFlags(json=json)
    paths = [first] if second is None else [first, second]
    limits = limits_of(fail_under or [])
    if second is None and model is None:
        raise UsageError("B or -m MODEL is missing")
    if paths == ["-", "-"]:
        raise UsageError("A and B cannot both be standard input")
    if first == texts == "-":
        raise UsageError("A and --texts cannot both be standard input")
    for path in paths:
        check_input(path)
    rows_of_texts: Inputs | None = None
    if texts is not None:
        check_input(texts)
        rows_of_texts = field_flags.inputs([texts], (*VECTOR_FIELDS, "entry"))
    inputs = [field_flags.inputs([path], (*VECTOR_FIELDS, "entry")) for path in paths]
    with output.open() as out:
        with slow(console, f"comparing {first} and {second or model}"):
            measures = {"top": top, "sample": SAMPLE, "worst": worst}
            if model is None:
                record = difference(Sides(*inputs), key, **measures).record
            else:
                record = compared_with(model, device, precision, inputs[0], rows_of_texts, measures, console)
        show([record], lines, out, as_table=output.as_table, texts=("measure",))
    if output.as_table:
        if far := record.get("worst"):
            columns = list(dict.fromkeys(name for each in far for name in each))
            cells = [
                [number(each[name]) if name in MEASURES else str(each.get(name, "")) for name in columns]
                for each in far
            ]
            print_table(columns, cells, texts=[name for name in columns if name not in (*MEASURES, "row")])
        print_text([record["explanation"]["text"]] if model else [])
    check_limits(record, limits)


def compared_with(
    name: str,
    device: str,
    precision: str,
    inputs: "Inputs",
    texts: "Inputs | None",
    measures: Mapping[str, int],
    console: Console,
) -> dict[str, Any]:
    """The report about the vectors of a file and those of a model, with the cause if they differ.

    `texts` are those of the rows of the file, if it does not have them.
    """
    import numpy as np

    from sentkit.formats.rows.rows import Rejects
    from sentkit.metrics.differences import SidesOfModel, difference
    from sentkit.model import find_encoder
    from sentkit.model.encoding import Tally, tokenized_groups
    from sentkit.model.query_encoder import encode_list
    from sentkit.model.reading import ReadingOptions

    model = find_encoder(name, ReadingOptions(), device=device, precision=precision)
    console.warn(*model.notes)
    encoder, tally, progress = model.encoder(), Tally(), RowProgress(console, inputs=inputs)
    console.warn(*encoder.notes)

    def encode(rows: "RowBlock") -> Any:
        groups = tokenized_groups([rows], model.tokenizer, Rejects())
        parts = [done.vectors[0] for done in encode_list(groups, encoder, tally, progress.add)]
        return np.concatenate(parts)

    sides = SidesOfModel(inputs, name, encode, texts)
    sides.readers[1].emb, sides.readers[1].width = encoder.specs[0].emb, encoder.width
    difference_of_model = difference(sides, None, **measures, kept=EXPLAINED)
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
    from sentkit.model.checkpoint.variants import EQUAL
    from sentkit.model.checkpoint_model import CheckpointModel

    record = difference.record
    file = record["a"]["file"]
    file = "standard input" if file == "-" else file
    cosine = record.get("cosine")
    same_direction = cosine is not None and 1 - cosine["lowest"] <= EQUAL
    if same_direction:
        ratios = record["norm_ratio"]  # of the model by A
        if all(abs(math.log(ratios[name])) <= math.sqrt(2 * EQUAL) for name in ("lowest", "highest")):
            return {"equal": True, "text": f"{file} has the vectors that {model.name} gives as declared"}
        factor = common_factor(1 / ratios["highest"], 1 / ratios["lowest"])
        if factor is not None and len(difference.sample) > 1:
            text = f"{file} has the directions of {model.name} as declared{with_factor(factor)}"
            return {"equal": False, "explained": True, "text": text, "changes": [], "factor": factor}
    order = row_order(difference.sample, difference.rows)
    if order is not None:
        text = f"{file} has the vectors of {model.name} as declared, with its {order.name}: {order.example}"
        explanation = {"equal": False, "explained": True, "text": text, "changes": [order.name]}
        if order.factor is not None and abs(math.log(order.factor)) > math.sqrt(2 * EQUAL):
            explanation |= {"text": text + with_factor(order.factor), "factor": order.factor}
        return explanation
    if isinstance(model, CheckpointModel):
        return explained_by_changes(difference, model, file, console, same_direction=same_direction)
    text = f"no cause is known for the difference from {model.name}, a static model"
    if same_direction:
        text = lengths_only(file, model.name)
    return {"equal": False, "text": text}


def explained_by_changes(
    difference: "Difference", model: "CheckpointModel", file: str, console: Console, *, same_direction: bool
) -> dict[str, Any]:
    """The changes of the model that explain the difference, or that nothing does."""
    from sentkit.model.checkpoint.variants import explain

    record, sample = difference.record, difference.kept
    console.note(f"the vectors differ: encoding {len(sample)} texts under each change, to find the cause")
    is_explained, best, results = explain(model, [label["text"] for label in sample.labels], sample.a)
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
    return f"{file} has the directions of {model} as declared, but other lengths, which nothing explains"


def measured(result: "Result") -> str:
    return f"mean cosine {number(result.cosines.mean())}, mean norm ratio {number(result.ratios.mean())}"


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
    return "undefined" if value is None else f"{significant(value)}"


def lines(record: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The lines of the table: measure, value, and the vectors that it describes."""
    cells = [(f"rows only in {side}", f"{record.get(f'only_{side.lower()}', 0)}", "") for side in "AB"]
    cells = [each for each in cells if each[1] != "0"]
    count, near, pairs = f"{record['vectors']} vectors", record["neighbours"], record["similarities"]
    if "cosine" in record:
        cells.append(("equal to the bit", str(record["equal"]), count))
        for name, label in {"lowest": "lowest", "p1": "1st percentile of the", "mean": "mean"}.items():
            cells.append((f"{label} cosine", number(record["cosine"][name]), count))
        cells.append(("largest difference of two numbers", number(record["largest_difference"]), count))
        for name, value in record["norm_ratio"].items():
            cells.append((f"{name} norm of B / norm of A", number(value), count))
    else:
        cells.append(("width of A, B", f"{record['a']['width']}, {record['b']['width']}", count))
    for name in ("mean", "lowest"):
        overlap = f"{name} overlap of {near['top']} neighbours"
        cells.append((overlap, number(near[name]), f"{near['rows']} sampled"))
    cells.append(("rank correlation of similarities", number(pairs["spearman"]), f"{pairs['pairs']} pairs"))
    return (dict(zip(("measure", "value", "of"), each, strict=True)) for each in cells)
