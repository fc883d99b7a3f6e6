"""An OpenAI-compatible server of embeddings on the loopback, for tests. It can misbehave."""

import base64
import json
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread

import numpy as np


def character_vectors(texts):
    """Four numbers that depend only on a text: exact in float32, and different for different
    letters.
    """
    sums = [[sum(map(ord, text)), len(text), *map(ord, (text * 2)[:2])] for text in texts]
    return np.array(sums, np.float32).reshape(-1, 4) / 256


class Answer:
    """What the server sends: a status, headers and a body, which it may cut or send slowly."""

    def __init__(self, body, status=200, *, headers=None, length=None, cut=None, delay=0):
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.status = status
        self.headers = headers or {}
        self.length = length  # the header Content-Length, if it is wrong; "" for none
        self.cut = cut  # the number of bytes after which the connection is closed
        self.delay = delay  # seconds before each byte


class Api:
    """`vectors` is a function from texts to an array (n, d).

    `requests` are the bodies so far, and `keys` their header Authorization. `wrong` is called with
    the number of the request (from 0), its body and its right answer; what it returns is sent
    instead, unless it is None.
    """

    def __init__(self, address, vectors):
        self.address = address
        self.vectors = vectors
        self.requests, self.keys = [], []
        self.base64 = True  # whether the server can answer in base64, if a request wants it
        self.dimensions = True  # whether the server reads "dimensions"
        self.wrong = lambda number, request, answer: None
        self.lock = Lock()
        self.active = self.most_active = 0  # requests at a time

    @property
    def model(self):
        """The value of -m."""
        return f"{self.address}/v1#tiny"

    @property
    def texts(self):
        return [text for request in self.requests for text in request["input"]]

    def right(self, request):
        vectors = np.asarray(self.vectors(request["input"]), np.float32)
        if self.dimensions and "dimensions" in request:
            vectors = vectors[:, : request["dimensions"]]
        items = []
        for index, vector in enumerate(vectors):
            embedding = vector.tolist()
            if self.base64 and request.get("encoding_format") == "base64":
                embedding = base64.b64encode(vector.astype("<f4").tobytes()).decode()
            items.append({"object": "embedding", "index": index, "embedding": embedding})
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return {"object": "list", "data": items, "model": request["model"], "usage": usage}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        api = self.server.api
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with api.lock:
            number = len(api.requests)
            api.requests.append(request)
            api.keys.append(self.headers["Authorization"])
            api.active += 1
            api.most_active = max(api.active, api.most_active)
        try:
            if self.path == "/v1/embeddings":
                right = api.right(request)
                wrong = api.wrong(number, request, right)
            else:
                right, wrong = None, Answer({"detail": "Not Found"}, 404)
        finally:
            with api.lock:
                api.active -= 1  # before the answer, after which the next request may come
        self.send(Answer(right) if wrong is None else wrong)

    def send(self, answer):
        if not isinstance(answer, Answer):
            answer = Answer(answer)
        if answer.status is None:  # no answer at all
            self.close_connection = True
            return
        if answer.status == "head":
            self.send_endless_head()
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        length = len(answer.body) if answer.length is None else answer.length
        if length != "":
            self.send_header("Content-Length", str(length))
        if answer.cut is not None or answer.length is not None:
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        body = answer.body[: answer.cut]
        try:
            if answer.delay:
                for start in range(len(body)):
                    self.server.stopped.wait(answer.delay)
                    self.wfile.write(body[start : start + 1])
            else:
                self.wfile.write(body)
        except OSError:  # the client has gone
            self.close_connection = True

    def send_endless_head(self):
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        try:
            while not self.server.stopped.wait(0.05):
                self.wfile.write(b"a")
        except OSError:  # the client has gone
            return

    def log_message(self, *arguments):
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """A client that closes a connection is no error of a test."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


@contextmanager
def api_server(vectors=character_vectors):
    server = Server(("127.0.0.1", 0), Handler)
    server.stopped = Event()
    server.api = Api(f"http://127.0.0.1:{server.server_port}", vectors)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.api
    finally:
        server.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()
