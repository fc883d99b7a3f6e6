"""A `sentkit` for tests that start it often: one process imports torch, and each command is a fork of it.

python forking.py serve SOCKET, then any number of: python forking.py call SOCKET ARGUMENTS
"""

import gc
import importlib
import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

LARGEST_REQUEST = 1 << 20  # bytes
HEAVY = (
    *("transformers", "matplotlib.figure", "matplotlib.backends.backend_svg", "scipy.stats"),
    *("sklearn.linear_model", "sklearn.cluster", "sklearn.metrics", "sklearn.manifold"),
)


def serve(path):
    """Print "ready", then wait for calls until this process is killed or its parent has ended."""
    for library in HEAVY:
        with suppress(ImportError):
            importlib.import_module(library)
    from sentkit.__main__ import main
    from sentkit.model import checkpoint_model  # noqa: F401
    from sentkit.training import catalogue
    from sentkit.training.runs import command  # noqa: F401

    for name in catalogue.METHODS:
        catalogue.load(name)
    gc.collect()
    gc.freeze()  # otherwise each fork walks through all these objects, and so copies their memory
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen()
        door.settimeout(5)
        parent = os.getppid()
        print("ready", flush=True)  # noqa: T201
        while os.getppid() == parent:  # a killed test run leaves no server behind
            try:
                caller, _ = door.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                door.close()
                answer(caller, main)
            caller.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def answer(caller, main):
    """Run the requested command in a child, and send its exit code."""
    request, streams, _, _ = socket.recv_fds(caller, LARGEST_REQUEST, 3)
    child = os.fork()
    if child == 0:
        caller.close()
        arguments, folder, environment = json.loads(request)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["sentkit", *arguments]
        main()
    _, status = os.waitpid(child, 0)
    caller.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def call(path, arguments):
    """Run a command there, with the streams, folder and environment of this process."""
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(path)
        request = json.dumps([arguments, str(Path.cwd()), dict(os.environ)]).encode()
        socket.send_fds(door, [request], [0, 1, 2])
        sys.exit(int(door.recv(16)))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        call(sys.argv[2], sys.argv[3:])
