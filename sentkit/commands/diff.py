"""`sentkit diff`: how two encodings of the same texts differ."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from sentkit.console import Console, RowProgress, print_table, print_text, show, slow
from sentkit.errors import AnswerIsNo, UsageError
from sentkit.flags import options
from sentkit.flags.rows import FieldFlags
from sentkit.flags.rules import Excludes, Named, Needs, Range
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from sentkit.formats.rows.block import RowBlock
    from sentkit.formats.rows.rows import Inputs
    from sentkit.metrics.differences import Matches
    from sentkit.model import Model
    from sentkit.model.transformer.variants import Result

SAMPLE = 5000  # vectors, for the neighbours and the similarities
EXPLAINED = 64  # texts that a model encodes under each variant
MEASURES = {"cosine": ("cosine", "lowest"), "neighbours": ("neighbours", "mean")}  # of --fail-under


def diff(
    *,
    first: Annotated[str, Named("A")],
    second: Annotated[str | None, Named("[B]"), Excludes("--model")] = None,
    model: str | None = None,
    machine: Annotated[options.ExactMachineFlags, Needs("--model")],
    key: Annotated[str | None, Excludes("--model")] = None,
    top: Annotated[int, Range(min=1)] = 10,
    worst: Annotated[int, Range(min=0)] = 0,
    fail_under: list[str] | None = None,
    json: bool = False,
    field_flags: FieldFlags,
) -> None:
    """Compare two encodings of the same texts, or one with a model.

    \b
    Examples:
      sentkit diff old.jsonl new.jsonl
      sentkit diff old.jsonl new.jsonl --worst 3 --fail-under cosine=0.99
      sentkit diff new.jsonl -m CHECKPOINT
      sentkit diff a.safetensors b.safetensors --key text_a --json

    Most used: A [B] -m --key --top --worst --fail-under --json

    If the widths are equal, the report has the number of equal vectors, the lowest,
    1st-percentile and mean cosine of a row, the largest difference of two numbers, and
    the ratio of the norms, B / A. For any widths, it has the share of the K nearest
    neighbours that a row keeps, and the rank correlation of the similarities of pairs,
    both from a random sample of 5,000 rows. With -m, B is what the model gives as
    declared. If A differs, the report names the cause: another readout, no unit length,
    a prompt, a length, lower case, positions, precision. A terminal shows a table;
    otherwise the report is one line of JSON.

    Flags:
      A: Vector file or folder, rows with vectors, or .npy; '-' is stdin.
      [B]: The same rows, encoded in another way.
      -m, --model MODEL: Instead of B: the model that should give the vectors of A.
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

    output, console = options.ReportFlags(json=json), Console("diff")
    paths = [first] if second is None else [first, second]
    limits = limits_of(fail_under or [])
    if second is None and model is None:
        raise UsageError("B or -m MODEL is missing")
    if paths == ["-", "-"]:
        raise UsageError("A and B cannot both be standard input")
    field_flags.take_snapshots(paths)
    for path in paths:
        check_input(path)
    inputs = [field_flags.inputs([path], (*VECTOR_FIELDS, "entry")) for path in paths]
    with output.open() as out:
        with slow(console, f"comparing {first} and {second or model}"):
            measures = {"top": top, "sample": SAMPLE, "worst": worst}
            if model is None:
                record, _ = difference(Sides(*inputs), key, **measures)
            else:
                record = compared_with(model, machine, inputs[0], measures, console)
        show([record], lines, out, as_table=output.as_table, texts=("measure",))
    if output.as_table:
        if record.get("worst"):
            print_worst(record["worst"])
        print_text([record["explanation"]["text"]] if model else [])
    check_limits(record, limits)


def compared_with(
    name: str,
    machine: options.ExactMachineFlags,
    inputs: "Inputs",
    measures: Mapping[str, int],
    console: Console,
) -> dict[str, Any]:
    """The report about the vectors of a file and those of a model, with the cause if they differ."""
    import numpy as np

    from sentkit.formats.rows.rows import Rejects
    from sentkit.metrics.differences import SidesOfModel, difference
    from sentkit.model import find_encoder
    from sentkit.model.query_encoder import encode_list
    from sentkit.model.reading import ReadingOptions
    from sentkit.model.text.groups import Tally, prepare

    model = find_encoder(name, ReadingOptions(), device=machine.device, precision=machine.precision)
    console.warn(*model.notes)
    encoder, tally, progress = model.encoder(), Tally(), RowProgress(console)
    console.warn(*encoder.notes)
    progress.share = inputs.meter.share

    def encode(rows: "RowBlock") -> Any:
        groups = prepare([rows], model.tokenizer, Rejects())
        parts = [done.vectors[0] for done in encode_list(groups, encoder, tally, progress.add)]
        return np.concatenate(parts)

    sides = SidesOfModel(inputs, name, encode)
    sides.readers[1].emb, sides.readers[1].width = encoder.specs[0].emb, encoder.width
    record, sample = difference(sides, None, **measures, kept=EXPLAINED)
    progress.done()
    console.warn(*encoder.remarks(tally))
    if sides.blank:
        console.warn(f"{sides.blank} rows with a blank text are left out")
    return {**record, "explanation": explained(record, sample, model, console)}


def explained(
    record: Mapping[str, Any], sample: "Matches", model: "Model", console: Console
) -> dict[str, Any]:
    """Whether the vectors of A are those of the model, or the changes that explain the difference."""
    from sentkit.model.checkpoint_model import CheckpointModel
    from sentkit.model.transformer.variants import EQUAL, explain

    file, cosine = record["a"]["file"], record.get("cosine")
    file = "standard input" if file == "-" else file
    if cosine is not None and 1 - cosine["lowest"] <= EQUAL:
        ratios = record["norm_ratio"]
        if all(abs(math.log(ratios[name])) <= math.sqrt(2 * EQUAL) for name in ("lowest", "highest")):
            return {"equal": True, "text": f"{file} has the vectors that {model.name} gives as declared"}
    if not isinstance(model, CheckpointModel):
        text = f"no cause is known for the difference from {model.name}, a static model"
        return {"equal": False, "text": text}
    console.note(f"the vectors differ: encoding {len(sample)} texts under each change, to find the cause")
    is_explained, best, results = explain(model, [label["text"] for label in sample.labels], sample.left)
    text = "nothing explains the difference"
    if best is not None:
        changed = f"{model.name} {best.name}"
        text = f"{file} has what {changed} gives" if is_explained else f"{text}: the nearest is {changed}"
        declared = f"width {record['b']['width']}" if results[0].variants else measured(results[0])
        text = f"{text} ({measured(best)}; as declared: {declared})"
    return {
        "equal": False,
        "explained": is_explained,
        "text": text,
        "changes": [each.name for each in best.variants] if best else [],
        "texts": len(sample),
        "variants": [each.record() for each in results],
    }


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
