"""One command: the rows are read once, and then each seed is a run of its own."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sentkit.errors import UsageError
from sentkit.formats.checkpoints import read_checkpoint
from sentkit.formats.rows import Inputs
from sentkit.model.precision import pick_device
from sentkit.training.base import Base, open_base
from sentkit.training.beginning import Bases, Init, from_nothing
from sentkit.training.corpus import Corpus, Tallied, check_rows, map_corpus, write_corpus
from sentkit.training.dev import read_dev
from sentkit.training.examples import ExampleParser
from sentkit.training.method import Method
from sentkit.training.ranks import Ranks, open_ranks
from sentkit.training.run import Job, claimed, refuse_existing, train
from sentkit.training.seeds import Place
from sentkit.training.stopping import Interrupted, Stop, Stopped, listening
from sentkit.training.trainer import Record, Saving


@dataclass(frozen=True, slots=True)
class Request:
    """What the flags say, but for the rows."""

    method: str
    kind: type[Method]
    settings: Any
    place: Place
    model: str
    dev: str | None
    device: str
    threads: int | None
    deterministic: bool
    saving: Saving
    log: str | None
    resume: bool
    force: bool
    init: Init | None = None  # in place of the model


@dataclass(frozen=True, slots=True)
class Told:
    """How a command hears of what happens."""

    rows: Callable[[Corpus, Tallied], None]
    step: Callable[[Record], None]
    warn: Callable[[str], None]


def perform(request: Request, inputs: Inputs, told: Told) -> bool:
    """All runs of a command; whether this process speaks for all that took part."""
    check_batch(request)
    for seed in request.place.seeds:
        go_on = request.resume or request.place.several
        refuse_existing(request.place.of(seed), resume=go_on, force=request.force)
    if request.deterministic:
        be_deterministic()
    with (
        listening() as stop,
        open_ranks(pick_device(request.device)) as ranks,
        beginning(request, ranks) as base_of,
    ):
        base = base_of(request.place.seeds[0])
        dev = None if request.dev is None else read_dev(request.dev, base.reading)
        with workplace(request.place, ranks) as folder:
            corpus = read_corpus(request, inputs, base, ranks, stop, folder, told)
            for seed in request.place.seeds:
                train(
                    Job(
                        request.method,
                        request.kind,
                        request.settings,
                        base_of(seed),
                        corpus,
                        dev,
                        ranks,
                        stop,
                        request.saving,
                        resume=request.resume,
                        force=request.force,
                        threads=request.threads,
                        report=told.step,
                        warn=told.warn,
                    ),
                    request.place.of(seed),
                    seed,
                    request.place.log(request.log, seed),
                )
        return ranks.first


def check_batch(request: Request) -> None:
    if request.settings.batch == 1 and not request.kind.row_wise:
        raise UsageError("batch=1: a contrast takes 2 rows or more")


def be_deterministic() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def refuse_unpacked(request: Request, base: Base) -> None:
    if base.architecture is None and request.kind.needs_packed:
        problem = f"{request.method} needs {request.kind.needs_packed}"
        raise UsageError(f"{problem}, and {base.why_not_packed} runs through transformers")


@contextmanager
def beginning(request: Request, ranks: Ranks) -> Iterator[Bases]:
    """The base of each seed: the checkpoint that is named, or what --init makes."""
    longest = request.settings.max_length
    if request.init is not None:
        with from_nothing(request.init, request.place.rows, ranks, longest) as base_of:
            yield base_of
        return
    base = open_base(read_checkpoint(request.model), longest)
    refuse_unpacked(request, base)
    yield lambda seed: base


@contextmanager
def workplace(place: Place, ranks: Ranks) -> Iterator[Path]:
    """The folder of the tokens, gone when all runs are done."""
    with claimed(place.rows, "rows.lock", first=ranks.first):
        yield place.rows
        if ranks.first:
            shutil.rmtree(place.rows, ignore_errors=True)


def read_corpus(
    request: Request, inputs: Inputs, base: Base, ranks: Ranks, stop: Stop, folder: Path, told: Told
) -> Corpus:
    """The rows as tokens: one process reads them, all map them."""
    tallied, kind, settings = Tallied(), request.kind, request.settings
    if ranks.first:
        parser = ExampleParser(request.method, kind.reads(settings), inputs.fields)
        dedup = settings.dedup
        try:
            tallied = write_corpus(folder, inputs, parser, base.tokenizer, dedup=dedup, poll=stop.poll)
        except Interrupted as error:
            advice = "the same command with --resume begins again"
            raise Stopped("stopped before the first step", advice=advice) from error
    ranks.wait()
    corpus = map_corpus(folder)
    check_rows(corpus, tallied, 1 if kind.row_wise else 2, ", ".join(inputs.paths))
    told.rows(corpus, tallied)
    return corpus
