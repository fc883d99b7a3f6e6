"""Make the tables and figures of a paper: SG-BERT, ConSERT, PairSupCon or DefSent+.

    python examples/papers/papers.py sg-bert --base bert-base-uncased --data DATA --out OUT

It makes all runs one after the other, and then the tables and figures. A run is the training of a system with
one seed, and its values; systems.py has the systems. To make several runs at a time:

    set -- sg-bert --base BASE --data DATA --out OUT
    python examples/papers/papers.py "$@" --list | xargs -P 4 -L 1 python examples/papers/papers.py "$@"
    python examples/papers/papers.py "$@" --collect

--list prints the runs that can be made now. Repeat it until it prints nothing: a step of DefSent+ needs all
seeds of the step before. A stopped run continues with the next call. Exit status: that of the sentkit command
that failed; 75: stopped and saved.

DATA is a folder as for `sentkit report --data`, with sts/stsb.{train,dev,test}. It can have nli/train,
nli/triplets, paraphrases/stsb, glue/TASK.{train,dev,test}, dictionary/ and corpora/. Files end with .jsonl or
.txt, also .gz. In dictionary/, the names of files of the Oxford dictionary begin with oxford. Lines with "not
made" name what is missing. OUT keeps rows/, runs/, entries/, results/, tables/ and figures/.
"""

import argparse
import fcntl
import json
import random
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import figures
import tables
from systems import PAPERS

from sentkit.errors import NoInputError, SentkitError, UsageError
from sentkit.flag_values import numbers
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.checkpoints.readout import WK_FIRST, WK_LAYERS
from sentkit.model.reading import depth_of
from sentkit.papers.published import published, published_base, same_base
from sentkit.reports.suites import find_test_sets
from sentkit.reports.tables import has_task, suites_of

EXAMPLES = Path(__file__).parent.parent
ENDS = ("", ".jsonl", ".jsonl.gz", ".txt", ".txt.gz")
STOPPED = 75  # saved; the same call continues
FEW, FEW_TESTS = 96, 200  # rows of --quick
TRIAL = ["--set", "batch=16", "--set", "epochs=1", "--set", "max_length=64"]
TEXTS = ("text", "text_a", "text_b")
BERT, ROBERTA = (
    "google-bert/bert-base-uncased",
    "FacebookAI/roberta-base",
)  # for lengths in tokens; dictionary c


class Stop:
    """A signal ends the command that runs, which saves its state, and then this program."""

    requested, command = False, None

    @classmethod
    def request(cls, number, frame):
        cls.requested = True
        if cls.command is not None and number != signal.SIGINT:  # a terminal sends this one to all
            cls.command.send_signal(number)


def run(words, *, keep):
    if Stop.requested:
        raise FailedError(STOPPED)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE if keep else subprocess.DEVNULL, text=True
    ) as command:
        Stop.command = command
        printed, _ = command.communicate()
        Stop.command = None
    code = command.returncode
    if Stop.requested and code <= 0:
        code = STOPPED
    if code:
        raise FailedError(code)
    return printed


class MissingError(Exception):
    """What a system needs and does not exist."""


