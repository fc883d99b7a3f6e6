"""A transformer checkpoint and its reading options. Only `encoder` imports torch and loads the weights."""

from typing import TYPE_CHECKING, Any

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.model.checkpoint.summary import summarize
from sentkit.model.reading import ReadingOptions, check_partial, plan_reading
from sentkit.model.text.batching import default_budget
from sentkit.model.text.windows import WindowOptions, WindowTokenizer

if TYPE_CHECKING:
    from sentkit.model.small.encoder import SmallEncoder
    from sentkit.model.transformer.encoder import TransformerEncoder


class CheckpointModel:
    def __init__(
        self, checkpoint: Checkpoint, options: ReadingOptions, *, device: str, precision: str
    ) -> None:
        self.checkpoint, self.device, self.precision = checkpoint, device, precision
        self.name, self.reading = checkpoint.name, plan_reading(checkpoint, options)
        self.notes = self.reading.notes(self.name)
        self.readouts = [readout.name for readout in self.reading.readouts]
        self.tokenizer = self.reading.tokenizer
        self.budget = default_budget(device)

    def window_tokenizer(self, options: WindowOptions) -> WindowTokenizer:
        if options.late:
            check_partial(self.reading.readouts, "--on-truncate late")
        if self.reading.left_out and (options.late or not options.chunks):
            raise UsageError(f"--leave-out cannot be used with --on-truncate {options.mode}")
        return WindowTokenizer(self.tokenizer, options)

    def encoder(self, tokens: int | None = None) -> "SmallEncoder | TransformerEncoder":
        """Load the weights. A whole input of few `tokens` is encoded without torch, if that is faster."""
        if tokens is not None and self.device in ("auto", "cpu") and self.precision in ("auto", "fp32"):
            from sentkit.model.small.encoder import open_small_encoder

            small = open_small_encoder(self.checkpoint, self.reading, tokens)
            if small is not None:
                return small
        from sentkit.model.transformer.encoder import TransformerEncoder

        return TransformerEncoder(self.checkpoint, self.reading, device=self.device, precision=self.precision)

    def summary(self) -> dict[str, Any]:
        return summarize(self.checkpoint, self.reading).record()
