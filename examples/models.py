"""Compare small models on pairs, clusters, classification and retrieval, and their speed and size.

    python examples/models.py DATA OUT [NAME=]MODEL...

DATA is a folder of test sets, as `sentkit report` reads it. The suite retrieval also needs
dictionary/wordnet2024.jsonl.gz and senteval/mrpc.test.jsonl; speed and size are measured if there
is clustering/stackoverflow.jsonl. OUT keeps the results: a second call computes only the results
that are missing. MODEL is a model as for `sentkit encode -m`. The others are compared with the
first one.

The retrieval tests are made here. `definitions` finds the words of a definition among the entries
of every fifth synset, for the synsets that `distill_texts.py` leaves out. `paraphrases` finds the
paraphrase of a sentence of MRPC among all second sentences. `docstrings` finds the description of a
function or class by the first line of its docstring, in the installed packages of PACKAGES.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["SENTKIT_THREADS"] = "1"  # before numpy and torch

from distill_texts import is_held_out, lines

SUITES = "sts,sts-multilingual,clustering,senteval,few-shot,retrieval"
ROUNDS = 3
PACKAGES = ["numpy", "scipy", "sklearn", "matplotlib", "torch", "transformers"]
# A paragraph of a docstring that is a heading, a directive or code.
NO_TEXT = re.compile(r"^\s*(-{3,}|={3,}|>>>|\.\. |Args:|Parameters|Returns)", re.M)


def write_set(folder: Path, corpus: list[str], relevant: dict[str, set[str]]) -> None:
    """Write one retrieval test; `relevant` has the texts of the corpus for each query."""
    folder.mkdir(parents=True, exist_ok=True)
    ids_of_corpus = {text: f"c{i}" for i, text in enumerate(dict.fromkeys(corpus))}
    ids_of_queries = {text: f"q{i}" for i, text in enumerate(relevant)}
    for name, ids in (("corpus", ids_of_corpus), ("queries", ids_of_queries)):
        rows = [json.dumps({"_id": id_, "text": text}) + "\n" for text, id_ in ids.items()]
        (folder / f"{name}.jsonl").write_text("".join(rows))
    qrels = ["query-id\tcorpus-id\tscore\n"]
    for query, texts in relevant.items():
        for text in sorted(texts):
            qrels.append(f"{ids_of_queries[query]}\t{ids_of_corpus[text]}\t1\n")
    (folder / "qrels.tsv").write_text("".join(qrels))


def write_retrieval(data: Path, out: Path) -> None:
    dictionary = data / "dictionary/wordnet2024.jsonl.gz"
    paraphrases = data / "senteval/mrpc.test.jsonl"
    for path in (dictionary, paraphrases):
        if not path.exists():
            sys.exit(f"models.py: {path}: not found; the suite retrieval needs it")
    synsets = [json.loads(line) for line in lines(str(dictionary))]
    entries: dict[str, set[str]] = {}
    for row in filter(is_held_out, synsets):
        entries.setdefault(row["definition"], set()).add(row["entry"])
    corpus = []
    for row in synsets:
        number = int(row["synset"].partition("-")[0])
        if is_held_out(row) or number % 5 == 0:
            corpus.append(row["entry"])
    write_set(out / "definitions", corpus, entries)
    pairs = [json.loads(line) for line in lines(str(paraphrases))]
    same: dict[str, set[str]] = {}
    for row in pairs:
        if str(row["label"]) == "1":
            same.setdefault(row["text_a"], set()).add(row["text_b"])
    write_set(out / "paraphrases", [row["text_b"] for row in pairs], same)
    write_docstrings(out / "docstrings")


def docstrings() -> Iterator[tuple[str, str]]:
    """The first line and the text before the parameters of each docstring with 120 characters of
    text.
    """
    for package in PACKAGES:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            problem = f"the package {package} is not installed"
            sys.exit(f"models.py: {problem}; the suite retrieval needs it")
        for file in sorted(Path(spec.origin).parent.rglob("*.py")):
            if "/tests/" in str(file) or "test_" in file.name:
                continue
            try:
                tree = ast.parse(file.read_bytes())
            except SyntaxError:  # of a later Python
                continue
            for node in ast.walk(tree):
                if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                    continue
                if node.name.startswith("_"):
                    continue
                docstring = (ast.get_docstring(node) or "").strip()
                first, *paragraphs = re.split(r"\n\s*\n", docstring)
                summary = " ".join(first.split())
                words: list[str] = []
                for paragraph in paragraphs:
                    if NO_TEXT.search(paragraph):
                        break
                    words += paragraph.split()
                text = " ".join(words[:200])
                if len(text) >= 120 and 20 < len(summary) < 200 and "`" not in summary:
                    yield summary, text


def write_docstrings(folder: Path) -> None:
    """Write the test; only the first of several texts that begin alike, or with the same first
    line.
    """
    starts: set[str] = set()
    relevant: dict[str, set[str]] = {}
    for summary, text in docstrings():
        if text[:80] not in starts and summary not in relevant:
            starts.add(text[:80])
            relevant[summary] = {text}
    write_set(folder, [text for texts in relevant.values() for text in texts], relevant)


def speed_and_size(model: str, texts: list[str]) -> tuple[float, float]:
    """Return the texts per second of one thread, after the first call, and megabytes of the
    weights.
    """
    import sentkit
    from sentkit.formats.checkpoints.folders import find_model, weight_files

    encoder = sentkit.Encoder(model, device="cpu")
    encoder.encode(texts[:100])
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()  # the thread that computes is not this one
        encoder.encode(texts)
        seconds.append(time.process_time() - start)
    size = sum(file.stat().st_size for file in weight_files(find_model(model), model))
    return len(texts) / min(seconds), size / 1e6


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("models", nargs="+", metavar="[NAME=]MODEL")
    parser.add_argument("--suites", default=SUITES, help=f"default: {SUITES}")
    return parser.parse_args(words)


def link_suites(data: Path, folder: Path) -> None:
    """Link the folders of test sets that DATA has, in place of the links of an earlier call."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("sts", "clustering", "senteval"):
        link = folder / name
        if link.is_symlink():
            link.unlink()
        if (data / name).is_dir():
            link.symlink_to((data / name).resolve(), target_is_directory=True)


def main(data: Path, out: Path, models: list[str], suites: str) -> None:
    folder = out / "data"
    link_suites(data, folder)
    if "retrieval" in suites.split(","):
        write_retrieval(data, folder / "retrieval")
    named = []
    for model in models:
        if "=" in model:
            named.append(model.partition("=")[::2])
        else:
            named.append((Path(model).name, model))
    first_name, _ = named[0]
    command = ["sentkit", "report", *(f"{name}={model}" for name, model in named)]
    command += ["--data", str(folder), "--suites", suites, "--results", str(out / "results")]
    command += ["--baseline", first_name, "--precision", "fp32", "--format", "markdown"]
    if "senteval" in suites.split(","):
        command += ["--head", "logreg"]
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    questions = data / "clustering/stackoverflow.jsonl"
    if not questions.exists():
        print(f"models.py: no speed and size: {questions} not found", file=sys.stderr)
        return
    texts = [json.loads(line)["text"] for line in lines(str(questions))[:4000]]
    print("\n| one thread | texts/s | MB |\n|---|---|---|")
    for name, model in named:
        speed, size = speed_and_size(model, texts)
        print(f"| {name} | {speed:,.0f} | {size:.1f} |")


if __name__ == "__main__":
    arguments = parse(sys.argv[1:])
    main(arguments.data, arguments.out, arguments.models, arguments.suites)
