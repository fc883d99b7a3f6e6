"""A transformer checkpoint and its reading options, and the summary that `inspect` prints.

Only `encoder` imports torch and loads the weights.
"""

from typing import TYPE_CHECKING, Any

from sentkit.formats.checkpoints.folders import Checkpoint, is_adapter, read_lora_config
from sentkit.formats.checkpoints.modules import inexpressible
from sentkit.formats.files import readable
from sentkit.formats.vectors.safetensors_header import read_header
from sentkit.model.reading import (
    Reading,
    ReadingOptions,
    check_partial,
    default_readout,
    depth_of,
    plan_reading,
    width_of,
)
from sentkit.model.text.tokens import WindowOptions, WindowTokenizer
from sentkit.model.transformer.architecture import UnsupportedArchitecture, read_architecture
from sentkit.process import may_have_gpu, precision_of_environment

if TYPE_CHECKING:
    from sentkit.model.small_encoder import SmallEncoder
    from sentkit.model.transformer.encoder import TransformerEncoder


READING_FIELDS = {
    *("readout", "template", "full_stop", "steps", "dim", "prompt", "prompts"),
    *("max_length", "lowercase", "prompt_is_read"),
}


def summarize(checkpoint: Checkpoint, reading: Reading) -> dict[str, Any]:
    """Return the JSON object for `inspect`, which ends with the fields of sentkit.json about the origin."""
    config, declared, tokenizer = checkpoint.config, checkpoint.declared, reading.tokenizer
    return {
        "model": readable(checkpoint.name),
        "folder": readable(str(checkpoint.folder)),
        "architecture": config.get("model_type"),
        "runs": runs(checkpoint),
        "layers": depth_of(config),
        "width": width_of(config),
        "heads": config.get("num_attention_heads", config.get("n_heads")),
        **summarize_weights(checkpoint),
        "readout": reading.readouts[0].name,
        "declared_by": declared.source or f"nothing: {reading.readouts[0].name} is used",
        "steps": list(declared.steps),
        "dim": declared.dim,
        "template": tokenizer.template.text if tokenizer.template else None,
        "prompt": tokenizer.prompt,
        "prompts": declared.prompts,
        "max_length": tokenizer.max_length,
        "tokenizer": {
            "kind": type(tokenizer.backend.model).__name__,
            "tokens": tokenizer.backend.get_vocab_size(),
            "lowercase": tokenizer.lowercase,
            "hash": tokenizer.hash,
        },
        "sentence_transformers": stock(checkpoint, reading),
        "lineage": {name: value for name, value in checkpoint.lineage.items() if name not in READING_FIELDS},
    }


def runs(checkpoint: Checkpoint) -> str:
    try:
        read_architecture(checkpoint.config, checkpoint.config_file)
    except UnsupportedArchitecture as reason:
        return f"through transformers ({reason})"
    return "packed"


def summarize_weights(checkpoint: Checkpoint) -> dict[str, Any]:
    """Describe the weight files; only safetensors files have headers with the tensors."""
    files, folder = checkpoint.weights(), checkpoint.transformer
    summary: dict[str, Any] = {
        "files": [file.name for file in files],
        "bytes": sum(file.stat().st_size for file in files),
    }
    if all(file.suffix == ".safetensors" for file in files):
        entries = [entry for file in files for entry in read_header(file).entries.values()]
        summary["tensors"] = len(entries)
        summary["parameters"] = sum(entry.size for entry in entries)
        summary["stored_as"] = sorted({entry.dtype for entry in entries})
    if is_adapter(folder):
        summary["adapter"] = read_lora_config(folder).file.name
    return summary


def stock(checkpoint: Checkpoint, reading: Reading) -> str:
    """Return whether sentence-transformers reads this folder in the same way, and the reason if not."""
    reason = inexpressible(reading.readouts[0])
    if reason is not None:
        return f"no: {reason}"
    if (checkpoint.folder / "modules.json").is_file():
        return "yes, by modules.json"
    readout = "last token" if default_readout(checkpoint.config).name == "last" else "mean"
    return f"no: without modules.json, sentence-transformers uses the {readout} of the last layer"


class CheckpointModel:
    def __init__(
        self,
        checkpoint: Checkpoint,
        options: ReadingOptions,
        *,
        device: str,
        precision: str,
        products: str | None = None,
    ) -> None:
        self.checkpoint, self.device, self.precision = checkpoint, device, precision
        self.products = products
        self.name, self.reading = checkpoint.name, plan_reading(checkpoint, options)
        self.notes = self.reading.notes(self.name)
        self.readouts = [readout.name for readout in self.reading.readouts]
        self.tokenizer, self.sides = self.reading.tokenizer, self.reading.sides

    def window_tokenizer(self, options: WindowOptions) -> WindowTokenizer:
        if options.late:
            check_partial(self.reading.readouts, "--on-truncate late")
        return WindowTokenizer(self.tokenizer, options)

    def encoder(self, tokens: int | None = None) -> "SmallEncoder | TransformerEncoder":
        """Load the weights. A whole input of few `tokens` is encoded without torch, if that is faster."""
        precision = precision_of_environment() if self.precision == "auto" else self.precision
        may_be_bf16 = precision is None and self.device == "auto" and may_have_gpu()
        exact = precision in (None, "fp32") and not may_be_bf16
        if tokens is not None and self.device in ("auto", "cpu") and exact:
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
            products=self.products,
        )

    def summary(self) -> dict[str, Any]:
        return summarize(self.checkpoint, self.reading)
