"""Constants and functions that tests of several folders share."""

import importlib.util
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import orjson

ROOT = Path(__file__).parent.parent
NANO = ROOT / "sentkit/nano"
SVG = "{http://www.w3.org/2000/svg}"  # namespace
DATA = Path(os.environ.get("SENTKIT_DATA", ROOT.parent / "shared/data"))
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "a",
    "the",
    "cat",
    "dog",
    "sat",
    ".",
    "play",
    "##ing",
    "##s",
]
FAMILIES = (
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "electra",
    "mpnet",
    "modernbert",
)
SMALL = {  # a BERT for nano's tokenizer
    "vocab_size": 16384,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 128,
}
TEXTS = [
    "a man plays a guitar",
    "someone makes music",
    "the cat sleeps",
    "a dog runs",
    "rain",
    "two people walk along the river",
    "birds fly south",
    "the market fell",
    "she reads a book",
]
WORDS = {*" ".join(TEXTS).split()}
WORDS |= {
    "animal",
    "ball",
    "cat",
    "children",
    "dog",
    "hill",
    "house",
    "park",
    "rain",
    "red",
    "river",
    "sea",
}
WORDS |= {"train"}
PAIRS = [
    {"text_a": one, "text_b": other, "score": score}
    for one, other, score in zip(
        TEXTS, TEXTS[1:], (3.0, 1.0, 2.5, 0.0, 4.0, 1.5, 2.0, 0.5), strict=False
    )
]

READERS = {  # commands that read vectors
    "score": ["score", "PATH", "--top", "2"],
    "search": ["search", "--queries", "PATH", "--corpus", "PATH", "--top", "2"],
    "search-flat": ["search", "--corpus", "PATH", "--flat", "--queries", "PATH"],
    "diff": ["diff", "PATH", "PATH"],
    "duplicates": ["duplicates", "PATH", "--threshold", "0.9"],
    "cluster": ["cluster", "PATH", "-k", "2", "--seed", "1"],
    "probe": ["probe", "PATH", "--label", "label", "--folds", "3", "--penalties", "1"],
    "inspect": ["inspect", "PATH"],
    "cat": ["cat", "PATH"],
    "fit": ["whiten", "fit", "PATH", "--kind", "center", "-o", "-"],
    "apply": ["whiten", "apply", "PATH", "-t", "transform.safetensors"],
}


def method_of_the_manual():
    """The example of sentkit-method(7), a file with the class Uniform."""
    page = (ROOT / "man/man7/sentkit-method.7").read_text()
    [example] = re.findall(r"\.SH EXAMPLE\n.*?\.nf\n(.*?)\.fi\n", page, re.DOTALL)
    return example.replace(r"\&", "").replace(r"\-", "-")


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


BY_HAND = {
    "cosine": lambda a, b: dot(a, b) / math.sqrt(dot(a, a) * dot(b, b)),
    "dot": dot,
    "euclidean": lambda a, b: -math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True))),
    "manhattan": lambda a, b: -sum(abs(x - y) for x, y in zip(a, b, strict=True)),
}


def normal_rows(n, d, seed=0):
    """Random vectors, float32."""
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def in_jsonl(*rows):
    """These rows as JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_rows(folder, files):
    """Write rows as JSON lines, by the name of their file without its suffix."""
    for name, rows in files.items():
        path = folder / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(in_jsonl(*rows))


def write_script(path, body):
    """Write a program of the shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def load_script(path):
    """A script of Python as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copy_tokenizer(folder):
    for name in TOKENIZER_FILES:
        shutil.copy(NANO / name, folder)


def make_bert(folder, kind="BertModel", **config):
    """A BERT of transformers with random weights, with nano's tokenizer. It declares nothing."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, kind)(transformers.BertConfig(**SMALL | config))
    model.save_pretrained(folder)
    copy_tokenizer(folder)
    return folder


def declare_modules(folder, mode, width, last="2_Normalize", **files):
    """Declare pooling and a step in the old schema of sentence-transformers, and write
    other files.
    """
    kinds = {"": "Transformer", "1_Pooling": "Pooling", last: last[2:]}
    listing = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, (path, kind) in enumerate(kinds.items())
    ]
    pooling = {"word_embedding_dimension": width, f"pooling_mode_{mode}": True}
    for name, content in {"modules": listing, "1_Pooling/config": pooling, **files}.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


def make_classifier(kind, outputs, folder, **config):
    """A model of transformers with random weights, for nano's tokenizer."""
    import torch
    import transformers

    torch.manual_seed(outputs)
    sizes = {**SMALL, "num_labels": outputs, **config}
    if kind == "roberta":
        sizes["type_vocab_size"] = 1
    if kind in ("mpnet", "modernbert"):
        sizes["pad_token_id"] = 0
    if kind == "distilbert":
        sizes |= {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2}
    model = transformers.AutoModelForSequenceClassification.from_config(
        transformers.AutoConfig.for_model(kind, **sizes)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)  # so that the classes have different probabilities
    model.save_pretrained(folder)
    copy_tokenizer(folder)
    return folder


