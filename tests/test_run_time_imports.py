"""A command imports only the libraries that it uses."""

import json
import subprocess
import sys

import numpy as np
import pytest

from sentkit.cli import every_command
from sentkit.labels.probes.classifiers import VectorClassifier, write_classifier

HEAVY = {"torch", "transformers", "sklearn", "scipy"}
NEEDED = ("numpy", "orjson")  # by every command that reads rows
NOT_FOR_VECTORS = HEAVY | {"tokenizers", "huggingface_hub", "rich", "safetensors", "fsspec"}
# Import typer, the command line and the modules of a list. Run each command of another list in a
# fork, which reports its modules.
PROGRAM = """
import json, os, sys, typer, typer.main
def modules():
    return sorted({name.partition(".")[0] for name in list(sys.modules)})
print(json.dumps([0, modules()]), flush=True)
from sentkit import cli
for name in json.loads(sys.argv[2]):
    __import__(name)
report = os.dup(1)
def leave(code):
    os.write(report, json.dumps([code, modules()]).encode() + b"\\n")
    os._exit(0)
cli.exit_immediately = leave
for arguments in json.loads(sys.argv[1]):
    if os.fork() == 0:
        os.dup2(os.open("stdin", os.O_RDONLY), 0)
        os.dup2(2, 1)
        sys.argv[1:] = arguments
        cli.main()
    os.wait()
"""


@pytest.fixture
def modules_after(tmp_path, monkeypatch):
    """The modules that each of these commands imports, by command; those of typer alone under
    "typer".
    """
    monkeypatch.chdir(tmp_path)

    def run(*commands, stdin="", expected=0, imported=()):
        (tmp_path / "stdin").write_text(stdin)
        split = [[str(word) for word in command] for command in commands]
        completed = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(split), json.dumps(imported)],
            capture_output=True,
            text=True,
            check=True,
        )
        reports = [json.loads(line) for line in completed.stdout.splitlines()]
        names = ["typer", *map(" ".join, split)]
        assert {
            name: code
            for name, (code, _) in zip(names, reports, strict=True)
            if code not in (0, expected)
        } == {}, completed.stderr
        return {name: set(modules) for name, (_, modules) in zip(names, reports, strict=True)}

    return run


def test_help_imports_nothing_heavier_than_typer(modules_after):
    """No numpy, orjson, rich or torch; only typer, its own imports and the standard library."""
    commands = [["--help"], ["--version"], *([*name.split(), "--help"] for name in every_command())]
    modules = modules_after(*commands)
    allowed = modules["typer"] | sys.stdlib_module_names | {"sentkit"}
    foreign = {name: {m for m in used - allowed if m[0] != "_"} for name, used in modules.items()}

    assert {name: used for name, used in foreign.items() if used} == {}


@pytest.mark.parametrize("command", ["train", "distill-static", "export"])
def test_a_missing_output_is_found_before_torch_is_imported(modules_after, command):
    method = ["simcse"] if command == "train" else []
    modules = modules_after([command, *method], expected=2)

    assert modules[" ".join([command, *method])] & HEAVY == set()


PAIRS = (
    '{"embedding_a":[1,0],"embedding_b":[1,0],"g":5}\n'
    '{"embedding_a":[1,0],"embedding_b":[0,1],"g":1}\n'
)


