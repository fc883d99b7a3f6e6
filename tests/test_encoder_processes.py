"""`sentkit.Encoder` in forked children, and its threads: os.fork, multiprocessing, the DataLoader,
Ctrl-C.
"""

import os
import subprocess

import pytest

import sentkit
from sentkit.errors import UsageError
from support import make_bert, python_of

SECONDS = 100  # until a program that hangs is killed
# OpenMP has two threads, and has used them in the main thread. A child that waits for them is
# killed.
START = """
import faulthandler, multiprocessing, os, signal, sys, threading, time, traceback, warnings
import numpy as np
import torch
import sentkit

signal.alarm(90)
torch.set_num_threads(2)
(torch.ones(2000, 2000) + 1).exp().sum()
words = ["cat", "dog", "man", "woman", "sea", "rain"] * 40
texts = [
    f"the {word} sleeps by the river {'and runs ' * (number % 30)}"
    for number, word in enumerate(words)
]
options = {"device": "cpu", "precision": "fp32"}

def succeeds(function):
    child = os.fork()
    if child == 0:
        faulthandler.enable()
        faulthandler.dump_traceback_later(55)
        signal.alarm(60)
        code = 1
        try:
            code = 0 if function() else 3
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
# Of all texts, as many as two threads share.
FEWER = "texts = texts[:96]"
PROGRAMS = {
    "os.fork": """
encoder = sentkit.Encoder(model, **options)
vectors = encoder.encode(texts)
loads_itself = lambda: np.array_equal(sentkit.Encoder(model, **options).encode(texts), vectors)
for number in range(3):
    assert succeeds(lambda: np.array_equal(encoder.encode(texts), vectors)) == 0, number
assert succeeds(loads_itself) == 0
assert np.array_equal(encoder.encode(texts), vectors)  # the parent goes on
""",
    "multiprocessing": """
encoder = sentkit.Encoder(model, **options)
vectors = encoder.encode(texts)
context = multiprocessing.get_context("fork")
equal = lambda: sys.exit(0 if np.array_equal(encoder.encode(texts), vectors) else 3)
children = [context.Process(target=equal) for _ in range(3)]
for child in children:
    child.start()
for child in children:
    child.join(60)
assert [child.exitcode for child in children] == [0] * 3
""",
    "DataLoader": """
encoder = sentkit.Encoder(model, **options)
vectors = encoder.encode(texts)

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return encoder.encode(texts[index * 24 : index * 24 + 24])

loader = torch.utils.data.DataLoader(
    Texts(), batch_size=None, num_workers=2, multiprocessing_context="fork"
)
rows = np.concatenate([np.asarray(batch) for batch in loader])
assert np.allclose(rows, vectors, atol=1e-5), np.abs(rows - vectors).max()
""",
    "fork while a thread encodes": """
encoder = sentkit.Encoder(model, **options)
vectors, stop = encoder.encode(texts), threading.Event()

def encode_again():
    while not stop.is_set():
        encoder.encode(texts)

threads = [threading.Thread(target=encode_again) for _ in range(2)]
for thread in threads:
    thread.start()
codes = [succeeds(lambda: np.array_equal(encoder.encode(texts), vectors)) for _ in range(4)]
stop.set()
for thread in threads:
    thread.join()
assert codes == [0] * 4, codes
""",
    "fork while a thread loads": """
encoder = sentkit.Encoder(model, **options)
loading = threading.Event()
load = encoder.model.encoder if model == "static" else encoder.model.encoder_of_program

def load_slowly(*values):
    loading.set()
    time.sleep(0.5)
    return load(*values)

object.__setattr__(encoder.model, load.__name__, load_slowly)
thread = threading.Thread(target=encoder.encode, args=(texts,))
thread.start()
loading.wait()
code = succeeds(lambda: encoder.encode(texts).shape[0] == len(texts))
thread.join()
assert code == 0, code
""",
    "fork while a thread looks for unknown languages": """
from sentkit.model.text.languages import LanguageCheck

encoder = sentkit.Encoder(model, **options)
learning, learn = threading.Event(), LanguageCheck._learn
unknown = ["кошка спит дома и потом бежит", "the cat sleeps by the river"]

def learn_slowly(self, ids):
    learning.set()
    time.sleep(0.5)
    learn(self, ids)

