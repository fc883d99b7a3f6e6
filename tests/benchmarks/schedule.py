"""The share of the cores that is busy in `encode` and `Encoder`, also with more threads than here.

python tests/benchmarks/schedule.py TEXTS.txt[.gz] [MODEL [PRECISION]]

Batches and groups are those of the program. The CPU time of each batch is measured with one thread,
for up to MEASURED texts; those of more texts follow from the tokens and the squares of their
lengths, by a fit of the measured ones. Then the scheduler of the program is simulated: so many
threads take the batches in order, a thread tokenizes the groups, and a group starts when a group
thread is free. Its prediction for two threads is compared with a real run, which needs a quiet
machine with two cores.
"""

import gc
import gzip
import heapq
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, thread_time

import numpy as np
import torch
from usage import check_arguments

from sentkit.formats.rows.rows import Rejects
from sentkit.model import find_encoder
from sentkit.model.encoding import AHEAD, TokenEncoder, batch_size, encode_groups, plan_batches
from sentkit.model.groups import FIRST_GROUP, LAST_GROUP, tokenized_groups
from sentkit.model.query_encoder import text_rows
from sentkit.model.reading import ReadingOptions
from sentkit.model.text.tokens import TextTokenizer, TokenBlock
from sentkit.model.transformer.encoder import THREADS_OF_GROUP
from sentkit.process import limit_threads

COUNTS = (240, 10_000, 300_000)
THREADS = (2, 8, 16, 32, 64)
MEASURED = 2_000
ROUNDS = 2


@dataclass
class PlannedGroup:
    """A group: the seconds of its tokens, and of each of its batches with one thread."""

    rows: int
    tokenizing: float
    batches: list[float]


@dataclass
class Prediction:
    seconds: float
    first_row: float  # seconds until the first group is done
    busy: float  # share of the threads


class CostModel:
    """The seconds of a batch, by its tokens and the squares of the lengths of its texts."""

    def __init__(self, features: list[tuple[float, ...]], seconds: list[float]) -> None:
        self.weights, *_ = np.linalg.lstsq(np.array(features), np.array(seconds), rcond=None)

    def seconds(self, batch: TokenBlock) -> float:
        return float(np.array(features_of(batch)) @ self.weights)


def features_of(batch: TokenBlock) -> tuple[float, ...]:
    return 1.0, float(batch.lengths.sum()), float((batch.lengths**2).sum())


def read_texts(path: str) -> list[str]:
    content = Path(path).read_bytes()
    if path.endswith(".gz"):
        content = gzip.decompress(content)
    lines = content.decode().splitlines()
    return [line.strip() for line in lines if line.strip()][: max(COUNTS)]


def batches_of_groups(
    texts: list[str], tokenizer: TextTokenizer, encoder: TokenEncoder, first: int
) -> Iterator[tuple[int, float, list[TokenBlock]]]:
    """Yield the rows, the seconds of the tokenizer and the batches of each group."""
    groups = tokenized_groups(text_rows(texts), tokenizer, Rejects(), first=first)
    while True:
        start = thread_time()
        group = next(groups, None)
        seconds = thread_time() - start
        if group is None:
            return
        tokens = group.tokens.take(group.accepted_texts)
        planned = plan_batches(tokens, batch_size(tokens, encoder, encoder.tokens_per_batch))
        yield len(group.rows), seconds, [tokens.take(batch) for batch in planned]


def measured_costs(texts: list[str], tokenizer: TextTokenizer, encoder: TokenEncoder) -> CostModel:
    features = []
    seconds = []
    for _, _, batches in batches_of_groups(texts, tokenizer, encoder, FIRST_GROUP):
        for batch in batches:
            features.append(features_of(batch))
            seconds.append(min(seconds_of(batch, encoder) for _ in range(ROUNDS)))
    return CostModel(features, seconds)


def seconds_of(batch: TokenBlock, encoder: TokenEncoder) -> float:
    start = thread_time()
    list(encoder.encode([batch]))
    return thread_time() - start


