"""What `encode --dry-run` predicts: exact counts, and from a short measurement the bytes and the time."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from sentkit.formats.files import COMPRESSED, is_parquet
from sentkit.formats.rows.rows import Inputs, Row
from sentkit.formats.vectors.folder_settings import describe_input
from sentkit.formats.vectors.folders import BLOCK_BYTES, ROW_BYTES, VectorFolder, blocks_of, is_vector_folder
from sentkit.formats.vectors.sinks import VectorOutput
from sentkit.formats.vectors.storage import Storage
from sentkit.formats.vectors.store import is_store
from sentkit.formats.vectors.vectors import ENCODINGS
from sentkit.model import Model
from sentkit.model.encoding import Encoder, RowGroup, Tally, encode_groups, plan_batches
from sentkit.model.reuse import OldVectors
from sentkit.model.text.tokens import Tokens

PER_GROUP, AT_ONCE = 32, 32  # rows of each group that are measured, and of a measured group
SECONDS = 5.0  # of the measurement


class Progress(Protocol):
    def add(self, rows: int, tokens: int = 0) -> None: ...

    def done(self) -> None: ...


@dataclass(slots=True)
class Plan:
    tally: Tally = field(default_factory=Tally)
    batches: int = 0
    line_bytes: int = 0  # of the rows without vectors, in the output
    sample: list[tuple[Row, list[Tokens]]] = field(default_factory=list)

    def read(self, groups: Iterable[RowGroup], budget: int, report: Callable[[int, int], None]) -> None:
        for group in groups:
            rows = [(row, group.of(own)) for row, own in group.rows]
            report(len(rows), self.tally.add(rows))
            self.batches += len(plan_batches([each for each in group.tokens if each.read], budget)[1])
            for row, tokens in rows:
                copies = tokens[0].vectors if tokens[0].windows is not None else 1
                self.line_bytes += copies * (len(row.line) + 1)
            rows.sort(key=lambda each: all(tokens.old for tokens in each[1]))  # rows to encode first
            self.sample += rows[:PER_GROUP]

    def sampled(self) -> Iterator[RowGroup]:
        """The sample in groups, evenly from all of the input."""
        step = -(-len(self.sample) // AT_ONCE)
        for first in range(step):
            rows, tokens = [], list[Tokens]()
            for row, texts in self.sample[first::step]:
                rows.append((row, list(range(len(tokens), len(tokens) + len(texts)))))
                tokens += texts
            yield RowGroup(rows, tokens)

    def measured(
        self, encoder: Encoder, budget: int, path: str, form: VectorOutput, old: OldVectors | None
    ) -> dict[str, int | None]:
        """Estimates for all rows: the bytes of the output and the seconds."""
        for _ in encode_groups(iter([next(self.sampled())]), encoder, budget, old):
            pass  # the first batch is slower
        start, done, text_bytes, vectors = monotonic(), Tally(), 0, 0
        for group in encode_groups(self.sampled(), encoder, budget, old):
            done.add((each.row, each.tokens) for each in group)
            for vector in chain.from_iterable(each.vectors[0] for each in group):
                vectors += 1
                text_bytes += len(ENCODINGS[form.encoding](vector)) if not is_store(path) else 0
            if monotonic() - start > SECONDS:
                break
        seconds = (monotonic() - start) * self.tally.encoded / max(1, done.encoded)
        each: float | None = text_bytes / max(1, vectors) + len(
            f'"embedding":,"_emb":"{encoder.specs[0].emb}",'
        )
        if is_store(path) or path.endswith("/") or len(encoder.specs) > 1:
            storage = Storage(form.store or "float32", encoder.width)
            each = 8 + storage.columns * int(storage.dtype[-1])
        elif is_parquet(path) or Path(path).suffix.lower() in COMPRESSED:
            each = None
        total = (
            None if each is None else round(self.line_bytes + each * self.tally.texts) * len(encoder.specs)
        )
        return {"bytes_estimate": total, "seconds_estimate": max(1, round(seconds))}

    def blocks(self, inputs: Inputs, path: str, block_bytes: int | None) -> int | None:
        """The number of blocks of a vector folder; None if it is unknown before the rows are read."""
        existing = VectorFolder(path).block_bytes if is_vector_folder(path) else BLOCK_BYTES
        size, count = block_bytes or existing, 0
        for record in (describe_input(inputs, each) for each in inputs.paths):
            length, step = record["size"], size
            if record["grid"] == "rows":
                step = max(1, size // ROW_BYTES)
                length = self.tally.rows if len(inputs.paths) == 1 else record["rows"]
            if length is None:
                return None
            count += blocks_of(length, step)
        return count

    def record(self) -> Mapping[str, Any]:
        counts = {"rows": self.tally.rows, "texts": self.tally.texts, "tokens": self.tally.tokens}
        counts |= {"truncated": self.tally.truncated, "batches": self.batches}
        if self.tally.windows:
            counts |= {"split_rows": self.tally.split, "windows": self.tally.windows}
        return counts


def plan_of(
    groups: Iterable[RowGroup],
    model: Model,
    inputs: Inputs,
    path: str,
    form: VectorOutput,
    block_bytes: int | None,
    batch_tokens: int | None,
    progress: Progress,
    encoder: Encoder | None,
    old: OldVectors | None,
) -> dict[str, Any]:
    """The counts and estimates. The encoder is loaded if it is None and an estimate needs it."""
    plan = Plan()
    plan.read(groups, batch_tokens or model.budget, progress.add)
    progress.done()
    record = dict(plan.record())
    if len(model.readouts) == 1 and (path.endswith("/") or is_vector_folder(path)):
        record["blocks"] = plan.blocks(inputs, path, block_bytes)
    if old is not None:
        record |= {"reused": plan.tally.reused, "encoded": plan.tally.rows - plan.tally.reused}
        old.count_unneeded()
        record["no_longer_needed"] = old.unneeded
    if plan.sample and not model.tokenizer.whole:
        encoder = encoder or model.encoder(None)
        record |= plan.measured(encoder, batch_tokens or encoder.budget, path, form, old)
    return record
