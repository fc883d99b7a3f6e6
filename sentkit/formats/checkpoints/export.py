"""Writes checkpoint folders in the format of Hugging Face, with the old schema of sentence-transformers.

All versions of sentence-transformers read the old schema with its six pooling booleans. A readout that stock
modules cannot express gets no modules.json, because an incomplete one would give wrong vectors. `card` is the
README.md of a trained checkpoint.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import CannotCreateError
from sentkit.formats.checkpoints.end_token import with_end_token
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.formats.checkpoints.lora import CONFIG as ADAPTER_CONFIG
from sentkit.formats.checkpoints.lora import WEIGHTS as ADAPTER_WEIGHTS
from sentkit.formats.checkpoints.modules import DENSE_ACTIVATIONS, JOINED, POOLING, PROMPTS, READOUTS, Pooler
from sentkit.formats.checkpoints.readout import CONV, POOLED, WK, Readout
from sentkit.formats.files import read_object, write_json
from sentkit.formats.lexicons.model2vec import Table, write_table
from sentkit.formats.outputs.temporary import private_folder, publish_folder
from sentkit.formats.vectors.tensors import write_arrays

OLD = "sentence_transformers.models."
RECEIVED = {**POOLED, CONV: "mean"}  # readout -> its reduction in a Pooling module


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer after the readout: activation(x W' + b)."""

    weight: NDArray[np.float32]  # (k, d)
    bias: NDArray[np.float32]  # (k,)
    activation: str = "identity"  # a key of DENSE_ACTIVATIONS


@dataclass(frozen=True, slots=True)
class LayerNorm:
    weight: NDArray[np.float32]  # (d,)
    bias: NDArray[np.float32]  # (d,)


@dataclass(frozen=True, slots=True)
class Convolution:
    """Convolutions over the token states, each with the same number of channels; see `CONV`."""

    layers: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]]  # weights (c, d, kernel), biases (c,)


Normalize = str  # the word "normalise"


@dataclass(frozen=True, slots=True)
class DeclarationToWrite:
    """The readout and the input settings of the checkpoint to write."""

    readout: Readout
    width: int
    depth: int
    max_length: int
    steps: Sequence[Dense | LayerNorm | Normalize] = ()  # after the readout
    dim: int | None = None  # the first numbers of the vector to keep, after the steps
    prompt: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt_is_read: bool = True
    lowercase: bool = False
    template: str | None = None
    full_stop: str = "none"
    pooler: Dense | None = None  # for a readout through the pooler; stock modules apply it after cls or mean
    pooler_note: Pooler = field(default_factory=Pooler)
    convolution: Convolution | None = None  # for the readout `conv`
    lacks_pooler: bool = False  # the architecture has a pooler, but the weights do not contain it

    @property
    def inexpressible(self) -> str | None:
        """The reason why stock sentence-transformers cannot read the checkpoint; None if it can."""
        if self.readout.pooled and self.pooler is None:
            return "the readout uses a pooler that transformers runs"
        return inexpressible(self.readout)


def inexpressible(readout: Readout) -> str | None:
    """The reason why stock modules cannot express this readout; None if they can."""
    if readout.reduction in WK:
        return "the readout weights the layers of each token"
    order = [READOUTS[word] for word in JOINED]
    parts = [part.reduction for part in readout.parts]
    if len(parts) > 1 and parts != [name for name in order if name in parts]:
        return "the readout joins vectors in another order than a Pooling module"
    return "the readout uses the mask token of a template" if readout.reduction == "token" else None


def write_steps(folder: Path, steps: Sequence[Dense | LayerNorm | Normalize]) -> list[str]:
    """Write a folder for each layer. Returns the steps in order: a folder name or "normalise"."""
    names = []
    for place, step in enumerate(steps, start=2):
        if isinstance(step, str):
            names.append(step)
            continue
        config: dict[str, Any]
        if isinstance(step, Dense):
            kind, layer = "Dense", "linear"
            config = {
                "in_features": step.weight.shape[1],
                "out_features": step.weight.shape[0],
                "bias": True,
                "activation_function": DENSE_ACTIVATIONS[step.activation],
            }
        else:
            kind, layer, config = "LayerNorm", "norm", {"dimension": len(step.weight)}
        name = f"{place}_{kind}"
        write_json(folder / name / "config.json", config)
        arrays = {f"{layer}.weight": step.weight, f"{layer}.bias": step.bias}
        write_arrays(folder / name / "model.safetensors", arrays)
        names.append(name)
    return names