def test_commands_on_vectors_run_on_numpy_alone(modules_after, tmp_path):
    (tmp_path / "pairs.jsonl").write_text(PAIRS)
    (tmp_path / "sentences.jsonl").write_text('{"embedding":[1,0],"g":5}\n')
    (tmp_path / "hits.jsonl").write_text('{"id":1,"hits":[{"id":2}]}\n')
    (tmp_path / "qrels.txt").write_text("1 0 2 1\n")
    with (tmp_path / "c.safetensors").open("wb") as file:
        write_classifier(file, VectorClassifier("", ("no", "yes"), np.eye(2), np.zeros(2)), {})
    search = ["search", "--corpus", "sentences.jsonl", "--queries", "sentences.jsonl"]
    modules = modules_after(
        ["score"],
        ["score", "--gold", "g"],
        ["score", "--gold", "g", "--baseline", "pairs.jsonl", "pairs.jsonl"],
        search,
        [*search, "--flat"],
        [*search, "--device", "cpu"],
        ["score", "hits.jsonl", "--qrels", "qrels.txt"],
        ["diff", "sentences.jsonl", "sentences.jsonl"],
        ["predict", "-m", "c.safetensors", "sentences.jsonl"],
        ["cluster", "-k", "1", "sentences.jsonl"],
        ["cluster", "-k", "1", "--describe", "sentences.jsonl"],
        ["cat"],
        ["cat", "-o", "v.safetensors"],
        ["inspect", "-"],
        ["whiten", "fit", "--kind", "center", "-o", "t.safetensors"],
        ["whiten", "fit", "--dim", "1", "-o", "w.safetensors"],
        ["whiten", "apply", "-t", "t.safetensors"],
        ["whiten", "fit", "--kind", "merge", "t.safetensors", "-o", "merged.safetensors"],
        stdin=PAIRS,
        imported=NEEDED,
    )

    assert {
        name: used & NOT_FOR_VECTORS for name, used in modules.items() if used & NOT_FOR_VECTORS
    } == {}


def test_commands_without_a_transformer_import_no_torch(modules_after, model2vec, tmp_path):
    """Word vectors and `augment` need numpy alone; a folder of model2vec or a summary needs its
    tokenizer.
    """
    (tmp_path / "words.txt").write_text("a 1 0\ncat 0 1\n")
    folder = model2vec()
    without_tokenizer = [["augment", "--op", "delete"]]
    for model in ("words.txt", "words:binary"):
        without_tokenizer += [
            ["encode", "-m", model],
            ["encode", "-n", "-m", model],
            ["inspect", model],
        ]
    with_tokenizer = [["encode", "-m", folder], ["encode", "-n", "-m", folder], ["inspect", folder]]
    with_tokenizer += [["inspect", "nano"]]
    modules = modules_after(*without_tokenizer, *with_tokenizer, stdin="a cat\n", imported=NEEDED)
    tokenizers = {" ".join(map(str, command)) for command in with_tokenizer}

    assert {name: used & HEAVY for name, used in modules.items() if used & HEAVY} == {}
    assert {name for name, used in modules.items() if "tokenizers" in used} == tokenizers
    assert {name for name, used in modules.items() if used & NOT_FOR_VECTORS} <= tokenizers


def test_few_texts_are_encoded_without_torch(modules_after, tmp_path, monkeypatch):
    monkeypatch.setenv("SENTKIT_PRECISION", "fp32")
    (tmp_path / "corpus.jsonl").write_text('{"text":"a cat"}\n')
    encode = ["encode", "--precision", "fp32"]
    save = [*encode, "-o", "corpus.safetensors", "corpus.jsonl"]
    search = ["search", "a dog", "--corpus", "corpus.safetensors"]
    modules = modules_after(encode, save, search, stdin="a cat\n")

    for command in (encode, save, search):
        assert modules[" ".join(command)] & NOT_FOR_VECTORS == {"tokenizers"}


IMPORTS = """
import sys
from sentkit import cli
codes = [cli.run_command_line(sys.argv[1].split())]
print(*{"sklearn", "scipy", "huggingface_hub", "rich", "fsspec"} & sys.modules.keys())
codes.append(cli.run_command_line(sys.argv[2].split()))
import torch
from sentkit.model.transformer.kernels import gpu_kernels
gpu_kernels.kernel_is_right((2, 2, 16), torch.device("cpu"), 0, [False], trains=True)
print(codes, *(name for name in ("torch._dynamo", "transformers") if name in sys.modules))
"""


def test_encode_and_train_import_neither_the_compiler_of_torch_nor_transformers(tmp_path):
    """Each takes seconds. The check of the kernel for a GPU does not import them either."""
    (tmp_path / "texts.txt").write_text("a cat\na dog\nrain\nthe sea\n")
    encode = "encode texts.txt --precision bf16 -o vectors.safetensors -q"
    train = "train simcse texts.txt --batch 2 -q -o out --set precision=bf16"
    completed = subprocess.run(
        [sys.executable, "-c", IMPORTS, encode, train],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert (completed.stdout.splitlines()[:1], completed.stdout.splitlines()[-1]) == (
        [""],
        "[0, 0]",
    ), completed.stderr
