"""A checkpoint and its reading options, without weights: encoders, and models that classify texts
and pairs.

Only `encoder` and `load` import torch and load the weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sentkit.arrays import Float64
from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import (
    Checkpoint,
    checkpoint_in,
    find_model,
    is_adapter,
    read_lora_config,
    read_size,
)
from sentkit.formats.checkpoints.modules import StoredDeclaration, inexpressible
from sentkit.formats.files import read_json, read_object, read_object_if_there, shown_path
from sentkit.formats.rows.answers import Answers
from sentkit.formats.rows.block import RowBlock
from sentkit.formats.rows.kinds import TextParser
from sentkit.formats.vectors.tensors import read_header
from sentkit.model.checkpoint_reading import (
    Reading,
    default_readout,
    depth_of,
    plan_reading,
    width_of,
)
from sentkit.model.reading import ReadingOptions
from sentkit.model.text.rules import has_lowercase, library_errors
from sentkit.model.text.token_types import gives_token_types
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.text.tokens import (
    TextTokenizer,
    TokenBlock,
    Tokens,
    WindowOptions,
    WindowTokenizer,
    truncate,
)
from sentkit.model.transformer.architecture import UnsupportedArchitecture, read_architecture
from sentkit.process import may_have_gpu, precision_of_environment

if TYPE_CHECKING:
    from tokenizers import Encoding

    from sentkit.model.checkpoint.classifiers import PackedClassifier, TransformersClassifier
    from sentkit.model.small_encoder import SmallEncoder
    from sentkit.model.transformer.encoder import TransformerEncoder


PACKED = "packed"
# Keys of config.json with the number of attention heads. T5 has num_heads; GPT-2 and XLNet, n_head.
HEADS = ("num_attention_heads", "n_heads", "num_heads", "n_head")


def how_it_runs(checkpoint: Checkpoint) -> str:
    """Packed: the texts of a batch one after the other, without padding, by `Bert`."""
    try:
        read_architecture(checkpoint.config, checkpoint.config_file)
    except UnsupportedArchitecture as reason:
        return f"through transformers ({reason})"
    return PACKED


def summarize_weights(checkpoint: Checkpoint) -> dict[str, Any]:
    """Describe the weight files; only safetensors files have headers with the tensors."""
    files = checkpoint.weight_paths()
    summary: dict[str, Any] = {"files": [file.name for file in files]}
    summary["bytes"] = sum(file.stat().st_size for file in files)
    if all(file.suffix == ".safetensors" for file in files):
        entries = [entry for file in files for entry in read_header(file).entries.values()]
        summary["tensors"] = len(entries)
        summary["parameters"] = sum(entry.size for entry in entries)
        summary["stored_as"] = sorted({entry.dtype for entry in entries})
    if is_adapter(checkpoint.transformer_folder):
        summary["adapter"] = read_lora_config(checkpoint.transformer_folder).file.name
    return summary


def read_by_sentence_transformers(checkpoint: Checkpoint, reading: Reading) -> str:
    """Return whether sentence-transformers reads this folder in the same way, and the reason if
    not.
    """
    reason = inexpressible(reading.readouts[0])
    if reason is not None:
        return f"no: {reason}"
    if (checkpoint.folder / "modules.json").is_file():
        return "yes, by modules.json"
    readout = "last token" if default_readout(checkpoint.config).name == "last" else "mean"
    if "chat_template" in checkpoint.declaration.conflicts:
        return "no: without modules.json, sentence-transformers 6 uses the chat template"
    if not checkpoint.declaration.source:
        return f"yes, by default: the {readout} of the last layer"
    return f"no: without modules.json, sentence-transformers uses the {readout} of the last layer"


class CheckpointModel:
    def __init__(
        self,
        checkpoint: Checkpoint,
        options: ReadingOptions,
        *,
        device: str,
        precision: str,
    ) -> None:
        self.checkpoint = checkpoint
        self.device = device
        self.precision = precision
        self.name = checkpoint.name
        self.reading = plan_reading(checkpoint, options)
        self.notes = self.reading.notes(self.name)
        self.readouts = [readout.name for readout in self.reading.readouts]
        self.tokenizer = self.reading.tokenizer
        self.prompt_of_side = self.reading.prompt_of_side
        self.prompts = checkpoint.declaration.prompts
        self.similarity = checkpoint.declaration.similarity

    def window_tokenizer(self, options: WindowOptions) -> WindowTokenizer:
        return WindowTokenizer(self.tokenizer, options)

    def encoder(self, tokens: int | None = None) -> "SmallEncoder | TransformerEncoder":
        """Load the weights. A whole input of few `tokens` is encoded without torch, if that is
        faster.
        """
        precision = precision_of_environment() if self.precision == "auto" else self.precision
        may_be_bf16 = precision is None and self.device == "auto" and may_have_gpu()
        is_fp32 = precision in (None, "fp32") and not may_be_bf16
        if tokens is not None and self.device in ("auto", "cpu") and is_fp32:
            from sentkit.model.small_encoder import open_small_encoder

            small = open_small_encoder(self.checkpoint, self.reading, tokens)
            if small is not None:
                return small
        from sentkit.model.transformer.encoder import TransformerEncoder

        return TransformerEncoder(
            self.checkpoint,
            self.reading,
            device=self.device,
            precision=self.precision,
        )

    def encoder_of_program(self, threads: int | None) -> "TransformerEncoder":
        """Load the weights for a program in Python, which keeps the threads that torch has."""
        from sentkit.model.transformer.encoder import load_for_program

        return load_for_program(
            self.checkpoint,
            self.reading,
            device=self.device,
            precision=self.precision,
            threads=threads,
        )

    def summary(self) -> dict[str, Any]:
        """Return the JSON object for `inspect`, which ends with the origin in sentkit.json."""
        checkpoint = self.checkpoint
        config = checkpoint.config
        declared = checkpoint.declaration
        tokenizer = self.tokenizer
        readout = self.reading.readouts[0].name
        return {
            "model": shown_path(checkpoint.name),
            "folder": shown_path(str(checkpoint.folder)),
            "architecture": config.get("model_type"),
            "runs": how_it_runs(checkpoint),
            "layers": depth_of(config),
            "width": width_of(config),
            "heads": next((config[name] for name in HEADS if name in config), None),
            **summarize_weights(checkpoint),
            "readout": readout,
            "declared_by": declared.source or f"nothing: {readout} is used",
            "steps": list(declared.step_names),
            "dim": declared.dim,
            "template": tokenizer.template.text if tokenizer.template else None,
            "prompt": tokenizer.prompt,
            "prompts": declared.prompts,
            "max_length": tokenizer.max_length,
            "tokenizer": {
                "kind": type(tokenizer.backend.model).__name__,
                "tokens": tokenizer.backend.get_vocab_size(),
                "lowercase": has_lowercase(tokenizer.rules()),
                "hash": tokenizer.hash,
            },
            "sentence_transformers": read_by_sentence_transformers(checkpoint, self.reading),
            "lineage": checkpoint.lineage,
        }


DECLARATION = "config_sentence_transformers.json"
OLDER = {"sentence_transformers", "sbert_ce_default_activation_function"}  # keys of config.json
FUNCTIONS = {"Sigmoid": "sigmoid", "Identity": "identity", "Softmax": "softmax", "Tanh": "tanh"}


class PairTokenizer(TextTokenizer):
    """Tokenizes sentences, and pairs as one sequence of two segments: `[CLS] a [SEP]` and
    `b [SEP]`. No prompt is added.
    """

    def __init__(self, checkpoint: Checkpoint, max_length: int, types: int) -> None:
        """`types` is the number of token types of the encoder."""
        self.plain = Tokenizer(checkpoint, max_length=max_length)
        self.checkpoint = checkpoint
        self.types = types

    @cached_property
    def second_type(self) -> int:
        """The type of the tokens of the second segment: 1, or 0 if all tokens have one type."""
        checkpoint = self.checkpoint
        is_typed = gives_token_types(checkpoint.transformer_folder, checkpoint.config)
        if self.types < 2 or not is_typed:
            return 0
        with library_errors(self.plain.source):
            return max(self.plain.backend.encode("a", "a").type_ids)

    def __call__(self, texts: Sequence[tuple[str, ...]]) -> TokenBlock:
        """Return the tokens of each row; a row has one text, or each has two."""
        if not texts:
            return TokenBlock.of([])
        columns = self.columns(texts)
        if len(columns) == 1:
            return TokenBlock.of(columns[0])
        tokens = []
        for a, b in zip(*columns, strict=True):
            second = len(a.ids) if self.second_type else 0
            tokens.append(
                Tokens(a.ids + b.ids, a.full_length + b.full_length, second_segment_start=second)
            )
        return TokenBlock.of(tokens)

    def columns(self, texts: Sequence[tuple[str, ...]]) -> list[Sequence[Tokens]]:
        """Return the tokens of each column, the segments of pairs; `texts` has one or two texts for
        each row.
        """
        columns = list(zip(*texts, strict=True))
        if len(columns) == 1:
            return [self.plain(columns[0])]
        with library_errors(self.plain.source):
            encodings = self.plain.backend.encode_batch(list(zip(*columns, strict=True)))
        return [*zip(*map(self.segments, encodings), strict=True)]

    def segments(self, encoding: "Encoding") -> tuple[Tokens, Tokens]:
        """Truncate both texts, the longer one first, and split the sequence before the
        second text.
        """
        # The tokens of both texts, and the room for them.
        text_numbers = encoding.sequence_ids  # 0 or 1; None for special tokens
        counts = (text_numbers.count(0), text_numbers.count(1))
        special = len(text_numbers) - sum(counts)
        room = self.plain.max_length - special  # for the tokens of both texts
        if room < 2:
            problem = (
                f"a maximum length of {self.plain.max_length} tokens leaves no room for two texts"
            )
            raise UsageError(problem)
        rooms = counts
        if sum(counts) > room:
            # The longer text is truncated first, until both have half of the room.
            shorter = min(*counts, room // 2)
            rooms = (room - shorter, shorter)
            if counts[0] <= counts[1]:
                rooms = (shorter, room - shorter)

        # The second segment begins at the second text; if that is empty, at its last special token.
        second_start = text_numbers.index(1) if counts[1] else len(text_numbers) - 1

        def truncated_segment(number: int, tokens: slice) -> Tokens:
            ids = encoding.ids[tokens]
            start = text_numbers[tokens].index(number) if counts[number] else 0
            return truncate(
                ids,
                max_length=len(ids) - counts[number] + rooms[number],
                text_range=(start, start + counts[number]),
                at_start=self.plain.truncates_start,
            )

        first = truncated_segment(0, slice(0, second_start))
        second = truncated_segment(1, slice(second_start, None))
        return first, second


class RowTexts(TextParser):
    """Finds the texts of sentences and pairs; those of a row are one item."""

    def of_block(self, block: RowBlock) -> None:
        super().of_block(block)
        if len(self.names) > 2:
            block.refuse_all("this row is a triplet; a classifier reads sentences and pairs")
        block.texts = [(texts,) for texts in block.texts]


class ClassifierModel:
    """A checkpoint with a classification head. The weights are loaded by `load`."""

    def __init__(self, name: str, device: str, precision: str) -> None:
        self.name = name
        self.device = device
        self.precision = precision
        self.checkpoint = classifier_in(name)
        run = self.checkpoint.sentkit_json.get("run")
        # That of `train`, which uses it for --test.
        trained = run.get("max_length") if isinstance(run, dict) else None
        max_length = trained if type(trained) is int else None
        config = self.checkpoint.config
        source = self.checkpoint.config_file
        try:
            architecture = read_architecture(config, source)
            types = architecture.types
            readout = architecture.pooling
            self.packed = not architecture.family_traits.decoder
        except UnsupportedArchitecture:
            types = read_size(config, source, "type_vocab_size", default=0, least=0)
            readout = "cls"
            self.packed = False
        options = ReadingOptions(readout=readout, prompt="", max_length=max_length)
        reading = plan_reading(self.checkpoint, options)
        self.reading = replace(reading, declared_steps=(), declared_dim=None)
        self.tokenizer = PairTokenizer(self.checkpoint, reading.tokenizer.max_length, types)

    @cached_property
    def answers(self) -> Answers:
        """The classes and the function that config.json and sentence-transformers declare."""
        config = self.checkpoint.config
        source = self.checkpoint.config_file
        # the default of transformers
        names = config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
        if (
            not isinstance(names, dict)
            or not names
            or names.keys() != {*map(str, range(len(names)))}
        ):
            raise DataError('"id2label" is not an object of numbers and labels', source=source)
        classes = tuple(str(names[str(number)]) for number in range(len(names)))
        are_labels = all(isinstance(label, str | int) for label in names.values())
        if len({*classes}) < len(classes) or not are_labels:
            raise DataError(
                '"id2label" has equal labels, or one that is not a string', source=source
            )
        declared = self.declared_function()
        if len(classes) == 1:
            usual = "identity" if config.get("problem_type") == "regression" else "sigmoid"
            return Answers((), declared or usual)
        if config.get("problem_type") == "multi_label_classification" or declared == "sigmoid":
            return Answers(classes, "sigmoid")
        return Answers(classes, "softmax")

    def declared_function(self) -> str | None:
        config = self.checkpoint.config
        older = config.get("sentence_transformers")
        name = read_object_if_there(self.checkpoint.folder / DECLARATION).get("activation_fn")
        if not name and isinstance(older, dict):
            name = older.get("activation_fn")
        name = name or config.get("sbert_ce_default_activation_function")
        if name is None:
            return None
        path, _, class_name = str(name).rpartition(".")
        if class_name not in FUNCTIONS or not path.startswith("torch."):
            problem = f'the function "{str(name)[:80]}" of a CrossEncoder is not supported'
            advice = f"known: {', '.join(FUNCTIONS)}"
            raise DataError(problem, source=str(self.checkpoint.folder), advice=advice)
        return FUNCTIONS[class_name]

    def load(self) -> "PackedClassifier | TransformersClassifier":
        from sentkit.model.checkpoint.classifiers import PackedClassifier, TransformersClassifier

        classifier = PackedClassifier if self.packed else TransformersClassifier
        loaded = classifier(
            self.checkpoint, self.reading, device=self.device, precision=self.precision
        )
        names = max(1, len(self.answers.classes))
        if loaded.width != names:
            problem = f"the head has {loaded.width} outputs, but config.json names {names}"
            raise DataError(problem, source=self.name)
        return loaded

    def scorer(self) -> Callable[[Sequence[tuple[str, str]]], Float64]:
        """Return a function from pairs of texts to the score of each one; the model has one
        output.
        """
        from sentkit.model.encoding import encode_texts

        head = self.load()

        def scores(pairs: Sequence[tuple[str, str]]) -> Float64:
            [outputs] = encode_texts(self.tokenizer(pairs), head, head.tokens_per_batch)
            values = self.answers.values(outputs.astype(np.float64))[:, 0]
            if not np.isfinite(values).all():
                raise DataError("an output of the classifier is NaN or infinity", source=self.name)
            return values

        return scores


def classifier_in(name: str) -> Checkpoint:
    """Read a checkpoint with a classification head; raise a DataError for other models."""
    folder = find_model(name)
    advice = (
        "use one of `sentkit train classify`, a CrossEncoder, or a classifier of `sentkit probe -o`"
    )
    if is_cross_encoder(folder):
        config = read_object(folder / "config.json")
        checkpoint = Checkpoint(
            name,
            folder=folder,
            transformer_folder=folder,
            config=config,
            declaration=StoredDeclaration(),
            sentkit_json={},
        )
    else:
        checkpoint = checkpoint_in(folder, name)
    if checkpoint.declaration.is_static:
        raise DataError("a static model has no classification head", source=name, advice=advice)
    class_name = "no architecture"
    class_names = checkpoint.config.get("architectures")
    if isinstance(class_names, list) and class_names:
        class_name = str(class_names[0])
    if not class_name.endswith("ForSequenceClassification"):
        raise DataError(
            f"not a classifier: config.json has {class_name[:80]}", source=name, advice=advice
        )
    return checkpoint


def is_cross_encoder(folder: Path) -> bool:
    """Whether sentence-transformers declares a CrossEncoder; versions before 6 declare it in
    config.json.

    One with modules after the transformer, or with a prompt before its pairs, is a DataError.
    """
    declaration = read_object_if_there(folder / DECLARATION)
    config = read_object_if_there(folder / "config.json")
    if declaration.get("model_type") != "CrossEncoder" and not config.keys() & OLDER:
        return False
    listing = folder / "modules.json"
    modules = read_json(listing) if listing.is_file() else []
    are_objects = isinstance(modules, list) and all(isinstance(module, dict) for module in modules)
    if not are_objects or [module.get("path") for module in modules] not in ([], [""]):
        raise DataError("a CrossEncoder with several modules is not supported", source=str(listing))
    if declaration.get("default_prompt_name") is not None:
        raise DataError(
            "a CrossEncoder with a prompt is not supported", source=str(folder / DECLARATION)
        )
    return True
