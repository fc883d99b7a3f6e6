"""A `sentkit` for tests that start it often: one process imports torch, and each command is a fork
of it.

python forking.py serve SOCKET, then any number of: python forking.py sentkit SOCKET ARGUMENTS. In
place of sentkit, `python` runs Python with these arguments: -m MODULE, -c CODE, - or FILE; and
`fork` begins another server, whose arguments are its socket and the folder of its sentkit.
"""

# A call imports as little as possible: the server imports what it needs in its functions.
import _socket
import os
import struct
import sys

LARGEST_REQUEST = 1 << 20  # bytes
HEAVY = (
    *("transformers", "tokenizers.normalizers", "tokenizers.implementations", "scipy.stats"),
    *("transformers.generation.utils", "transformers.models.auto.modeling_auto"),
    *(f"transformers.models.{kind}.modeling_{kind}" for kind in ("marian", "fsmt", "t5", "bert")),
    *("matplotlib.figure", "matplotlib.style", "matplotlib.backends.backend_svg"),
    *("sklearn.linear_model", "sklearn.cluster", "sklearn.metrics", "sklearn.manifold"),
)


def import_all():
    """The libraries, and all modules of sentkit but those that run as programs."""
    import importlib
    import pkgutil
    from contextlib import suppress

    import sentkit

    for library in HEAVY:
        with suppress(ImportError):
            importlib.import_module(library)
    for module in pkgutil.walk_packages(sentkit.__path__, "sentkit."):
        if not module.name.endswith((".__main__", ".figures")):
            with suppress(ImportError):
                importlib.import_module(module.name)


def prepare():
    """Make what many commands need and none changes: their parsers, a table of numbers, and the
    included models.
    """
    from sentkit.cli import NAMES, program
    from sentkit.model import find_encoder
    from sentkit.model.reading import ReadingOptions
    from sentkit.model.small_encoder import normal
    from support import share_included_models

    for command in (None, *NAMES):
        program(command)
    normal()
    share_included_models(setattr)
    find_encoder("nano", ReadingOptions(), precision="fp32").encoder(1)
    find_encoder("static", ReadingOptions()).encoder()


def serve(path):
    """Print "ready", import, and answer calls until the socket is removed or the parent has
    ended.
    """
    import gc
    import signal
    import socket
    from contextlib import suppress

    os.fsync = os.fstat  # as conftest.py does
    door = socket.socket(socket.AF_UNIX)
    door.bind(path)
    door.listen()
    door.settimeout(5)
    print("ready", flush=True)  # noqa: T201
    import_all()
    prepare()
    gc.collect()
    gc.freeze()  # otherwise each fork walks through all these objects, and so copies their memory
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so the forks leave nothing behind
    parent = os.getppid()
    while os.getppid() == parent and os.path.exists(path):  # noqa: PTH110 (no server is left behind)
        with suppress(TimeoutError):
            caller, _ = door.accept()
            if os.fork() == 0:
                door.close()
                os._exit(answer(caller))
            caller.close()


def answer(caller):
    """In this fork, run the requested command in a child, and send its exit code."""
    import ast
    import signal
    import socket

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, streams, _, _ = socket.recv_fds(caller, LARGEST_REQUEST, 3)
    program, arguments, folder, environment = ast.literal_eval(request.decode())
    # A server has no child, so that it notices the end of the first one.
    if program == "fork" or (child := os.fork()) == 0:
        caller.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        become(program, arguments)
    for stream in streams:
        os.close(stream)
    _, wait_status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(wait_status)
    caller.sendall(str(code).encode())
    return 0


def become(program, arguments):
    """In this process, run a command of sentkit, Python, or a server."""
    from sentkit.__main__ import main

    if program == "fork":
        for name in [name for name in sys.modules if name.partition(".")[0] == "sentkit"]:
            del sys.modules[name]
        sys.path.insert(0, arguments[1])
        os._exit(serve(arguments[0]) or 0)
    if program == "python":
        os._exit(python(arguments))
    sys.argv = ["sentkit", *arguments]
    main()


def python(words):
    """Run this Python program; its exit code."""
    import runpy
    import traceback

    code = 0
    first = words[0]
    sys.argv = words[1:] if first == "-m" else words
    sys.path[0] = first.rpartition("/")[0]
    try:
        if first == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif first in ("-", "-c"):
            code_text = words.pop(1) if first == "-c" else sys.stdin.read()
            exec(compile(code_text, first, "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(first, run_name="__main__")
    except SystemExit as ended:
        code = ended.code or 0
        if isinstance(code, str):
            code = sys.stderr.write(f"{code}\n") and 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def call(program, path, arguments):
    """Run a command there, with the streams, folder and environment of this process."""
    door = _socket.socket(_socket.AF_UNIX)
    door.connect(path)
    request = repr([program, arguments, os.getcwd(), dict(os.environ)]).encode()  # noqa: PTH109
    streams = _socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("3i", 0, 1, 2)
    door.sendmsg([request], [streams])
    sys.exit(int(door.recv(16)))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        call(sys.argv[1], sys.argv[2], sys.argv[3:])
