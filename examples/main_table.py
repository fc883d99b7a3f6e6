"""Train many methods on one base, each with several seeds, and print one table of their scores.

    main_table.py BASE DATA OUT [NAME...]

Every row of main_table.jsonl is trained at its published learning rate with all seeds, and at each
of RATES with one seed. The rate with the best score on STS-B dev is then trained with all seeds.
STS-B test is read once for each of these two rates. With --rates '' only the published rate is
trained. The reports stay in OUT: a second call trains only missing runs, and prints the table. It
must have the same BASE, DATA, --rows, --batch, --eval-every and --precision. The column p compares
each seed with the best untuned readout of the base, by a paired bootstrap.

BASE  an encoder without training for sentences, such as bert-base-uncased
DATA  a folder with sts/stsb.{train,dev,test}.jsonl, nli/train.jsonl (text_a, text_b, label),
      nli/triplets.jsonl, dictionary/*.jsonl and corpora/*.txt, each also as .gz
NAME  the name of a row, or a part of the names of several; without NAME all rows are trained
"""

import argparse
import gzip
import json
import math
import shutil
import statistics
import subprocess
import sys
from itertools import islice
from pathlib import Path

READOUTS = ("cls", "mean", "mean-first-last", "mean-last2")
# All runs of OUT have the same.
OPTIONS = ("base", "data", "rows", "batch", "eval_every", "precision")


def main():
    arguments = parse(sys.argv[1:])
    systems = [json.loads(line) for line in Path(__file__).with_name("main_table.jsonl").open()]
    chosen = systems
    if arguments.names:
        chosen = chosen_of(systems, arguments.names)
    if not chosen:
        sys.exit(f"main_table.py: no row has a name with {' or '.join(arguments.names)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not arguments.print:
        claim_folder(arguments)
        for system in chosen:
            train_system(arguments, system)
    print_table(arguments, chosen)


def chosen_of(systems, names):
    """The systems with these names. A name that no system has is a part of the names of several."""
    names_of_systems = {row["name"] for row in systems}
    chosen = []
    for row in systems:
        for name in names:
            is_part = name not in names_of_systems and name in row["name"]
            if name == row["name"] or is_part:
                chosen.append(row)
                break
    return chosen


def parse(words):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("base")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--rows", type=int, default=10_000, help="rows of each run (default: 10000)"
    )
    parser.add_argument(
        "--batch", type=int, help="batch of every method (default: that of the method)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each run (default: 3)")
    parser.add_argument(
        "--rates", default="3e-5,1e-4,3e-4", help="learning rates to compare on dev"
    )
    parser.add_argument("--eval-every", type=int, default=50, help="steps between scores on dev")
    parser.add_argument("--precision", default="fp32", help="precision of training (default: fp32)")
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads of each run (default: 1)"
    )
    parser.add_argument(
        "--print", action="store_true", help="train nothing, print the finished rows"
    )
    return parser.parse_intermixed_args(words)


def claim_folder(arguments):
    """Record the options of the runs in OUT. Refuse other ones: finished runs would be used
    again.
    """
    options = {name: getattr(arguments, name) for name in OPTIONS}
    options["data"] = str(arguments.data.resolve())
    if Path(arguments.base).is_dir():
        options["base"] = str(Path(arguments.base).resolve())
    path = arguments.out / "options.json"
    if not path.exists():
        write(path, json.dumps(options))
    recorded = json.loads(path.read_text())
    for name, value in options.items():
        if recorded[name] != value:
            problem = f"{arguments.out} has runs with {name}={recorded[name]}, not {value}"
            sys.exit(f"main_table.py: {problem}; choose another OUT")


def write(path, text):
    """Write a file that is complete as soon as it exists."""
    temporary = path.with_suffix(".part")
    temporary.write_text(text)
    temporary.rename(path)


def train_system(arguments, system):
    """Train and score the published rate, and the best of the other rates on dev."""
    for seed in range(arguments.seeds):
        train(arguments, system, system["lr"], seed)
    score(arguments, system, system["lr"])
    rates = rates_of(arguments)
    if not rates:
        return
    best = max(rates, key=lambda rate: comparable(train(arguments, system, rate, 0)["dev"]))
    for seed in range(1, arguments.seeds):
        train(arguments, system, best, seed)
    score(arguments, system, best)


def comparable(correlation):
    """An undefined correlation is lower than all others."""
    if correlation is None:
        return -math.inf
    return correlation


def rates_of(arguments):
    """The rates to compare; none if --rates is an empty text."""
    return [float(rate) for rate in arguments.rates.split(",") if rate]


def folder_of(arguments, system, rate):
    return arguments.out / system["name"].replace(", ", "-").replace(" ", "-") / f"{rate:g}"