LanguageCheck._learn = learn_slowly
thread = threading.Thread(target=encoder.encode, args=(unknown,))
thread.start()
learning.wait(5)
LanguageCheck._learn = learn
code = succeeds(lambda: encoder.encode(unknown).shape[0] == 2)
thread.join()
assert learning.is_set()
assert code == 0, code
""",
}


@pytest.fixture(scope="session")
def model_of_transformers(tmp_path_factory):
    """A BERT with an activation for which it runs through transformers."""
    folder = tmp_path_factory.mktemp("models") / "gelu"
    make_bert(folder, hidden_act="quick_gelu")
    return str(folder)


@pytest.fixture
def run_program(forked_program):
    """Run a program of Python with two threads of OpenMP; what it prints to stderr."""

    def run(text, **variables):
        unset = ("OMP_NUM_THREADS", "SENTKIT_THREADS", "TOKENIZERS_PARALLELISM")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        completed = subprocess.run(
            [*python_of(forked_program), "-c", START + text],
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stderr

    return run


# How a library forks does not depend on the model. A model that runs through transformers has the
# tokenizer of nano, and so its check of languages.
CASES = [(name, "nano") for name in PROGRAMS]
CASES += [
    (name, model)
    for name in ("os.fork", "fork while a thread encodes", "fork while a thread loads")
    for model in ("static", "transformers")
]
CASES.append(("fork while a thread looks for unknown languages", "static"))


@pytest.mark.parametrize(("name", "model"), CASES)
def test_a_forked_child_encodes(run_program, name, model, model_of_transformers):
    model = model_of_transformers if model == "transformers" else model
    messages = run_program(f"model = {model!r}\n{FEWER}\n{PROGRAMS[name]}")

    assert "TOKENIZERS_PARALLELISM" not in messages  # no advice of a library about our threads


def test_a_forked_child_does_not_wait_for_threads_of_the_tokenizers(run_program):
    """Also if the variable allows them."""
    program = f"model = 'nano'\n{FEWER}\n{PROGRAMS['os.fork']}"
    run_program(program, TOKENIZERS_PARALLELISM="true")


def test_threads_that_compute_or_load_never_end(run_program):
    """A thread that ends frees its memory of MKL: a child forked at this moment would wait for MKL
    for ever.
    """
    run_program("""
from sentkit.model.transformer.encoder import TransformerEncoder

used, load, start = set(), TransformerEncoder._load, TransformerEncoder._start

def watched_load(self, pool):
    used.add(threading.current_thread())
    return load(self, pool)

def watched_start(self, batch):
    used.add(threading.current_thread())
    return start(self, batch)

TransformerEncoder._load, TransformerEncoder._start = watched_load, watched_start
for threads in (1, 2):
    for precision in ("fp32", "int8"):
        sentkit.Encoder("nano", threads=threads, device="cpu", precision=precision).encode(texts)
ended = [thread for thread in used if not thread.is_alive()]
assert used and not ended, ended
""")


def test_ctrl_c_ends_the_call_and_leaves_no_work(run_program):
    """Four of 60 batches are computed, or fewer: each takes 0.1 s here."""
    run_program("""
from sentkit.model.transformer.encoder import TransformerEncoder

encoder = sentkit.Encoder("nano", threads=2, **options)
encoder.encode(texts[:3])
computed, start = [], TransformerEncoder._start

def slow(self, batch):
    computed.append(len(batch))
    if len(computed) == 3:
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
    return start(self, batch)

TransformerEncoder._start = slow
encoder.loaded.tokens_per_batch = 32
try:
    encoder.encode(texts)
except KeyboardInterrupt as error:
    interrupted = error  # with the frames of the call
count = len(computed)
assert interrupted
time.sleep(0.5)
assert len(computed) <= count + 2 <= 10, (count, len(computed))
TransformerEncoder._start = start
assert encoder.encode(texts).shape == (len(texts), 256)
""")


def test_the_threads_of_an_encoder(run_program):
    """The argument, else the variable, else the number that torch has, which stays. Equal
    vectors.
    """
    run_program(
        """
from sentkit.model.transformer.encoder import TransformerEncoder

used, start = [], TransformerEncoder._start

def watched(self, batch):
    used.append((threading.get_ident(), torch.get_num_threads()))
    return start(self, batch)

TransformerEncoder._start = watched
expected = None
for threads, count in ((None, 3), (1, 1), (2, 2), (4, 4)):
    encoder = sentkit.Encoder("nano", threads=threads, **options)
    encoder.loaded.tokens_per_batch = 64
    used.clear()
    vectors = encoder.encode(texts)
    assert 1 <= len({thread for thread, _ in used}) <= count
    assert {number for _, number in used} == {1}
    assert threading.get_ident() not in dict(used)
    assert encoder.loaded.own_threads == count
    assert expected is None or np.array_equal(vectors, expected)
    expected = vectors
assert torch.get_num_threads() == 2
other = []
thread = threading.Thread(target=lambda: other.append(torch.get_num_threads()))
thread.start()
thread.join()
assert other == [2], other
""",
        SENTKIT_THREADS="3",
    )


def test_a_small_input_has_work_for_two_threads(run_program):
    """The texts are divided into small batches, so two threads meet."""
    run_program("""
from sentkit.model.transformer.encoder import TransformerEncoder

start, meeting = TransformerEncoder._start, threading.Barrier(2)

def meet(self, batch):
    if not meeting.broken and len(met) < 2:
        try:
            meeting.wait(20)
            met.append(len(batch))
        except threading.BrokenBarrierError:
            pass
    return start(self, batch)

met = []
encoder = sentkit.Encoder("nano", threads=2, **options)
encoder.loaded.smallest_batch = 256
TransformerEncoder._start = meet
encoder.encode(texts)
assert len(met) >= 2, met
""")


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_wrong_numbers_of_threads_are_refused(value):
    with pytest.raises(
        ValueError, match=f"threads is {value!r}, expected a whole number of 1 or more"
    ):
        sentkit.Encoder("nano", threads=value)


def test_too_many_threads_are_refused(monkeypatch):
    monkeypatch.setattr("sentkit.process.usable_cpus", lambda: 2)
    with pytest.raises(ValueError, match="threads is 9, at most 8: four for each CPU"):
        sentkit.Encoder("nano", threads=9)
    monkeypatch.setenv("SENTKIT_THREADS", "many")
    with pytest.raises(UsageError, match='the variable SENTKIT_THREADS is "many"'):
        sentkit.Encoder("nano")