def write_modules(
    folder: Path, declaration: DeclarationToWrite, steps: Sequence[str], layers: Sequence[int]
) -> None:
    modules = [("Transformer", "")]
    if layers:
        write_layers(folder / "0_WeightedLayerPooling", declaration, layers)
        modules.append(("WeightedLayerPooling", "0_WeightedLayerPooling"))
    if declaration.convolution is not None:
        write_convolution(folder / "0_CNN", declaration.convolution)
        modules.append(("CNN", "0_CNN"))
    reductions = [RECEIVED.get(part.reduction, part.reduction) for part in declaration.readout.parts]
    pooling = {key: READOUTS[word] in reductions for key, word in POOLING.items()}
    if not declaration.prompt_is_read:
        pooling["include_prompt"] = False
    width = declaration.width // len(reductions)
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": width, **pooling})
    modules.append(("Pooling", "1_Pooling"))
    for place, step in enumerate(steps, start=2):
        modules.append(
            ("Normalize", f"{place}_Normalize") if step == "normalise" else (step.partition("_")[2], step)
        )
    listing = [
        {"idx": place, "name": str(place), "path": path, "type": OLD + kind}
        for place, (kind, path) in enumerate(modules)
    ]
    write_json(folder / "modules.json", listing)


def write_convolution(folder: Path, convolution: Convolution) -> None:
    config = {
        "in_word_embedding_dimension": convolution.layers[0][0].shape[1],
        "out_channels": len(convolution.layers[0][0]),
        "kernel_sizes": [weight.shape[2] for weight, _ in convolution.layers],
        "stride_sizes": [1] * len(convolution.layers),
    }
    write_json(folder / "cnn_config.json", config)
    arrays = {
        f"convs.{number}.{name}": array
        for number, layer in enumerate(convolution.layers)
        for name, array in zip(("weight", "bias"), layer, strict=True)
    }
    write_arrays(folder / "model.safetensors", arrays)


def write_layers(folder: Path, declaration: DeclarationToWrite, layers: Sequence[int]) -> None:
    start = min(layers)
    weights = np.zeros(declaration.depth + 1 - start, np.float32)
    weights[[layer - start for layer in layers]] = 1.0
    config = {
        "word_embedding_dimension": declaration.width,
        "layer_start": start,
        "num_hidden_layers": declaration.depth,
    }
    write_json(folder / "config.json", config)
    write_arrays(folder / "model.safetensors", {"layer_weights": weights})


def write_prompts(folder: Path, declaration: DeclarationToWrite) -> None:
    """Write all prompts. The default prompt has its own name if it is one of the named ones."""
    prompt, prompts = declaration.prompt, declaration.prompts
    name = next((name for name, text in prompts.items() if text == prompt), "default") if prompt else None
    write_json(
        folder / PROMPTS,
        {
            "prompts": prompts if name is None else {**prompts, name: prompt},
            "default_prompt_name": name,
            "similarity_fn_name": "cosine",
            **({"truncate_dim": declaration.dim} if declaration.dim else {}),
        },
    )


BESIDE_WEIGHTS = ("*.json", "*.txt", "*.model", "LICENSE*")
CARRIED = (*BESIDE_WEIGHTS, "*.md", "model*.safetensors", "pytorch_model*.bin", *ADAPTER_WEIGHTS)
REWRITTEN = {"modules.json", "sentkit.json", "sentence_bert_config.json", PROMPTS}
INDEXES = {"model.safetensors.index.json", "pytorch_model.bin.index.json"}


