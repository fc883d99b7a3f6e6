"""Random command lines whose inputs fit: small models and files, flags that a user could choose.

python tests/random_commands.py --count 3000 --log FILE [--seed N] [--commands train,mine]

A seed and a number give a command line. Each runs in a fork of this process, which has imported
torch. The log has a line for each; with an existing log, its numbers are not run again, so that a
stopped series continues. `--only N` runs one.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from forking import import_all
from sentkit.cli import program
from sentkit.training.catalogue import METHODS
from sentkit.training.settings import notes
from support import ROOT, TEXTS, in_jsonl, make_classifier, write_rows
from training.small import FEWER, every_field, make_base

OUT = "../out"  # the outputs, seen from the folder of the inputs
WRONG_WORDS = (
    ["--top", "0"],
    ["--no-such-flag"],
    ["nowhere.jsonl"],
    ["-q", "--field", "text=nothing"],
)
BAD_FILES = ("empty.jsonl", "broken.jsonl", "nowhere.jsonl", "mine.py")
FOR_ALL = {  # settings of all methods
    "optimizer": ("adamw", "adam", "rmsprop"),
    "warmup": (0, 0.5),
    "clip": (0, 1),
    "dropout": (0, 0.1),
    "chunk": (1, 3),
    "weight_decay": (0, 0.1),
    "steps": (1, 2),
    "lora": (1, 2),
}
CODES = (0, 1, 2, 65, 66, 69, 73, 75)
CREATED = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
SECONDS = 300  # of a command; one that takes longer hangs
NO_OUTPUT = (2, 65, 66, 69, 70, 73)  # exit codes of commands that leave no output
SMALL_HITS = "search --queries queries.small.safetensors --corpus corpus.small.safetensors --top 20"
SETTING_UP = (
    "encode sentences.jsonl -m small -o sentences.safetensors",
    "encode sentences.jsonl -m static -o sentences.static.jsonl",
    "encode pairs.jsonl -m small -o pairs.small.safetensors",
    "encode pairs.jsonl -m static -o pairs.static.safetensors",
    "encode pairs.jsonl -m static --readout mean --normalize -o pairs.vectors.jsonl",
    "encode corpus.jsonl -m static -o corpus.safetensors",
    "encode queries.jsonl -m static -o queries.safetensors",
    "encode queries.jsonl -m small -o queries.small.safetensors",
    "encode corpus.jsonl -m small -o corpus.small.safetensors",
    "search --queries queries.safetensors --corpus corpus.safetensors --top 20 -o hits.jsonl",
    f"{SMALL_HITS} -o hits.small.jsonl",
    "search --queries queries.safetensors --corpus corpus.safetensors --top 20 --flat -o "
    "flat.jsonl",
    "probe sentences.safetensors --label label --folds 3 --penalties 1 -o probe.safetensors",
    "probe sentences.static.jsonl --label label --folds 3 --penalties 1 -o "
    "probe.static.safetensors",
    "cluster sentences.safetensors -k 3 --seed 0 --centroids centroids.safetensors -o "
    "clustered.jsonl",
    "train mlm rows.jsonl -m small --epochs 1 --batch 8 --set max_length=64 -o trained",
    "build-entries rows.jsonl -m small -o entries.safetensors",
    "whiten fit sentences.safetensors --kind whitening -o whitening.safetensors",
)


@dataclass
class CommandLine:
    words: list[str]
    stdin: str = ""  # a file
    outputs: list[str] = field(default_factory=list)

    def __str__(self):
        return shlex.join(["sentkit", *self.words]) + (
            f" < {shlex.quote(self.stdin)}" if self.stdin else ""
        )


@dataclass
class Outcome:
    number: int
    command: str
    line: str
    code: int
    seconds: float
    faults: list[str]
    message: str  # the first line of standard error


# Inputs


def write_inputs(folder):
    """Rows for each command, in files of several forms."""
    random = Random(0)
    words = sorted({word for text in TEXTS for word in text.split()})

    def sentence(label):
        return " ".join(
            [*random.sample(words, random.randrange(2, 8)), *[("sun", "war", "tea")[label]] * 2]
        )

    labels = [number % 3 for number in range(60)]
    sentences = [
        {"id": number, "text": sentence(label), "label": "abc"[label], "even": number % 2}
        for number, label in enumerate(labels)
    ]
    pairs = []
    for number in range(40):
        score = number % 6
        first = sentence(number % 3)
        second = (
            first if score == 5 else " ".join([*first.split()[:score], sentence((number + 1) % 3)])
        )
        label = ("entailment", "neutral", "contradiction")[score % 3]
        pair = {"text_a": first, "text_b": second, "score": float(score), "same": int(score > 3)}
        pairs.append({"id": number, **pair, "label": label, "topic": "xyz"[number % 3]})
    corpus = [
        {"_id": f"d{number}", "title": "", "text": row["text"]}
        for number, row in enumerate(sentences)
    ]
    queries = [{"_id": f"q{number}", "text": sentence(number % 3)} for number in range(15)]
    judgements = [(number, number % 3 + 3 * step) for number in range(15) for step in range(4)]
    files = {"sentences": sentences, "pairs": pairs, "corpus": corpus, "queries": queries}
    files |= {"rows": every_field(24), "empty": []}
    files["qrels"] = [
        {"query-id": f"q{q}", "corpus-id": f"d{d}", "score": 1 + d % 2} for q, d in judgements
    ]
    files |= {
        "data/sts/stsb.test": pairs,
        "data/sts/sickr": pairs[:20],
        "data/clustering/own": sentences,
    }
    files |= {"data/senteval/cr": sentences, "data/senteval/sst2.train": sentences}
    files |= {"data/senteval/sst2.test": sentences[:12], "data/senteval/sst2.dev": sentences[12:24]}
    files |= {"data/retrieval/own/corpus": corpus, "data/retrieval/own/queries": queries}
    write_rows(folder, files)
    qrels = "".join(f"q{q} 0 d{d} {1 + d % 2}\n" for q, d in judgements)
    (folder / "qrels.tsv").write_text(qrels)
    (folder / "data/retrieval/own/qrels.tsv").write_text(qrels)
    (folder / "texts.txt").write_text("".join(f"{row['text']}\n" for row in sentences))
    (folder / "table.tsv").write_text(
        "text\tlabel\n" + "".join(f"{r['text']}\t{r['label']}\n" for r in sentences)
    )
    (folder / "renamed.jsonl").write_text(
        in_jsonl(*({"titel": r["text"], "label": r["label"]} for r in sentences))
    )
    broken = [json.dumps(row) for row in pairs]
    broken[7] = broken[7][:-5]
    broken[11] = '{"text_a": 5}'
    (folder / "broken.jsonl").write_text("".join(f"{line}\n" for line in broken))
    reviews = [{"text": row["text"], "label": row["label"]} for row in sentences]
    write_rows(folder, {"reviews": reviews})


def write_models(folder):
    """Encoders, classifiers, a method of a user, and what sentkit makes of them and of the rows."""
    make_base(folder / "small")
    make_base(folder / "wide", seed=1, hidden_size=32)
    make_classifier("bert", 3, folder / "classifier")
    make_classifier("bert", 1, folder / "regressor")
    page = (ROOT / "man/man7/sentkit-method.7").read_text()
    [example] = re.findall(r"\.SH EXAMPLE\n.*?\.nf\n(.*?)\.fi\n", page, re.DOTALL)
    (folder / "mine.py").write_text(example.replace(r"\&", "").replace(r"\-", "-"))
    for words_of_command in SETTING_UP:
        line = CommandLine([*words_of_command.split(), "-q"])
        code, _, message = execute(line, folder, folder.parent)
        assert code == 0, (words_of_command, message)


# Command lines


class Builder:
    """The words of a command line. Flags that the command does not have are left out."""

    def __init__(self, random, command):
        self.random = random
        self.words = command.split()
        self.outputs = []
        self.stdin = ""
        inner = program()
        for word in self.words:
            inner = inner.commands[word]
        self.known = {name for parameter in inner.params for name in parameter.opts}

    def choice(self, *values):
        return self.random.choice(values)

    def add(self, chance, flag, *values):
        """Add a flag with one of the values, if there are any."""
        is_drawn = self.random.random() < chance
        value = self.random.choice([*values, ""])
        if values and not value:
            value = values[0]
        if is_drawn and flag in self.known:
            self.words += [flag, str(value)] if values else [flag]
        return is_drawn and flag in self.known

    def output(self, chance, *names, flag="-o"):
        """Add an output in the folder beside the inputs."""
        name = self.random.choice(names)
        if self.add(chance, flag, f"{OUT}/{name}"):
            self.outputs.append(name)

    def read(self, path):
        """The input, sometimes from standard input."""
        if self.random.random() < 0.15 and path.endswith(".jsonl"):
            self.stdin = path
            self.words += self.random.choice([[], ["-"]])
        else:
            self.words.append(path)

    def rejects(self, chance=0.1):
        self.output(chance, "rejects.jsonl", flag="--rejects")

    def quiet(self):
        self.add(0.3, "-q")

    def line(self):
        """The command line; one of twelve has a mistake."""
        words = list(self.words)
        if self.random.random() < 1 / 12:
            self.make_mistake(words)
        return CommandLine(words, self.stdin, self.outputs)

    def make_mistake(self, words):
        """Add wrong words, or replace or repeat an input."""
        mistake = self.random.choice(["add", "replace", "repeat"])
        inputs = [
            n for n, word in enumerate(words) if "." in word and not word.startswith((OUT, "-"))
        ]
        if mistake == "add" or not inputs:
            words += self.random.choice(WRONG_WORDS)
            return
        index = self.random.choice(inputs)
        if mistake == "repeat":
            words.insert(index, words[index])
        else:
            words[index] = self.random.choice(BAD_FILES)


def predict(random):
    line = Builder(random, "predict")
    model = line.choice("probe.safetensors", "probe.static.safetensors", "classifier", "regressor")
    if model.endswith(".safetensors"):
        vectors = "sentences.static.jsonl" if "static" in model else "sentences.safetensors"
        line.read(vectors)
        has_label = True
    else:
        name = line.choice(
            "texts.txt",
            "sentences.jsonl",
            "pairs.jsonl",
            "table.tsv",
            "renamed.jsonl",
            "broken.jsonl",
        )
        line.read(name)
        has_label = name not in ("texts.txt", "broken.jsonl") or model == "regressor"
        if name == "renamed.jsonl":
            line.words += ["--field", "text=titel"]
        if name == "broken.jsonl":
            line.rejects(1)
        line.add(0.2, "--precision", "fp32", "auto")
        line.add(0.1, "--device", "cpu", "auto")
    line.words += ["-m", model]
    if not line.add(0.6, "--name", "class", "guess") and has_label:
        line.add(0.9, "--replace")
    if model != "regressor":
        line.add(0.3, "--all")
    line.rejects(0 if "broken.jsonl" in line.words else 0.1)
    line.output(0.5, "predicted.jsonl", "predicted.jsonl.gz", "predicted.parquet")
    line.quiet()
    return line.line()


def report(random):
    line = Builder(random, "report")
    rows = ["static", "small", "wide", "trained", "words:binary", "c=small#cls", "m=small#max"]
    rows += ["w=small#mean@whitening.safetensors", "l=wide#L1:mean"]
    chosen = random.sample(rows, line.choice(1, 1, 2, 3))
    line.words += chosen
    names = ["sts", "clustering", "few-shot", "retrieval", "pairs"]
    suites = random.sample(names, line.choice(1, 1, 2)) if random.random() < 0.95 else ["senteval"]
    in_folder = [suite for suite in suites if suite != "pairs"]
    if in_folder:
        line.words += ["--data", "data", "--suites", ",".join(in_folder)]
    if "pairs" in suites:
        line.words += ["--pairs", "own=pairs.jsonl"]
        line.add(0.2, "--field", "score=same", "text_b=text_b")
    if {"sts", "retrieval", "pairs"} & {*suites}:
        line.add(0.4, "--intervals")
        line.add(0.4, "--baseline", chosen[0].split("=")[0])
    if "senteval" in suites:
        line.add(0.3, "--seed", "1", "1,2")
        line.add(0.3, "--head", "senteval:4", "logreg")
    if "sts" in suites:
        line.add(0.2, "--paper", "sg-bert", "consert")
    line.add(0.3, "--train", "texts.txt", "texts.txt:0.9", "pairs.jsonl:0.8", "rows.jsonl")
    line.add(0.4, "--format", "text", "markdown", "latex", "json")
    line.output(0.4, "table.md", "table.tex", "table.txt", "table.jsonl", "table.jsonl.gz")
    line.output(0.3, "kept", flag="--results")
    line.add(0.2, "--precision", "fp32", "auto")
    line.quiet()
    return line.line()


def settings_of_train(random, method):
    """Settings that a small model and few rows need, and a few random ones."""
    settings = FEWER.get(method, {}) | {"max_length": random.choice([24, 64])}
    if method in ("mlm", "clear") and random.random() < 0.5:
        settings["head"] = "fresh"
    settings |= {
        name: random.choice(values) for name, values in FOR_ALL.items() if random.random() < 0.1
    }
    kind = METHODS[method].load().Settings if method in METHODS else None
    limits_of = {} if kind is None else notes(kind)
    for name in random.sample(sorted(limits_of), min(len(limits_of), random.choice([0, 0, 1, 2]))):
        default = kind.__dataclass_fields__[name].default
        if limits_of[name].choices:
            settings.setdefault(name, random.choice(limits_of[name].choices))
        elif isinstance(default, bool):
            settings.setdefault(name, "off" if default else "on")
        elif isinstance(default, int | float):
            limits = [
                limit
                for limit in (limits_of[name].least, limits_of[name].most)
                if limit is not None
            ]
            settings.setdefault(name, random.choice([default, default * 2, *limits]))
    return settings


def train(random):
    line = Builder(random, "train")
    method = random.choice([*METHODS, "mine.py:Uniform"])
    line.words += [method]
    line.read("rows.jsonl")
    is_static = (
        method in ("contrast", "sbert", "cosent", "angle", "pairsupcon") and random.random() < 0.2
    )
    model = "static" if is_static else line.choice("small", "small", "wide", "trained")
    if method == "defsent-plus":
        model = "small"
        line.words += ["--entries", "entries.safetensors"]
    line.words += ["-m", model]
    for name, value in settings_of_train(random, method).items():
        line.words += ["--set", f"{name}={value}"]
    line.add(1, "--epochs", "1", "2")
    line.add(0.9, "--batch", "4", "8", "12")
    line.add(0.3, "--lr", "0.01", "1e-4")
    line.add(0.3, "--dev", "rows.jsonl" if method == "classify" else "pairs.jsonl")
    line.add(0.2, "--save-every", "1", "3")
    line.add(0.2, "--save-seconds", "0")
    line.add(0.2, "--seed", "1", "0,1", "2..3")
    line.add(0.1, "--resume")
    line.add(0.2, "--threads", "1")
    line.quiet()
    if not line.add(0.05, "--list"):
        line.output(1, "run")
    return line.line()


def mine(random):
    line = Builder(random, "mine")
    is_static = random.random() < 0.6
    line.words.append("pairs.static.safetensors" if is_static else "pairs.small.safetensors")
    line.words += ["--corpus", "corpus.safetensors" if is_static else "corpus.small.safetensors"]
    line.add(0.5, "--top", "1", "5", "100")
    line.add(0.3, "--skip", "1", "7")
    line.add(0.5, "--margin", "0.99", "0.5", "-0.1", "1")
    line.add(0.3, "--metric", "cosine", "dot", "euclidean", "manhattan")
    line.add(0.3, "--triplets")
    line.add(0.1, "--judge", "regressor")
    line.add(0.2, "--device", "cpu", "auto")
    line.rejects()
    line.output(0.5, "mined.jsonl", "mined.jsonl.zst", "mined.parquet")
    line.quiet()
    return line.line()


def score_hits(random):
    line = Builder(random, "score")
    paths = ["hits.jsonl", "hits.small.jsonl", "flat.jsonl"]
    for path in random.sample(paths, line.choice(1, 1, 2)):
        line.words.append(path)
    line.words += [
        "--qrels",
        line.choice("qrels.tsv", "qrels.jsonl", "data/retrieval/own/qrels.tsv"),
    ]
    if line.add(0.4, "--baseline", *paths):
        line.add(0.4, "--fail-if-worse", "100", "50")
    line.add(0.2, "--missing", "zero", "error")
    line.add(0.2, "--fail-under", "0", "1")
    line.output(0.3, "queries.jsonl", "queries.jsonl.gz", flag="--per-query")
    return finished_report(line)


def score_pairs(random):
    line = Builder(random, "score")
    line.words.append(
        line.choice("pairs.static.safetensors", "pairs.small.safetensors", "pairs.vectors.jsonl")
    )
    line.add(0.4, "--metric", "cosine", "dot", "euclidean", "manhattan")
    form = line.choice("gold", "label", "none")
    if form == "gold":
        line.words += ["--gold", line.choice("score", "same")]
        line.add(0.4, "--group", "topic", "topic:mean", "topic:weighted", "label")
        line.add(0.3, "--seen", "rows.jsonl", "texts.txt")
    elif form == "label":
        line.words += ["--label", "same"]
        line.add(0.3, "--precision-at", "0.5", "0.9", "1")
    if form == "none":
        line.add(0.3, "--keep-vectors")
        line.output(0.4, "scored.jsonl", "scored.parquet")
        line.quiet()
        return line.line()
    if line.add(0.4, "--baseline", "pairs.small.safetensors", "pairs.static.safetensors"):
        line.add(0.4, "--fail-if-worse", "200")
    return finished_report(line)


def finished_report(line):
    line.add(0.2, "--json")
    line.output(0.3, "report.jsonl", "report.json", "report.jsonl.gz")
    line.quiet()
    return line.line()


def cluster(random):
    line = Builder(random, "cluster")
    form = line.choice("rows", "rows", "truth", "counts", "describe", "assign")
    if form == "assign":
        line.words += ["sentences.safetensors", "--from-centroids", "centroids.safetensors"]
        line.output(0.5, "clustered.jsonl", "clustered.parquet")
        line.add(0.3, "--keep-vectors")
        line.quiet()
        return line.line()
    line.read(line.choice("sentences.safetensors", "sentences.static.jsonl"))
    algorithm = line.choice("kmeans", "kmeans", "minibatch", "agglomerative", "hdbscan")
    add_algorithm(line, algorithm, form)
    if form == "truth":
        line.words += ["--truth", line.choice("label", "even")]
    if form == "describe":
        line.words.append("--describe")
        line.add(0.3, "--keywords", "3", "20")
        line.add(0.3, "--nearest", "1", "5")
    if form == "rows":
        if algorithm in ("kmeans", "minibatch") and "--seed" not in line.words:
            line.add(0.3, "--stability")
        line.add(0.3, "--keep-vectors")
        line.output(0.2, "centroids.safetensors", flag="--centroids")
    line.add(0.2, "--normalize")
    line.rejects()
    line.output(0.4, "clustered.jsonl", "clustered.jsonl.gz")
    line.quiet()
    return line.line()


def add_algorithm(line, algorithm, form):
    line.words += ["--algorithm", algorithm]
    count = "2..4" if form == "counts" else line.choice("2", "3", "5")
    if algorithm != "hdbscan":
        line.add(0.5 if form == "truth" else 1, "-k", count)
    several = ("0..2", "0,5") if form in ("truth", "counts") else ()
    if algorithm in ("kmeans", "minibatch"):
        line.add(0.6, "--seed", "0", "7", *several)
    settings = {
        "kmeans": ("restarts=2", "restarts=1"),
        "agglomerative": ("linkage=average", "linkage=complete"),
        "hdbscan": ("min_size=3", "min_size=8"),
    }
    if algorithm in settings:
        line.add(0.3, "--set", *settings[algorithm])


def search(random):
    line = Builder(random, "search")
    suffix = line.choice(".safetensors", ".small.safetensors")
    line.words += ["--queries", f"queries{suffix}", "--corpus", f"corpus{suffix}"]
    line.add(0.5, "--top", "1", "5", "100")
    line.add(0.2, "--threshold", "0.5", "-1")
    line.add(0.2, "--metric", "cosine", "dot")
    line.add(0.3, "--flat")
    line.add(0.2, "--replace")
    line.output(0.4, "found.jsonl", "found.jsonl.gz", "found.parquet")
    line.quiet()
    return line.line()


def duplicates(random):
    line = Builder(random, "duplicates")
    line.words.append(line.choice("sentences.safetensors", "sentences.static.jsonl"))
    line.words += ["--threshold", line.choice("0.9", "0.5", "0.99")]
    line.output(0.4, "pairs.jsonl")
    line.quiet()
    return line.line()


def probe(random):
    line = Builder(random, "probe")
    line.words += [
        line.choice("sentences.safetensors", "sentences.static.jsonl"),
        "--label",
        line.choice("label", "even"),
    ]
    if random.random() < 0.3:
        line.words += ["--few-shot", line.choice("2", "5", "16")]
        line.add(0.4, "--samples", "2", "3")
    else:
        line.words += ["--folds", line.choice("3", "4"), "--penalties", line.choice("1", "0.5,2")]
        line.output(0.3, "probe.safetensors")
    line.add(0.3, "--seed", "1", "99")
    line.add(0.2, "--json")
    line.quiet()
    return line.line()


COMMANDS = {
    "train": train,
    "predict": predict,
    "report": report,
    "mine": mine,
    "score --qrels": score_hits,
    "score": score_pairs,
    "cluster": cluster,
    "search": search,
    "duplicates": duplicates,
    "probe": probe,
}


def command_line(seed, number, commands=tuple(COMMANDS)):
    """The name of the command and the command line with this number."""
    name = commands[number % len(commands)]
    return name, COMMANDS[name](Random(f"{seed} {number}"))


# Runs


def digest_of(folder):
    """The digests of all files, by path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path: hashlib.blake2b(path.read_bytes(), digest_size=16).digest() for path in files}


