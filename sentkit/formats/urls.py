"""Read files at URLs: open them, find their sizes, and list the files that match a pattern.

A URL is a scheme of two or more characters, "://" and the rest; a local file with such a name stays a local
file. The standard library reads http and https, fsspec all other schemes. A command reads what was there at
its first look: a revision of the hub becomes its commit, and a file of another size or ETag is an error.
"""

import io
import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import chain
from tempfile import TemporaryFile
from threading import Lock
from time import sleep
from typing import Any, BinaryIO

from sentkit.errors import CannotCreateError, DataError, NoInputError, SentkitError, UnavailableError

URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
MARKS = frozenset("*?[")  # of a pattern
COMMIT = re.compile("[0-9a-f]{40}")
WITH_COMMIT = re.compile("hf://[^@]+@([0-9a-f]{40})/")
BLOCK, KEPT = 1 << 22, 16  # bytes of a request; blocks of all files in memory
FIRST = 1 << 16  # bytes of the first request for a file, which can be only for its header
WAITS = (0.2, 1.0, 4.0, 8.0)  # seconds before a request of http is repeated
LONGEST_WAIT = 300.0  # seconds that a server can demand
TIMEOUT = 60.0
BUSY = (408, 429, 500, 502, 503, 504)
DOWNLOAD = "download it, and name the local file"
SPAN = re.compile(r"bytes (\d+)-\d+/(\d+)")

_commits: dict[str, str] = {}  # of each revision of the hub that this command reads
_at_commit: dict[str, str] = {}  # URL -> the same with the commit


def is_url(path: str) -> bool:
    return "://" in path and URL.match(path) is not None and not os.path.lexists(path)


def recorded(url: str) -> str:
    """The URL as outputs record it: with the commit of the hub."""
    return _at_commit.get(url, url)


def commits_of(paths: Mapping[str, str | Sequence[str] | None]) -> Mapping[str, str]:
    """The commit of each revision of the hub that these paths name."""
    named = ([each] if isinstance(each, str) else each or () for each in paths.values())
    for path in chain.from_iterable(named):
        if is_url(path) and scheme_of(path) == "hf":
            filesystem(path)
    return _commits


def commit_in(url: str | None) -> str | None:
    """The commit of a recorded URL of the hub."""
    found = WITH_COMMIT.match(url or "")
    return None if found is None else found[1]


def open_url(url: str) -> BinaryIO:
    return io.BufferedReader(Reader(remote_file(url)), 1 << 16)


def is_at(url: str) -> bool:
    """Whether there is a file at this URL."""
    try:
        remote_file(url)
    except NoInputError:
        return False
    return True


def is_folder_at(url: str) -> bool:
    """Whether there is a folder at this URL; false for http, which has no folders."""
    try:
        return not is_http(url) and info_of(url)["type"] == "directory"
    except NoInputError:
        return False


def matching(url: str) -> list[str]:
    """The URL; for a pattern, the files that match it in sorted order."""
    if MARKS.isdisjoint(url) or is_http(url):
        return [url]
    found, (files, _) = asked(url, "glob", detail=True), filesystem(url)
    names = [files.unstrip_protocol(name) for name in sorted(found) if found[name]["type"] == "file"]
    if not names and not asked(url, "exists"):
        raise NoInputError(f"{url}: no file matches this pattern")
    return names or [url]


def asked(url: str, method: str, **options: Any) -> Any:
    """The result of a method of the file system for a URL."""
    files, path = filesystem(url)
    with explained(url):
        return repeated(partial(getattr(files, method), path, **options))


@dataclass(frozen=True, eq=False, slots=True)
class RemoteFile:
    url: str
    size: int
    read: Callable[[int, int], bytes]  # the bytes from one place to another


class Reader(io.RawIOBase):
    """A remote file as a file that can be read from any place."""

    def __init__(self, file: RemoteFile) -> None:
        self.file, self.place = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.place = max(0, offset + (0, self.place, self.file.size)[whence])
        return self.place

    def readinto(self, room: Any) -> int:
        if self.place >= self.file.size:
            return 0
        number = 0 if self.place < FIRST else 1 + (self.place - FIRST) // BLOCK
        start = self.place - (FIRST + (number - 1) * BLOCK if number else 0)
        part = memoryview(block(self.file, number))[start : start + len(room)]
        room[: len(part)] = part
        self.place += len(part)
        return len(part)


