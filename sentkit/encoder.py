"""The class `Encoder`: the vectors of `sentkit encode` in Python, for notebooks and engines such as Ray."""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit import model as models
from sentkit.errors import UsageError
from sentkit.model.encoding import Tally, TokenEncoder
from sentkit.model.query_encoder import encode_list, prepare_list
from sentkit.model.reading import ReadingOptions
from sentkit.model.text.tokens import TextTokenizer, WindowOptions


class Encoder:
    """An encoder of texts. The arguments are the flags of `sentkit encode`; see its manual page.

    The vectors are those of the command except for rounding, for any number of texts: "auto" is bf16 on a GPU
    that supports it well, else fp32, or the value of the variable SENTKIT_PRECISION. The space is the same
    in all precisions.
    The weights are loaded at the first use. Threads can share the object. A copy by pickle has the arguments
    and loads its own weights, so processes of an engine can share the object too.
    """

    def __init__(
        self,
        model: str = "nano",
        *,
        column: str = "text",
        device: str = "auto",
        precision: str = "auto",
        on_truncate: str = "warn",
        window: int | None = None,
        stride: int | None = None,
        **reading: Any,
    ) -> None:
        """`column` is the field that a call reads. `reading` are readout, prompt, max_length, dim, ...

        `on_truncate` is "warn" or "window", which is the mean of windows for texts above the maximum length.
        """
        numbers = {name: reading.get(name) for name in ("max_length", "dim")}
        for name, value in {"window": window, "stride": stride, **numbers}.items():
            if value is not None and not (isinstance(value, int | np.integer) and value >= 1):
                raise UsageError(f"{name} is {value!r}, expected a whole number of 1 or more")
        windows = {"on_truncate": on_truncate, "window": window, "stride": stride}
        own = {"column": column, "device": device, "precision": precision}
        self.arguments = model, {**own, **windows, **reading}
        self.column = column
        self.model = models.find_encoder(model, ReadingOptions(**reading), device=device, precision=precision)
        if len(self.model.readouts) > 1:
            raise UsageError("an Encoder has one readout, not several")
        if self.model.tokenizer.whole:
            raise UsageError(f"{model}: the space depends on all texts", advice="use sentkit encode")
        self.tokenizer: TextTokenizer = self.model.tokenizer
        if on_truncate == "window":
            self.tokenizer = self.model.window_tokenizer(WindowOptions(window, stride))
        elif on_truncate != "warn":
            raise UsageError(f'on_truncate is "{on_truncate}", expected "warn" or "window"')
        elif window is not None or stride is not None:
            raise UsageError('window and stride need on_truncate="window"')
        self._loaded: TokenEncoder | None = None
        self._loading = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        model, named = self.arguments
        return partial(Encoder, **named), (model,)

    @property
    def loaded(self) -> TokenEncoder:
        with self._loading:  # threads share the weights
            if self._loaded is None:
                self._loaded = self.model.encoder()
                for note in self._loaded.notes:
                    warnings.warn(note, stacklevel=3)
        return self._loaded

    @property
    def space(self) -> str:
        """The label and hash of the vectors' space, as in the field `_emb`."""
        return self.loaded.specs[0].emb

    @property
    def width(self) -> int:
        return self.loaded.width

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector per text, (n, width): zero for an empty or blank text.

        Warnings count truncated and empty texts.
        """
        if isinstance(texts, str | bytes):
            raise TypeError(f"texts is of type {type(texts).__name__}, expected a sequence of str")
        for place, text in enumerate(texts):
            if not isinstance(text, str):  # a missing value is None or NaN
                raise TypeError(f"texts[{place}] is of type {type(text).__name__}, expected str")
        encoder, tally = self.loaded, Tally()
        vectors = np.empty((len(texts), encoder.width), np.float32)
        start = 0
        for done in encode_list(prepare_list(texts, self.tokenizer), encoder, tally):
            vectors[start : start + len(done.rows)] = done.vectors[0][:, 0]
            start += len(done.rows)
        for remark in encoder.remarks(tally):
            warnings.warn(remark, stacklevel=2)
        return vectors

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch of columns with the columns `embedding` and `_emb` added, for Ray Data.

        A missing text is a TypeError, so remove such rows before.
        """
        if self.column not in batch:
            raise KeyError(f'unknown column "{self.column}"; available: {", ".join(map(str, batch))}')
        vectors = self.encode(list(batch[self.column]))
        return {**batch, "embedding": vectors, "_emb": np.full(len(vectors), self.space)}
