"""A web server on the loopback for tests. It can break connections, be busy, and answer as the hub does."""

import json
import re
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

from sentkit.formats import urls

SPAN = re.compile(r"bytes=(\d+)-(\d+)")
API = re.compile(r"/api/datasets/([\w-]+/[\w-]+)(?:/revision/(\w+)|/tree/(\w+)/?(.*))?")
FILE = re.compile(r"/datasets/([\w-]+/[\w-]+)/resolve/(\w+)/(.*)")


def forget():
    """As in a new process, nothing of a URL is known."""
    for cached in (urls.remote_file, urls.info_of, urls.filesystem, urls.block):
        cached.cache_clear()
    urls._commits.clear()
    urls._at_commit.clear()


class Web:
    """`files` are the contents by path. The hub has commits: repository -> commit -> path -> content."""

    def __init__(self, address):
        self.address = address
        self.files, self.repositories, self.branches = {}, {}, {}
        self.ranges = True  # whether the server sends parts of files
        self.broken = 0  # the number of answers of which only half of the bytes arrive
        self.busy = 0  # the number of requests that are refused with 429
        self.retry_after = "0"  # seconds
        self.tags, self.redirects = {}, {}  # by path
        self.refused = {}  # the status and the reason of the hub, by path
        self.length = True  # whether an answer has its length
        self.asked = Counter()  # requests by path
        self.spans, self.authorizations = [], []

    def commit(self, repository, commit, files):
        """Add a commit, to which the branch `main` now points."""
        self.repositories.setdefault(repository, {})[commit] = files
        self.branches[repository] = commit

    def content(self, path):
        found = FILE.fullmatch(path)
        if found is None:
            return self.files.get(path)
        repository, revision, name = found.groups()
        return self.tree(repository, revision).get(name)

    def tree(self, repository, revision):
        revision = self.branches.get(repository) if revision in (None, "main") else revision
        return self.repositories.get(repository, {}).get(revision, {})

    def api(self, path):
        """The answer of the hub: a repository, or the files and folders in a folder."""
        found = API.fullmatch(path)
        if found is None or found[1] not in self.repositories:
            return None
        repository, revision, tree, folder = found.groups()
        if tree is None:
            sha = self.branches[repository] if revision in (None, "main") else revision
            return {"id": repository, "sha": sha, "private": False, "siblings": []}
        start = f"{folder}/" if folder else ""
        names = [name for name in self.tree(repository, tree) if name.startswith(start)]
        folders = {f"{start}{name.removeprefix(start).partition('/')[0]}" for name in names} - {*names}
        inside = [name for name in names if "/" not in name.removeprefix(start)]
        sizes = {name: len(self.tree(repository, tree)[name]) for name in inside} | dict.fromkeys(folders, 0)
        kinds = {name: "directory" if name in folders else "file" for name in sizes}
        return [
            {"type": kinds[name], "oid": "0" * 40, "size": size, "path": name} for name, size in sizes.items()
        ] or None


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        web, path = self.server.web, unquote(urlsplit(self.path).path)
        web.asked[path] += 1
        web.authorizations.append(self.headers["Authorization"])
        record = web.api(path) if path.startswith("/api/") else None
        content = json.dumps(record).encode() if record is not None else web.content(path)
        if web.busy:
            web.busy -= 1
            self.answer(429, b"", {"Retry-After": web.retry_after})
        elif path in web.refused:
            self.answer(web.refused[path][0], b"", {"X-Error-Code": web.refused[path][1]})
        elif path in web.redirects:
            self.answer(302, b"", {"Location": web.redirects[path]})
        elif content is None:
            error = "EntryNotFound" if API.sub(r"\1", path) in web.repositories else "RepoNotFound"
            self.answer(404, b"", {"X-Error-Code": error})
        else:
            self.send(path, content)

    def send(self, path, content):
        web, span = self.server.web, SPAN.fullmatch(self.headers["Range"] or "")
        headers = {"ETag": web.tags.get(path, '"first"')}
        if span is None or not web.ranges:
            self.answer(200, content, headers)
            return
        first, last = int(span[1]), min(int(span[2]), len(content) - 1)
        web.spans.append((first, last))
        if first >= len(content):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self.answer(206, content[first : last + 1], headers)

    def answer(self, status, content, headers):
        web = self.server.web
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if web.length:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if web.broken and len(content) > 1 and "/api/" not in self.path:
            web.broken -= 1
            content = content[: len(content) // 2]
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@contextmanager
def web_server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.web = Web(f"http://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
