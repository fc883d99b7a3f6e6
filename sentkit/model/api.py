"""Models behind an OpenAI-compatible endpoint: `-m http://HOST/v1#NAME`.

The "tokens" of such a model are the characters of a text: its `TokenBlock` has the code points,
from which a request gets the text back. The weights are unknown, so the space is that of the
endpoint, the name and the dimensions.
"""

import json
import os
import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from threading import Event
from time import monotonic, time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import UnavailableError, UsageError
from sentkit.formats.checkpoints.modules import StoredDeclaration
from sentkit.formats.vectors.fingerprint import API, Space, digest, name_for_label
from sentkit.formats.vectors.vectors import raw_vector
from sentkit.model.encoding import TokenEncoder
from sentkit.model.groups import EncodeStats
from sentkit.model.reading import (
    ReadingOptions,
    all_steps,
    prompts_of,
    space_after_steps,
    width_after_steps,
)
from sentkit.model.text.characters import BatchError, CharacterTokenizer, texts_of
from sentkit.model.text.tokens import TokenBlock, WindowOptions, WindowTokenizer
from sentkit.transforms.steps import Step

if TYPE_CHECKING:
    from httpx2 import Client, Response

T = TypeVar("T")
Matrix = NDArray[np.float32]

KEY = "SENTKIT_API_KEY"  # an environment variable
SCHEME = re.compile("https?://", re.IGNORECASE)
PORTS = {"http": 80, "https": 443}
REQUESTS = 4  # at a time
MOST_REQUESTS = 256
BATCH_TEXTS = 32  # the default limit of Text Embeddings Inference
BATCH_CHARACTERS = 65_536
PROBE = "width"  # the text of the first request, which shows the width

# Seconds.
CONNECT_TIMEOUT = 10.0
TIMEOUT = 300.0  # of one try
FIRST_WAIT = 0.5  # before the second try; each later wait is twice as long
LONGEST_WAIT = 60.0
LONGEST_RETRY_AFTER = 300.0  # a server that asks for more is an error

TRIES = 8  # of a request, about two minutes of waits
FIRST_TRIES = 3  # of the first request of a command, which shows a wrong address soon
BUSY = (408, 409, 425, 429)  # and 5xx: the same request can succeed later
OF_SERVER = (401, 402, 403, 404, 405, 407, 410, 426, 451)  # other 4xx refuse the texts of a request
MOST_BYTES_OF_TEXT = 2_000_000  # of an answer, for each text: 100,000 numbers of 20 digits
SHOWN = 200  # characters of a message of the server


def refuse_flags(flags: Mapping[str, object]) -> None:
    """Refuse the flags that need the inside of a model. `flags` are those that differ from their
    default.
    """
    for flag, value in flags.items():
        if value is not None and value is not False:
            problem = f"{flag} cannot be used with a model behind an API"
            advice = "the server has the tokenizer and the weights; it decides this"
            raise UsageError(problem, advice=advice)


def parse_endpoint(name: str) -> tuple[str, str]:
    """The URL, without "/embeddings", and the name of the model there, of `http://HOST/v1#NAME`.

    No error has an account or a query, which can be secrets.
    """
    url, _, model = name.partition("#")
    try:
        address = urlsplit(url)
        port = address.port
    except ValueError as error:
        raise UsageError("the URL of the model has no valid host and port") from error
    if "@" in address.netloc:
        problem = "the URL of the model has an account, which would be recorded"
        raise UsageError(problem, advice=f"set the key in the variable {KEY}")
    if "?" in url:
        problem = "the URL of the model has a query, which would be recorded"
        raise UsageError(problem, advice="an API is named by http://HOST/v1#NAME")
    if not address.hostname or not url.isprintable() or " " in url:
        raise UsageError("the URL of the model has no valid host and port")
    if not model or not model.isprintable():
        advice = f"add it: -m '{url}#NAME'; the server lists its models at {url}/models"
        raise UsageError("the URL of the model has no name of a model", advice=advice)

    # One form for all ways to write the address, because it names the space.
    scheme = address.scheme.lower()
    host = address.hostname
    if ":" in host:  # IPv6
        host = f"[{host}]"
    if port is not None and port != PORTS[scheme]:
        host = f"{host}:{port}"
    path = address.path.rstrip("/").removesuffix("/embeddings").rstrip("/")
    return f"{scheme}://{host}{path}", model


