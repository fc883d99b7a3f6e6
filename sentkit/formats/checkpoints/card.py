"""The model card of a checkpoint: README.md."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from sentkit.formats.checkpoints.command_record import is_command_record

# keys in the record of a run
NOT_SETTINGS = (
    "method",
    "seed",
    "base",
    "data",
    "dev",
    "test",
    "entries",
)
TAGS = ("sentence-similarity", "feature-extraction", "sentkit")
CLASSIFY = """```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForSequenceClassification.from_pretrained("FOLDER")
logits = model(**tokenizer("a text", "its pair", return_tensors="pt")).logits
```"""
ENCODE = "```sh\nsentkit encode texts.txt -m FOLDER -o vectors.safetensors\n```"
STOCK = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER")
vectors = model.encode(["a text"])
```"""
NOT_STOCK = "The modules of sentence-transformers cannot express this readout: use sentkit."


def base_name(name: str) -> str:
    """A hub name unchanged, or the last part of a path: its folders are meaningless on other
    machines.
    """
    path = Path(name)
    is_path = path.exists() or path.is_absolute() or len(path.parts) > 2
    if is_path:
        return path.resolve().name
    return name


def card(
    lineage: Mapping[str, Any],
    readout: str,
    *,
    width: int,
    max_length: int | None,
    stock: bool,
    prompt: str | None = None,
    unit: bool = False,
) -> str:
    """The model card as Markdown, equal for equal runs. A static model has no `prompt`.

    `stock`: the modules of sentence-transformers express the readout. `unit`: the vectors have unit
    length.
    """
    parents = lineage.get("parents", [])
    base = base_name(parents[0]) if parents else None
    is_classifier = lineage.get("labels") is not None
    blocks = [
        header(base, is_classifier=is_classifier, stock=stock),
        f"# {lineage.get('method', 'sentkit')}, trained from {base or 'random weights'}",
        *description(lineage, readout, width, max_length),
    ]

    # What a user adds to a text, and the length of the vectors.
    if prompt is not None:
        sentence = "No prompt is added to a text."
        if prompt:
            quoted = json.dumps(prompt, ensure_ascii=False)
            sentence = f"The prompt {quoted} is added before a text."
        have = "have" if unit else "do not have"
        blocks.append(f"{sentence} The vectors {have} unit length.")
    blocks += ["## Training", *training(lineage, base)]
    if is_command_record(lineage):
        blocks += ["## Command", *commands(lineage)]

    blocks.append("## Use")
    if is_classifier:
        blocks.append(CLASSIFY)
    blocks += [ENCODE, STOCK if stock else NOT_STOCK]
    return "\n\n".join(blocks) + "\n"


def header(base: str | None, *, is_classifier: bool, stock: bool) -> str:
    """The metadata of the card in YAML, for the hub."""
    library = "transformers"
    task = "sentence-similarity"
    if is_classifier:
        task = "text-classification"
    elif stock:
        library = "sentence-transformers"
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {task}", "tags:"]
    if stock:
        lines.append("- sentence-transformers")
    lines += [f"- {tag}" for tag in TAGS]
    if base is not None:
        lines.append(f"base_model: {json.dumps(base)}")  # a JSON string is valid YAML
    lines.append("---")
    return "\n".join(lines)


def description(
    lineage: Mapping[str, Any], readout: str, width: int, max_length: int | None
) -> list[str]:
    """What the model gives for a text, and the commands that made it."""
    blocks = []
    labels = lineage.get("labels")
    if labels is not None:
        answer = f"one of {len(labels)} labels" if labels else "a score"
        blocks.append(f"A sequence classification model: a text or a pair gets {answer}.")
    limit = ""
    if max_length is not None:
        limit = f", of at most {max_length} tokens"
    command = f"`sentkit train {lineage.get('method', 'sentkit')}`"
    if lineage.get("exported"):
        command += " and `sentkit export`"
    blocks.append(
        f"A sentence encoder: a text becomes a vector of {width} numbers, read by "
        f"`{readout}`{limit}. Made by {command}."
    )
    return blocks


def training(lineage: Mapping[str, Any], base: str | None) -> list[str]:
    """Tables of the run and of its inputs, its settings and the versions of the software."""
    blocks = [table_of([("", ""), *facts(lineage, base)])]

    run = lineage.get("run", {})
    settings = [
        f"`{name}={said(value)}`" for name, value in run.items() if name not in NOT_SETTINGS
    ]
    blocks.append("Settings: " + ", ".join(settings))

    inputs = lineage.get("inputs", ())
    if inputs:
        rows = [("input", "as", "SHA-256")]
        for record in inputs:
            name = base_name(record["path"]).replace("|", "\\|")
            rows.append((name, record["flag"], record["sha256"] or "unknown"))
        blocks.append(table_of(rows))

    versions = [f"{name} {said(value)}" for name, value in lineage.get("made_with", {}).items()]
    if versions:
        blocks.append(f"Made with {', '.join(versions)}.")
    return blocks


def commands(lineage: Mapping[str, Any]) -> list[str]:
    """The command of the checkpoint and those of its bases, in the order in which they ran."""
    records = [*reversed(lineage.get("bases", ())), lineage]
    lines = "\n".join(record["command"] for record in records)
    blocks = [indent(lines, "    ")]  # a block that no text in a command can end
    if "this_run" in lineage:
        run = ", ".join(f"`{name}={said(value)}`" for name, value in lineage["this_run"].items())
        blocks.append(f"The last command makes several checkpoints. This is the one with {run}.")
    return blocks


def table_of(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first row is its header, which may be empty."""
    column_count = len(rows[0])
    lines = []
    for row in rows:
        if any(row):
            lines.append(f"| {' | '.join(row)} |")
        else:
            lines.append("|" + " |" * column_count)
    rule = "| " + " | ".join(["---"] * column_count) + " |"
    return "\n".join([lines[0], rule, *lines[1:]])


def facts(lineage: Mapping[str, Any], base: str | None) -> list[tuple[str, str]]:
    """The names and values of a run that the lineage has."""
    values = {
        "method": lineage.get("method"),
        "base": base,
        "rows": lineage.get("rows"),
        "seed": lineage.get("run", {}).get("seed"),
        "steps": lineage.get("step"),
    }
    dev_score = lineage.get("dev")
    if dev_score is not None:
        text = f"{dev_score:.2f}{brackets(lineage.get('dev_ci95'))}"
        base_score = lineage.get("dev_before")
        if base_score is not None:
            text += f" (base: {base_score:.2f})"
        values[f"dev, {lineage.get('metric', 'Spearman')} x 100"] = text
    for name, score in lineage.get("test", {}).items():
        if name != "rows" and score is not None:
            interval = brackets(lineage.get("test_ci95", {}).get(name))
            values[f"test, {name} x 100"] = f"{score:.2f}{interval}"
    return [(name, str(value)) for name, value in values.items() if value is not None]


def brackets(limits: Sequence[float | None] | None) -> str:
    """A 95 % interval; older checkpoints have none."""
    low, high = limits or (None, None)
    if low is None or high is None:
        return ""
    return f" [{low:.2f}, {high:.2f}; 95 %]"


def said(value: Any) -> str:
    """The value in the syntax of `--set`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
