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
begin with oxford. OUT keeps rows/, runs/, prompts/, entries/, results/, tables/ and figures/, of
one paper, base and preset, and of --quick or not.

stderr: lines with "not made" name the missing rows and figures, "not finished" the rows that have
fewer seeds than others, "not measured" the columns without a test set, and "not possible" what no
run makes. A table with several seeds has a column with their number.

--table 1 makes only table 1, and only the runs that it needs.
"""

import argparse
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parent.parent))
import figures
import tables
from rows import Rows, lines_of, made_once, spread
from running import FailedError, MissingError, Stop, python, sentkit
from systems import PAPERS, TRANSFORMS

from sentkit.errors import NoInputError, SentkitError, UsageError
from sentkit.flag_values import numbers
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.checkpoints.readout import WK_FIRST, WK_LAYERS
from sentkit.formats.files import read_object, read_object_if_there
from sentkit.formats.vectors.fingerprint import digest
from sentkit.model.checkpoint_reading import depth_of
from sentkit.papers.published import published, published_base, same_base, task_key
from sentkit.reports.suites import IN_FOLDERS, find_test_sets
from sentkit.reports.tables import has_task, rendered, suites_of, tables_of

DEV = "sts/stsb.dev"
PAIRS = "sts/stsb.test"
FEW_TESTS = 200  # rows of a test set of --quick
TRIAL = ("--set", "batch=16", "--set", "epochs=1", "--set", "max_length=64")
BERT = "google-bert/bert-base-uncased"  # for its tokenizer
ROBERTA = "FacebookAI/roberta-base"  # the same
FLOW_READOUT = "mean-last2"
MEAN = ", mean of seeds"
FORMATS = {"text": ".txt", "markdown": ".md", "latex": ".tex"}
OPTIONS = "options.json"  # in OUT: see `options_of_runs`
# folders in OUT that a run makes
OF_RUNS = ("base", "runs", "prompts", "entries", "results", "done*")


@dataclass(frozen=True)
class Row:
    """A line of a table, or a value of a figure."""

    table: str
    name: str
    readout: str = ""  # "": as the checkpoint declares
    best: bool = False  # of the seed that is best on the dev pairs


class PublishedLine(NamedTuple):
    """A line of a published table."""

    table: str
    name: str
    readout: str  # "": it has none


def only_table(rows_of, number):
    """The rows of one table, by system."""
    return {name: [row for row in rows if row.table == number] for name, rows in rows_of.items()}


class Runner:
    def __init__(self, options):
        self.options = options
        self.name = options.paper
        self.paper = PAPERS[options.paper]
        self.data = Path(options.data)
        self.out = Path(options.out)
        if not self.data.is_dir():
            raise NoInputError(f"{self.data}: not a folder of data")
        self.recipe = self.recipe_of_base()
        self.given = parse_given(options.given)
        self.settings = parse_settings(options.settings)
        self.seeds = numbers("--seeds", options.seeds or self.paper.seeds)
        if options.quick and not options.seeds:
            self.seeds = self.seeds[:1]
        self.systems = {
            system.name: system
            for system in self.paper.systems
            if system.trial or not options.quick
        }
        if unknown := self.given.keys() - self.systems.keys() - {"bert", "roberta"}:
            raise UsageError(f"--given {unknown.pop()}: the systems are {', '.join(self.systems)}")
        tokenizer = self.tokenizers()["bert"]
        self.prepared = Rows(
            self.data, self.out / "rows", self.paper.rows, tokenizer, quick=options.quick
        )
        for name in (DEV, PAIRS):  # not made yet: the folder can be that of other options
            self.prepared.files(name)
        self.rows = self.planned_rows()
        self.said = set()

    def recipe_of_base(self):
        """The encoder of the paper whose settings are used."""
        recipes = [*self.paper.recipes]
        if self.options.preset in recipes:
            return self.options.preset
        if self.options.preset:
            raise UsageError(
                f"--preset {self.options.preset}: unknown",
                advice=f"choose one of {', '.join(recipes)}",
            )
        recipe = published_base(self.options.base)
        if recipe in recipes:
            return recipe
        raise UsageError(
            f"{self.name} has settings for {', '.join(recipes)}, "
            f"but {self.options.base} is {recipe or 'another encoder'}",
            advice=f"choose whose settings it gets, such as --preset {recipes[0]}",
        )

    def say(self, text):
        """Print a line, once."""
        if text not in self.said:
            print(f"papers.py: {text}", file=sys.stderr, flush=True)
        self.said.add(text)

    @cached_property
    def dev(self):
        return self.prepared.file(DEV)

    @cached_property
    def pairs(self):
        return self.prepared.file(PAIRS)

    # The plan: the values of the recipe, the rows of each system, and the systems that are needed
    # for them.

    @cached_property
    def values(self):
        depth = depth_of(read_checkpoint(self.options.base).config)
        wk = "wk"
        if depth - WK_FIRST + 1 < WK_LAYERS:  # a small encoder: WK of all layers
            wk = "+".join(f"L{layer}" for layer in range(depth + 1)) + ":wk"
        return {
            "base": self.recipe,
            "model": self.options.base,
            "wk": wk,
            "seeds": ",".join(map(str, self.seeds)),
            **self.paper.recipes[self.recipe],
        }

    def words(self, text):
        """The words of a text, with values and files in place of braces."""

        def value(match):
            return self.values.get(match[1]) or self.prepared.file(match[1])

        # A path can have spaces.
        return [re.sub(r"\{(.+?)\}", value, word) for word in text.split()]

    def tokenizers(self):
        """Of both families, for table 1 of DefSent+, and its dictionary c."""
        family = self.recipe.partition("-")[0]
        tokenizers = {"bert": BERT, "roberta": ROBERTA, family: self.options.base}
        return {name: self.given.get(name, tokenizers[name]) for name in ("bert", "roberta")}

    @cached_property
    def published(self):
        """The lines of the tables of the base: PublishedLine -> whether its values have a
        deviation.
        """
        values = [
            value
            for value in published()
            if value["paper"] == self.name and same_base(value["base"], self.recipe)
        ]
        tables_of_base = {value["table"] for value in values if value["base"]}
        lines = {}
        for value in values:
            if value["table"] in tables_of_base:
                line = PublishedLine(value["table"], value["system"], value["readout"] or "")
                lines[line] = lines.get(line, False) or value["sd"] is not None
        return lines

    @cached_property
    def system_of_line(self):
        """The name of the system of each published line: the first one that has its name."""
        names_of_systems = {}
        for system in self.systems.values():
            names = {name.format_map(self.values) for name in (system.name, *system.also)}
            for line in self.published:
                if line in names_of_systems or line.table in self.paper.tables_made_here:
                    continue
                if line.name in names and (not system.tables or line.table in system.tables):
                    names_of_systems[line] = system.name
        return names_of_systems

    @cached_property
    def rows_of_all_tables(self):
        """The rows of each system, by its name."""
        rows_of = {name: [] for name in self.systems}
        for line, system_name in self.system_of_line.items():
            rows = rows_of[system_name]
            readout = line.readout
            is_base = self.systems[system_name].checkpoint == "base"
            if not is_base and line.table not in self.paper.tables_with_readouts:
                readout = ""  # a trained checkpoint declares its readout
            has_deviation = self.published[line]
            best = self.paper.best_seed and not has_deviation
            rows.append(Row(line.table, line.name, readout, best))
            if best:
                rows.append(Row(line.table, line.name + MEAN, readout))

        tables_of_base = {line.table for line in self.published}
        for system in self.systems.values():
            rows = rows_of[system.name]
            if system.added in tables_of_base:
                rows.append(Row(system.added, system.name))
            rows += [Row(figure, name) for figure, name in system.figures.items()]
        return rows_of

    @cached_property
    def table_numbers(self):
        names = {row.table for rows in self.rows_of_all_tables.values() for row in rows}
        names |= self.paper.tables_made_here.keys()
        return sorted(filter(str.isdecimal, names), key=int)

    def planned_rows(self):
        """The rows of each system; with --table those of this table."""
        number = self.options.table
        if number is None:
            return self.rows_of_all_tables
        if number not in self.table_numbers:
            advice = f"choose one of {', '.join(self.table_numbers)}"
            raise UsageError(f"--table {number}: not made by this script", advice=advice)
        return only_table(self.rows_of_all_tables, number)

    @cached_property
    def needed(self):
        """The systems with rows, those of the tables of tables.py, and those that they
        start from.
        """
        made_here = {line.table for line in self.published} & self.paper.tables_made_here.keys()
        if self.options.table is not None:
            made_here &= {self.options.table}
        names = set()
        for system in self.systems.values():
            if self.rows[system.name] or made_here & {*system.tables}:
                names.add(system.name)
                names.update(start.name for start in self.before(system))
        return [system for system in self.systems.values() if system.name in names]

    def starts(self, system):
        """The systems from which this one starts, or that make its entries."""
        if self.given.get(system.name):
            return []
        names = (system.start, system.entries and system.entries.maker)
        return [self.systems[name] for name in names if name in self.systems]

    def before(self, system):
        """The same, and those from which they start."""
        systems = []
        for start in self.starts(system):
            systems += [*self.before(start), start]
        return systems

    # Runs.

    @cached_property
    def base(self):
        """The base, or a copy of it that declares the tokens which the paper reads in the
        evaluation; checkpoints that are trained from it declare the same.
        """
        if self.paper.max_length is None:
            return self.options.base

        def write(output):
            limit = ["--max-length", self.paper.max_length]
            sentkit(["export", "-m", self.options.base, *limit, "-o", output])

        return made_once(self.out / "base", write)

    def seeds_of(self, system):
        if not self.given.get(system.name) and (system.train or system.flow):
            return self.seeds
        return [None]

    def folder(self, system, seed):
        """The checkpoint of a run, or the file of its flow."""
        name = "" if seed is None else f"seed-{seed}"
        return self.out / "runs" / system.name / f"{name}{'.safetensors' * bool(system.flow)}"

    def checkpoints(self, system):
        """The finished ones, with their seeds."""
        checkpoint = self.given.get(system.name, system.checkpoint)
        if checkpoint == "base":
            return {None: self.base}
        if checkpoint:
            return {None: checkpoint}
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
        checkpoints = self.checkpoints(start)
        return checkpoints.get(seed) or checkpoints[None]

    def entries(self, spec):
        """A file of entries, made once."""
        readout = spec.readout.format_map(self.values)
        name = "-".join(filter(None, (spec.maker, readout, spec.transform)))
        path = self.out / "entries" / f"{name}.safetensors"

        def write_transformed(output):
            plain = self.entries(replace(spec, transform=""))
            fitted = path.with_name(f"fit-{path.name}")
            fit = ["whiten", "fit", plain, *TRANSFORMS[spec.transform]]
            if "ica" in fit:
                fit += self.scale_of_ica()
            sentkit([*fit, "-o", fitted, "-f"])
            sentkit(["whiten", "apply", plain, "-t", fitted, "-o", output, "-f"])

        def write_entries(output):
            model = self.base
            if spec.maker != "base":
                model = self.best(self.systems[spec.maker])
            dictionary = self.prepared.file("dictionary")
            build = ["build-entries", dictionary, "-m", model, "--readout", readout]
            sentkit([*build, "-o", output, "-f"])

        return made_once(path, write_transformed if spec.transform else write_entries)

    def scale_of_ica(self):
        """The factor 100 of the paper depends on its number of entries; with others, the entries
        keep their deviation.
        """
        dictionary = Path(self.prepared.file("dictionary"))
        entries = {json.loads(line)["entry"] for line in dictionary.open()}
        if len(entries) == tables.ENTRIES_OF_PAPER:
            return ["--variance", "arbitrary", "--scale", "100"]
        return ["--scale", "auto"]

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
        except FailedError:  # of a command that makes rows, which has printed its error
            if Stop.requested:
                raise
            return "its rows cannot be made"
        for start in self.before(system):
            if problem := self.problem(start):
                return problem
        return ""

    def mark(self, system, seed):
        """A file that exists if the run is made with its values, or with those of --table."""
        folder = "done"
        if self.options.table is not None:
            folder = f"done-table-{self.options.table}"
        return self.out / folder / run_name(system, seed)

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
        for start in self.starts(system):
            seeds = self.seeds_of(start)
            if seed in seeds and not self.paper.best_seed:
                seeds = [seed]
            for start_seed in seeds:
                if not self.is_made(start, start_seed):
                    yield start, start_seed

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
        for start, _ in self.missing_runs(system, seed):
            raise NoInputError(f"{system.name}: {start.name} must be made first")
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
            command = self.train_command(system, seed, path)
            is_continued = path.exists() or path.with_name(f"{path.name}.part").exists()
            if not is_continued:  # the time is not that of an earlier run in this folder
                self.time_of_run(path).unlink(missing_ok=True)
            start = time.monotonic()
            report = sentkit(command)
            path.with_suffix(".json").write_text(report)
            if not is_continued:
                seconds = {"seconds": round(time.monotonic() - start, 1)}
                self.time_of_run(path).write_text(json.dumps(seconds))
        elif system.flow and not path.exists():
            rows = self.prepared.file(system.flow)
            model = self.start_of(system, seed)
            vectors = self.encoded(f"{system.name}-{seed}", model, rows, FLOW_READOUT)
            fit = ["whiten", "fit", vectors, "--kind", "flow", "--seed", seed]
            sentkit([*fit, "-o", path, "-f"])
        elif system.script and not (path / "table.md").exists():
            settings = ["-q", "--set", "readout=cls", *self.trial, *self.settings]
            script, *words = self.words(system.script)
            words += ["--settings", shlex.join(settings)]
            if self.options.quick:
                words += ["--rounds", "1"]
            printed = python(script, words)
            path.mkdir(exist_ok=True)
            (path / "table.md").write_text(printed)

    def time_of_run(self, path):
        """The file with the seconds of a training that was not interrupted."""
        return Path(path).with_suffix(".time.json")

    def train_command(self, system, seed, path):
        # A value of the system itself, which comes last, has priority over one of --settings.
        method, *words = self.words(system.train)
        command = ["train", method, *self.trial, *self.settings, *words]
        if "--dev" not in [*self.settings, *words]:
            command += ["--dev", self.dev]
        if system.entries:
            command += ["--entries", self.entries(system.entries)]
        command += ["-m", self.start_of(system, seed), "--seed", seed, "-o", path, "--resume"]
        return command

    @property
    def trial(self):
        return TRIAL if self.options.quick else ()

    def encoded(self, name, model, rows, readout=None):
        """Vectors of rows as rows/NAME.safetensors."""
        path = self.out / "rows" / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        command = ["encode", rows, "-m", model, "-o", path, "--precision", "fp32", "-f"]
        if readout is not None:
            command += ["--readout", readout]
        sentkit(command)
        return str(path)

    # Values.

    @cached_property
    def tests(self):
        """The folder of test sets; with --quick a copy of some of their rows."""
        if not self.options.quick:
            return self.data

        def write_few(path, output):
            lines = lines_of(sentkit(["cat", path]))
            output.write_text("".join(spread(lines, FEW_TESTS)))

        for path in (*self.data.glob("sts/*.jsonl*"), *self.data.glob("clustering/*.jsonl*")):
            copy = self.out / "rows/tests" / str(path.relative_to(self.data)).removesuffix(".gz")
            made_once(copy, partial(write_few, path))
        return self.out / "rows/tests"

    def suites_of(self, table):
        if table.isdecimal():
            return suites_of(self.name, table)
        if table == "abilities":
            return ["sts", "clustering"]
        return ["sts"]

    def missing_sets(self, table):
        """Why no value of a table or figure can be measured, or an empty string."""
        suites = self.suites_of(table)
        try:
            sets = [
                test for suite in suites for test in find_test_sets(str(self.tests), [suite])[0]
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
        checkpoints = self.checkpoints(system)
        if seeds is not None:
            checkpoints = {seed: path for seed, path in checkpoints.items() if seed in seeds}
        elif row.best and checkpoints:
            checkpoints = {0: self.best(system)}
        for seed, path in checkpoints.items():
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

        def write(output):
            export = ["export", "-m", path, "--readout", "prompt", "--template", "defsent-plus"]
            sentkit([*export, "-o", output])

        # The name says the seed. A given checkpoint can have any path, or be one of the hub.
        return made_once(self.out / "prompts" / digest(path) / Path(path).name, write)

    def report(self, arguments, suites, flags, stdout=subprocess.PIPE):
        command = ["report", *arguments, "--data", self.tests, "--suites", ",".join(suites)]
        command += ["--results", self.out / "results", "--precision", "fp32"]
        return sentkit([*command, *flags], stdout=stdout)

    def flags(self, table):
        """Those that change values, which are not --baseline."""
        flags = self.paper.flags.get(table, ())
        if "--baseline" in flags:
            return ()
        return tuple(flag.format_map(self.values) for flag in flags)

    def evaluate(self, system, seed):
        """Keep the values of a run in results/: one call for all rows with the same suites and
        flags.
        """
        arguments_of_call = {}  # (suites, flags) -> arguments
        for row in self.rows[system.name]:
            if not self.missing_sets(row.table):
                call = (tuple(self.suites_of(row.table)), self.flags(row.table))
                arguments = arguments_of_call.setdefault(call, set())
                arguments.update(self.arguments(system, row, [seed]))
        for (suites, flags), arguments in arguments_of_call.items():
            if arguments:
                self.report(sorted(arguments), suites, ["--format", "json", *flags])

    def rows_of(self, table):
        """The rows of a table or figure with their systems, in the order of the paper."""
        order = {(line.table, line.name): index for index, line in enumerate(self.published)}

        def published_index(system_and_row):
            name = system_and_row[1].name.partition(MEAN)[0]
            return order.get((table, name), len(order))

        rows = [
            (self.systems[name], row)
            for name in self.rows
            for row in self.rows[name]
            if row.table == table
        ]
        return sorted(rows, key=published_index)

    def arguments_of(self, table):
        """Those of all rows of a table or figure. Print the missing ones."""
        if problem := self.missing_sets(table):
            raise MissingError(problem)
        self.say_unfinished(table)
        arguments = []
        for system, row in self.rows_of(table):
            arguments += self.arguments(system, row)
        if not arguments:
            raise MissingError("none of its runs is there")
        return arguments

    def say_unfinished(self, table):
        """Print the systems of a table or figure that have no run, or not all seeds."""
        name = f"table {table}" if table.isdecimal() else table
        for system in self.systems.values():
            tables = {row.table for row in self.rows[system.name]} | {*system.tables}
            if table not in tables or self.problem(system):  # which `collect` prints
                continue
            seeds = self.seeds_of(system)
            finished = [seed for seed in seeds if self.has_run(system, seed)]
            if not finished:
                self.say(f"not finished: {name}: no run of {system.name}")
            elif len(finished) < len(seeds):
                count = f"{len(finished)} of {len(seeds)} seeds"
                self.say(f"not finished: {name}: {system.name} has {count}")

    def say_impossible(self):
        """Print what no run makes, and why; with --table only the rows of this table."""
        rows = {(line.table, line.name) for line in self.published}
        table = self.options.table
        for name, value in self.paper.impossible.items():
            if table is None or table in value.tables or (table, name) in rows:
                self.say(f"not possible: {name}: {value.reason}")

    def has_run(self, system, seed):
        if system.script:
            return (self.folder(system, seed) / "table.md").exists()
        return seed in self.checkpoints(system)

    def say_missing_values(self, number, records):
        """Print the columns of a table that have no value, because a test set is missing."""
        measured = {(record["suite"], task_key(record["task"])) for record in records}
        for table in tables_of(self.name, number):
            missing = []
            for task in table.tasks:
                suite, key = table.source(task)
                if suite in IN_FOLDERS and (suite, key) not in measured:
                    missing.append(task)
            if missing:
                self.say(f"not measured: table {number}: {', '.join(missing)}")

    # Tables and figures.

    def collect(self):
        (self.out / "tables").mkdir(parents=True, exist_ok=True)
        for system in self.needed:
            if problem := self.problem(system):
                tables = [row.table for row in self.rows[system.name]]
                names = ", ".join(dict.fromkeys([*tables, *system.tables]))
                self.say(f"not made: {system.name} ({names}): {problem}")
        self.say_impossible()
        if self.options.table is not None:
            number = self.options.table
            return self.attempt(f"table {number}", partial(self.table, number))
        failed = 0
        for number in self.table_numbers:
            failed |= self.attempt(f"table {number}", partial(self.table, number))
        (self.out / "figures").mkdir(exist_ok=True)
        for name, number in self.paper.figures.items():
            failed |= self.attempt(f"figure {number}, {name}", partial(figures.make, self, name))
        for title in self.paper.tables_made_here:
            if not title.isdecimal():
                failed |= self.attempt(title, partial(self.table, title))
        return failed

    def attempt(self, title, make):
        """The exit status; a table or figure without its data is only named."""
        try:
            make()
        except MissingError as error:
            self.say(f"not made: {title}: {error}")
        except (FailedError, SentkitError) as error:
            if Stop.requested:
                raise
            reason = "the command failed"
            if isinstance(error, SentkitError):
                reason = str(error)
            self.say(f"not made: {title}: {reason}")
            return 1
        return 0

    def table(self, number):
        """Write a table, and print it: on a terminal, as text of its width."""
        name = number.replace(" ", "-")
        if number.isdecimal():
            name = f"table-{number}"
        path = self.out / "tables" / name
        fits_terminal = self.options.format == "text" and sys.stdout.isatty()
        if number in self.paper.tables_made_here:
            self.say_unfinished(number)
            table = getattr(tables, self.paper.tables_made_here[number])(self, number)
            text = rendered([table], self.options.format, sys.maxsize)
            shown = text
            if fits_terminal:
                shown = rendered([table], "text", shutil.get_terminal_size().columns)
        else:
            arguments = self.arguments_of(number)
            suites = self.suites_of(number)
            flags = [*self.flags(number)]
            records = self.report(arguments, suites, ["--format", "json", *flags])
            path.with_suffix(".jsonl").write_text(records)
            self.say_missing_values(number, map(json.loads, records.splitlines()))
            flags += ["--paper", self.name, "--table", number]
            flags += self.comparison(number, arguments)
            text = self.report(arguments, suites, ["--format", self.options.format, *flags])
            shown = text
            if fits_terminal:  # the values are those that the first report keeps
                self.report(arguments, suites, flags, stdout=sys.stdout)
                shown = ""
        path.with_suffix(FORMATS[self.options.format]).write_text(text)
        print(shown, flush=True)

    def comparison(self, number, arguments):
        """--baseline of a table, if the rows have this system."""
        flags = self.paper.flags.get(number, ())
        if "--baseline" not in flags:
            return ()
        start = f"{flags[1]}="
        if not any(argument.startswith(start) for argument in arguments):
            return ()
        return flags


def parse_given(arguments):
    """The checkpoints of --given by system."""
    given = {}
    for argument in arguments:
        system, _, checkpoint = argument.partition("=")
        if not system or not checkpoint:
            raise UsageError(f"--given {argument}: expected SYSTEM=CHECKPOINT")
        given[system] = checkpoint
    return given


def parse_settings(text):
    """The words of --settings."""
    try:
        return shlex.split(text)
    except ValueError as error:  # a quote that does not end
        raise UsageError(f"--settings {text}: {str(error).lower()}") from error


def run_name(system, seed):
    if seed is None:
        return system.name
    return f"{system.name}/{seed}"


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
        help="flags of sentkit train for all runs, such as '--device cuda'; the settings of a "
        "system itself, such as its batch in a comparison of batches, have priority",
    )
    add(
        "--given",
        action="append",
        default=[],
        metavar="SYSTEM=CHECKPOINT",
        help="use this instead of training",
    )
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


def options_of_runs(options):
    """The flags that all runs of a folder have; the base by its full path, if it is a folder."""
    values = {name: getattr(options, name) for name in ("paper", "base", "preset", "quick")}
    if Path(options.base).is_dir():
        values["base"] = str(Path(options.base).resolve())
    return values


def claim_folder(options):
    """Record the options in the folder. Refuse a folder of other runs: their rows and checkpoints
    would be used again. Rows without a run, as --list makes them, are removed.
    """
    out = Path(options.out)
    path = out / OPTIONS
    values = options_of_runs(options)
    out.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{OPTIONS}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            recorded = read_object(path)
            others = [
                name
                for name, value in values.items()
                if recorded.get(name) not in (value, getattr(options, name))
            ]
            if not others:
                return
            has_runs = any(any(out.glob(folder)) for folder in OF_RUNS)
            if has_runs or recorded.keys() != values.keys():
                name = others[0]
                problem = f"{options.out} has runs with {name}={recorded.get(name)}"
                raise UsageError(f"{problem}, not {values[name]}", advice="choose another --out")
            shutil.rmtree(out / "rows", ignore_errors=True)
        temporary = path.with_name(f".part-{OPTIONS}")
        temporary.write_text(json.dumps(values))
        temporary.replace(path)


def make_one_run(runner, options):
    system = runner.systems.get(options.only)
    if system is None:
        raise UsageError(f"--only {options.only}: the systems are {', '.join(runner.systems)}")
    if system not in runner.needed:
        problem = f"--only {system.name}: table {options.table} does not need it"
        raise UsageError(problem)
    seeds = runner.seeds_of(system)
    if options.seed not in seeds:
        expected = "not used"
        if seeds != [None]:
            expected = ", ".join(map(str, seeds))
        raise UsageError(f"--only {system.name} --seed {options.seed}: its seeds are {expected}")
    runner.make(system, options.seed)


def main(words):
    options = parse(words)
    if options.seed is not None and options.only is None:
        raise UsageError("--seed needs --only", advice="--seeds are those of all runs")
    runner = Runner(options)
    claim_folder(options)
    for name in (DEV, PAIRS):  # an error in these rows is the first one
        runner.prepared.file(name)
    if options.list:
        for system, seed in runner.waiting():
            if seed is None:
                print(f"--only {system.name}")
            else:
                print(f"--only {system.name} --seed {seed}")
        return 0
    values = ", ".join(f"{name}={value}" for name, value in runner.values.items() if name != "base")
    runner.say(f"the recipe of {runner.recipe}: {values}")
    if options.only is not None:
        make_one_run(runner, options)
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
    except BrokenPipeError:
        # `--list | head`: close stdout where Python's exit cannot fail on it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except FailedError as error:
        sys.exit(error.code)
    except MissingError as error:
        print(f"papers.py: {error}", file=sys.stderr)
        sys.exit(66)
    except SentkitError as error:
        print(f"papers.py: {error}", file=sys.stderr)
        if error.advice:
            print(f"  {error.advice}", file=sys.stderr)
        sys.exit(error.exit_code)