class ApiModel:
    """A model behind an API. `encoder` sends the first request."""

    readouts = (API,)
    notes: Sequence[str] = ()
    prompts: Mapping[str, str] = MappingProxyType({})  # a server declares none
    similarity: object = None

    def __init__(
        self,
        name: str,
        options: ReadingOptions,
        *,
        device: str = "auto",
        precision: str = "auto",
        requests: int | None = None,
        finite: bool = True,
    ) -> None:
        """`requests`, the value of --threads, are sent at a time. `finite`: refuse NaN and
        infinity.
        """
        self.url, self.model_name = parse_endpoint(name)
        # A flag as it is shown -> its value; None or False: not given.
        unsupported_flags = {
            "--readout": options.readout,
            "--template": options.template,
            "--full-stop": options.full_stop,
            "--prompt-name": options.prompt_name,
            "--max-length": options.max_length,
            f"--device {device}": not device.startswith("auto"),
            f"--precision {precision}": precision != "auto",
        }
        refuse_flags(unsupported_flags)
        if requests is not None and requests > MOST_REQUESTS:
            raise UsageError(f"--threads {requests}: at most {MOST_REQUESTS} requests at a time")
        self.name = f"{self.url}#{self.model_name}"
        self.finite = finite
        self.requests = requests or REQUESTS
        self.dimensions = options.dim
        self.transform = options.transform
        # A server declares nothing, so there are only the prompts of flags.
        prompt, self.prompt_of_side = prompts_of(StoredDeclaration(), options)
        self.tokenizer = CharacterTokenizer(prompt)
        # The server shortens the vectors: see `dimensions`.
        self.steps: list[Step] = all_steps([], replace(options, dim=None))

    def window_tokenizer(self, options: WindowOptions) -> WindowTokenizer:
        refuse_flags({"--on-truncate window": True})
        raise AssertionError

    def encoder(self, tokens: int | None = None) -> "ApiEncoder":
        return ApiEncoder(self)

    def summary(self) -> dict[str, Any]:
        """The JSON object for `inspect`."""
        encoder = self.encoder()
        return {
            "model": self.name,
            "kind": "a model behind an API: its weights are unknown",
            "width": encoder.width,
            "space": encoder.spaces[0].name,
            "answers": "base64" if encoder.client.encoding == "base64" else "lists of numbers",
            "prompt": self.tokenizer.prompt,
        }


