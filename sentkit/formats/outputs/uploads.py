"""Write files at URLs. A file is complete before it gets its name, and files of one commit appear together.

The hub has commits: `Hub`. `Store` is any other file system of fsspec. `Outbox` collects the blocks of a
vector folder and writes them in groups.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha1
from pathlib import Path
from tempfile import gettempdir
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote, unquote

from sentkit.errors import CannotCreateError, SentkitError
from sentkit.formats import urls
from sentkit.formats.outputs import temporary

REPOSITORY = re.compile(r"hf://(?:(datasets|spaces)/)?(?!buckets/)([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.*))?")
# File systems that show an object when it is complete; in others, a renamed file appears at once.
OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "hf")
# Seconds before a commit is repeated: more than an hour, for which the hub limits commits.
WAITS = (1.0, 4.0, 15.0, 60.0, *[300.0] * 12)
BUSY = (*urls.BUSY, 409, 412)  # 412: another commit came first
SPACING = 40.0  # seconds between groups: with the first and the last commits, fewer than 100 in an hour
GROUP_BYTES, GROUP_FILES = 1 << 30, 2000
writing = partial(urls.explained, written=True)


def is_written(url: str) -> bool:
    """Whether there is a file at the URL now; raises an error if the URL cannot be an output."""
    folder, name = split(url)
    return bool(place_at(folder).existing([name]))


def split(url: str) -> tuple[str, str]:
    folder, _, name = url.rpartition("/")
    if not name or folder.endswith(("/", ":")):
        raise CannotCreateError(f"{url}: expected the URL of a file")
    return folder, name


def newest(folder: str) -> str:
    """The URL of a folder as it is now: with the newest commit of the hub, or with a new list of files."""
    return place_at(folder).newest()


def place_at(folder: str) -> "Hub | Store":
    """Where the files of a folder are written."""
    found = REPOSITORY.fullmatch(folder)
    if urls.is_http(folder):
        advice = "write a local file, then upload it"
        raise CannotCreateError(f"{folder}: a web server cannot be written", advice=advice)
    if found is None:
        return Store(folder)
    kind, name, revision, path = found.groups()
    return Hub(folder, kind, name, unquote(revision or "main"), path)


@dataclass(frozen=True)
class Store:
    """A folder in a file system of fsspec."""

    url: str

    @cached_property
    def opened(self) -> tuple[Any, str]:
        with writing(self.url):
            files, path = urls.filesystem(self.url)
            return files, path.rstrip("/")

    def newest(self) -> str:
        self.opened[0].invalidate_cache()
        return self.url

    def create(self) -> bool:
        """Create the folder; an object store has none. Returns whether this made a repository."""
        files, path = self.opened
        if urls.scheme_of(self.url) not in OBJECT_STORES:
            with writing(self.url):
                files.makedirs(path, exist_ok=True)
        return False

    def existing(self, names: Collection[str]) -> list[str]:
        files, path = self.opened
        with writing(self.url):
            files.invalidate_cache()
            return [name for name in names if urls.repeated(partial(files.exists, f"{path}/{name}"))]

    def put(self, sources: Mapping[str, Path], *, force: bool) -> None:
        files, path = self.opened
        for name, source in sources.items():
            target = f"{path}/{name}"
            with writing(f"{self.url}/{name}"):
                if not force and self.existing([name]):
                    raise temporary.appeared(f"{self.url}/{name}")
                if urls.scheme_of(self.url) in OBJECT_STORES:
                    urls.repeated(partial(files.put_file, str(source), target))
                    continue
                part = f"{path}/.{name}{temporary.MARK}{os.urandom(8).hex()}"
                urls.repeated(partial(files.put_file, str(source), part))
                files.mv(part, target)

    def remove(self, names: Collection[str]) -> None:
        files, path = self.opened
        with writing(self.url):
            for name in self.existing(names):
                files.rm_file(f"{path}/{name}")


@dataclass(frozen=True)
class Hub:
    """A folder in a repository of the hub."""

    url: str
    kind: str | None  # datasets and so on
    name: str
    revision: str
    folder: str | None

    @property
    def where(self) -> dict[str, str]:
        return {"repo_id": self.name, "repo_type": (self.kind or "models")[:-1]}

    @cached_property
    def api(self) -> Any:
        from huggingface_hub import HfApi, constants, utils

        if constants.HF_HUB_OFFLINE:
            raise CannotCreateError(f"{self.url}: the hub is disabled (HF_HUB_OFFLINE)")
        if urls.COMMIT.fullmatch(self.revision):
            advice = "leave @COMMIT out, or name a branch"
            raise CannotCreateError(f"{self.url}: a commit cannot be changed", advice=advice)
        utils.disable_progress_bars()
        utils.logging.set_verbosity_error()  # its warnings have the signatures of upload addresses
        return HfApi()

    def path(self, name: str) -> str:
        return f"{self.folder.rstrip('/')}/{name}" if self.folder else name

    def head(self) -> str:
        return str(self.api.repo_info(**self.where, revision=self.revision, timeout=urls.TIMEOUT).sha)

    def newest(self) -> str:
        with writing(self.url):
            commit = urls.repeated(self.head)
        return "/".join(filter(None, ["hf:/", self.kind, f"{self.name}@{commit}", self.folder])).rstrip("/")

    def found(self, names: Collection[str], commit: str) -> dict[str, Any]:
        """The records of those files that exist, by path."""
        given = {**self.where, "paths": list(map(self.path, names)), "revision": commit}
        return {each.path: each for each in self.api.get_paths_info(**given)}

    def existing(self, names: Collection[str]) -> list[str]:
        with writing(self.url):
            found = urls.repeated(lambda: self.found(names, self.head()))
        return [name for name in names if self.path(name) in found]

    def create(self) -> bool:
        """Create the repository, which is private, if there is none. Returns whether this was the case."""
        from huggingface_hub.errors import RepositoryNotFoundError

        with writing(self.url):
            try:
                urls.repeated(self.head)
            except RepositoryNotFoundError:
                self.api.create_repo(**self.where, private=True, exist_ok=True)
                return True
        return False

    def put(self, sources: Mapping[str, Path], *, force: bool) -> None:
        """Write all files in one commit."""
        from huggingface_hub import CommitOperationAdd

        first = min(sources)
        message = f"sentkit: {first}" + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
        tried = False

        def commit() -> None:
            nonlocal tried
            again, tried, parent = tried, True, None
            adds = [CommitOperationAdd(self.path(name), str(file)) for name, file in sources.items()]
            if not force:
                parent = self.head()
                there = self.found(sources, parent)
                # After a lost answer, these can be the files of the last attempt.
                same = len(there) == len(adds) and all(is_equal(there[add.path_in_repo], add) for add in adds)
                if there and not (again and same):
                    raise temporary.appeared(f"{self.url}/{first}")
            self.commit(adds, message, parent)

        with writing(self.url):
            urls.repeated(commit, WAITS, BUSY)

    def remove(self, names: Collection[str]) -> None:
        from huggingface_hub import CommitOperationDelete

        def commit() -> None:
            there = self.found(names, self.head())
            if there:
                self.commit(list(map(CommitOperationDelete, there)), f"sentkit: remove {min(there)}", None)

        with writing(self.url):
            urls.repeated(commit, WAITS, BUSY)

    def commit(self, operations: list[Any], message: str, parent: str | None) -> None:
        given = {"operations": operations, "commit_message": message, "parent_commit": parent}
        self.api.create_commit(**self.where, **given, revision=self.revision)


def is_equal(record: Any, add: Any) -> bool:
    """Whether a file of the hub has the content that is to be added."""
    if record.lfs is not None:
        return bool(record.lfs.sha256 == add.upload_info.sha256.hex())
    content = Path(add.path_or_fileobj).read_bytes()
    return bool(record.blob_id == sha1(b"blob %d\0" % len(content) + content).hexdigest())


class Upload(temporary.Draft):
    """A temporary file that `publish` uploads. If this fails, it is kept, and the error has its name."""

    mode = 0o600  # all users can list the folder of temporary files

    def __init__(self, url: str, *, force: bool) -> None:
        target = Path(gettempdir(), quote(split(url)[1]))
        temporary.remove_leftovers(target)
        super().__init__(target, force=False, name=url)
        self.force = force

    def publish(self) -> None:
        folder, name = split(self.name)
        try:
            place_at(folder).put({name: self.path}, force=self.force)
        except SentkitError as error:
            kept = self.path.with_name(self.path.name[1:])
            self.path.rename(kept)
            error.advice = f"the complete output is {kept}"
            raise


class Outbox:
    """The folder of new blocks, which are removed from it when a group of them is written at the URL."""

    def __init__(self, url: str, folder: Path, writers: int) -> None:
        self.folder, self.spacing = folder, SPACING * writers
        self.place, self.last = place_at(url), monotonic()
        self.group: dict[str, Path] = {}
        self.size, self.is_new = 0, self.place.create()

    def file(self, name: str) -> str:
        return str(self.folder / name)

    def add(self, name: str) -> None:
        """Add a block. A group is written when it is large or some time has passed."""
        self.group[name] = self.folder / name
        self.size += self.group[name].stat().st_size
        if self.size >= GROUP_BYTES or len(self.group) >= GROUP_FILES:
            sleep(max(0.0, self.last + self.spacing - monotonic()))
        if isinstance(self.place, Store) or monotonic() >= self.last + self.spacing:
            self.flush()

    def flush(self) -> None:
        group, self.group, self.size = self.group, {}, 0  # also if this fails, it is not repeated
        if group:
            self.place.put(group, force=True)
            self.last = monotonic()
        for file in group.values():
            file.unlink()


@contextmanager
def open_outbox(url: str, writers: int) -> Iterator[Outbox | None]:
    """Yield the outbox of a vector folder at a URL, and write its last group; None for a local folder.

    The repository of the hub is created if there is none. `writers` share the permitted number of commits.
    """
    if not urls.is_url(url):
        yield None
        return
    target = Path(gettempdir(), "vectors")
    temporary.remove_leftovers(target)
    with temporary.private_folder(target, url) as folder:
        folder.chmod(0o700)
        outbox = Outbox(url, folder, writers)
        try:
            yield outbox
        except SentkitError:  # complete blocks are kept, also if the next one is bad or a signal has come
            outbox.flush()
            raise
        outbox.flush()
