"""Files at URLs: a process copies each to this machine once, as a whole, before it reads the first
byte.
"""

import os
import re
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from urllib.parse import unquote, urlsplit

from sentkit.errors import NoInputError, SentkitError, UnavailableError, UsageError
from sentkit.formats.outputs.temporary import attempt, remove_leftovers

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
HUB = re.compile(
    r"^hf://(?!buckets/)((?:datasets/|spaces/)?)([^/@]+/[^/@]+)(?:@(refs/\w+/[^/]+|[^/]+))?/"
)


# Errors of httpx2 by the name of their class.
INVALID = ("InvalidURL", "UnsupportedProtocol")
REASONS = {
    "ConnectError": "no connection to the server",
    "ConnectTimeout": "no connection to the server in 60 seconds",
    "ReadError": "the connection broke",
    "ReadTimeout": "no answer in 60 seconds",
    "RemoteProtocolError": "the answer is incomplete, or not HTTP",
    "DecodingError": "the content is not compressed as its header Content-Encoding says",
    "TooManyRedirects": "too many redirects",
}


def is_url(path: str) -> bool:  # a local file with such a name stays a local file
    return "://" in path and URL.match(path) is not None and not os.path.lexists(path)


@cache
def local_copy(url: str) -> str:
    """The path of a temporary file with the content. `remove_all` removes it when the
    process ends.
    """
    target = Path(gettempdir(), "input")
    remove_leftovers(target)
    copy = attempt(target, str(target), lambda path: path.mkdir(0o700))[0] / "content"
    fetch = fetch_http if url.lower().startswith(("http:", "https:")) else fetch_with_fsspec
    try:
        fetch(url, copy)
    except Exception as error:
        raise as_sentkit_error(url, error) from error
    return str(copy)


def fetch_http(url: str, copy: Path) -> None:
    import httpx2

    headers = {"Accept-Encoding": "identity"}
    with httpx2.stream("GET", url, headers=headers, follow_redirects=True, timeout=60) as answer:
        answer.raise_for_status()
        # With one of these, the library detects an incomplete answer.
        if not answer.headers.keys() & {"content-length", "transfer-encoding"}:
            problem = (
                "the server states no length, so that a broken connection would not be detected"
            )
            raise NoInputError(f"{url}: {problem}", advice="download it, and name the local file")
        chunks = answer.iter_bytes()  # decompressed as the header Content-Encoding says
        if urlsplit(url).path.lower().endswith((".gz", ".zst")):  # the reader decompresses it
            chunks = answer.iter_raw()
        with copy.open("wb") as file:
            file.writelines(chunks)


def fetch_with_fsspec(url: str, copy: Path) -> None:  # hf:// through huggingface_hub
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import fsspec

    files, path = fsspec.url_to_fs(with_commit(url))
    if files.isdir(path):
        raise NoInputError(f"{url}: is a folder, expected a file", advice="download it first")
    files.get_file(path, str(copy))
    if copy.stat().st_size != files.info(path)["size"]:
        raise UnavailableError(f"{url}: is incomplete, or changed while it was read")


def with_commit(url: str) -> str:
    """A URL of the hub with the commit in place of a branch or tag; any other URL as it is."""
    return HUB.sub(
        lambda match: f"hf://{match[1]}{match[2]}@{commit_of(*match.groups('main'))}/", url
    )


@cache
def commit_of(folder: str, name: str, revision: str) -> str:  # at the first look
    from huggingface_hub import HfApi

    return str(
        HfApi().repo_info(name, revision=unquote(revision), repo_type=folder[:-2] or "model").sha
    )


# the given text can contain secrets
def as_sentkit_error(url: str, error: Exception) -> SentkitError:
    """The failure of a download as an error of sentkit: no such file, or the server failed."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    name = type(error).__name__
    if isinstance(error, SentkitError):
        return error
    if name in INVALID:
        return UsageError(f"{url}: not a valid URL")
    if isinstance(error, ValueError) and "Protocol not known" in str(error):  # of fsspec
        return UsageError(f"{url}: unknown scheme {url.partition(':')[0]}")
    if isinstance(error, FileNotFoundError | PermissionError | ValueError) or status in (
        401,
        403,
        404,
        410,
    ):
        return NoInputError(f"{url}: no such file, or access is denied")
    if isinstance(error, ImportError):
        reason = str(error)
    elif status:
        reason = f"status {status}"
    else:
        reason = getattr(error, "strerror", None) or REASONS.get(name, name)
    return UnavailableError(f"{url}: cannot be read: {reason}")