def train(arguments, system, rate, seed):
    """Return the report of `sentkit train` for this run, which is made if it is missing."""
    folder = folder_of(arguments, system, rate)
    report = folder / f"seed-{seed}.json"
    if not report.exists():
        folder.mkdir(parents=True, exist_ok=True)
        texts = system.get("texts", 1)  # a step of some methods encodes several texts for each row
        rows = rows_of(arguments, system["rows"], arguments.rows // texts)
        command = ["train", system["method"], rows, "-m", arguments.base]
        command += ["-o", folder / f"seed-{seed}", "--dev", stsb(arguments, "dev"), "--lr", rate]
        command += ["--seed", seed, "--epochs", 1, "--set", "patience=0"]
        command += ["--set", f"eval_every={arguments.eval_every}"]
        command += ["--set", f"precision={arguments.precision}"]
        command += ["--threads", arguments.threads, "--resume", "-q"]
        if system.get("entries"):
            command += ["--entries", entries_of(arguments, rows)]
        if arguments.batch:
            command += ["--batch", arguments.batch // texts]
        flags = system.get("flags", [])
        values = {"corpus": min(10_000, arguments.rows), "guide": None}  # of rank-encoder
        if "guide={guide}" in flags:
            values["guide"] = guide_of(arguments)
        line = sentkit(command + [flag.format(**values) for flag in flags])
        write(report, line)
        print(f"{folder.parent.name}  lr {rate:g}  {line}", end="", file=sys.stderr, flush=True)
    return json.loads(report.read_text())


def guide_of(arguments):
    """Return the guide of rank-encoder: SimCSE from the same base and rows, the same for
    all runs.
    """
    folder = arguments.out / "guide"
    if not folder.exists():
        rows = rows_of(arguments, "sentences", arguments.rows)
        command = ["train", "simcse", rows, "-m", arguments.base, "-o", folder]
        command += ["--lr", 3e-5, "--epochs", 1, "--dev", stsb(arguments, "dev")]
        command += ["--set", f"eval_every={arguments.eval_every}"]
        command += ["--set", f"precision={arguments.precision}", "--resume", "-q"]
        sentkit(command)
    return folder


def score(arguments, system, rate):
    """Score the seeds of a rate on STS-B test, and compare them with the best untuned readout of
    the base.
    """
    folder = folder_of(arguments, system, rate)
    report = folder / "test.jsonl"
    if not report.exists() or len(rows_in(report)) != arguments.seeds:
        files = []
        for seed in range(arguments.seeds):
            file = folder / f"seed-{seed}.safetensors"
            if not file.exists():
                command = ["encode", stsb(arguments, "test"), "-m", folder / f"seed-{seed}"]
                sentkit([*command, "--precision", "fp32", "-o", file, "-q"])
            files.append(file)
        baseline = untuned(arguments)["file"]
        write(report, sentkit(["score", *files, "--gold", "score", "--baseline", baseline]))

    # The weights are large; the reports and vectors remain.
    for seed in range(arguments.seeds):
        weights = folder / f"seed-{seed}"
        if weights.exists():
            shutil.rmtree(weights)


def untuned(arguments):
    """Return the readout of the base that is best on dev, its scores, and the file of its test
    vectors.
    """
    report = arguments.out / "untuned.json"
    if not report.exists():
        dev_scores = {readout: score_untuned(arguments, "dev", readout)[0] for readout in READOUTS}
        best = max(READOUTS, key=lambda readout: comparable(dev_scores[readout]))
        test_score, file = score_untuned(arguments, "test", best)
        record = {"readout": best, "dev": dev_scores[best], "test": test_score, "file": str(file)}
        write(report, json.dumps(record))
    return json.loads(report.read_text())


def score_untuned(arguments, split, readout):
    """Return the score of the base on a part of STS-B, and the file of its vectors."""
    file = arguments.out / f"untuned-{split}-{readout}.safetensors"
    command = ["encode", stsb(arguments, split), "-m", arguments.base, "--precision", "fp32"]
    sentkit([*command, "--readout", readout, "-o", file, "-f", "-q"])
    [line] = sentkit(["score", file, "--gold", "score"]).splitlines()
    return json.loads(line)["spearman"], file


def rows_of(arguments, kind, count):
    """Return the path of the first `count` rows of a kind."""
    path = arguments.out / f"{kind}-{count}.jsonl"
    if path.exists():
        return path
    data = arguments.data
    if kind in ("negated", "variants"):
        sentences_path = rows_of(arguments, "sentences", count)
        if kind == "negated":
            augment = ["augment", sentences_path, "--op", "negate"]
            lines = sentkit([*augment, "--rejects", "/dev/null"])
        else:  # [MASK] in place of deleted words; BERT has no token [DEL]
            delete = ["augment", sentences_path, "--op", "delete", "--mark", "[MASK]"]
            deleted = sentkit(delete)
            span_delete = ["augment", "--op", "span-delete", "--mark", "[MASK]"]
            lines = sentkit([*span_delete, "--replace", "--field", "text=text_a"], text=deleted)
    elif kind == "definitions":
        command = [sys.executable, Path(__file__).with_name("sample_dictionary.py")]
        command += ["--rows", str(count), "--min-definitions", "2"]
        lines = output(command, text="".join(definitions(data)))
    else:
        lines = "".join(islice(SOURCES[kind](data), count))
    write(path, lines)
    return path


def entries_of(arguments, rows):
    path = rows.with_suffix(".safetensors")
    if not path.exists():
        sentkit(["build-entries", rows, "-m", arguments.base, "-o", path, "-q"])
    return path


def definitions(data):
    """The rows of all dictionaries."""
    folder = data / "dictionary"
    names = {path.name.removesuffix(".gz") for path in folder.glob("*.jsonl*")}
    paths = [folder / name for name in sorted(names) if name.endswith(".jsonl")]
    if not paths:
        sys.exit(f"main_table.py: {data / 'dictionary'}: no file *.jsonl or *.jsonl.gz")
    for path in paths:
        for line in opened(path):
            yield line.rstrip("\n") + "\n"  # the last line of a file may lack it


def sentences(data):
    for path in sorted((data / "corpora").iterdir()):
        for line in opened(path):
            yield json.dumps({"text": line.rstrip("\n")}) + "\n"


def texts(data):
    for line in opened(data / "sts/stsb.train.jsonl"):
        row = json.loads(line)
        yield from (json.dumps({"text": row[name]}) + "\n" for name in ("text_a", "text_b"))


SOURCES = {
    "sentences": sentences,
    "texts": texts,
    "pairs": lambda data: opened(data / "nli/train.jsonl"),
    "triplets": lambda data: opened(data / "nli/triplets.jsonl"),
    "scores": lambda data: opened(data / "sts/stsb.train.jsonl"),
}


def opened(path):
    path = existing(path)
    if path.suffix == ".gz":
        return gzip.open(path, "rt")
    return path.open()


def existing(path):
    """The path, or that of the compressed file if only this one exists."""
    if path.exists():
        return path
    return path.with_name(path.name + ".gz")


def stsb(arguments, split):
    return existing(arguments.data / f"sts/stsb.{split}.jsonl")


def sentkit(words, text=None):
    command = ["sentkit"]
    for word in words:
        command.append(f"{word:g}" if isinstance(word, float) else str(word))
    return output(command, text)


def output(command, text=None):
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"main_table.py: {' '.join(map(str, command))}: exit code {done.returncode}")
    return done.stdout


def print_table(arguments, systems):
    base = untuned(arguments)
    header = ["row", "rows", "published lr", "dev", "test", "p"]
    of_base = [
        f"base, `{base['readout']}`",
        "",
        "",
        spread([base["dev"]]),
        spread([base["test"]]),
        "",
    ]
    if rates_of(arguments):
        header += ["best lr on dev", "dev", "test", "p"]
        of_base += [""] * 4
    print_row(header)
    print("|---" * len(header) + "|")
    print_row(of_base)
    for system in systems:
        name = system["name"].removeprefix(system["method"])
        cells = [f"`{system['method']}`{name}", system["rows"]]
        reports = tested(arguments, system)
        for report in reports:
            if report is None:
                cells += [""] * 4
            else:
                cells += cells_of(report)
        if cells[2] and system.get("own_rate"):
            cells[2] += "*"  # no paper states a rate
        if any(reports):
            print_row(cells[: len(header)])


def print_row(cells):
    print(f"| {' | '.join(cells)} |")


def tested(arguments, system):
    """Return the test reports of the published rate and of the best rate on dev; None for a missing
    one.
    """
    folder = folder_of(arguments, system, 0).parent
    reports = {float(path.parent.name): path for path in folder.glob("*/test.jsonl")}
    best = max(
        (rate for rate in rates_of(arguments) if rate in reports),
        key=lambda rate: statistics.fmean(map(comparable, dev_scores(reports[rate]))),
        default=None,
    )
    return reports.get(system["lr"]), reports.get(best)


def rows_in(path):
    return [json.loads(line) for line in path.open()]


def cells_of(report):
    tests = rows_in(report)
    dev = spread(dev_scores(report))
    test = spread([row["spearman"] for row in tests])
    p = listed(row["against"]["spearman"]["p"] for row in tests)
    return [report.parent.name, dev, test, p]


def listed(ps):
    return ", ".join("-" if p is None else f"{p:.3f}".lstrip("0") for p in ps)


def dev_scores(report):
    """The dev scores of the seeds that the test report has."""
    paths = [report.with_name(f"seed-{seed}.json") for seed in range(len(rows_in(report)))]
    return [json.loads(path.read_text())["dev"] for path in paths]


def spread(values):
    """Mean and standard deviation; "-" if a value is undefined."""
    if None in values:
        return "-"
    mean = f"{statistics.fmean(values):.1f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    main()