def execute(line, folder, scratch):
    """Run the command line in a fork in this folder: exit code (None if it hangs), output and
    messages.
    """
    out = scratch / "stdout"
    err = scratch / "stderr"
    child = os.fork()
    if child == 0:
        run_here(line, folder, out, err)
    end = time.monotonic() + SECONDS
    pid = status = 0
    while not pid and time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0 if pid else 0.005)
    if not pid:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None, out.read_bytes(), err.read_text(errors="replace")
    return os.waitstatus_to_exitcode(status), out.read_bytes(), err.read_text(errors="replace")


def run_here(line, folder, out, err):
    """In this process, which ends with the command."""
    os.chdir(folder)
    streams = (
        os.open(line.stdin or os.devnull, os.O_RDONLY),
        *(os.open(path, CREATED, 0o600) for path in (out, err)),
    )
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    # Those of a test runner are replaced.
    sys.stdin = open(0)  # noqa: SIM115
    sys.stdout = open(1, "w")  # noqa: SIM115
    sys.argv = ["sentkit", *line.words]
    code = 99
    try:
        from sentkit.__main__ import main

        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    os._exit(code if isinstance(code, int) else 98)


class Bench:
    """A folder of inputs that no command may change, and one for the outputs of each command."""

    def __init__(self, folder):
        self.folder = folder
        self.inputs = folder / "inputs"
        self.out = folder / OUT.removeprefix("../")
        self.inputs.mkdir()
        import_all()
        write_inputs(self.inputs)
        write_models(self.inputs)
        self.original = shutil.copytree(self.inputs, folder / "original")
        self.digests = digest_of(self.inputs)

    def run(self, number, name, line):
        self.out.mkdir()
        start = time.monotonic()
        code, out, err = execute(line, self.inputs, self.folder)
        seconds = time.monotonic() - start
        faults = [*self.faults(line, code, out, err)]
        shutil.rmtree(self.out)
        message = next(iter(err.splitlines()), "")
        return Outcome(
            number,
            name,
            str(line),
            -999 if code is None else code,
            round(seconds, 2),
            faults,
            message,
        )

    def faults(self, line, code, out, err):
        """What no command does, whatever its flags."""
        if code is None:
            yield f"hangs: more than {SECONDS} seconds"
        elif code not in CODES:
            yield f"exit code {code}"
        if "Traceback" in err:
            yield "traceback: " + err.strip().splitlines()[-1]
        if code and not err.strip():
            yield "a failure without a message"
        if digest_of(self.inputs) != self.digests:
            yield "changed inputs"
            shutil.rmtree(self.inputs)
            shutil.copytree(self.original, self.inputs)
            self.digests = digest_of(self.inputs)
        names = {path.name for path in self.out.iterdir()}
        partial = {f"{name}.part" for name in line.outputs}
        if unknown := names - {*line.outputs} - partial:
            yield f"left behind: {sorted(unknown)}"
        may_stay = {"rejects.jsonl", "kept", *partial}
        if code in NO_OUTPUT and names - may_stay:
            yield f"exit code {code}, but wrote {sorted(names - may_stay)}"
        if (
            code == 0
            and "--list" not in line.words
            and (missing := {*line.outputs} - names - {"rejects.jsonl", "kept"})
        ):
            yield f"success, but no {sorted(missing)}"
        yield from self.bad_lines(line, code, out)

    def bad_lines(self, line, code, out):
        """Outputs of JSON lines that are not."""
        contents = {
            name: (self.out / name).read_bytes()
            for name in line.outputs
            if (self.out / name).is_file()
        }
        is_json = (
            line.words[0] != "report" and "--list" not in line.words and "--table" not in line.words
        )
        if code == 0 and is_json and "-o" not in line.words:
            contents["stdout"] = out
        for name, content in contents.items():
            if name == "stdout" or (name.endswith(".jsonl") and "--format" not in line.words):
                for row in content.splitlines():
                    with contextlib.suppress(ValueError):
                        json.loads(row)
                        continue
                    yield f"{name}: not JSON: {row[:80]!r}"
                    break


def outcomes(bench, seed, numbers, commands=tuple(COMMANDS)):
    for number in numbers:
        name, line = command_line(seed, number, commands)
        yield bench.run(number, name, line)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--log", type=Path)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    commands = tuple(options.commands.split(","))
    numbers_done = set()
    if options.log is not None and options.log.exists():
        numbers_done = {json.loads(line)["number"] for line in options.log.read_text().splitlines()}
    numbers = (
        [options.only]
        if options.only is not None
        else [n for n in range(options.count) if n not in numbers_done]
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        log = sys.stdout if options.log is None else stack.enter_context(options.log.open("a"))
        bench = Bench(Path(folder))
        for outcome in outcomes(bench, options.seed, numbers, commands):
            log.write(json.dumps(asdict(outcome)) + "\n")
            log.flush()


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":  # several threads of OpenMP do not survive a fork
        os.environ |= {"OMP_NUM_THREADS": "1", "SENTKIT_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        os.execv(sys.executable, [sys.executable, *sys.argv])
    main()