def write_small_tokenizer(folder):
    """nano's tokenizer with few of its tokens, so that a model has a small vocabulary; the number
    of tokens.

    They are the frequent ASCII ones and the words that tests take for single tokens.
    """
    tokenizer = json.loads((NANO / "tokenizer.json").read_text())
    ranks = tokenizer["model"]["vocab"]
    tokens = [
        token
        for token, rank in ranks.items()
        if token.isascii() and (rank < 1000 or token in WORDS)
    ]
    tokenizer["model"]["vocab"] = {
        token: number for number, token in enumerate(sorted(tokens, key=ranks.get))
    }
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "vocab.txt").write_text(
        "".join(token + "\n" for token in tokenizer["model"]["vocab"])
    )
    shutil.copy(NANO / "tokenizer_config.json", folder)
    return len(tokens)


def contents(folder):
    """The bytes of all files of a folder, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def without_command(folder):
    """The contents of checkpoints without the records of their commands, which have inputs and
    outputs.
    """
    files = contents(folder)
    for name, content in files.items():
        if name.endswith("README.md"):
            text = content.decode()
            text = re.sub(r"\n## Command\n.*?\n## Use\n", "\n## Use\n", text, flags=re.DOTALL)
            files[name] = re.sub(r".*\| ([0-9a-f]{64}|unknown) \|\n", "", text)
        elif name.endswith("sentkit.json"):
            record = json.loads(content)
            for key in ("command", "this_run", "inputs", "bases"):
                record.pop(key, None)
            files[name] = record
    return files


def stored_rows(path_or_store):
    """The rows of a vector file or folder with their vectors."""
    from sentkit.formats.vectors.vector_file import VectorFile, VectorSource

    store = path_or_store if isinstance(path_or_store, VectorSource) else VectorFile(path_or_store)
    blocks = store.row_blocks_with_vectors(verify=False)
    return [pair for rows, vectors in blocks for pair in zip(rows, vectors, strict=True)]


def with_program(folder, program=(sys.executable, "-m", "sentkit")):
    """The environment of a shell in which `sentkit` runs this program, through a script in
    folder/bin.

    With the program of `forking`, `python3` runs in forks, too.
    """
    programs = {"sentkit": program}
    if program[-2:-1] == ["sentkit"]:
        programs["python3"] = python_of(program)
    for name, words in programs.items():
        if not (folder / "bin" / name).exists():
            write_script(folder / "bin" / name, f'exec {shlex.join(map(str, words))} "$@"')
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def python_of(program):
    """A command line that runs Python in forks of the same process as this program of `forking`."""
    return [*program[:-2], "python", program[-1]]


def heed_signals():
    """For `preexec_fn`: a shell's background jobs ignore Ctrl-C, and so would the processes of
    tests.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def forking(source=ROOT, program=None):
    """A command line that runs the `sentkit` of this checkout in forks of one process (forking.py).

    The first call waits for its imports. With a `program`, that process is a fork of its server.
    """
    script = str(ROOT / "tests/forking.py")
    environment = {**os.environ, "PYTHONPATH": str(source)}
    with TemporaryDirectory() as folder:  # a socket has a short path
        socket = f"{folder}/socket"
        serve = [sys.executable, script, "serve", socket]
        if program is not None:
            serve = [*program[:-2], "fork", program[-1], socket, str(source)]
        with subprocess.Popen(serve, stdout=subprocess.PIPE, env=environment) as server:
            try:
                assert server.stdout.readline() == b"ready\n"
                yield [sys.executable, "-IS", script, "sentkit", socket]
            finally:
                server.kill()