class ApiEncoder(TokenEncoder):
    """Sends texts to an endpoint. Texts that it refuses have NaN as vector, and a reason in
    `refusals`.
    """

    tokens_per_batch = BATCH_CHARACTERS
    device = "API"
    precision = "unknown"

    def __init__(self, model: ApiModel) -> None:
        self.notes = []
        self.steps = model.steps
        self.refusals: dict[str, str] = {}
        self.requests = model.requests
        self.client = EmbeddingsClient(model)
        pool = ThreadPoolExecutor(1)
        try:
            self.width_of_answers = self.client.result_of(pool.submit(self.client.find_width))
        finally:
            pool.shutdown(wait=False)
        self.width = width_after_steps(self.steps, self.width_of_answers)
        # http and https give the same vectors
        address = SCHEME.sub("", model.url)
        space = digest([address, model.model_name, API, model.dimensions])
        record = {
            "model": model.name,
            "dimensions": model.dimensions,
            "width": self.width_of_answers,
            "prompt": model.prompt_of_side or model.tokenizer.prompt,
            "max_length": None,
            "precision": self.precision,
        }
        label = f"{name_for_label(model.model_name)}/{API}"
        self.spaces = [space_after_steps(self.steps, Space(label, space, record), model.transform)]

    def encode(self, batches: Iterable[TokenBlock]) -> Iterator[list[Matrix]]:
        """Yield the vectors of each batch, with some requests at a time."""
        pool = ThreadPoolExecutor(self.requests)
        stopping = Event()  # wakes the threads that wait before a retry
        pending: deque[list[Future[Matrix]]] = deque()  # the requests of each batch
        try:
            for batch in batches:
                texts = texts_of(batch)
                futures = []
                for start in range(0, len(texts), BATCH_TEXTS):
                    texts_of_request = texts[start : start + BATCH_TEXTS]
                    futures.append(pool.submit(self.vectors, texts_of_request, stopping))
                pending.append(futures)
                while sum(map(len, pending)) > 2 * self.requests:
                    yield self.joined(pending.popleft())
            while pending:
                yield self.joined(pending.popleft())
        finally:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)

    def joined(self, futures: Sequence[Future[Matrix]]) -> list[Matrix]:
        """The vectors of a batch from those of its requests."""
        return [np.concatenate([self.client.result_of(future) for future in futures])]

    def vectors(self, texts: Sequence[str], stopping: Event) -> Matrix:
        """The vectors of some texts, (n, width). A request that the server refuses is divided until
        the text is known.
        """
        answer = self.client.request(texts, stopping, TRIES)
        if isinstance(answer, Refusal):
            if len(texts) == 1:
                self.refusals[texts[0]] = f"the server refuses this text: {answer.reason}"
                return np.full((1, self.width_of_answers), np.nan, np.float32)
            half = len(texts) // 2
            first_half = self.vectors(texts[:half], stopping)
            return np.concatenate([first_half, self.vectors(texts[half:], stopping)])
        rows = []
        for text, vector in zip(texts, answer, strict=True):
            if isinstance(vector, str):
                self.refusals[text] = vector
                rows.append(np.full(self.width_of_answers, np.nan, np.float32))
                continue
            if len(vector) != self.width_of_answers:
                widths = f"{len(vector)} numbers, earlier ones {self.width_of_answers}"
                raise BatchError(f"{self.client.name}: the server's vector has {widths}", text)
            self.refusals.pop(text, None)  # of an earlier request
            rows.append(vector)
        return np.array(rows)

    def warnings(self, stats: EncodeStats) -> list[str]:
        return stats.without_tokens()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that the server refuses because of its texts."""

    reason: str


class Busy(Exception):
    """A try that failed, but a later one may succeed. `seconds`: the wait that the server asks
    for.
    """

    def __init__(self, reason: str, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.seconds = seconds


class EmbeddingsClient:
    """Sends requests to `POST URL/embeddings`, and checks the answers. Threads can share it."""

    def __init__(self, model: ApiModel) -> None:
        self.finite = model.finite
        self.name = model.name
        self.url = f"{model.url}/embeddings"
        self.model = model.model_name
        self.dimensions = model.dimensions
        self.connections = model.requests
        self.encoding = "base64"  # or "float", for a server that refuses it
        self.key = key_of_environment()
        self.last_progress = monotonic()  # the end of the last try
        self._client: tuple[int, Client] | None = None  # with the process that made it

    @property
    def client(self) -> "Client":
        """The connections of this process; a forked child cannot use those of its parent."""
        import httpx2

        process = os.getpid()
        if self._client is None or self._client[0] != process:
            headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
            if self.key:
                headers["Authorization"] = f"Bearer {self.key}"
            client = httpx2.Client(
                headers=headers,
                timeout=httpx2.Timeout(TIMEOUT, connect=CONNECT_TIMEOUT),
                limits=httpx2.Limits(max_connections=self.connections),
                follow_redirects=False,  # the key is for this server
                verify=self.url.startswith("https:"),  # reading all certificates takes time
            )
            self._client = (process, client)
        return self._client[1]

    def find_width(self) -> int:
        """The width of the vectors, from a first request. It also shows whether the server answers
        in base64.
        """
        answer = self.request([PROBE], Event(), FIRST_TRIES)
        if isinstance(answer, Refusal):
            self.encoding = "float"
            answer = self.request([PROBE], Event(), FIRST_TRIES)
        if isinstance(answer, Refusal):
            raise UnavailableError(f"{self.name}: {answer.reason}")
        [vector] = answer
        if isinstance(vector, str):
            raise UnavailableError(f'{self.name}: for the text "{PROBE}", {vector}')
        width = len(vector)
        if self.dimensions not in (None, width):
            problem = f"--dim {self.dimensions}: the vectors of {self.name} have {width} numbers"
            raise UnavailableError(problem, advice='the server ignores "dimensions"; omit --dim')
        return width

    def request(
        self, texts: Sequence[str], stopping: Event, tries: int
    ) -> "Sequence[Matrix | str] | Refusal":
        """The vector of each text, or the reason why it has none; or the refusal of all texts.

        Any other failure is an error that names the first text. `stopping` ends the waits between
        the tries.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "input": list(texts),
            "encoding_format": self.encoding,
        }
        if self.dimensions is not None:
            body["dimensions"] = self.dimensions
        content = orjson.dumps(body)

        # Several tries. The wait between two is the one that the server asks for, or twice the last
        # one, times a random factor so that threads do not send at the same moment.
        for number in range(1, tries + 1):
            try:
                status, answer = self.send(content, MOST_BYTES_OF_TEXT * len(texts))
                return self.read_answer(status, answer, texts)
            except Busy as busy:
                if number == tries:
                    problem = f"{self.name}: {busy} ({tries} tries)"
                    raise BatchError(problem, texts[0]) from busy
                seconds = busy.seconds
            except UnavailableError as error:
                if isinstance(error, BatchError):
                    raise
                raise BatchError(str(error), texts[0], advice=error.advice) from error
            finally:
                self.last_progress = monotonic()
            if seconds is None:
                doubled = FIRST_WAIT * 2 ** (number - 1)
                seconds = min(doubled, LONGEST_WAIT) * random.uniform(0.75, 1.0)
            if seconds > LONGEST_RETRY_AFTER:
                problem = f"{self.name}: the server asks to wait for {seconds:.0f} seconds"
                raise BatchError(problem, texts[0])
            if stopping.wait(seconds):
                break
        raise BatchError(f"{self.name}: stopped", texts[0])

    def send(self, content: bytes, most_bytes: int) -> tuple[int, bytes]:
        """Send one request. Returns the status and the body of its answer; or raises Busy."""
        import httpx2

        # The answer in chunks: no timeout of the library is for all of it, or limits its size.
        deadline = monotonic() + TIMEOUT
        body = bytearray()
        try:
            with self.client.stream("POST", self.url, content=content) as response:
                for chunk in response.iter_bytes():
                    body += chunk
                    if monotonic() > deadline:
                        raise Busy(f"no complete answer within {TIMEOUT:g} seconds")
                    if len(body) > most_bytes:
                        problem = f"{self.name}: an answer of more than {most_bytes:,} bytes"
                        raise UnavailableError(problem)
                if response.status_code in BUSY or response.status_code >= 500:
                    reason = self.reason(response.status_code, bytes(body))
                    raise Busy(reason, seconds_to_wait(response))
                return response.status_code, bytes(body)
        except httpx2.TimeoutException as error:
            raise Busy("no answer in time") from error
        except httpx2.ConnectError as error:
            raise Busy(f"no connection: {self.without_key(str(error))}") from error
        except httpx2.TransportError as error:
            reason = self.without_key(str(error)) or type(error).__name__
            raise Busy(f"the connection broke: {reason}") from error
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:  # of a host's name
            reason = self.without_key(str(error)) or type(error).__name__
            raise UnavailableError(f"{self.name}: cannot be read: {reason}") from error

    def result_of(self, future: Future[T]) -> T:
        """The result of a request in a thread. It is an error if a server sends a head byte by
        byte, which no timeout of a read detects.
        """
        longest = TIMEOUT + CONNECT_TIMEOUT + LONGEST_RETRY_AFTER
        while wait([future], timeout=1).not_done:
            if monotonic() - self.last_progress > longest:
                raise UnavailableError(f"{self.name}: no answer within {longest:g} seconds")
        return future.result()

    def read_answer(
        self, status: int, body: bytes, texts: Sequence[str]
    ) -> "Sequence[Matrix | str] | Refusal":
        """The vector of each text, or the reason why it has none; or the refusal of all texts.

        Items may come in any order: each has the index of its text.
        """
        # A status that is an error, of the request or of the server.
        if 400 <= status < 500 and status not in OF_SERVER:
            return Refusal(self.reason(status, body))
        if status != 200:
            advice = None
            if status in (401, 403):
                advice = f"set the key in the variable {KEY}"
            if 300 <= status < 400:
                advice = "name the address to which the server redirects"
            raise UnavailableError(f"{self.name}: {self.reason(status, body)}", advice=advice)

        def fail(problem: str, index: int = 0) -> NoReturn:
            raise BatchError(f"{self.name}: {problem}", texts[index])

        # The items, one for each text.
        answer = parsed(body)
        if answer is None:
            fail(f"the answer is not JSON: {self.shown(body.decode(errors='replace'))}")
        items = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(items, list):
            fail(f"the answer has no vectors: {self.message_in(answer, body)}")
        if len(items) != len(texts):
            fail(f"the answer has {len(items)} vectors, expected {len(texts)}")
        vectors: list[Matrix | str | None] = [None] * len(texts)
        for item in items:
            index = item.get("index") if isinstance(item, dict) else None
            if type(index) is not int or not 0 <= index < len(texts):
                fail('an item of the answer has no valid "index"')
            if vectors[index] is not None:
                fail(f'two items of the answer have the "index" {index}', index)
            vectors[index] = vector_of(item.get("embedding"), finite=self.finite)
        return [vector for vector in vectors if vector is not None]

    def reason(self, status: int, body: bytes) -> str:
        """The message of the server in an answer that is an error."""
        return f"status {status}: {self.message_in(parsed(body), body)}"

    def message_in(self, answer: object, body: bytes) -> str:
        """The message in an error object, else the start of the answer."""
        message = answer
        for name in ("error", "message", "detail"):
            if isinstance(message, dict) and name in message:
                message = message[name]
        if isinstance(message, str):
            return self.shown(message)
        return self.shown(body.decode(errors="replace"))

    def shown(self, text: str) -> str:
        words = " ".join(self.without_key(text).split())
        if len(words) > SHOWN:
            words = f"{words[:SHOWN]}..."
        return words or "an empty answer"

    def without_key(self, text: str) -> str:
        """A text of the server, which may repeat the key."""
        return text.replace(self.key, "...") if self.key else text


