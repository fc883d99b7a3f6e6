"""Flags of `encode` for texts that are longer than the maximum length of the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sentkit.errors import UsageError
from sentkit.flags.rules import Needs

if TYPE_CHECKING:
    from sentkit.model import Model
    from sentkit.model.text.tokens import TextTokenizer

WINDOWED = ("window", "late")


@dataclass(frozen=True)
class LongTextFlags:
    """What happens to texts that are too long."""

    on_truncate: Annotated[
        Literal["warn", "error", "window", "late"],
        typer.Option(
            help="For too long texts: truncate and count them, fail, or encode overlapping windows."
            " late: windows of the token states of the whole text."
        ),
    ] = "warn"
    window: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens of a window. [default: the maximum length]"),
        Needs("--on-truncate window|late"),
    ] = None
    stride: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Tokens to the next window. [default: half of its text]",
        ),
        Needs("--on-truncate window|late"),
    ] = None
    chunks: Annotated[
        bool,
        typer.Option("--chunks", help="Write a row for each window, with its characters."),
        Needs("--on-truncate window|late"),
    ] = False

    def __post_init__(self) -> None:
        if self.on_truncate == "late" and not (self.chunks and self.window):
            missing = "--chunks" if not self.chunks else "--window N"
            raise UsageError(f"--on-truncate late needs {missing}")

    @property
    def windowed(self) -> bool:
        return self.on_truncate in WINDOWED

    @property
    def refuses(self) -> bool:
        """Whether a text above the maximum length is an error."""
        return self.on_truncate in ("error", "late")

    def tokenizer_of(self, model: "Model", *, counts_all: bool) -> "tuple[TextTokenizer, Mapping[str, Any]]":
        """Return the tokenizer of the model, with windows if there are any, and the settings of windows.

        Without `counts_all`, only the start of a long text is tokenized.
        """
        from sentkit.model.checkpoint_model import CheckpointModel

        if isinstance(model, CheckpointModel):
            model.tokenizer.counts_all = counts_all or self.refuses
        if not self.windowed:
            return model.tokenizer, {}
        from sentkit.model.text.tokens import WindowOptions

        options = WindowOptions(self.window, self.stride, self.chunks, late=self.on_truncate == "late")
        tokenizer = model.window_tokenizer(options)
        return tokenizer, tokenizer.record
