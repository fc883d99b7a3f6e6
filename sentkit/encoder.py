"""The class `Encoder`: the vectors of `sentkit encode` in Python, for notebooks and engines such as
Ray.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentkit import model as models
from sentkit.errors import DataError, SentkitError, UsageError
from sentkit.metrics.similarity import BLOCKS, SIMILARITIES
from sentkit.model.checkpoint_model import CheckpointModel
from sentkit.model.encoding import TokenEncoder
from sentkit.model.forks import LOADING, ForkLock
from sentkit.model.groups import EncodeStats
from sentkit.model.mteb import model_meta, prompt_of_task, texts_of_task
from sentkit.model.query_encoder import encode_list, has_surrogate, prepare_list
from sentkit.model.reading import ReadingOptions
from sentkit.model.text.tokens import TextTokenizer, WindowOptions
from sentkit.process import check_threads, threads_of_environment

DEVICE = re.compile(r"cpu|auto(:\d{1,4})?|cuda(:\d{1,2})?")
PRECISIONS = ("auto", "fp32", "bf16", "int8")
MODES = ("warn", "window")  # of on_truncate
FLAG = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")  # not in a path such as models--org--name


# The arguments of `encode` in sentence-transformers: their values that `encode` has, too, and what
# to use for others.
OF_SENTENCE_TRANSFORMERS: dict[str, tuple[tuple[object, ...], str]] = {
    "batch_size": ((), "leave it out; batches have a fixed number of tokens"),
    "show_progress_bar": (
        (False, None),
        "there is no progress bar; sentkit encode has one",
    ),
    "convert_to_numpy": ((True,), "the vectors are a numpy array"),
    "convert_to_tensor": ((False,), "use torch.from_numpy(encoder.encode(texts))"),
    "normalize_embeddings": ((), "Encoder(model, normalize=True) decides, and the space says so"),
    "output_value": (("sentence_embedding",), "only the vectors of texts are returned"),
    "precision": (("float32",), "use Encoder(model, precision=...), and encode --store for int8"),
    "device": ((None,), "use Encoder(model, device=...)"),
    "prompt": ((None,), "use Encoder(model, prompt=...)"),
    "prompt_name": ((None,), "use Encoder(model, prompt_name=...)"),
    "truncate_dim": ((None,), "use Encoder(model, dim=...)"),
    "pool": ((None,), "share the object with the processes of an engine"),
    "chunk_size": ((None,), "share the object with the processes of an engine"),
}


class ArgumentError(UsageError, ValueError):
    """An argument with a wrong value."""


def with_arguments(text: str) -> str:
    """The text with the names of arguments instead of flags: max_length instead of --max-length.

    Flags of other programs are unchanged, such as in `hf download NAME --revision R`.
    """
    arguments = signature(Encoder).parameters

    def argument_of(flag: re.Match[str]) -> str:
        name = flag[1].replace("-", "_")
        return name if name in arguments else flag[0]

    return FLAG.sub(argument_of, text)


@contextmanager
def named_as_arguments() -> Iterator[None]:
    """Turn flags in errors into the arguments of the same names. A UsageError becomes an
    ArgumentError.
    """
    try:
        yield
    except ArgumentError:
        raise
    except UsageError as error:
        problem = str(error)
        if error.advice is not None:
            problem += f" ({error.advice})"
        raise ArgumentError(with_arguments(problem)) from error
    except SentkitError as error:
        error.args = (with_arguments(str(error)),)
        if error.advice is not None:
            error.advice = with_arguments(error.advice)
        raise


def check_text(name: str, value: object, *, optional: bool = True) -> None:
    if not (isinstance(value, str) or (optional and value is None)):
        raise TypeError(f"{name} is of type {type(value).__name__}, expected str")


def check_number(name: str, value: object) -> int | None:
    """The number as an int, also if it is one of numpy, which JSON does not have."""
    if value is None:
        return None
    is_number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not (is_number and int(value) >= 1):  # type: ignore[call-overload]
        raise ArgumentError(f"{name} is {value!r}, expected a whole number of 1 or more")
    return int(value)  # type: ignore[call-overload]


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        quoted = [f'"{choice}"' for choice in choices]
        expected = f"{', '.join(quoted[:-1])} or {quoted[-1]}"
        raise ArgumentError(f'{name} is "{value}", expected {expected}')


class Encoder:
    """An encoder of texts. The arguments are the flags of `sentkit encode`; see sentkit-encoder(3).

    The vectors are those of the command except for rounding, for any number of texts: "auto" is
    bf16 on a GPU that supports it well, else fp32, or the value of the variable SENTKIT_PRECISION.
    The space is the same in all precisions. The weights are loaded at the first use. Threads can
    share the object, and so can a forked child. A copy by pickle has the arguments and loads its
    own weights, so processes of an engine can share the object too.
    """

    def __init__(
        self,
        model: str = "nano",
        *,
        readout: str | None = None,
        template: str | None = None,
        full_stop: str | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_length: int | None = None,
        normalize: bool = False,
        dim: int | None = None,
        transform: str | None = None,
        on_truncate: str = "warn",
        window: int | None = None,
        stride: int | None = None,
        device: str = "auto",
        precision: str = "auto",
        threads: int | None = None,
        column: str = "text",
    ) -> None:
        """`column` is the field that a call reads.

        `on_truncate` is "warn" or "window", which is the mean of windows for texts above the
        maximum length. `threads` compute on a CPU. The default is SENTKIT_THREADS, else the number
        of threads that torch has.
        """
        # The types of the arguments, and their values, as a command line has them checked by typer.
        options: dict[str, Any] = {
            "readout": readout,
            "template": template,
            "full_stop": full_stop,
            "prompt": prompt,
            "prompt_name": prompt_name,
            "transform": transform,
        }
        choices = {
            "on_truncate": on_truncate,
            "device": device,
            "precision": precision,
            "column": column,
        }
        for name, value in options.items():
            check_text(name, value)
        for name, value in {"model": model, **choices}.items():
            check_text(name, value, optional=False)
        max_length = check_number("max_length", max_length)
        dim = check_number("dim", dim)
        window = check_number("window", window)
        stride = check_number("stride", stride)
        threads = check_number("threads", threads)
        numbers: dict[str, Any] = {"max_length": max_length, "dim": dim}
        if not isinstance(normalize, bool | np.bool):
            raise TypeError(f"normalize is of type {type(normalize).__name__}, expected bool")
        check_choice("on_truncate", on_truncate, MODES)
        check_choice("precision", precision, PRECISIONS)
        if DEVICE.fullmatch(device) is None:
            raise ArgumentError(
                f'device is "{device}", expected "cpu", "cuda", "cuda:<n>" or "auto"'
            )
        if on_truncate != "window" and (window is not None or stride is not None):
            raise ArgumentError('window and stride need on_truncate="window"')

        named_arguments: dict[str, Any] = {
            **choices,
            **numbers,
            "window": window,
            "stride": stride,
            **options,
            "normalize": normalize,
            "threads": threads,
        }
        self.arguments = (model, named_arguments)
        self.column = column

        # The model: its configuration and its tokenizer. `loaded` reads the weights.
        with named_as_arguments():
            requests: int | None = None
            if models.is_endpoint(model):
                requests = threads
            else:
                check_threads("threads", threads)
            self.threads = threads or threads_of_environment()
            reading = ReadingOptions(**options, **numbers, normalize=normalize)
            self.model = models.find_encoder(
                model, reading, device=device, precision=precision, requests=requests
            )
            if len(self.model.readouts) > 1:
                raise ArgumentError("an Encoder has one readout, not several")
            if self.model.tokenizer.needs_all_texts:
                raise UsageError(
                    f"{model}: the space depends on all texts", advice="use sentkit encode"
                )
            self.tokenizer: TextTokenizer = self.model.tokenizer
            if on_truncate == "window":
                self.tokenizer = self.model.window_tokenizer(WindowOptions(window, stride))
        self._loaded: TokenEncoder | None = None
        self._loading = ForkLock(LOADING)

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (type(self), *self.arguments)

    @property
    def loaded(self) -> TokenEncoder:
        with self._loading:  # threads share the weights
            if self._loaded is None:
                with named_as_arguments():
                    self._loaded = self._load()
                for note in self._loaded.notes:
                    warnings.warn(note, stacklevel=4)
        return self._loaded

    def _load(self) -> TokenEncoder:
        if isinstance(self.model, CheckpointModel):
            return self.model.encoder_of_program(self.threads)
        return self.model.encoder()

    @property
    def space(self) -> str:
        """The label and hash of the vectors' space, as in the field `_emb`."""
        return self.loaded.spaces[0].name

    @property
    def width(self) -> int:
        return self.loaded.width

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        task_metadata: Any = None,
        prompt_type: Any = None,
        **arguments: Any,
    ) -> NDArray[np.float32]:
        """Return one vector per text, (n, width): zero for an empty or blank text. One text:
        (width,).

        Warnings count truncated and empty texts. Further `arguments` are those of
        sentence-transformers: with the value of what `encode` does they are accepted, such as
        convert_to_numpy=True; others are a TypeError that names what to use. mteb passes batches of
        texts with `task_metadata` and further arguments.
        """
        if task_metadata is not None:
            precision = arguments.get("precision") or "float32"
            if precision != "float32":
                raise ArgumentError(f'precision is "{precision}": mteb stores float32 vectors only')
            return self._encode(
                texts_of_task(texts), self._tokenizer_of_task(task_metadata, prompt_type)
            )
        if prompt_type is not None:
            raise TypeError("encode() got an unexpected keyword argument 'prompt_type'")
        for name, value in arguments.items():
            self._check_argument(name, value)
        if isinstance(texts, str):
            if has_surrogate(texts):
                raise ArgumentError("texts is not UTF-8")
            return self._encode([texts], self.tokenizer)[0]
        is_sequence = hasattr(texts, "__len__") and hasattr(texts, "__getitem__")
        if not is_sequence or isinstance(texts, bytes | Mapping):
            name = type(texts).__name__
            raise TypeError(f"texts is of type {name}, expected str or a sequence of str")
        for index, text in enumerate(texts):
            if not isinstance(text, str):  # a missing value is None or NaN
                raise TypeError(f"texts[{index}] is of type {type(text).__name__}, expected str")
            if has_surrogate(text):
                raise ArgumentError(f"texts[{index}] is not UTF-8")
        return self._encode(texts, self.tokenizer)

    def _check_argument(self, name: str, value: object) -> None:
        """Refuse an argument of sentence-transformers that does not have the value of what `encode`
        does.
        """
        if name not in OF_SENTENCE_TRANSFORMERS:
            raise TypeError(f"encode() got an unexpected keyword argument {name!r}")
        values, advice = OF_SENTENCE_TRANSFORMERS[name]
        is_accepted = any(value is accepted for accepted in values)
        if name == "normalize_embeddings":
            is_accepted = value is self._normalizes
        if not is_accepted:
            raise TypeError(f"encode has no {name}={value!r:.40}: {advice}")

    @property
    def _normalizes(self) -> bool:
        """Whether the vectors have length 1, by `normalize` or by the model."""
        return any(step.suffix == "/n" for step in self.loaded.steps[-1:])

    def _tokenizer_of_task(self, task_metadata: Any, prompt_type: Any) -> TextTokenizer:
        """The tokenizer with the declared prompt of a task of mteb. A prompt that the object was
        created with is that of all tasks.
        """
        _, arguments = self.arguments
        if arguments["prompt"] is not None or arguments["prompt_name"] is not None:
            return self.tokenizer
        side = None if prompt_type is None else str(prompt_type.value)
        prompts = self.model.prompts
        prompt = prompt_of_task(prompts, task_metadata.name, task_metadata.type, side)
        if prompt is None:
            return self.tokenizer
        return self.tokenizer.with_prompt(prompt)

    @property
    def mteb_model_meta(self) -> Any:
        """The description of the model for mteb."""
        try:
            return model_meta(
                self.model,
                space=self.space,
                width=self.width,
                metric=self.metric,
                max_length=self.model.tokenizer.max_length,
            )
        except ModuleNotFoundError as error:  # hasattr() must be false, not fail
            raise AttributeError("mteb_model_meta needs mteb, which is not installed") from error

    def _encode(self, texts: Sequence[str], tokenizer: TextTokenizer) -> NDArray[np.float32]:
        encoder = self.loaded
        stats = EncodeStats()
        vectors = np.empty((len(texts), encoder.width), np.float32)
        start = 0
        groups = prepare_list(texts, tokenizer)
        for group in encode_list(groups, encoder, stats):
            end = start + len(group.rows)
            vectors[start:end] = group.vectors[0][:, 0]
            start = end
        for remark in encoder.warnings(stats):
            warnings.warn(remark, stacklevel=3)
        return vectors

    @property
    def metric(self) -> str:
        """The metric of `similarity`: the one that the model declares for sentence-transformers,
        else cosine.
        """
        declared = self.model.similarity
        if declared is None:
            return "cosine"
        if declared not in BLOCKS:
            problem = f'"similarity_fn_name" is {declared!r:.40}, expected {", ".join(BLOCKS)}'
            raise DataError(problem, source=self.model.name)
        return str(declared)

    def similarity(
        self, a: ArrayLike, b: ArrayLike, *, metric: str | None = None
    ) -> NDArray[np.float32]:
        """Return the similarity of each vector of `a` and each of `b`: (n, width), (m, width) ->
        (n, m).

        A vector (width,) is one row. The metric is "cosine", "dot", "euclidean" or "manhattan"; the
        last two are negated distances, so that larger is more similar.
        """
        name = self._metric_of(metric)
        rows_a, rows_b = rows_of_one_width(a, b)
        rule = BLOCKS[name]
        return rule.compare(rule.prepare(rows_a), rule.prepare(rows_b))

    def similarity_pairwise(
        self, a: ArrayLike, b: ArrayLike, *, metric: str | None = None
    ) -> NDArray[np.float32]:
        """Return the similarity of each vector of `a` and that of `b` in the same row: (n, width),
        (n, width) -> (n,).
        """
        name = self._metric_of(metric)
        rows_a, rows_b = rows_of_one_width(a, b)
        if len(rows_a) != len(rows_b):
            raise ArgumentError(f"a has {len(rows_a)} vectors, b has {len(rows_b)}")
        return SIMILARITIES[name](rows_a, rows_b).astype(np.float32)

    def _metric_of(self, metric: str | None) -> str:
        name = self.metric if metric is None else metric
        check_text("metric", name, optional=False)
        check_choice("metric", name, list(BLOCKS))
        return name

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch of columns with the columns `embedding` and `_emb` added, for Ray Data.

        A missing text is a TypeError, so remove such rows before.
        """
        if self.column not in batch:
            raise KeyError(
                f'unknown column "{self.column}"; available: {", ".join(map(str, batch))}'
            )
        texts = batch[self.column]
        if isinstance(texts, str | bytes):
            name = type(texts).__name__
            raise TypeError(
                f'the column "{self.column}" is of type {name}, expected a sequence of str: '
                "pass a batch, not a row (map_batches, or batched=True)"
            )
        vectors = self.encode(list(texts))
        return {**batch, "embedding": vectors, "_emb": np.full(len(vectors), self.space)}


def rows_of_one_width(
    a: ArrayLike, b: ArrayLike
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rows_a = as_rows("a", a)
    rows_b = as_rows("b", b)
    if rows_a.shape[1] != rows_b.shape[1]:
        widths = f"{rows_a.shape[1]} and {rows_b.shape[1]}"
        raise ArgumentError(f"a and b have vectors of {widths} numbers, expected the same width")
    return rows_a, rows_b


def as_rows(name: str, vectors: ArrayLike) -> NDArray[np.float32]:
    """Return vectors as float32 (n, d); one vector is one row."""
    array = np.asarray(vectors)
    if array.dtype.kind not in "fiu":
        raise TypeError(
            f"{name} has values of type {array.dtype}, expected numbers: vectors of encode"
        )
    if array.ndim not in (1, 2):
        raise ArgumentError(f"{name} has {array.ndim} axes, expected (n, width) or (width,)")
    return np.atleast_2d(array).astype(np.float32, copy=False)


def restored(encoder_class: type[Encoder], model: str, arguments: Mapping[str, Any]) -> Encoder:
    """A copy by pickle. A class of a program can have other arguments than `Encoder`."""
    encoder = encoder_class.__new__(encoder_class)
    Encoder.__init__(encoder, model, **arguments)
    return encoder