def share_included_models(set_attribute):
    """In this process, read and hash the arrays of nano and static once, and make one tokenizer of
    the library for equal rules. No code changes them.

    `set_attribute` replaces a function of a module, as `setattr` does.
    """
    from sentkit.formats.checkpoints.folders import find_model
    from sentkit.model import small_encoder
    from sentkit.model.static import models, tokenizers
    from sentkit.model.text import rules, tokenizer

    kept = {}

    def once(key, function, *values, **options):
        if kept.get(key) is None:  # such as the arrays of a model that the function refuses
            kept[key] = function(*values, **options)
        return kept[key]

    def backend_of(rules_of_tokenizer, source):
        key = blake2b(orjson.dumps(rules_of_tokenizer)).digest()
        return once(key, make_backend, rules_of_tokenizer, source)

    def arrays_of_transformer(checkpoint, architecture):
        if checkpoint.folder != find_model("nano"):
            return read_arrays(checkpoint, architecture)
        return once("nano", read_arrays, checkpoint, architecture)

    def hash_of_transformer(arrays, *values, with_pooler, **options):
        options["with_pooler"] = with_pooler
        if arrays is not kept.get("nano"):
            return hash_of_weights(arrays, *values, **options)
        return once(("nano", with_pooler), hash_of_weights, arrays, *values, **options)

    def table_of_folder(folder):
        if folder != find_model("static"):
            return read_table(folder)
        return once("static", read_table, folder)

    def hash_of_table(arrays):
        if "static" not in kept or arrays.get("embeddings") is not kept["static"].rows:
            return arrays_hash(arrays)
        return once(("static", *arrays), arrays_hash, arrays)

    make_backend = rules.backend_of
    read_arrays = small_encoder.read_arrays
    hash_of_weights = small_encoder.hash_of_weights
    read_table = models.read_table
    arrays_hash = models.arrays_hash
    for module, name, function in (
        (tokenizer, "backend_of", backend_of),
        (tokenizers, "backend_of", backend_of),
        (small_encoder, "read_arrays", arrays_of_transformer),
        (small_encoder, "hash_of_weights", hash_of_transformer),
        (models, "read_table", table_of_folder),
        (models, "arrays_hash", hash_of_table),
    ):
        set_attribute(module, name, function)


def padded(rows):
    """Token ids of several texts as one tensor, with 0 behind the shorter ones, and its mask."""
    import torch

    longest = max(map(len, rows))
    ids = torch.tensor([[*map(int, ids), *[0] * (longest - len(ids))] for ids in rows])
    return ids, torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in rows])


def states_of(folder, sequences, layer=None):
    """The last states, or those of a layer, of transformers for each of these sequences of token
    ids.
    """
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    ids, mask = padded(sequences)
    with torch.no_grad():
        output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    states = output.last_hidden_state if layer is None else output.hidden_states[layer]
    return [
        padded_states[: len(ids)].double().numpy()
        for padded_states, ids in zip(states, sequences, strict=True)
    ]


def logits_of(folder, rows):
    """The outputs of a classifier of transformers, one row at a time."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    types = model.config.model_type in ("bert", "electra")
    names = ("input_ids", "attention_mask", "token_type_ids")[: 3 if types else 2]
    logits = []
    for row in rows:
        texts = [row[name] for name in ("text_a", "text_b", "text") if name in row]
        encoded = tokenizer(*texts, return_tensors="pt", truncation=True, max_length=128)
        inputs = {name: encoded[name] for name in names}
        with torch.inference_mode():
            output = model(**inputs)
        logits.append(output.logits[0].double().numpy())
    return np.array(logits)


def write_affine(path, kernel, bias, note):
    """Write a transform; `note` contains the kind, and the `_emb` of the fitted vectors."""
    from sentkit.formats.vectors.tensors import write_arrays

    write_arrays(path, {"kernel": kernel, "bias": bias}, {"sentkit": json.dumps(note)})


def write_output(path, content, *, force=False, fails=None):
    """Write through `open_output`, and raise the exception `fails` before its end."""
    from sentkit.formats.outputs.outputs import open_output

    with open_output(str(path), force=force) as file:
        file.write(content)
        if fails is not None:
            raise fails


def read_alike(sentkit, name, *paths):
    """The outputs of a command of READERS for each of these paths, with PATH in place of
    the path.
    """
    outputs = []
    for path in paths:
        completed = sentkit(*[path if word == "PATH" else word for word in READERS[name]])
        assert (completed.code, completed.err.replace(path, "PATH")) == (0, "")
        outputs.append(completed.out.replace(path.encode(), b"PATH"))
    # The header of a transform has another length, because it names the input.
    return [output[-128:] for output in outputs] if name == "fit" else outputs


def deleted(words, note):
    deleted_indices = {
        start + index for start in note["at"] for index in range(note.get("length", 1))
    }
    remaining = []
    for index, word in enumerate(words):
        if index not in deleted_indices:
            remaining.append(word)
        elif "mark" in note and (
            index in note["at"] if "length" in note else index - 1 not in deleted_indices
        ):
            remaining.append(note["mark"])
    return remaining


def replaced(words, note):
    for index, new in zip(note["at"], note["words"], strict=True):
        words[index] = new + words[index][len(words[index].rstrip(",.")) :]
    return words


def moved(words, note):
    pairs = (
        note["at"] if note["op"] == "reorder" else [(offset, offset + 1) for offset in note["at"]]
    )
    for a, b in pairs:
        for offset in range(note.get("length", 1)):
            words[a + offset], words[b + offset] = words[b + offset], words[a + offset]
    return words


def doubled(words, note):
    return [f"{word} {word}" if index in note["at"] else word for index, word in enumerate(words)]


REDONE = {"span-delete": deleted, "delete": deleted, "repeat": doubled, "synonym": replaced}


def redone(text, note):
    """Apply the recorded draws of an operation of augment with plain loops."""
    return " ".join(REDONE.get(note["op"], moved)(text.split(), note)) if note["at"] else text