@lru_cache(KEPT)
def block(file: RemoteFile, number: int) -> bytes:
    start = FIRST + (number - 1) * BLOCK if number else 0
    end = min(FIRST + number * BLOCK, file.size)
    with explained(file.url):
        content = file.read(start, end)
    if len(content) != end - start:
        problem = f"{len(content):,} of {end - start:,} bytes arrived from byte {start:,}"
        raise UnavailableError(f"{file.url}: {problem}")
    return content


@cache
def remote_file(url: str) -> RemoteFile:
    if is_http(url):
        with explained(url):
            return http_file(url)
    if is_folder_at(url):
        advice = "name its files, for example with a pattern: /*.jsonl"
        raise NoInputError(f"{url}: is a folder, expected a file", advice=advice)
    file = asked(url, "open", mode="rb", block_size=BLOCK, cache_type="none")
    size, lock = info_of(url)["size"], Lock()
    if size is None:
        raise NoInputError(f"{url}: its size is unknown", advice=DOWNLOAD)

    def read(start: int, end: int) -> bytes:
        with lock:
            file.seek(start)
            content: bytes = file.read(end - start)
            return content

    return RemoteFile(url, size, read)


@cache
def info_of(url: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = asked(url, "info")
    return found


@cache
def filesystem(url: str) -> tuple[Any, str]:
    """The file system of fsspec for a URL, and the path in it."""
    import fsspec

    scheme = scheme_of(url)
    if scheme not in fsspec.available_protocols():
        raise NoInputError(f'{url}: no such file, and "{scheme}" is not the scheme of a URL')
    with explained(url):
        try:
            files, path = fsspec.url_to_fs(url)
        except ImportError as error:
            package = getattr(error.__cause__ or error, "name", None) or scheme
            problem = f"{url}: {scheme}:// needs the package {package}"
            raise UnavailableError(problem, advice=f"pip install {package}") from error
        if scheme == "hf":
            path = repeated(partial(at_commit, files, path))
            _at_commit[url] = f"hf://{path}"
    return files, path


def at_commit(files: Any, path: str) -> str:
    """A path of the hub with the commit in place of the branch or tag. A bucket has no commits."""
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        raise NoInputError(f"{files.unstrip_protocol(path)}: the hub is disabled (HF_HUB_OFFLINE)")
    place = files.resolve_path(path)
    revision = getattr(place, "revision", None)
    if revision is None or COMMIT.fullmatch(revision):
        return path
    name = "hf://" + replace(place, path_in_repo="").unresolve()
    if name not in _commits:
        api = HfApi(endpoint=files.endpoint, token=files.token)
        found = api.repo_info(place.repo_id, repo_type=place.repo_type, revision=revision, timeout=TIMEOUT)
        _commits[name] = found.sha or revision
    pinned: str = replace(place, revision=_commits[name], _raw_revision=None).unresolve()
    return pinned


@contextmanager
def explained(url: str, *, written: bool = False) -> Iterator[None]:
    """Turn an error of a file system into one for people, which has no words of a server."""
    try:
        yield
    except SentkitError as error:
        if written and isinstance(error, NoInputError):
            raise CannotCreateError(str(error), advice=error.advice) from error
        raise
    except Exception as error:
        raise explanation(url, error, written=written) from error


def explanation(url: str, error: Exception, *, written: bool) -> SentkitError:
    own, on_hub = cause_of(error), scheme_of(url) == "hf"
    code, kind = status_of(own), CannotCreateError if written else NoInputError
    missing, advice = isinstance(own, FileNotFoundError), None
    if type(error).__name__ == "GatedRepoError" and not written:
        advice = "accept the license on its web page, then set HF_TOKEN"
        return kind(f"{url}: access requires an accepted license", advice=advice)
    if missing or code in (404, 410):
        if missing and on_hub and error.__cause__ is not None and not written:
            advice = "for a private repository, set HF_TOKEN, or run: hf auth login"
        problem = "there is no such place to write to" if written else "no such file"
        return kind(f"{url}: {problem}", advice=advice)
    if on_hub and not written and isinstance(error, ValueError | NotImplementedError):
        return kind(f"{url}: expected hf://datasets/ORG/NAME/FILE")
    if code in (401, 403) or isinstance(own, PermissionError):
        advice = "set HF_TOKEN to a token that may write" if on_hub and written else None
        return kind(f"{url}: access is denied", advice=advice)
    problem = f"{type(own).__name__}, status {code}" if code else type(own).__name__
    return UnavailableError(f"{url}: cannot be {'written' if written else 'read'}: {problem}")


def scheme_of(url: str) -> str:
    return url.partition("://")[0].lower()


def is_http(url: str) -> bool:
    return scheme_of(url) in ("http", "https")


def http_file(url: str) -> RemoteFile:
    """A file of a web server. If the server sends no parts of files, a temporary file gets the whole."""
    from urllib.error import HTTPError

    def first_byte() -> tuple[str, re.Match[str] | None]:
        with answer(url, "bytes=0-0") as reply:
            return tag_of(reply), span_of(reply)

    try:
        tag, span = repeated(first_byte)
    except HTTPError as error:
        if error.code != 416:  # of an empty file
            raise
        span = None
    if span is not None:
        return RemoteFile(url, int(span[2]), partial(http_part, url, span[2], tag))
    file = repeated(partial(copy_of, url))
    size = file.seek(0, os.SEEK_END)
    return RemoteFile(url, size, lambda start, end: os.pread(file.fileno(), end - start, start))


def http_part(url: str, size: str, tag: str, start: int, end: int) -> bytes:
    content = bytearray()

    def rest() -> None:
        place = start + len(content)
        with answer(url, f"bytes={place}-{end - 1}") as reply:
            span = span_of(reply)
            if span is None or (int(span[1]), span[2], tag_of(reply)) != (place, size, tag):
                raise DataError("has changed while it was read", source=url)
            while part := reply.read(1 << 16):
                content.extend(part)
        if len(content) < end - start:
            raise ConnectionError

    repeated(rest)
    return bytes(content)


def copy_of(url: str) -> BinaryIO:
    file = TemporaryFile()  # noqa: SIM115  # it is read until the process ends
    with answer(url) as reply:
        length = reply.headers["Content-Length"]
        if length is None and not reply.chunked:
            problem = "the server states no length, so that a broken connection would not be detected"
            raise NoInputError(f"{url}: {problem}", advice=DOWNLOAD)
        while part := reply.read(1 << 20):
            file.write(part)
    file.flush()
    if length is not None and file.tell() != int(length):
        raise ConnectionError
    return file


def answer(url: str, span: str | None = None) -> Any:
    """The answer of a web server. A password in the URL is not sent to another server."""
    import socket
    import ssl
    from urllib.error import URLError
    from urllib.parse import quote, unquote, urlsplit, urlunsplit
    from urllib.request import Request, urlopen

    parts = urlsplit(url)
    account, _, host = parts.netloc.rpartition("@")
    plain = urlunsplit(parts._replace(netloc=host, fragment=""))
    request = Request(quote(plain, safe="%/:=&?~+!$,;'@()*[]"), headers={"Accept-Encoding": "identity"})
    if span is not None:
        request.add_header("Range", span)
    if account:
        code = b64encode(unquote(account).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {code}")
    try:
        return urlopen(request, timeout=TIMEOUT)
    except URLError as error:
        if isinstance(error.reason, ConnectionRefusedError | socket.gaierror | ssl.SSLError):
            raise UnavailableError(f"{url}: the server cannot be reached") from error
        raise


def repeated(request: Callable[[], Any], waits: Sequence[float] = WAITS, busy: Sequence[int] = BUSY) -> Any:
    """Repeat a request after a broken connection, and while the server is busy."""
    from http.client import HTTPException
    from ssl import SSLError
    from urllib.error import URLError

    for wait in waits:
        try:
            return request()
        except Exception as failed:
            error = cause_of(failed)
            broken = isinstance(error, ConnectionError | TimeoutError | HTTPException | URLError | SSLError)
            broken = broken or "TransportError" in [each.__name__ for each in type(error).__mro__]  # of httpx
            if not (broken if (status := status_of(error)) is None else status in busy):
                raise
            headers: Any = getattr(getattr(error, "response", error), "headers", {})
            demanded = headers.get("Retry-After", "")
            sleep(max(wait, min(LONGEST_WAIT, float(demanded)) if demanded.isdigit() else 0.0))
    return request()


def cause_of(error: Exception) -> Exception:
    """The error of a request; huggingface_hub puts one of its threads into a RuntimeError."""
    cause = error.__cause__
    return cause if type(error) is RuntimeError and isinstance(cause, Exception) else error


def status_of(error: Exception) -> int | None:
    """The status of an answer: an error of urllib, or one of the hub, which has the answer."""
    status = getattr(getattr(error, "response", error), "status_code", getattr(error, "code", None))
    return status if isinstance(status, int) else None


def span_of(reply: Any) -> re.Match[str] | None:
    """The place of the first byte, and the size of the file, from the headers of a part; None for a whole."""
    return SPAN.fullmatch(reply.headers.get("Content-Range", ""))


def tag_of(reply: Any) -> str:
    tag: str = reply.headers.get("ETag") or reply.headers.get("Last-Modified") or ""
    return tag
