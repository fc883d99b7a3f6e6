"""Train many methods on one base, each with several seeds, and print one table of their scores.

    main_table.py BASE DATA OUT [NAME...]

Every row of main_table.jsonl is trained at its published learning rate with all seeds, and at each of RATES
with one seed. The rate with the best score on STS-B dev is then trained with all seeds. STS-B test is read
once for each of these two rates. The reports stay in OUT: a second call trains only missing runs, and prints
the table. The column p compares each seed with the best untuned readout of the base, by a paired bootstrap.

BASE  an encoder without training for sentences, such as bert-base-uncased
DATA  a folder with sts/stsb.{train,dev,test}.jsonl, nli/train.jsonl (text_a, text_b, label),
      nli/triplets.jsonl and corpora/*.txt, each also as .gz
NAME  a part of the names of rows; without NAME all rows are trained
"""

import argparse
import gzip
import json
import shutil
import statistics
import subprocess
import sys
from itertools import islice
from pathlib import Path

READOUTS = ("cls", "mean", "mean-first-last", "mean-last2")


def main():
    arguments = parse(sys.argv[1:])
    systems = [json.loads(line) for line in Path(__file__).with_name("main_table.jsonl").open()]
    chosen = [row for row in systems if not arguments.names or any(n in row["name"] for n in arguments.names)]
    if not chosen:
        sys.exit(f"main_table.py: no row has a name with {' or '.join(arguments.names)}")
    if not arguments.print:
        for system in chosen:
            train_system(arguments, system)
    print_table(arguments, chosen)


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rows", type=int, default=30_000, help="rows of each run (default: 30000)")
    parser.add_argument("--batch", type=int, help="batch of every method (default: that of the method)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each run (default: 3)")
    parser.add_argument("--rates", default="3e-5,1e-4,3e-4", help="learning rates to compare on dev")
    parser.add_argument("--eval-every", type=int, default=50, help="steps between scores on dev")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each run (default: 1)")
    parser.add_argument("--print", action="store_true", help="train nothing, print what is there")
    return parser.parse_args(words)


def train_system(arguments, system):
    """Train and score the published rate, and the best of the other rates on dev."""
    rates = [float(rate) for rate in arguments.rates.split(",")]
    for seed in range(arguments.seeds):
        train(arguments, system, system["lr"], seed)
    score(arguments, system, system["lr"])
    best = max(rates, key=lambda rate: train(arguments, system, rate, 0)["dev"])
    for seed in range(1, arguments.seeds):
        train(arguments, system, best, seed)
    score(arguments, system, best)


def folder_of(arguments, system, rate):
    return arguments.out / system["name"].replace(", ", "-").replace(" ", "-") / f"{rate:g}"


