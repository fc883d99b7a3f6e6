"""Measure the seconds of training and of encoding, encoder by encoder (table 6 of SG-BERT).

    efficiency.py BASE TEXTS PAIRS [--train METHOD]... [--readout READOUT]... [--transform KIND]...
                  [--batch N]

The seconds of training are those of its steps, without loading and saving; those of a transform are
the time of `sentkit whiten fit`. The seconds of encoding are the median of several rounds over the
sentences of PAIRS, without loading; the paper has batches of 16. Each encoder has its turn in each
round, so that all have the same load of the machine.

BASE   an encoder
TEXTS  rows for training, and to fit the transforms
PAIRS  rows with text_a and text_b
"""

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

STOPPED = 75  # exit code of a stopped program, as of `sentkit train`


def main():
    arguments = parse(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, stop)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    with TemporaryDirectory() as folder:
        measure(arguments, Path(folder))


def stop(signal_number, frame):
    """End the program by an exception: `subprocess.run` then kills its command and waits for it."""
    sys.exit(STOPPED)


def parse(words):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("base")
    parser.add_argument("texts")
    parser.add_argument("pairs")
    parser.add_argument(
        "--train", action="append", default=[], metavar="METHOD", help="such as sg-bert"
    )
    parser.add_argument(
        "--readout", action="append", default=[], metavar="READOUT", help="such as mean or wk"
    )
    parser.add_argument(
        "--transform", action="append", default=[], metavar="KIND", help="such as flow"
    )
    parser.add_argument(
        "--fitted", default="mean-last2", metavar="READOUT", help="readout of transforms"
    )
    parser.add_argument(
        "--settings", default="", help="flags of sentkit train, such as '--epochs 1'"
    )
    parser.add_argument("--precision", default="fp32", help="of encoding (default: fp32)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of encoding (default: 5)")
    parser.add_argument(
        "--batch", type=int, help="sentences of a call, in their order (default: all of them)"
    )
    arguments = parser.parse_args(words)
    if not (arguments.train or arguments.readout or arguments.transform):
        parser.error("no encoder: add --train, --readout or --transform")
    for name in ("rounds", "threads", "batch"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            parser.error(f"--{name} is {value}, expected a number above 0")
    return arguments


def measure(arguments, folder):
    from sentkit import Encoder

    # Encoders, and what their training took.
    trained = {}  # name -> seconds and steps
    encoders = {}
    for readout in arguments.readout:
        encoders[readout] = Encoder(arguments.base, readout=readout, precision=arguments.precision)
    for kind in arguments.transform:
        path = folder / f"{kind}.safetensors"
        trained[kind] = (fit(arguments, kind, folder, path), "-")
        encoders[kind] = Encoder(
            arguments.base,
            readout=arguments.fitted,
            transform=str(path),
            precision=arguments.precision,
        )
    for method in arguments.train:
        trained[method] = train(arguments, method, folder)
        encoders[method] = Encoder(str(folder / method), precision=arguments.precision)

    # Rounds of encoding.
    sentences = sentences_of(arguments.pairs)
    size = arguments.batch or len(sentences)
    batches = [sentences[start : start + size] for start in range(0, len(sentences), size)]
    seconds = {name: [] for name in encoders}
    for number in range(arguments.rounds + 1):
        for name, encoder in encoders.items():
            start = time.perf_counter()
            for batch in batches:
                encoder.encode(batch)
            if number:  # the first round loads the weights
                seconds[name].append(time.perf_counter() - start)
    loaded = next(iter(encoders.values())).loaded
    show(trained, seconds, len(sentences))
    print(
        f"\n{loaded.device}, {loaded.precision}, threads: {arguments.threads}, sentences: "
        f"{len(sentences)}, batch: {size}"
    )


def fit(arguments, kind, folder, path):
    """The seconds of fitting a transform."""
    vectors = folder / "vectors.safetensors"
    if not vectors.exists():
        command = ["encode", arguments.texts, "-m", arguments.base, "--readout", arguments.fitted]
        run([*command, "--precision", arguments.precision, "-o", vectors])
    return seconds_of(["whiten", "fit", vectors, "--kind", kind, "-o", path])


def train(arguments, method, folder):
    """The seconds of all steps of a run without its start, from a run of one step, and their
    number.
    """
    command = ["train", method, arguments.texts, "-m", arguments.base]
    command += ["--threads", arguments.threads, *shlex.split(arguments.settings)]
    one_step = ["-o", folder / f"{method}-1", "--set", "steps=1", "--set", "warmup=0"]
    seconds_of_one_step = seconds_of(command + one_step)
    seconds = seconds_of([*command, "-o", folder / method])
    log = (folder / method / "steps.jsonl").open()
    steps = sum("terms" in json.loads(line) for line in log)
    return max(0.0, seconds - seconds_of_one_step) * steps / max(1, steps - 1), steps


def seconds_of(words):
    start = time.perf_counter()
    run(words)
    return time.perf_counter() - start


def run(words):
    """Run sentkit without its output; an error ends the program."""
    done = subprocess.run(["sentkit", *map(str, words)], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        sys.exit(f"efficiency.py: sentkit {words[0]} failed")


def sentences_of(path):
    rows = subprocess.run(["sentkit", "cat", path], stdout=subprocess.PIPE, check=True).stdout
    sentences = []
    for line in rows.splitlines():
        row = json.loads(line)
        sentences += [row["text_a"], row["text_b"]]
    return sentences


def show(trained, seconds, count):
    print(
        "| encoder | training, seconds | steps | encoding, seconds | sentences/s "
        "|\n|---|---|---|---|---|"
    )
    for name, rounds in seconds.items():
        training = "-"
        steps = "-"
        if name in trained:
            training_seconds, steps = trained[name]
            training = f"{training_seconds:.2f}"
        median = statistics.median(rounds)
        print(f"| `{name}` | {training} | {steps} | {median:.3f} | {count / median:.0f} |")


main()
