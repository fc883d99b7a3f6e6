"""A web server on the loopback for tests. It can break connections, be busy, and answer as the hub
does.
"""

import json
import re
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

from sentkit.formats import urls
from sentkit.formats.outputs.temporary import remove_all

API = re.compile(r"/api/datasets/([\w-]+/[\w-]+)(?:/revision/([\w/]+)|/tree/(\w+)/?(.*))?")
FILE = re.compile(r"/datasets/([\w-]+/[\w-]+)/resolve/(\w+)/(.*)")


def forget():
    """As in a new process, nothing of a URL is known."""
    urls.local_copy.cache_clear()
    urls.commit_of.cache_clear()
    remove_all()


class Web:
    """`files` are the contents by path. The hub has commits: repository -> commit -> path ->
    content.
    """

    def __init__(self, address):
        self.address = address
        self.files = {}
        self.repositories = {}
        self.branches = {}
        self.references = {}  # the commits of other names than `main`
        self.broken = False  # whether only half of the bytes of a file arrive
        self.status = 200  # of all answers, if it is another one
        self.redirects = {}  # by path
        self.refused = {}  # the status and the reason of the hub, by path
        self.end = "length"  # what shows the end of an answer: its length, chunks, or nothing
        self.encoding = None  # the header Content-Encoding, sent in any case
        self.asked = Counter()  # requests by path
        self.authorizations = []

    def commit(self, repository, commit, files):
        """Add a commit, to which the branch `main` now points."""
        self.repositories.setdefault(repository, {})[commit] = files
        self.branches[repository] = commit

    def content(self, path):
        match = FILE.fullmatch(path)
        if match is None:
            return self.files.get(path)
        repository, revision, name = match.groups()
        return self.tree(repository, revision).get(name)

    def tree(self, repository, revision):
        revision = self.branches.get(repository) if revision in (None, "main") else revision
        return self.repositories.get(repository, {}).get(revision, {})

    def api(self, path):
        """The answer of the hub: a repository, or the files and folders in a folder."""
        match = API.fullmatch(path)
        if match is None or match[1] not in self.repositories:
            return None
        repository, revision, tree, folder = match.groups()
        if tree is None:
            revision = self.references.get(revision, revision)
            sha = self.branches[repository] if revision in (None, "main") else revision
            return {"id": repository, "sha": sha, "private": False, "siblings": []}
        start = f"{folder}/" if folder else ""
        names = [name for name in self.tree(repository, tree) if name.startswith(start)]
        folders = {f"{start}{name.removeprefix(start).partition('/')[0]}" for name in names} - {
            *names
        }
        inside = [name for name in names if "/" not in name.removeprefix(start)]
        sizes = {name: len(self.tree(repository, tree)[name]) for name in inside} | dict.fromkeys(
            folders, 0
        )
        kinds = {name: "directory" if name in folders else "file" for name in sizes}
        return [
            {"type": kinds[name], "oid": "0" * 40, "size": size, "path": name}
            for name, size in sizes.items()
        ] or None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        web = self.server.web
        path = unquote(urlsplit(self.path).path)
        web.asked[path] += 1
        web.authorizations.append(self.headers["Authorization"])
        record = web.api(path) if path.startswith("/api/") else None
        content = json.dumps(record).encode() if record is not None else web.content(path)
        if web.status != 200:
            self.answer(web.status, b"", {})
        elif path in web.refused:
            self.answer(web.refused[path][0], b"", {"X-Error-Code": web.refused[path][1]})
        elif path in web.redirects:
            self.answer(302, b"", {"Location": web.redirects[path]})
        elif content is None:
            error = "EntryNotFound" if API.sub(r"\1", path) in web.repositories else "RepoNotFound"
            self.answer(404, b"", {"X-Error-Code": error})
        else:
            self.answer(200, content, {}, broken=web.broken and record is None)

    do_HEAD = do_GET  # noqa: N815

    def answer(self, status, content, headers, broken=False):
        end = self.server.web.end
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if end == "length":
            self.send_header("Content-Length", str(len(content)))
        if end == "chunks":
            self.send_header("Transfer-Encoding", "chunked")
        if self.server.web.encoding is not None:
            self.send_header("Content-Encoding", self.server.web.encoding)
        self.send_header("Connection", "close")
        self.end_headers()
        sent = content[: len(content) // 2] if broken else content
        if self.command == "HEAD":
            return
        if end == "chunks":
            self.wfile.write(
                b"%x\r\n%b\r\n" % (len(sent), sent) + (b"" if broken else b"0\r\n\r\n")
            )
        else:
            self.wfile.write(sent)

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