def train(arguments, system, rate, seed):
    """Return the report of `sentkit train` for this run, which is made if it is missing."""
    folder = folder_of(arguments, system, rate)
    report, checkpoint = folder / f"seed-{seed}.json", folder / f"seed-{seed}"
    if not report.exists():
        folder.mkdir(parents=True, exist_ok=True)
        texts = system.get("texts", 1)  # a step of some methods encodes several texts for each row
        command = ["train", system["method"], rows_of(arguments, system["rows"], arguments.rows // texts)]
        command += ["-m", arguments.base, "-o", checkpoint, "--dev", stsb(arguments, "dev"), "--lr", rate]
        command += ["--seed", seed, "--epochs", 1, "--patience", 0, "--eval-every", arguments.eval_every]
        command += ["--threads", arguments.threads, "--resume", "-q"]
        if arguments.batch:
            command += ["--batch", arguments.batch // texts]
        corpus = min(10_000, arguments.rows)  # of rank-encoder
        line = sentkit(*command, *(flag.format(corpus=corpus) for flag in system.get("flags", [])))
        report.write_text(line)
        print(f"{folder.parent.name}  lr {rate:g}  {line}", end="", file=sys.stderr, flush=True)
    return json.loads(report.read_text())


def score(arguments, system, rate):
    """Score the seeds of a rate on STS-B test, and compare them with the best untuned readout of the base."""
    folder = folder_of(arguments, system, rate)
    report = folder / "test.jsonl"
    if report.exists():
        return
    files = []
    for seed in range(arguments.seeds):
        file = folder / f"seed-{seed}.safetensors"
        command = ["encode", stsb(arguments, "test"), "-m", folder / f"seed-{seed}", "--precision", "fp32"]
        sentkit(*command, "-o", file, "-f", "-q")
        files.append(file)
    lines = sentkit("score", *files, "--gold", "score", "--baseline", untuned(arguments)["file"])
    for seed in range(arguments.seeds):  # the weights are large; the reports and vectors remain
        shutil.rmtree(folder / f"seed-{seed}")
    report.write_text(lines)


def untuned(arguments):
    """Return the readout of the base that is best on dev, its scores, and the file of its test vectors."""
    report = arguments.out / "untuned.json"
    if not report.exists():
        scores = {}
        for part in ("dev", "test"):
            for readout in READOUTS:
                file = arguments.out / f"untuned-{part}-{readout}.safetensors"
                command = ["encode", stsb(arguments, part), "-m", arguments.base, "--precision", "fp32"]
                sentkit(*command, "--readout", readout, "-o", file, "-f", "-q")
                [line] = sentkit("score", file, "--gold", "score").splitlines()
                scores[readout, part] = json.loads(line)["spearman"]
        best = max(READOUTS, key=lambda readout: scores[readout, "dev"])
        record = {"readout": best, "dev": scores[best, "dev"], "test": scores[best, "test"]}
        report.write_text(json.dumps(record | {"file": f"{arguments.out}/untuned-test-{best}.safetensors"}))
    return json.loads(report.read_text())


def rows_of(arguments, kind, count):
    """Return the path of the first `count` rows of a kind."""
    path = arguments.out / f"{kind}-{count}.jsonl"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    data = arguments.data
    if kind in ("negated", "variants"):
        text = rows_of(arguments, "sentences", count)
        if kind == "negated":
            lines = sentkit("augment", text, "--op", "negate", "--on-error", "skip")
        else:
            first = sentkit("augment", text, "--op", "delete")
            second = ("augment", "--op", "span-delete", "--replace", "--field", "text=text_a")
            lines = sentkit(*second, text=first)
    else:
        lines = "".join(islice(SOURCES[kind](data), count))
    temporary.write_text(lines)
    temporary.rename(path)
    return path


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
    if not path.exists():
        path = path.with_name(path.name + ".gz")
    return gzip.open(path, "rt") if path.suffix == ".gz" else path.open()


def stsb(arguments, part):
    return arguments.data / f"sts/stsb.{part}.jsonl"


def sentkit(*words, text=None):
    words = [f"{word:g}" if isinstance(word, float) else str(word) for word in words]
    done = subprocess.run(["sentkit", *words], input=text, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"main_table.py: sentkit {' '.join(words)}: exit code {done.returncode}")
    return done.stdout


def print_table(arguments, systems):
    base = untuned(arguments)
    print("| row | rows | published lr | dev | test | p | best lr on dev | dev | test | p |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    print(f"| base, `{base['readout']}` | | | {base['dev']:.1f} | {base['test']:.1f} | | | | | |")
    for system in systems:
        name = system["name"].removeprefix(system["method"])
        reports = {
            float(path.parent.name): path
            for path in folder_of(arguments, system, 0).parent.glob("*/test.jsonl")
        }
        compared = [float(rate) for rate in arguments.rates.split(",") if float(rate) in reports]
        best = max(compared, key=lambda rate: statistics.fmean(dev_scores(reports[rate])), default=None)
        cells = [f"`{system['method']}`{name}", system["rows"]]
        for rate in (system["lr"], best):
            cells += cells_of(reports[rate], rate) if rate in reports else [""] * 4
        if reports:
            print(f"| {' | '.join(cells)} |")


def cells_of(report, rate):
    tests = [json.loads(line) for line in report.open()]
    p = ", ".join(f"{row['against']['spearman']['p']:.3f}".lstrip("0") for row in tests)
    return [f"{rate:g}", spread(dev_scores(report)), spread([row["spearman"] for row in tests]), p]


def dev_scores(report):
    return [json.loads(path.read_text())["dev"] for path in sorted(report.parent.glob("seed-*.json"))]


def spread(values):
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{deviation}"


if __name__ == "__main__":
    main()