def export_checkpoint(
    checkpoint: Checkpoint,
    folder: Path,
    declaration: DeclarationToWrite,
    lineage: Mapping[str, Any],
    *,
    force: bool,
    store: str | None = None,
    write_weights: Callable[[Path], None] | None = None,
) -> None:
    """Copy the files of a checkpoint to a new folder with a new declaration. See `new_folder`.

    `write_weights` writes the weights in the type `store`, instead of a copy.
    """
    with new_folder(folder, force=force) as part:
        if write_weights is None:
            carry(checkpoint, part, CARRIED)
            declare(part, checkpoint.config, declaration, lineage)
        else:
            carry(checkpoint, part, (*BESIDE_WEIGHTS, "*.md"), but=REWRITTEN | INDEXES | {ADAPTER_CONFIG})
            write_weights(part / "model.safetensors")
            config = with_dtype(checkpoint.config, store) if store else checkpoint.config
            write_json(part / "config.json", config)
            declare(part, config, declaration, lineage)
        if "method" in checkpoint.lineage:  # the card of the base states another readout, prompt or length
            own = {**checkpoint.lineage, **lineage, "parents": checkpoint.parents, "exported": True}
            write_card(part, own, declaration)


def with_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The config with the type that transformers uses; it ignores the type in the weights file."""
    return {**{name: value for name, value in config.items() if name != "torch_dtype"}, "dtype": dtype}


def write_folder(
    folder: Path,
    checkpoint: Checkpoint,
    declaration: DeclarationToWrite,
    lineage: Mapping[str, Any],
    *,
    write_weights: Callable[[Path], None],
    write_heads: Callable[[Path], None] | None = None,
) -> None:
    """Fill an empty folder with a trained checkpoint: new float32 weights, and the other files of its base.

    The README of the base is not copied, because it describes another model.
    """
    carry(
        checkpoint, folder, BESIDE_WEIGHTS, but=REWRITTEN | INDEXES | {ADAPTER_CONFIG}
    )  # the trained weights include the adapter
    write_weights(folder / "model.safetensors")
    if write_heads is not None:
        write_heads(folder / "heads.safetensors")
    config = with_dtype(checkpoint.config, "float32")
    write_json(folder / "config.json", config)
    declare(folder, config, declaration, lineage)


def write_static_folder(
    folder: Path, checkpoint: Checkpoint, table: Table, lineage: Mapping[str, Any]
) -> None:
    """Fill an empty folder with a static model: a new table in its type, and the other files of its base.

    Programs that read the base can therefore read it.
    """
    for pattern in BESIDE_WEIGHTS:
        for file in checkpoint.folder.rglob(pattern):
            if file.is_file() and file.name not in ("sentkit.json", *INDEXES):
                copy = folder / file.relative_to(checkpoint.folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
    place = folder / checkpoint.transformer.relative_to(checkpoint.folder)
    write_table(place, checkpoint.transformer, table)
    if (place / "config.json").is_file():
        of_table = {"hidden_dim": table.rows.shape[1], "embedding_dtype": table.rows.dtype.name}
        own = {name: value for name, value in of_table.items() if name in checkpoint.config}
        write_json(place / "config.json", checkpoint.config | own)
    write_json(folder / "sentkit.json", lineage)


@contextmanager
def new_folder(folder: Path, *, force: bool) -> Iterator[Path]:
    """Yield a temporary folder; rename it to `folder` at the end. `force` replaces a folder of sentkit."""
    name, folder = folder, folder.resolve()
    if folder.exists() and not (force and (folder / "sentkit.json").is_file()):
        if (folder / "sentkit.json").is_file():
            raise CannotCreateError(f"{name}: already exists", advice="use -f to overwrite it")
        problem = f"{name}: already exists and is not a checkpoint of sentkit"
        raise CannotCreateError(problem, advice="choose another -o")
    if Path.cwd().is_relative_to(folder):
        raise CannotCreateError(f"{name}: is the current folder, which cannot be replaced")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with private_folder(folder, str(name)) as part:
        yield part
        publish_folder(part, folder, force=force, name=str(name))


def carry(checkpoint: Checkpoint, folder: Path, patterns: Sequence[str], but: Set[str] = REWRITTEN) -> None:
    """Copy the files of the transformer that match the patterns."""
    for pattern in patterns:
        for file in checkpoint.transformer.glob(pattern):
            if file.is_file() and file.name not in but:
                shutil.copyfile(file, folder / file.name)
    if (folder / "tokenizer.json").is_file():
        rules = read_object(folder / "tokenizer.json")
        changed = with_end_token(rules, checkpoint.transformer)
        if changed is not rules:
            write_json(folder / "tokenizer.json", changed)


def declare(
    folder: Path, config: Mapping[str, Any], declaration: DeclarationToWrite, lineage: Mapping[str, Any]
) -> None:
    """Write the declaration files of a checkpoint: sentkit.json, and modules.json if possible."""
    pooler = [] if declaration.pooler is None else [declaration.pooler]
    behind_states = write_steps(folder, [*pooler, *declaration.steps])
    write_json(
        folder / "sentkit.json",
        {
            "readout": declaration.readout.name,
            **({"template": declaration.template} if declaration.template else {}),
            **({"pooler": asdict(note)} if (note := declaration.pooler_note) != Pooler() else {}),
            "full_stop": declaration.full_stop,
            "steps": behind_states[len(pooler) :],  # the readout `pooler` includes this layer
            **({"dim": declaration.dim} if declaration.dim else {}),
            "prompt": declaration.prompt,
            **({"prompts": declaration.prompts} if declaration.prompts else {}),
            **({} if declaration.prompt_is_read else {"prompt_is_read": False}),
            "max_length": declaration.max_length,
            "lowercase": declaration.lowercase,
            **lineage,
        },
    )
    lengths = {"max_seq_length": declaration.max_length, "do_lower_case": declaration.lowercase}
    # Without this, transformers initialises a random pooler and warns. All versions of sentence-transformers
    # accept this old name of the argument.
    without = {"model_args": {"add_pooling_layer": False}} if declaration.lacks_pooler else {}
    write_json(folder / "sentence_bert_config.json", lengths | without)
    if declaration.inexpressible is None:
        layers = declaration.readout.resolved(declaration.depth)
        averaged = layers != (declaration.depth,)
        # sentence-transformers passes the layers on only if output_hidden_states is set.
        write_json(folder / "config.json", {**config, **({"output_hidden_states": True} if averaged else {})})
        write_modules(folder, declaration, behind_states, layers if averaged else ())
        write_prompts(folder, declaration)


def write_card(folder: Path, lineage: Mapping[str, Any], declaration: DeclarationToWrite) -> None:
    widths = [declaration.width, *(len(step.weight) for step in declaration.steps if isinstance(step, Dense))]
    text = card(
        lineage,
        declaration.readout.name,
        width=declaration.dim or widths[-1],
        max_length=declaration.max_length,
        stock=declaration.inexpressible is None,
        prompt=declaration.prompt,
        unit="normalise" in declaration.steps,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


NOT_SETTINGS = ("method", "seed", "base", "data", "dev", "test", "entries")  # keys in the record of a run
TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "sentkit")


def base_name(name: str) -> str:
    """A hub name unchanged, or the last part of a path: its folders are meaningless on other machines."""
    path = Path(name)
    return path.resolve().name if path.exists() or path.is_absolute() or len(path.parts) > 2 else name


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
    """The model card as Markdown, equal for equal runs. `stock`: the checkpoint has a modules.json.

    `prompt` is None for a static model.
    """
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
    exported = " and `sentkit export`" if lineage.get("exported") else ""
    lines[-2] += f"{length}. Made by `sentkit train {method}`{exported}."
    if prompt is not None:
        quoted = json.dumps(prompt, ensure_ascii=False)
        before = f"The prompt {quoted} is added before" if prompt else "No prompt is added to"
        lines += [f"{before} a text. The vectors {'have' if unit else 'do not have'} unit length.", ""]
    lines += ["## Training", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in facts(lineage, base).items()]
    settings = {name: value for name, value in run.items() if name not in NOT_SETTINGS}
    lines += ["", "Settings: " + ", ".join(f"`{name}={said(value)}`" for name, value in settings.items()), ""]
    lines += inputs_of_card(lineage)
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


def inputs_of_card(lineage: Mapping[str, Any]) -> list[str]:
    """The files and checkpoints of the command without their folders, with digests, and the versions."""
    inputs, versions = lineage.get("command", {}).get("inputs", ()), lineage.get("made_with", {})
    lines = ["| input | as | SHA-256 |", "| --- | --- | --- |"] if inputs else []
    for each in inputs:
        name = base_name(each["path"]).replace("|", "\\|")
        lines.append(f"| {name} | {each['flag']} | {each['sha256'] or 'unknown'} |")
    environment = ", ".join(f"{name} {said(value)}" for name, value in versions.items())
    if environment:
        replay = "`sentkit inspect FOLDER --replay` prints the commands."
        lines += [*([""] if inputs else []), f"Made with {environment}. {replay}", ""]
    return lines


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