class FailedError(Exception):
    """A command failed, or was stopped."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Row:
    """A line of a table, or a value of a figure."""

    table: str
    name: str
    readout: str = ""  # "": as the checkpoint declares
    best: bool = False  # of the seed that is best on the dev pairs


class Values(dict):
    """The values of braces: of the recipe, or made when they are used."""

    def __init__(self, known, make):
        super().__init__(known)
        self.make = make

    def __missing__(self, name):
        return self.make(name)


class Runner:
    missing = MissingError  # for tables.py and figures.py

    def __init__(self, options):
        self.options = options
        self.name, self.base = options.paper, options.base
        self.paper = PAPERS[options.paper]
        self.data, self.out = Path(options.data), Path(options.out)
        if not self.data.is_dir():
            raise NoInputError(f"{self.data}: not a folder of data")
        self.recipe = options.preset or published_base(self.base)
        if self.recipe not in self.paper.recipes:
            found = f"is {self.recipe}" if self.recipe else "has the size of no encoder of the papers"
            advice = f"choose its recipe: --preset {'|'.join(self.paper.recipes)}"
            raise UsageError(f"{self.base} {found}: {self.name} has no recipe for it", advice=advice)
        self.given = dict(word.split("=", 1) for word in options.given)
        self.seeds = numbers("--seeds", options.seeds or self.paper.seeds)
        if options.quick and not options.seeds:
            self.seeds = self.seeds[:1]
        self.dev = str(self.prepared("dev", "few", "sts/stsb.dev"))
        self.pairs = str(self.prepared("test", "few", "sts/stsb.test"))
        self.systems = {each.name: each for each in self.paper.systems if each.trial or not options.quick}
        if unknown := self.given.keys() - self.systems.keys() - {"bert", "roberta"}:
            raise UsageError(f"--given {unknown.pop()}: the systems are {', '.join(self.systems)}")
        self.rows = self.published_rows()

    def say(self, text):
        print(f"papers.py: {text}", file=sys.stderr, flush=True)

    # The recipe of the base, and the rows that follow from it.

    @cached_property
    def values(self):
        depth = depth_of(read_checkpoint(self.base).config)
        enough = depth - WK_FIRST + 1 >= WK_LAYERS
        wk = "wk" if enough else "+".join(f"L{layer}" for layer in range(depth + 1)) + ":wk"
        return {
            "base": self.recipe,
            "model": self.base,
            "wk": wk,
            "dev": self.dev,
            "seeds": ",".join(map(str, self.seeds)),
            **self.paper.recipes[self.recipe],
        }

    def published_rows(self):
        """The rows of each system that the paper has for this base, and those that are added."""
        found, claimed = {name: [] for name in self.systems}, set()
        for system in self.systems.values():
            for word in system.rows.format_map(self.values).split():
                place, _, name = word.partition("=")
                best, word = name.endswith("!"), name.rstrip("!") or system.name
                name, _, readout = word.partition("#")
                if not _ and "#" in place:
                    place, _, readout = place.partition("#")
                table = place.strip("+!")
                row = Row(table, name or system.name, readout, best or place.endswith("!"))
                extra = place.startswith("+")
                if not table.isdecimal() or self.is_published(table, None if extra else row.name, readout):
                    if place.endswith("+"):
                        row = Row(table, f"{row.name}, mean of seeds", readout)
                    # Two systems of DefSent+ can be the same; those of GLUE differ in the task.
                    if row not in claimed or table in self.paper.notes:
                        claimed.add(row)
                        found[system.name].append(row)
        return found

    def is_published(self, table, name, readout):
        """Whether a table has this row of the base; with the name None, any row."""
        kind = readout.rpartition(":")[2]
        rows = [row for row in published() if (row["paper"], row["table"]) == (self.name, table)]
        return any(row["base"] and same_base(row["base"], self.recipe) for row in rows) and any(
            same_base(row["base"], self.recipe)
            and name in (None, row["system"])
            and (name is None or row["readout"] in (None, kind) or not readout)
            for row in rows
        )

    @property
    def needed(self):
        """The systems with rows, and those that they start from."""
        found = {}
        for system in self.systems.values():
            if self.rows[system.name]:
                for each in (*self.before(system), system):
                    found[each.name] = each
        return [each for each in self.systems.values() if each.name in found]

    def before(self, system):
        """The systems from which this one starts, or that make its entries."""
        for word in (system.start, system.entries.partition(":")[0]):
            name = word.rstrip("!")
            if name in self.systems:
                yield from self.before(self.systems[name])
                yield self.systems[name]

    # Data, and rows that are made from it.

    def files(self, pattern):
        paths = sorted({str(path) for end in ENDS for path in self.data.glob(f"{pattern}{end}")})
        paths = [path for path in paths if Path(path).is_file() and path.endswith(ENDS[1:])]
        if not paths:
            raise MissingError(f"{self.data}/{pattern}: no such file")
        return paths

    def needs(self, name):
        """The files of data for prepared rows; raises MissingError if one is missing."""
        kind, *arguments = self.paper.rows.get(name) or ("copied", name)
        if kind in ("augmented", "sample", "single_tokens", "texts_like"):
            self.needs(arguments[0])
            if kind == "sample" and not self.options.quick and arguments[1] > self.count(arguments[0]):
                raise MissingError(f"{arguments[1]} texts; {arguments[0]} has {self.count(arguments[0])}")
            arguments = arguments[1:] if kind == "texts_like" else []
        for each in arguments:
            self.files(each)

    def count(self, name):
        with Path(self.row_file(name)).open() as rows:
            return sum(1 for _ in rows)

    def row_file(self, name):
        if name not in self.paper.rows:
            return self.files(name)[0]
        return str(self.prepared(name, *self.paper.rows[name]))

    def prepared(self, name, kind, *arguments):
        """rows/NAME.jsonl, made once."""
        make = getattr(self, f"write_{kind}")
        return self.made(self.out / "rows" / f"{name}.jsonl", lambda path: make(path, *arguments))

    def made(self, path, write):
        """A file that several processes need: the first one makes it, under a temporary name."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with self.locked(path):
                if not path.exists():
                    part = path.with_name(f".part-{path.name}")
                    part.unlink(missing_ok=True)
                    write(part)
                    part.rename(path)
        return path

    @contextmanager
    def locked(self, path):
        with path.with_name(f".{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def lines(self, paths):
        for path in paths:
            yield from self.call("cat", path, "-q", keep=True).splitlines(keepends=True)

    def texts(self, patterns):
        for row in map(json.loads, self.lines([path for each in patterns for path in self.files(each)])):
            for name in TEXTS:
                if name in row:
                    yield json.dumps({"text": row[name]}) + "\n"

    def write(self, path, lines, most=FEW):
        """All lines, or with --quick so many from all parts of them."""
        lines = list(lines)
        path.write_text("".join(spread(lines, most) if self.options.quick else lines))

    def write_few(self, path, pattern):
        self.write(path, self.lines(self.files(pattern)), FEW_TESTS)

    def write_copied(self, path, pattern):
        self.write(path, self.lines(self.files(pattern)))

    def write_texts(self, path, *patterns):
        self.write(path, self.texts(patterns))

    def write_texts_like(self, path, other, *patterns):
        """As many texts as other rows have."""
        self.write(path, spread(list(self.texts(patterns)), self.count(other)))

    def write_sample(self, path, other, count):
        rows = Path(self.row_file(other)).read_text().splitlines(keepends=True)
        random.Random(0).shuffle(rows)  # a smaller sample is a part of a larger one
        self.write(path, rows[:count])

    def write_augmented(self, path, other, words):
        self.call("augment", self.row_file(other), *words.split(), "-q", "-o", f"{path}.jsonl")
        Path(f"{path}.jsonl").rename(path)

    def write_dictionary(self, path, pattern):
        rows = self.python("dictionary_rows.py", *self.files(pattern))
        self.write(path, rows.splitlines(keepends=True))

    def write_single_tokens(self, path, other):
        """With the tokenizer of BERT for all families (footnote 8 of the paper)."""
        words = ("--single-tokens", self.tokenizers()["bert"], self.row_file(other))
        rows = self.python("dictionary_rows.py", *words)
        self.write(path, rows.splitlines(keepends=True))

    # Commands.

    def call(self, *words, keep=False):
        """Run sentkit; its output if it is kept."""
        return run(["sentkit", *map(str, words)], keep=keep)

    def python(self, script, *words):
        return run(["python3", str(EXAMPLES / script), *map(str, words)], keep=True)

    def encoded(self, name, model, rows, *flags):
        """Vectors of rows as rows/NAME.safetensors."""
        path = self.out / "rows" / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.call("encode", rows, "-m", model, "-o", path, "--precision", "fp32", "-f", "-q", *flags)
        return str(path)

    # Runs.

    def seeds_of(self, system):
        own = self.given.get(system.name) or system.given
        return [None] if own or system.script else self.seeds

    def folder(self, system, seed):
        return self.out / "runs" / system.name / f"seed-{seed}"

    def checkpoints(self, system):
        """The finished ones, with their seeds."""
        own = self.given.get(system.name, system.given)
        if own:
            return {None: self.base if own == "base" else own} if own != "?" else {}
        paths = {seed: self.folder(system, seed) for seed in self.seeds_of(system)}
        if system.fit:
            paths = {seed: path.with_suffix(".safetensors") for seed, path in paths.items()}
        return {seed: str(path) for seed, path in paths.items() if path.exists()}

    def best(self, system):
        """The checkpoint of the highest score on the dev pairs, and its seed."""
        made = self.checkpoints(system)
        if list(made) == [None]:
            return made[None]

        def score(seed):
            dev = json.loads((Path(made[seed]) / "sentkit.json").read_text()).get("dev")
            return -1e9 if dev is None else dev

        return made[max(made, key=score)]

    def start_of(self, word, seed):
        """The checkpoint of `start`."""
        name = word.rstrip("!")
        if name == "base":
            return self.base
        made = self.checkpoints(self.systems[name])
        if word.endswith("!"):
            return self.best(self.systems[name])
        return made.get(seed) or next(iter(made.values()))

    def entries(self, text):
        """The entries of SYSTEM:READOUT[+ica], made once."""
        maker, _, rest = text.partition(":")
        readout, _, ica = rest.format_map(self.values).partition("+")
        path = self.out / "entries" / f"{maker.rstrip('!')}-{readout}{'-ica' * bool(ica)}.safetensors"

        def write(part):
            if ica:
                plain = self.entries(f"{maker}:{readout}")
                fitted = self.out / "rows" / f"{path.stem}-fit.safetensors"
                # auto: the deviation that the entries had. The factor of the paper depends on their number.
                scale = ("--scale", "auto", "--keep-width", "--seed", 42)
                self.call("whiten", "fit", plain, "--kind", "ica", *scale, "-o", fitted, "-f", "-q")
                self.call("whiten", "apply", plain, "-t", fitted, "-o", part, "-f", "-q")
            else:
                model = self.start_of(maker, None)
                words = ("-m", model, "--readout", readout, "-o", part, "-f", "-q")
                self.call("build-entries", self.row_file("dictionary"), *words)

        return str(self.made(path, write))

    def known_entries(self, text):
        """The same for a figure, if the runs that they need are done."""
        maker = text.partition(":")[0].rstrip("!")
        if maker != "base" and not all(
            self.is_done(self.systems[maker], each) for each in self.seeds_of(self.systems[maker])
        ):
            raise MissingError(f"{maker} is not complete")
        return self.entries(text)

    def tokenizers(self):
        """Of both families, for table 1 of DefSent+."""
        known = {"bert": BERT, "roberta": ROBERTA, self.recipe.partition("-")[0]: self.base}
        return {name: self.given.get(name, known[name]) for name in ("bert", "roberta")}

    def problem(self, system):
        """Why a system cannot be made, or an empty string."""
        if self.given.get(system.name):
            return ""
        if system.given == "?":
            return f"no --given {system.name}=CHECKPOINT"
        names = []
        words = f"{system.train} {system.fit} {system.script}".strip()
        words.format_map(Values(self.values, lambda name: names.append(name) or name))
        try:
            for name in names:
                self.needs(name)
            if system.entries:
                self.needs("dictionary")
        except MissingError as error:
            return str(error)
        return next(filter(None, (self.problem(each) for each in self.before(system))), "")

    def is_done(self, system, seed):
        return (self.out / "done" / run_name(system, seed)).exists()

    def is_ready(self, system, seed):
        """All seeds of a system must be done before the best one is known."""
        for word in (system.start, system.entries.partition(":")[0]):
            own = self.systems.get(word.rstrip("!"))
            if own is not None and not all(
                self.is_done(own, each)
                for each in self.seeds_of(own)
                if word.endswith("!") or each in (seed, None) or seed is None
            ):
                return False
        return True

    def waiting(self):
        """The runs that can be made now."""
        return [
            (system, seed)
            for system in self.needed
            if not self.problem(system)
            for seed in self.seeds_of(system)
            if not self.is_done(system, seed) and self.is_ready(system, seed)
        ]

    def make(self, system, seed):
        """A run and its values."""
        if problem := self.problem(system):
            raise NoInputError(f"{system.name}: {problem}")
        if not self.is_ready(system, seed):
            before = ", ".join(each.name for each in self.before(system))
            raise NoInputError(f"{system.name}: {before} must be made first")
        self.say(run_name(system, seed).replace("/", ", seed "))
        path = self.folder(system, seed)
        values = Values(self.values, self.row_file)
        words = [word.format_map(values) for word in (system.train or system.fit or system.script).split()]
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.given.get(system.name) or system.given:
            pass
        elif system.script:
            settings = f"-q --set readout=cls {' '.join(self.settings())} {self.options.settings}"
            more = ["--settings", settings, *(["--rounds", "1"] if self.options.quick else [])]
            self.made(path.with_name("table.md"), lambda part: part.write_text(self.python(*words, *more)))
        elif system.fit:
            rows, readout, kind = words
            model = self.start_of(system.start, seed)
            name = f"{system.name}-rows-{seed}"
            target = path.with_suffix(".safetensors")
            vectors = self.encoded(name, model, rows, "--readout", readout)
            self.call("whiten", "fit", vectors, "--kind", kind, "--seed", seed, "-o", target, "-f", "-q")
        else:
            words = [words[0], *self.settings(), *words[1:], "-m", self.start_of(system.start, seed)]
            words += ["--entries", self.entries(system.entries)] if system.entries else []
            words += ["--seed", seed, "-o", path, "--resume", "-q", *shlex.split(self.options.settings)]
            printed = self.call("train", *words, keep=True)
            path.with_suffix(".json").write_text(printed)
        self.evaluate(system, seed)
        mark = self.out / "done" / run_name(system, seed)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    def settings(self):
        return TRIAL if self.options.quick else []

    # Values.

    @cached_property
    def tests(self):
        """The folder of test sets; with --quick a copy of some of their rows."""
        if not self.options.quick:
            return self.data
        for path in (*self.data.glob("sts/*.jsonl*"), *self.data.glob("clustering/*.jsonl*")):
            copy = self.out / "rows/tests" / str(path.relative_to(self.data)).removesuffix(".gz")
            self.made(copy, lambda part, path=path: self.write(part, self.lines([str(path)]), FEW_TESTS))
        return self.out / "rows/tests"

    def suites_of(self, table):
        if not table.isdecimal():
            return ["sts", "clustering"] if table == "abilities" else ["sts"]
        return [] if table in self.paper.notes else suites_of(self.name, table)

    def missing_sets(self, table):
        """Why no value of a table or figure can be measured, or an empty string."""
        suites = self.suites_of(table)
        try:
            sets = [each for suite in suites for each in find_test_sets(str(self.tests), [suite])[0]]
        except NoInputError as error:
            return str(error)
        if table.isdecimal() and suites and not has_task(self.name, table, sets):
            return f"{self.tests}: its averages need all test sets of {', '.join(suites)}"
        return ""

    def arguments(self, system, row, seeds=None):
        """The arguments of `sentkit report` for a row."""
        readout = f"#{row.readout}" if row.readout else ""
        made = self.checkpoints(system)
        if row.best and seeds is None and made:
            made = {0: self.best(system)}
        for seed, path in made.items():
            if seeds is None or seed in seeds:
                if system.fit:
                    yield f"{row.name}={self.start_of(system.start, seed)}{readout}@{path}"
                elif row.readout == "prompt" and seed is not None:
                    yield f"{row.name}={self.prompted(path)}"
                else:
                    yield f"{row.name}={path}{readout}"

    def prompted(self, path):
        """A checkpoint that declares the template of DefSent+."""
        if json.loads((Path(path) / "sentkit.json").read_text())["readout"] == "prompt":
            return path
        copy = Path(path).with_name(f"prompt-of-{Path(path).name}") / Path(path).name
        if not copy.exists():
            copy.parent.mkdir(exist_ok=True)
            words = ("--readout", "prompt", "--template", "defsent-plus", "-o", copy)
            self.call("export", path, *words, "-q")
        return str(copy)

    def report(self, arguments, suites, *flags):
        """The records of `sentkit report`."""
        words = [
            *arguments,
            "--data",
            self.tests,
            "--suites",
            ",".join(suites),
            "--results",
            self.out / "results",
        ]
        text = self.call("report", *words, "--precision", "fp32", "--format", "json", "-q", *flags, keep=True)
        return [json.loads(line) for line in text.splitlines()]

    def evaluate(self, system, seed):
        """Keep the values of a run in results/: one call for all rows with the same flags."""
        groups = {}
        for row in self.rows[system.name]:
            if not self.missing_sets(row.table):
                suites, rows = groups.setdefault(self.flags(row.table, "--head", "--seed"), (set(), set()))
                suites |= {*self.suites_of(row.table)}
                rows |= {each.partition("=")[2] for each in self.arguments(system, row, [seed])}
        for flags, (suites, rows) in groups.items():
            if suites and rows:
                self.report(
                    [f"row{place}={row}" for place, row in enumerate(sorted(rows))], sorted(suites), *flags
                )

    def flags(self, table, *names):
        words = [word.format_map(self.values) for word in self.paper.tables.get(table, ())]
        pairs = list(zip(words[::2], words[1::2], strict=True))
        return tuple(word for pair in pairs if pair[0] in names for word in pair)

    def test_files(self, name):
        """The files of a test set."""
        found = [str(path) for end in ENDS[1:3] if (path := self.tests / f"{name}{end}").exists()][:1]
        if not found:
            raise MissingError(f"{self.tests}/{name}.jsonl: no such file")
        return found

    def table_records(self, number):
        """The records of a table that was made before."""
        path = self.out / "tables" / f"table-{number}.jsonl"
        if not path.exists():
            raise MissingError(f"table {number} was not made")
        return [json.loads(line) for line in path.open()]

    def records(self, table):
        """The records of all rows of a figure: of their averages, or of one test set if not all are there."""
        arguments = [
            each for name in self.rows for row in self.rows[name] if row.table == table
            for each in self.arguments(self.systems[name], row)
        ]  # fmt: skip
        if not arguments or (problem := self.missing_sets(table)):
            raise MissingError(problem if arguments else "none of its runs is there")
        return self.report(arguments, self.suites_of(table))

    # Tables and figures.

    def collect(self):
        for system in self.needed:
            if problem := self.problem(system):
                rows = sorted(
                    {row.table for row in self.rows[system.name]}, key=lambda each: (len(each), each)
                )
                self.say(f"not made: {system.name} ({', '.join(rows)}): {problem}")
        failed = 0
        for folder in ("tables", "figures"):
            (self.out / folder).mkdir(parents=True, exist_ok=True)
        numbers = {
            figure["table"] for figure in published() if figure["paper"] == self.name
        } | self.paper.notes.keys()
        for table in sorted(filter(str.isdecimal, numbers), key=int):
            failed |= self.attempt(f"table {table}", self.table, table)
        for number, names in self.paper.figures.items():
            for name in names.split() if not names.startswith("a drawing") else ():
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
            self.say(
                f"not made: {what}: {error if isinstance(error, SentkitError) else 'the command failed'}"
            )
            return 1
        return 0

    def table(self, number):
        if number in self.paper.notes:
            text = getattr(tables, self.paper.notes[number])(self, number)
            name = f"table-{number}" if number.isdecimal() else number.replace(" ", "-")
            (self.out / "tables" / f"{name}.txt").write_text(text)
            print(text, flush=True)
            return
        arguments, names = [], set()
        for name, rows in self.rows.items():
            for row in rows:
                if row.table == number:
                    own = list(self.arguments(self.systems[name], row))
                    arguments += own
                    names |= {row.name for _ in own}
        if not arguments:
            if any(row.table == number for rows in self.rows.values() for row in rows):
                raise MissingError("none of its runs is there")
            return
        if problem := self.missing_sets(number):
            raise MissingError(problem)
        flags = self.flags(number, "--head", "--seed")
        words = [
            *arguments,
            "--data",
            self.tests,
            "--results",
            self.out / "results",
            "--precision",
            "fp32",
            "-q",
            *flags,
        ]
        words += ["--paper", self.name, "--table", number, "-f", "-o"]
        stem = self.out / "tables" / f"table-{number}"
        self.call("report", *words, f"{stem}.jsonl", "--format", "json")
        compared = [
            word for word in self.flags(number, "--baseline") if word == "--baseline" or word in names
        ]
        form = self.options.format
        path = stem.with_suffix({"text": ".txt", "markdown": ".md", "latex": ".tex"}[form])
        self.call("report", *words, path, "--format", form, *(compared if len(compared) == 2 else ()))
        print(path.read_text(), flush=True)


def run_name(system, seed):
    return system.name if seed is None else f"{system.name}/{seed}"


def spread(lines, most):
    """At most so many, from all parts."""
    step = max(1, len(lines) / most)
    return [lines[int(place * step)] for place in range(min(most, len(lines)))]


def parse(words):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paper", choices=PAPERS)
    parser.add_argument("--base", required=True, help="the encoder to start from, such as bert-base-uncased")
    parser.add_argument("--data", required=True, help="folder of data")
    parser.add_argument("--out", required=True, help="folder to create, or to continue")
    parser.add_argument("--preset", help="the recipe of this encoder of the paper (default: as --base)")
    parser.add_argument("--seeds", help="0..7 or 1,2,3 (default: those of the paper)")
    parser.add_argument(
        "--settings", default="", help="flags of sentkit train for all runs, such as '--device cuda'"
    )
    parser.add_argument(
        "--given",
        action="append",
        default=[],
        metavar="SYSTEM=CHECKPOINT",
        help="use this instead of training",
    )
    parser.add_argument("--format", default="text", choices=("text", "markdown", "latex"), help="of tables")
    parser.add_argument(
        "--figures", default="svg", choices=("svg", "png", "pdf", "jsonl"), help="format of figures"
    )
    parser.add_argument(
        "--quick", action="store_true", help="try it: few rows and steps; the values mean nothing"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="print the runs that can be made now")
    action.add_argument("--only", metavar="SYSTEM", help="make one run")
    action.add_argument(
        "--collect", action="store_true", help="make tables and figures of the runs that exist"
    )
    parser.add_argument("--seed", type=int, help="with --only: the seed of the run")
    return parser.parse_args(words)


def main(words):
    options = parse(words)
    runner = Runner(options)
    if options.list:
        for system, seed in runner.waiting():
            print(f"--only {system.name}" + ("" if seed is None else f" --seed {seed}"))
        return 0
    values = ", ".join(
        f"{name}={value}" for name, value in runner.values.items() if name not in ("base", "dev")
    )
    runner.say(f"the recipe of {runner.recipe}: {values}")
    if options.only is not None:
        system = runner.systems.get(options.only)
        if system is None:
            raise UsageError(f"--only {options.only}: the systems are {', '.join(runner.systems)}")
        if options.seed not in runner.seeds_of(system):
            seeds = ", ".join(map(str, runner.seeds)) if runner.seeds_of(system) != [None] else "not used"
            raise UsageError(f"--only {system.name} --seed {options.seed}: its seeds are {seeds}")
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
        sys.exit(main(sys.argv[1:]))
    except FailedError as error:
        sys.exit(error.code)
    except MissingError as error:
        print(f"papers.py: {error}", file=sys.stderr)
        sys.exit(66)
    except SentkitError as error:
        print(f"papers.py: {error}" + (f"\n  {error.advice}" if error.advice else ""), file=sys.stderr)
        sys.exit(error.exit_code)