def predicted(groups: list[PlannedGroup], threads: int) -> Prediction:
    """Simulate `computed_ahead` and the pool: batches in order, no barrier between groups."""
    groups_at_once = 2 + threads // THREADS_OF_GROUP
    ahead = max(AHEAD, groups_at_once)
    free = [0.0] * threads  # when each thread is free
    free_of_groups = [0.0] * groups_at_once
    ends: list[float] = []
    tokenized = 0.0
    for number, group in enumerate(groups):
        # The tokenizer waits until the caller has taken an earlier group.
        if number >= ahead:
            tokenized = max(tokenized, ends[number - ahead])
        tokenized += group.tokenizing
        start = max(tokenized, heapq.heappop(free_of_groups))
        end = start
        for seconds in group.batches:
            begin = max(start, heapq.heappop(free))
            heapq.heappush(free, begin + seconds)
            end = max(end, begin + seconds)
        heapq.heappush(free_of_groups, end)
        ends.append(end)
    work = sum(sum(group.batches) for group in groups)
    return Prediction(max(ends), ends[0], work / (threads * max(ends)))


def planned_groups(
    texts: list[str], tokenizer: TextTokenizer, encoder: TokenEncoder, costs: CostModel, first: int
) -> list[PlannedGroup]:
    """The groups of these texts with the estimated seconds of their batches."""
    groups = []
    for rows, tokenizing, batches in batches_of_groups(texts, tokenizer, encoder, first):
        groups.append(PlannedGroup(rows, tokenizing, [costs.seconds(batch) for batch in batches]))
    return groups


def print_predictions(groups: list[PlannedGroup], first: int) -> None:
    count = sum(group.rows for group in groups)
    predictions = [predicted(groups, threads) for threads in THREADS]
    shares = " | ".join(f"{100 * prediction.busy:.0f}" for prediction in predictions)
    print(f"{count} | {first} | {shares}")
    first_rows = " | ".join(f"{prediction.first_row:.2f}" for prediction in predictions)
    print(f"  seconds until the first row | | {first_rows}")


def seconds_of_run(texts: list[str], tokenizer: TextTokenizer, encoder: TokenEncoder) -> float:
    """The least seconds of real runs, with the threads of the encoder."""
    elapsed = []
    for _ in range(ROUNDS):
        start = monotonic()
        groups = tokenized_groups(text_rows(texts), tokenizer, Rejects())
        for _ in encode_groups(groups, encoder, encoder.tokens_per_batch):
            pass
        elapsed.append(monotonic() - start)
    return min(elapsed)


def main() -> None:
    check_arguments(__doc__, least=1, most=3)
    texts = read_texts(sys.argv[1])
    name = sys.argv[2] if len(sys.argv) > 2 else "nano"
    precision = sys.argv[3] if len(sys.argv) > 3 else "fp32"
    limit_threads(2, of_libraries=1)
    torch.set_num_threads(1)
    model = find_encoder(name, ReadingOptions(), device="cpu", precision=precision)
    encoder = model.encoder()
    threads_of_encoder = encoder.threads
    encoder.threads = 0  # one batch after the other, in this thread
    sample = texts[:: max(1, len(texts) // MEASURED)][:MEASURED]
    costs = measured_costs(sample, model.tokenizer, encoder)
    print(f"{name}, {precision}: share of the threads that is busy, in %")
    print("texts | first group | " + " | ".join(f"{threads} threads" for threads in THREADS))
    for count in COUNTS:
        gc.freeze()  # as in the program, whose garbage collector does not visit older objects
        first_groups = [FIRST_GROUP]
        if count == min(COUNTS):
            first_groups.append(LAST_GROUP)
        for first in first_groups:
            groups = planned_groups(texts[:count], model.tokenizer, encoder, costs, first)
            print_predictions(groups, first)

    # A real run with two threads.
    first_texts = texts[:MEASURED]
    planned = planned_groups(first_texts, model.tokenizer, encoder, costs, FIRST_GROUP)
    prediction = predicted(planned, 2)
    encoder.threads = threads_of_encoder
    elapsed = seconds_of_run(first_texts, model.tokenizer, encoder)
    run = f"{prediction.seconds:.2f} s predicted, {elapsed:.2f} s run"
    print(f"{len(first_texts)} texts, two threads: {run}")


if __name__ == "__main__":
    main()
