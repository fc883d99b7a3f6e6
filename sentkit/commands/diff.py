"""`sentkit diff`: how two encodings of the same texts differ."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument, Option

from sentkit.console import Console, RowProgress, print_table, print_text, show, slow
from sentkit.digits import significant
from sentkit.errors import AnswerIsNo, DataError, UsageError
from sentkit.flags import options
from sentkit.flags.outputs import Output
from sentkit.flags.rows import RowSource
from sentkit.flags.rules import needs, refuse_together
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from sentkit.formats.rows.block import RowBlock
    from sentkit.formats.rows.rows import Inputs
    from sentkit.metrics.comparison.matches import SidesOfModel
    from sentkit.model import Model
    from sentkit.model.encoding import TokenEncoder

HAZARDS = "sentkit:hazards"
SAMPLE = 5000  # vectors, for the neighbours and the similarities
PRECISION: Final = "fp32"
DEVICE = "auto"
EXPLAINED = 64  # texts that a model encodes under each variant
MEASURES = {"cosine": ("cosine", "lowest"), "neighbours": ("neighbours", "mean")}  # of --fail-under


def diff(
    *,
    a: Annotated[
        str,
        Argument(
            metavar="A",
            help="Vector file or folder, rows with vectors, .npy, or a model; '-' is stdin.",
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
    precision: options.PrecisionOfFloats = PRECISION,
    device: options.Device = DEVICE,
    texts: Annotated[
        str | None,
        Option(
            "--texts",
            metavar="FILE",
            help="The texts of the rows of A in the same order, if A has none, as .npy; or "
            "those that the model A encodes. [default: sentkit:hazards]",
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
            "(neighbours=0.9) is below X; repeatable.",
        ),
    ] = None,
    json: options.Json = False,
    field: options.Field = None,
    console: Console,
) -> None:
    """Compare two encodings of the same texts, or one with a model."""
    refuse_together({"B": b, "--key": key}, {"--model": model})
    flags_of_model = {
        "--precision": precision != PRECISION,
        "--device": device != DEVICE,
        "--texts": texts,
    }
    needs(flags_of_model, {"--model": model})
    limits = parse_limits(fail_under or [])
    encodes_a = is_model(a)
    check_sides(a, b, model, texts, encodes_a=encodes_a)
    if encodes_a and texts is None:
        texts = HAZARDS
    if model is not None:
        # Before the imports below, because numpy reads the number once. Each thread computes other
        # batches.
        limit_threads(of_libraries=1)
    from sentkit.formats.files import check_input
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.comparison.differences import difference
    from sentkit.metrics.comparison.matches import Sides

    # The inputs.
    field_names = (*VECTOR_FIELDS, "entry")
    rows = RowSource((), field)
    for path in (a, b, texts):
        if path is not None and not (path == a and encodes_a):
            check_input(path)

    # The report.
    output = Output()
    as_table = output.on_terminal and not json
    sizes = {"top": top, "sample": SAMPLE, "worst": worst}
    with output.open() as file:
        with slow(console, f"comparing {a} and {b or model}"):
            if model is not None:
                model_of_b = model_to_compare(model, device, precision)
                if encodes_a:
                    assert texts is not None, "a model encodes texts"
                    inputs_of_texts = rows.inputs([texts], field_names)
                    model_of_a = model_to_compare(a, device, precision, refuses_flags=False)
                    sides = sides_of_models(model_of_a, model_of_b, inputs_of_texts, console)
                else:
                    texts_of_a = None if texts is None else rows.inputs([texts], field_names)
                    inputs_of_a = rows.inputs([a], field_names)
                    sides = sides_of_file(inputs_of_a, model_of_b, texts_of_a, console)
                record = compared_with(model_of_b, sides, sizes, console)
            elif b is not None:
                rows.warn_of_prompts(console, [a, b])
                inputs_a = rows.inputs([a], field_names)
                inputs_b = rows.inputs([b], field_names)
                record = difference(Sides(inputs_a, inputs_b), key, **sizes).record
        show([record], lines, file, as_table=as_table, texts=("measure",))
    if as_table:
        print_worst(record.get("worst") or [])
        if model is not None:
            print_text([record["explanation"]["text"]])
    check_limits(record, limits)


def check_sides(
    a: str, b: str | None, model: str | None, texts: str | None, *, encodes_a: bool
) -> None:
    """Raise an error if a side is missing, or if two of them are standard input."""
    if encodes_a and model is None:
        raise UsageError(f"{a} is a model; compare it with another one: -m MODEL")
    if b is None and model is None:
        raise UsageError("B or -m MODEL is missing")
    if a == b == "-":
        raise UsageError("A and B cannot both be standard input")
    if a == texts == "-":
        raise UsageError("A and --texts cannot both be standard input")


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


def is_model(name: str) -> bool:
    """Whether the first argument is a model: an API, an included one, or a checkpoint folder."""
    from pathlib import Path

    from sentkit.formats.checkpoints.folders import HUB_NAME, INCLUDED, is_endpoint
    from sentkit.formats.files import exists, is_folder, run_of

    if exists(Path(name)):
        return is_folder(Path(name)) and run_of(name) is None
    if is_endpoint(name):
        return "#" in name
    if name in INCLUDED or name.startswith("pkg:"):
        return True
    return "/" in name and HUB_NAME.fullmatch(name) is not None and not exists(Path(name).parent)


def model_to_compare(
    name: str, device: str, precision: str, *, refuses_flags: bool = True
) -> "Model":
    """The model of this name. For an API, the flags are an error, or they are for the other
    model.
    """
    from sentkit.formats.checkpoints.folders import is_endpoint
    from sentkit.model import find_encoder
    from sentkit.model.api import ApiModel, refuse_flags
    from sentkit.model.reading import ReadingOptions

    if is_endpoint(name):
        if refuses_flags:
            refuse_flags({"--precision": precision != PRECISION, "--device": device != DEVICE})
        # NaN shows that half precision overflows, or that the bytes have another format.
        return ApiModel(name, ReadingOptions(), finite=False)
    model = find_encoder(name, ReadingOptions(), device=device, precision=precision)
    if model.tokenizer.needs_all_texts:
        advice = "compare two files: sentkit diff A B"
        raise UsageError(f"{name}: a vector depends on all texts of its file", advice=advice)
    return model


def sides_of_file(
    inputs: "Inputs", model: "Model", texts: "Inputs | None", console: Console
) -> "SidesOfModel":
    """The vectors of a file, and those of the model.

    `texts` are those of the rows of the file, if it does not have them.
    """
    from sentkit.metrics.comparison.matches import SidesOfModel

    return SidesOfModel(inputs, model.name, EncodedBy(model, inputs, console), texts)


def sides_of_models(
    model_of_a: "Model", model_of_b: "Model", texts: "Inputs", console: Console
) -> "SidesOfModel":
    """The vectors that two models give for the texts."""
    from sentkit.metrics.comparison.matches import SidesOfModel
    from sentkit.model.query_encoder import EncodedInputs

    console.warn(*model_of_a.notes)
    encoded = EncodedBy(model_of_b, texts, console)
    sides = SidesOfModel(texts, model_of_b.name, encoded)
    sides.paths[0] = model_of_a.name
    sides.readers[0] = EncodedInputs(texts, model_of_a)
    return sides


class EncodedBy:
    """A model that encodes rows; it loads its weights with the first rows."""

    def __init__(self, model: "Model", inputs: "Inputs", console: Console) -> None:
        from sentkit.model.groups import EncodeStats

        self.model = model
        self.console = console
        self.stats = EncodeStats()
        self.progress = RowProgress(console, inputs=inputs)

    @cached_property
    def encoder(self) -> "TokenEncoder":
        encoder = self.model.encoder()
        self.console.warn(*self.model.notes, *encoder.notes)
        return encoder

    def __call__(self, rows: "RowBlock") -> Any:
        import numpy as np

        from sentkit.formats.rows.rows import Rejects
        from sentkit.model.groups import tokenized_groups
        from sentkit.model.query_encoder import encode_list

        groups = tokenized_groups([rows], self.model.tokenizer, Rejects())
        encoded_groups = encode_list(groups, self.encoder, self.stats, self.progress.add)
        return np.concatenate([group.vectors[0] for group in encoded_groups])


def compared_with(
    model: "Model", sides: "SidesOfModel", sizes: Mapping[str, int], console: Console
) -> dict[str, Any]:
    """The report about the vectors of both sides, with the causes if they differ."""
    from sentkit.metrics.comparison.differences import difference
    from sentkit.model.query_encoder import EncodedInputs
    from sentkit.reports.judge import judge

    encoded = sides.encode
    assert isinstance(encoded, EncodedBy), "the sides of this command"
    sides.readers[1].space_name = encoded.encoder.spaces[0].name
    sides.readers[1].width = encoded.encoder.width
    difference_of_model = difference(sides, None, **sizes, examples=EXPLAINED)
    console.warn(*encoded.encoder.warnings(encoded.stats))
    record = difference_of_model.record
    refused = list[DataError]()
    reader_of_a = sides.readers[0]
    if isinstance(reader_of_a, EncodedInputs):
        refused = reader_of_a.refused
        record["refused"] = len(refused)
    if sides.blank:
        console.warn(f"{sides.blank} rows with a blank text are left out")
    if refused:
        console.warn(f"refused rows, which are left out: {len(refused)}; the first is {refused[0]}")
    verdict = judge(difference_of_model, sides, model, refused=len(refused))
    return {**record, "explanation": verdict.record()}


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
    """Raise AnswerIsNo if a measure is below its limit or undefined, or leaves out texts that A
    refused.
    """
    for name, limit in limits.items():
        measure, statistic = MEASURES[name]
        value = record.get(measure, {}).get(statistic)
        if value is None:
            because = "the widths differ" if name == "cosine" else "there is only one vector"
            raise AnswerIsNo(f"{name} is undefined: {because}")
        if not value >= limit:  # also NaN
            raise AnswerIsNo(f"the {statistic} {measure} is {number(value)}, below {limit:g}")
    refused = record.get("refused")
    if limits and refused:
        raise AnswerIsNo(f"{record['a']['file']} refused texts, which are not compared: {refused}")


def number(value: float | None) -> str:
    return "undefined" if value is None else f"{significant(value)}"


def lines(record: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The lines of the table: measure, value, and the vectors that it describes."""
    vectors = f"{record['vectors']} vectors"
    for side in "AB":
        count = record.get(f"only_{side.lower()}", 0)
        if count:
            yield line(f"rows only in {side}", str(count), "")
    if record.get("refused"):
        yield line("texts that A refused", str(record["refused"]), "")

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
    if "explanation" in record:
        yield from lines_of_causes(record["explanation"])


def lines_of_causes(explanation: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The lines of the verdict: equal, or each cause with the share of the difference."""
    if explanation["equal"]:
        within = f"within {explanation['within']:.1e}"
        yield line("verdict", "equal", within)
        return
    yield line("verdict", "different", "")
    for cause in explanation["causes"]:
        texts = f"{cause['texts']} of {cause['of']} texts that differ"
        yield line(f"cause: {cause['cause']}", f"{cause['share']:.0%}", texts)


def line(measure: str, value: str, of: str) -> dict[str, str]:
    return {"measure": measure, "value": value, "of": of}
