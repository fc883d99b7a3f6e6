"""Make the tables and figures of a paper: SG-BERT, ConSERT, PairSupCon or DefSent+.

    python examples/papers/papers.py sg-bert --base bert-base-uncased --data DATA --out OUT

It makes all runs one after the other, and then the tables and figures. A run is the training of a
system with one seed, and its values; systems.py has the systems. To make several runs at a time:

    set -- sg-bert --base BASE --data DATA --out OUT
    python examples/papers/papers.py "$@" --list |
        xargs -P 4 -L 1 python examples/papers/papers.py "$@"
    python examples/papers/papers.py "$@" --collect

--list prints the runs that can be made now. Repeat it until it prints nothing: a step of DefSent+
needs all seeds of the step before. A stopped run continues with the next call. Exit status: that of
the sentkit command that failed; 75: stopped and saved.

DATA is a folder as for `sentkit report --data`, with sts/stsb.{train,dev,test}. It can have
nli/train, nli/triplets, paraphrases/stsb, glue/TASK.{train,dev,test}, dictionary/ and corpora/.
Files end with .jsonl or .txt, also .gz. In dictionary/, the names of files of the Oxford dictionary
begin with oxford. Lines with "not made" name the missing rows and figures. OUT keeps rows/, runs/,
entries/, results/, tables/ and figures/.

--table 1 makes only table 1, and only the runs that it needs.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))
import figures
import tables
from rows import Rows, made, spread
from running import FailedError, MissingError, Stop, python, sentkit
from systems import PAPERS

from sentkit.errors import NoInputError, SentkitError, UsageError
from sentkit.flag_values import numbers
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.checkpoints.readout import WK_FIRST, WK_LAYERS
from sentkit.formats.files import read_object_if_there
from sentkit.model.checkpoint_reading import depth_of
from sentkit.papers.published import published, published_base, same_base
from sentkit.reports.suites import find_test_sets
from sentkit.reports.tables import has_task, rendered, suites_of

FEW_TESTS = 200  # rows of a test set of --quick
TRIAL = ("--set", "batch=16", "--set", "epochs=1", "--set", "max_length=64")
BERT, ROBERTA = "google-bert/bert-base-uncased", "FacebookAI/roberta-base"  # for their tokenizers
FLOW_READOUT = "mean-last2"
MEAN = ", mean of seeds"
FORMATS = {"text": ".txt", "markdown": ".md", "latex": ".tex"}


@dataclass(frozen=True)
class Row:
    """A line of a table, or a value of a figure."""

    table: str
    name: str
    readout: str = ""  # "": as the checkpoint declares
    best: bool = False  # of the seed that is best on the dev pairs


class Runner:
    def __init__(self, options):
        self.options = options
        self.name, self.base = options.paper, options.base
        self.paper = PAPERS[options.paper]
        self.data, self.out = Path(options.data), Path(options.out)
        if not self.data.is_dir():
            raise NoInputError(f"{self.data}: not a folder of data")
        self.recipe = self.recipe_of_base()
        self.given = dict(word.split("=", 1) for word in options.given)
        self.seeds = numbers("--seeds", options.seeds or self.paper.seeds)
        if options.quick and not options.seeds:
            self.seeds = self.seeds[:1]
        self.systems = {
            each.name: each for each in self.paper.systems if each.trial or not options.quick
        }
        if unknown := self.given.keys() - self.systems.keys() - {"bert", "roberta"}:
            raise UsageError(f"--given {unknown.pop()}: the systems are {', '.join(self.systems)}")
        tokenizer = self.tokenizers()["bert"]
        self.prepared = Rows(
            self.data, self.out / "rows", self.paper.rows, tokenizer, quick=options.quick
        )
        self.dev, self.pairs = map(self.prepared.file, ("sts/stsb.dev", "sts/stsb.test"))
        self.rows = self.planned_rows()

    def recipe_of_base(self):
        """The encoder of the paper whose settings are used."""
        known = [*self.paper.recipes]
        if self.options.preset in known:
            return self.options.preset
        if self.options.preset:
            raise UsageError(
                f"--preset {self.options.preset}: unknown",
                advice=f"choose one of {', '.join(known)}",
            )
        recipe = published_base(self.base)
        if recipe in known:
            return recipe
        is_what = f"is {recipe}" if recipe else "is another encoder"
        problem = f"{self.name} has settings for {', '.join(known)}, but {self.base} {is_what}"
        advice = f"choose whose settings it gets, such as --preset {known[0]}"
        raise UsageError(problem, advice=advice)

    def say(self, text):
        print(f"papers.py: {text}", file=sys.stderr, flush=True)

    # The plan: the values of the recipe, the rows of each system, and the systems that are needed
    # for them.

    @cached_property
    def values(self):
        depth = depth_of(read_checkpoint(self.base).config)
        enough = depth - WK_FIRST + 1 >= WK_LAYERS
        return {
            "base": self.recipe,
            "model": self.base,
            "wk": "wk" if enough else "+".join(f"L{layer}" for layer in range(depth + 1)) + ":wk",
            "seeds": ",".join(map(str, self.seeds)),
            **self.paper.recipes[self.recipe],
        }

    def words(self, text):
        """The words of a text, with values and files in place of braces."""

        def value(match):
            return self.values.get(match[1]) or self.prepared.file(match[1])

        return re.sub(r"\{(.+?)\}", value, text).split()

    def tokenizers(self):
        """Of both families, for table 1 of DefSent+, and its dictionary c."""
        known = {"bert": BERT, "roberta": ROBERTA, self.recipe.partition("-")[0]: self.base}
        return {name: self.given.get(name, known[name]) for name in ("bert", "roberta")}

    @cached_property
    def published(self):
        """The lines of the tables of the base: table, name and readout -> whether with a
        deviation.
        """
        own = [
            row
            for row in published()
            if row["paper"] == self.name and same_base(row["base"], self.recipe)
        ]
        of_base = {row["table"] for row in own if row["base"]}
        found = {}
        for row in own:
            if row["table"] in of_base:
                line = row["table"], row["system"], row["readout"] or ""
                found[line] = found.get(line, False) or row["sd"] is not None
        return found

    def planned_rows(self):
        """The rows of each system. A published one belongs to the first system with its name."""
        found = {name: [] for name in self.systems}
        free = {line: sd for line, sd in self.published.items() if line[0] not in self.paper.notes}
        known = {table for table, *_ in self.published}
        for system in self.systems.values():
            names = {each.format_map(self.values) for each in (system.name, *system.also)}
            rows = found[system.name]
            for line in [line for line in free if line[1] in names]:
                table, name, readout = line
                if not system.tables or table in system.tables:
                    deviates = free.pop(line)
                    if system.checkpoint != "base" and table not in self.paper.read_out:
                        readout = ""
                    best = self.paper.best_seed and not deviates
                    rows.append(Row(table, name, readout, best))
                    if best:
                        rows.append(Row(table, name + MEAN, readout))
            rows += [Row(system.added, system.name)] if system.added in known else []
            rows += [Row(figure, name) for figure, name in system.figures.items()]
        self.numbers = {
            row.table for rows in found.values() for row in rows
        } | self.paper.notes.keys()
        self.numbers = sorted(filter(str.isdecimal, self.numbers), key=int)
        if self.options.table is None:
            return found
        if self.options.table not in self.numbers:
            advice = f"choose one of {', '.join(self.numbers)}"
            raise UsageError(
                f"--table {self.options.table}: not made by this script", advice=advice
            )
        return {
            name: [row for row in rows if row.table == self.options.table]
            for name, rows in found.items()
        }

    @cached_property
    def needed(self):
        """The systems with rows, those of the tables of tables.py, and those that they
        start from.
        """
        noted = {table for table, *_ in self.published} & self.paper.notes.keys()
        if self.options.table is not None:
            noted &= {self.options.table}
        own = [
            each for each in self.systems.values() if self.rows[each.name] or noted & {*each.tables}
        ]
        names = {each.name for system in own for each in (system, *self.before(system))}
        return [each for each in self.systems.values() if each.name in names]

    def starts(self, system):
        """The systems from which this one starts, or that make its entries."""
        names = (system.start, system.entries and system.entries.maker)
        return [self.systems[name] for name in names if name in self.systems]

    def before(self, system):
        """The same, and those from which they start."""
        return [each for start in self.starts(system) for each in (*self.before(start), start)]

    # Runs.

    def seeds_of(self, system):
        trained = not self.given.get(system.name) and (system.train or system.flow)
        return self.seeds if trained else [None]

    def folder(self, system, seed):
        """The checkpoint of a run, or the file of its flow."""
        name = "" if seed is None else f"seed-{seed}"
        return self.out / "runs" / system.name / f"{name}{'.safetensors' * bool(system.flow)}"

    def checkpoints(self, system):
        """The finished ones, with their seeds."""
        own = self.given.get(system.name, system.checkpoint)
        if own:
            return {None: self.base if own == "base" else own}
        paths = {seed: self.folder(system, seed) for seed in self.seeds_of(system)}
        return {
            seed: str(path) for seed, path in paths.items() if path.exists() and seed is not None
        }

    def best(self, system):
        """The checkpoint with the highest score on the dev pairs."""

        def score(path):
            dev = read_object_if_there(Path(path) / "sentkit.json").get("dev")
            return -1e9 if dev is None else dev

        return max(self.checkpoints(system).values(), key=score)

    def start_of(self, system, seed):
        """The checkpoint to train, or to fit a flow to."""
        if system.start == "base":
            return self.base
        start = self.systems[system.start]
        if self.paper.best_seed:
            return self.best(start)
        made = self.checkpoints(start)
        return made.get(seed) or made[None]

    def entries(self, spec):
        """A file of entries, made once."""
        readout = spec.readout.format_map(self.values)
        path = self.out / "entries" / f"{spec.maker}-{readout}{'-ica' * spec.ica}.safetensors"

        def write(part):
            if spec.ica:
                plain, fitted = (
                    self.entries(replace(spec, ica=False)),
                    path.with_name(f"fit-{path.name}"),
                )
                # auto: the deviation that the entries had. The factor of the paper depends on their
                # number.
                scale = ("--scale", "auto", "--keep-width", "--seed", 42)
                sentkit("whiten", "fit", plain, "--kind", "ica", *scale, "-o", fitted, "-f")
                sentkit("whiten", "apply", plain, "-t", fitted, "-o", part, "-f")
            else:
                model = self.base if spec.maker == "base" else self.best(self.systems[spec.maker])
                words = ("-m", model, "--readout", readout, "-o", part, "-f")
                sentkit("build-entries", self.prepared.file("dictionary"), *words)

        return made(path, write)

    def problem(self, system):
        """Why a system cannot be made, or an empty string."""
        if self.given.get(system.name) or system.checkpoint:
            return ""
        if not (system.train or system.flow or system.script):
            return f"no --given {system.name}=CHECKPOINT"
        try:
            self.words(system.train or system.script or f"{{{system.flow}}}")
            if system.entries:
                self.prepared.file("dictionary")
        except MissingError as error:
            return str(error)
        return next(filter(None, map(self.problem, self.before(system))), "")

    def mark(self, system, seed):
        """A file that exists if the run is made with its values, or with those of --table."""
        table = self.options.table
        return (
            self.out / ("done" if table is None else f"done-table-{table}") / run_name(system, seed)
        )

    def is_made(self, system, seed):
        """Whether the run is made; one with all of its values has those of each table, too."""
        return (
            self.mark(system, seed).exists()
            or (self.out / "done" / run_name(system, seed)).exists()
        )

    def missing_runs(self, system, seed):
        """The runs that must be done before: with the same seed, or all seeds, of which the best is
        used.
        """
        for each in self.starts(system):
            seeds = self.seeds_of(each)
            for own in seeds if self.paper.best_seed or seed not in seeds else [seed]:
                if not self.is_made(each, own):
                    yield each, own

    def waiting(self):
        """The runs that can be made now."""
        return [
            (system, seed)
            for system in self.needed
            if not self.problem(system)
            for seed in self.seeds_of(system)
            if not self.is_made(system, seed) and not any(self.missing_runs(system, seed))
        ]

    def make(self, system, seed):
        """A run and its values."""
        if problem := self.problem(system):
            raise NoInputError(f"{system.name}: {problem}")
        for before, _ in self.missing_runs(system, seed):
            raise NoInputError(f"{system.name}: {before.name} must be made first")
        self.say(run_name(system, seed).replace("/", ", seed "))
        if not self.given.get(system.name) and not system.checkpoint:
            self.run(system, seed)
        self.evaluate(system, seed)
        mark = self.mark(system, seed)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    def run(self, system, seed):
        path = self.folder(system, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        if system.train:
            method, *words = self.words(system.train)
            words = [
                method,
                *self.trial,
                *words,
                *(() if "--dev" in words else ("--dev", self.dev)),
            ]
            words += ["--entries", self.entries(system.entries)] if system.entries else []
            words += ["-m", self.start_of(system, seed), "--seed", seed, "-o", path, "--resume"]
            path.with_suffix(".json").write_text(sentkit("train", *words, *self.settings))
        elif system.flow and not path.exists():
            rows, model = self.prepared.file(system.flow), self.start_of(system, seed)
            vectors = self.encoded(f"{system.name}-{seed}", model, rows, "--readout", FLOW_READOUT)
            sentkit("whiten", "fit", vectors, "--kind", "flow", "--seed", seed, "-o", path, "-f")
        elif system.script and not (path / "table.md").exists():
            settings = shlex.join([*("-q", "--set", "readout=cls"), *self.trial, *self.settings])
            rounds = ("--rounds", "1") if self.options.quick else ()
            printed = python(*self.words(system.script), "--settings", settings, *rounds)
            path.mkdir(exist_ok=True)
            (path / "table.md").write_text(printed)

    @property
    def trial(self):
        return TRIAL if self.options.quick else ()

    @property
    def settings(self):
        return shlex.split(self.options.settings)

    def encoded(self, name, model, rows, *flags):
        """Vectors of rows as rows/NAME.safetensors."""
        path = self.out / "rows" / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        sentkit("encode", rows, "-m", model, "-o", path, "--precision", "fp32", "-f", *flags)
        return str(path)

    # Values.

    @cached_property
    def tests(self):
        """The folder of test sets; with --quick a copy of some of their rows."""
        if not self.options.quick:
            return self.data

        def write(part, path):
            part.write_text(
                "".join(spread(sentkit("cat", path).splitlines(keepends=True), FEW_TESTS))
            )

        for path in (*self.data.glob("sts/*.jsonl*"), *self.data.glob("clustering/*.jsonl*")):
            copy = self.out / "rows/tests" / str(path.relative_to(self.data)).removesuffix(".gz")
            made(copy, lambda part, path=path: write(part, path))
        return self.out / "rows/tests"

    def suites_of(self, table):
        if not table.isdecimal():
            return ["sts", "clustering"] if table == "abilities" else ["sts"]
        return suites_of(self.name, table)

    def missing_sets(self, table):
        """Why no value of a table or figure can be measured, or an empty string."""
        suites = self.suites_of(table)
        try:
            sets = [
                each for suite in suites for each in find_test_sets(str(self.tests), [suite])[0]
            ]
        except NoInputError as error:
            return str(error)
        if table.isdecimal() and not has_task(self.name, table, sets):
            return f"{self.tests}: its averages need all test sets of {', '.join(suites)}"
        return ""

    def arguments(self, system, row, seeds=None):
        """The arguments of `sentkit report` for a row: all finished runs, or those of some
        seeds.
        """
        made = self.checkpoints(system)
        if seeds is not None:
            made = {seed: path for seed, path in made.items() if seed in seeds}
        elif row.best and made:
            made = {0: self.best(system)}
        for seed, path in made.items():
            if system.flow:
                yield f"{row.name}={self.start_of(system, seed)}#{FLOW_READOUT}@{path}"
            else:
                yield f"{row.name}={self.with_readout(path, row.readout)}"

    def with_readout(self, path, readout):
        """A checkpoint with the readout of a row, as `sentkit report` reads it."""
        declared = read_object_if_there(Path(path) / "sentkit.json").get("readout")
        if readout in ("", declared):
            return path
        if readout != "prompt":
            return f"{path}#{self.values.get(readout, readout)}"
        copy = Path(path).with_name(f"prompt-of-{Path(path).name}") / Path(path).name
        if not copy.exists():
            copy.parent.mkdir(exist_ok=True)
            sentkit("export", path, "--readout", "prompt", "--template", "defsent-plus", "-o", copy)
        return str(copy)

    def report(self, arguments, suites, *flags, stdout=subprocess.PIPE):
        where = (
            "--data",
            self.tests,
            "--suites",
            ",".join(suites),
            "--results",
            self.out / "results",
        )
        return sentkit("report", *arguments, *where, "--precision", "fp32", *flags, stdout=stdout)

    def flags(self, table):
        """Those that change values, which are not --baseline."""
        flags = self.paper.flags.get(table, ())
        return (
            () if "--baseline" in flags else tuple(each.format_map(self.values) for each in flags)
        )

    def evaluate(self, system, seed):
        """Keep the values of a run in results/: one call for all rows with the same suites and
        flags.
        """
        calls = {}
        for row in self.rows[system.name]:
            if not self.missing_sets(row.table):
                own = calls.setdefault(
                    (tuple(self.suites_of(row.table)), self.flags(row.table)), set()
                )
                own |= {*self.arguments(system, row, [seed])}
        for (suites, flags), arguments in calls.items():
            if arguments:
                self.report(sorted(arguments), suites, "--format", "json", *flags)

    def rows_of(self, table):
        """The rows of a table or figure with their systems, in the order of the paper."""
        places = {line[:2]: place for place, line in enumerate(self.published)}
        found = [(self.systems[name], row) for name in self.rows for row in self.rows[name]]
        found = [(system, row) for system, row in found if row.table == table]
        last = len(places)
        return sorted(
            found, key=lambda each: places.get((table, each[1].name.partition(MEAN)[0]), last)
        )

    def arguments_of(self, table):
        """Those of all rows of a table or figure."""
        if problem := self.missing_sets(table):
            raise MissingError(problem)
        found = [
            each for system, row in self.rows_of(table) for each in self.arguments(system, row)
        ]
        if not found:
            raise MissingError("none of its runs is there")
        return found

    # Tables and figures.

    def collect(self):
        (self.out / "tables").mkdir(parents=True, exist_ok=True)
        for system in self.needed:
            if problem := self.problem(system):
                places = dict.fromkeys(
                    [*(row.table for row in self.rows[system.name]), *system.tables]
                )
                self.say(f"not made: {system.name} ({', '.join(places)}): {problem}")
        if self.options.table is not None:
            return self.attempt(f"table {self.options.table}", self.table, self.options.table)
        failed = 0
        for number in self.numbers:
            failed |= self.attempt(f"table {number}", self.table, number)
        (self.out / "figures").mkdir(exist_ok=True)
        for name, number in self.paper.figures.items():
            failed |= self.attempt(f"figure {number}, {name}", figures.make, self, name)
        for note in self.paper.notes:
            if not note.isdecimal():
                failed |= self.attempt(note, self.table, note)
        return failed

    def attempt(self, what, make, *arguments):
        """The exit status; a table or figure without its data is only named."""
        try:
            make(*arguments)
        except MissingError as error:
            self.say(f"not made: {what}: {error}")
        except (FailedError, SentkitError) as error:
            if Stop.requested:
                raise
            reason = error if isinstance(error, SentkitError) else "the command failed"
            self.say(f"not made: {what}: {reason}")
            return 1
        return 0

    def table(self, number):
        """Write a table, and print it: on a terminal, as text of its width."""
        name = f"table-{number}" if number.isdecimal() else number.replace(" ", "-")
        path = self.out / "tables" / name
        fits_terminal = self.options.format == "text" and sys.stdout.isatty()
        if number in self.paper.notes:
            table = getattr(tables, self.paper.notes[number])(self, number)
            text = rendered([table], self.options.format, sys.maxsize)
            shown = text
            if fits_terminal:
                shown = rendered([table], "text", shutil.get_terminal_size().columns)
        else:
            arguments, suites = self.arguments_of(number), self.suites_of(number)
            words = (*self.flags(number), "--paper", self.name, "--table", number)
            path.with_suffix(".jsonl").write_text(
                self.report(arguments, suites, "--format", "json", *words)
            )
            compared = self.paper.flags.get(number, ())
            if "--baseline" in compared and any(
                each.startswith(f"{compared[1]}=") for each in arguments
            ):
                words += compared
            text = self.report(arguments, suites, "--format", self.options.format, *words)
            shown = text
            if fits_terminal:
                self.report(
                    arguments, suites, *words, stdout=sys.stdout
                )  # from the results that it keeps
                shown = ""
        path.with_suffix(FORMATS[self.options.format]).write_text(text)
        print(shown, flush=True)


def run_name(system, seed):
    return system.name if seed is None else f"{system.name}/{seed}"


def parse(words):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("paper", choices=PAPERS)
    add("--base", required=True, help="the encoder to start from, such as bert-base-uncased")
    add("--data", required=True, help="folder of data")
    add("--out", required=True, help="folder to create, or to continue")
    add("--preset", help="the recipe of this encoder of the paper (default: as --base)")
    add("--seeds", help="0..7 or 1,2,3 (default: those of the paper)")
    add(
        "--settings",
        default="",
        help="flags of sentkit train for all runs, such as '--device cuda'",
    )
    given = "use this instead of training"
    add("--given", action="append", default=[], metavar="SYSTEM=CHECKPOINT", help=given)
    add("--format", default="text", choices=FORMATS, help="of tables")
    add(
        "--figures", default="svg", choices=("svg", "png", "pdf", "jsonl"), help="format of figures"
    )
    add("--table", metavar="N", help="make only this table, and only the runs that it needs")
    add("--quick", action="store_true", help="try it: few rows and steps; the values mean nothing")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="print the runs that can be made now")
    action.add_argument("--only", metavar="SYSTEM", help="make one run")
    collect = "make tables and figures of the runs that exist"
    action.add_argument("--collect", action="store_true", help=collect)
    add("--seed", type=int, help="with --only: the seed of the run")
    return parser.parse_args(words)


def main(words):
    options = parse(words)
    runner = Runner(options)
    if options.list:
        for system, seed in runner.waiting():
            print(f"--only {system.name}" + ("" if seed is None else f" --seed {seed}"))
        return 0
    values = ", ".join(f"{name}={value}" for name, value in runner.values.items() if name != "base")
    runner.say(f"the recipe of {runner.recipe}: {values}")
    if options.only is not None:
        system = runner.systems.get(options.only)
        if system is None:
            raise UsageError(f"--only {options.only}: the systems are {', '.join(runner.systems)}")
        if options.seed not in (seeds := runner.seeds_of(system)):
            expected = ", ".join(map(str, seeds)) if seeds != [None] else "not used"
            raise UsageError(
                f"--only {system.name} --seed {options.seed}: its seeds are {expected}"
            )
        runner.make(system, options.seed)
        return 0
    if not options.collect:
        while waiting := runner.waiting():
            for system, seed in waiting:
                runner.make(system, seed)
    return runner.collect()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, Stop.request)
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
        sys.exit(code)
    except (
        BrokenPipeError
    ):  # `--list | head`: close stdout where Python's exit cannot fail on it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except FailedError as error:
        sys.exit(error.code)
    except MissingError as error:
        print(f"papers.py: {error}", file=sys.stderr)
        sys.exit(66)
    except SentkitError as error:
        print(
            f"papers.py: {error}" + (f"\n  {error.advice}" if error.advice else ""), file=sys.stderr
        )
        sys.exit(error.exit_code)
