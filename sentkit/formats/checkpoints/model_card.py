"""Write the README.md of a trained checkpoint: description, training and usage."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NOT_SETTINGS = ("method", "seed", "base", "data", "dev", "test", "entries")  # keys in the record of a run
TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "sentkit")


def base_name(name: str) -> str:
    """A hub name unchanged, or the last part of a path: its folders are meaningless on other machines."""
    path = Path(name)
    return path.resolve().name if path.exists() or path.is_absolute() or len(path.parts) > 2 else name


def card(lineage: Mapping[str, Any], readout: str, *, width: int, max_length: int | None, stock: bool) -> str:
    """The model card as Markdown, equal for equal runs. `stock`: the checkpoint has a modules.json."""
    parents, run = lineage.get("parents", []), lineage.get("run", {})
    base = base_name(parents[0]) if parents else None
    method = lineage.get("method", "sentkit")
    labels = lineage.get("labels")
    lines = front_matter(base, stock=stock, classifier=labels is not None)
    lines += [f"# {method}, trained from {base or 'random weights'}", ""]
    if labels is not None:
        what = f"one of {len(labels)} labels" if labels else "a score"
        lines += [f"A sequence classification model: a text or a pair gets {what}.", ""]
    lines += [f"A sentence encoder: a text becomes a vector of {width} numbers, read by `{readout}`,", ""]
    length = "" if max_length is None else f" of at most {max_length} tokens"
    lines[-2] += f"{length}. Made by `sentkit train {method}`."
    lines += ["## Training", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in facts(lineage, base).items()]
    settings = {name: value for name, value in run.items() if name not in NOT_SETTINGS}
    lines += ["", "Settings: " + ", ".join(f"`{name}={said(value)}`" for name, value in settings.items()), ""]
    lines += ["## Use", ""]
    if labels is not None:
        lines += [
            "```python",
            "from transformers import AutoModelForSequenceClassification, AutoTokenizer",
            "",
        ]
        lines += ['tokenizer = AutoTokenizer.from_pretrained("FOLDER")']
        lines += ['model = AutoModelForSequenceClassification.from_pretrained("FOLDER")']
        lines += ['logits = model(**tokenizer("a text", "its pair", return_tensors="pt")).logits', "```", ""]
    lines += ["```sh", "sentkit encode texts.txt -m FOLDER -o vectors.safetensors", "```", ""]
    if stock:
        lines += ["```python", "from sentence_transformers import SentenceTransformer", ""]
        lines += ['model = SentenceTransformer("FOLDER")', 'vectors = model.encode(["a text"])', "```", ""]
    else:
        lines += ["The modules of sentence-transformers cannot express this readout: use sentkit.", ""]
    return "\n".join(lines)


def front_matter(base: str | None, *, stock: bool, classifier: bool) -> list[str]:
    """The YAML header. A JSON string is valid YAML."""
    if classifier:
        lines = ["---", "library_name: transformers", "pipeline_tag: text-classification", "tags:"]
    else:
        lines = ["---", f"library_name: {'sentence-transformers' if stock else 'transformers'}"]
        lines += ["pipeline_tag: sentence-similarity", "tags:"]
    lines += [f"- {tag}" for tag in (TAGS if stock else TAGS[1:])]
    lines += [] if base is None else [f"base_model: {json.dumps(base)}"]
    return [*lines, "---", ""]


def facts(lineage: Mapping[str, Any], base: str | None) -> dict[str, str]:
    run = lineage.get("run", {})
    rows = {"method": lineage.get("method"), "base": base, "rows": lineage.get("rows")}
    rows |= {"seed": run.get("seed"), "steps": lineage.get("step")}
    before, after = lineage.get("dev_before"), lineage.get("dev")
    if after is not None:
        of_base = "" if before is None else f" (base: {before:.2f})"
        rows[f"dev, {lineage.get('metric', 'Spearman')} x 100"] = f"{after:.2f}{of_base}"
    for name, score in lineage.get("test", {}).items():
        if name != "rows" and score is not None:
            rows[f"test, {name} x 100"] = f"{score:.2f}"
    return {name: str(value) for name, value in rows.items() if value is not None}


def said(value: Any) -> str:
    """The value in the syntax of `--set`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