def key_of_environment() -> str:
    key = os.environ.get(KEY, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"the variable {KEY} has a character that a key cannot have")
    return key


def seconds_to_wait(response: "Response") -> float | None:
    """The header Retry-After: seconds, or a date."""
    value = response.headers.get("retry-after", "").strip()
    if value.isdecimal() and value.isascii():
        return float(value[:9])
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (ValueError, OverflowError):
        return None


def parsed(body: bytes) -> Any:
    """The JSON value of an answer, or None. Servers in Python write NaN, which JSON does not
    have.
    """
    parsers: Sequence[Callable[[bytes], Any]] = (orjson.loads, json.loads)
    for parse in parsers:
        try:
            return parse(body)
        except (ValueError, RecursionError):
            continue
    return None


def vector_of(embedding: object, *, finite: bool) -> "Matrix | str":
    """The vector of an item, (width,), or the reason why it is none."""
    if embedding is None:
        return "the server gives no vector"
    has_numbers = isinstance(embedding, list) and {*map(type, embedding)} <= {int, float}
    if not has_numbers and not isinstance(embedding, str):
        return "the server's vector is neither a list of numbers nor base64"
    try:
        raw = raw_vector(embedding)
    except OverflowError:  # a whole number of more than 308 digits
        raw = b""
    if not raw or len(raw) % 4:
        return "the server's vector is not of float32"
    vector = np.frombuffer(raw, "<f4").astype(np.float32)
    if finite and not np.isfinite(vector).all():
        return "the server's vector has NaN or infinity"
    return vector
