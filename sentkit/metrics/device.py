"""Products of rows with queries or centres on a GPU. They only select candidates; float64 on the CPU decides.

Rows pass through the device in blocks. Blocks that fit into its memory stay there.

Letters in shapes: n rows, d dimensions, b queries, m rows of a block, k centres, c rows kept for a query.

Rounding errors of a product of half precision. Let q and r be a query and a row, divided by their lengths (or
by a larger number), so |q|, |r| <= 1. Let q' and r' be these vectors in half precision.
1. The length of q' - q is computed in float64 for each query: e.
2. A number in half precision has an error of at most 2^-11 of itself, or 2^-25 if it is below 2^-14, so
   |r' - r| <= ROW = 2^-11 + 2^-25 sqrt(d). By the inequality of Cauchy and Schwarz,
   |q' r' - q r| <= |q' - q| |r'| + |q| |r' - r| <= e (1 + ROW) + ROW.
3. Products of two such numbers are exact in float32. A tensor core adds t of them (4 to 32) to the sum at a
   time and cuts off what is below 2^-23 of the largest of these t + 1 numbers (Fasi and others, Numerical
   behavior of NVIDIA tensor cores, 2021). No number or partial sum exceeds A = sum |q'_i r'_i| <= |q'| |r'|,
   so the d / t + 1 steps have errors of at most (d / t + 1) (t + 2) 2^-23 A <= (d + 32) 2^-22 A. This is also
   more than the error of sums in float32 that round to nearest, in any order: (d + 1) 2^-24 A.
4. Half precision of the sum, which is at most |q'| |r'| <= (1 + e) (1 + ROW), adds 2^-11 of it and 2^-25.
SLACK is more than all products of these errors, and the errors of float64 and of comparisons in float32.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sentkit.arrays import Float32, Float64, Indices, Rows
from sentkit.errors import UnavailableError
from sentkit.formats.vectors.arrays import SelectedVectors, StoredVectors
from sentkit.metrics.similarity import SMALLEST_NORM, UNDERFLOW

NUMBERS_PER_BLOCK, ROWS_PER_BLOCK = 1 << 25, 1 << 17  # at most, of the rows of a block
VALUES_PER_BLOCK = 1 << 26  # products of rows and centres in float32
SPARE = 64  # rows kept for a query besides those that are wanted
GROUP = 32  # products of which the largest is found first
KEPT_SHARE = 0.7  # of the free memory, for blocks that stay
HALF, SINGLE, SLACK = 2.0**-11, 2.0**-24, 1.01  # relative rounding errors

# Settings of torch that add products in half precision, or shorten float32.
SHORTER = {"allow_fp16_accumulation": False, "allow_fp16_reduced_precision_reduction": False}

Pairs = tuple[Indices, Indices]  # the index of a query, and of a row
Block = tuple[Tensor, Tensor]  # rows as they are multiplied, (m, d), and factors or lengths


class Device:
    """A device of torch that compares vectors."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        free = sys.maxsize if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
        self.room = int(KEPT_SHARE * free)  # bytes, for blocks that stay

    def corpus(self, rows: Rows, metric: str) -> "Corpus":
        return Corpus(rows, metric, self)

    def points(self, rows: Float32, mean: Float64) -> "Points":
        return Points(rows, mean, self)

    def copy(self, values: np.ndarray) -> Tensor:
        """Copy values to the device. The host does not wait for the work that the device still has."""
        tensor = tensor_of(values)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)


def tensor_of(values: np.ndarray) -> Tensor:
    """The same memory as a tensor; a copy of an array that is not writable, of which torch warns."""
    return torch.from_numpy(np.require(values, requirements="W"))


@contextmanager
def exact_sums() -> Iterator[None]:
    """Let products add in float32 without shortcuts, as the bounds require."""
    settings: Any = torch.backends.cuda.matmul
    wanted = SHORTER | (
        {"fp32_precision": "ieee"} if hasattr(settings, "fp32_precision") else {"allow_tf32": False}
    )
    before = {name: getattr(settings, name) for name in wanted if hasattr(settings, name)}
    try:
        for name in before:
            setattr(settings, name, wanted[name])
        with torch.inference_mode():
            yield
    except torch.cuda.OutOfMemoryError as error:
        problem = "the memory of the device is too small"
        raise UnavailableError(problem, advice="use --device cpu") from error
    finally:
        for name, value in before.items():
            setattr(settings, name, value)


class Blocks:
    """Rows in blocks on a device. The next block is copied while the device computes with this one."""

    def __init__(self, rows: Rows, device: Device, prepare: Callable[[Tensor], Block]) -> None:
        """`prepare` gets the rows of a block in float64, which it may change."""
        self.rows, self.device, self.prepare = rows, device, prepare
        most = max(1, NUMBERS_PER_BLOCK // max(1, rows.shape[1]))
        self.size = min(ROWS_PER_BLOCK, 1 << (most.bit_length() - 1))
        self.kept: dict[int, Block] = {}
        self.buffers: dict[int, Tensor] = {}  # in pinned memory, used in turn
        self.copied: dict[int, torch.cuda.Event] = {}  # the last copies from them
        self.stream = torch.cuda.Stream(device.device) if device.device.type == "cuda" else None

    def __del__(self) -> None:
        self.device.room += sum(each.nbytes for block in self.kept.values() for each in block)

    def __call__(self, first: int = 0) -> Iterator[tuple[slice, Block]]:
        """Yield the blocks with rows from `first` on; a block has no earlier ones."""
        numbers = range(first // self.size, -(-len(self.rows) // self.size))
        copies = (None if number in self.kept else self._copy(number) for number in numbers)
        following = next(copies, None)
        for number in numbers:
            copied, following = following, next(copies, None)
            block = self.kept[number] if copied is None else self.prepare(copied())
            size = sum(each.nbytes for each in block)
            if copied is not None and size <= self.device.room:
                self.kept[number] = block
                self.device.room -= size
            begin = number * self.size
            start, stop = max(first, begin), min(begin + self.size, len(self.rows))
            yield slice(start, stop), (block[0][start - begin :], block[1])

    def _copy(self, number: int) -> Callable[[], Tensor]:
        """Start to copy a block to the device. The returned function returns it in float64."""
        span = slice(number * self.size, min((number + 1) * self.size, len(self.rows)))
        turn, place, scales = number % 2, 0, list[tuple[slice, Tensor]]()
        if turn in self.copied:
            self.copied[turn].synchronize()  # the buffer may be filled again
        for codes, places, scale in codes_of(self.rows, span):
            numbers, count = tensor_of(codes), len(codes if places is None else places)
            own = slice(place, place + count)
            if turn not in self.buffers:
                shape = min(self.size, len(self.rows)), numbers.shape[1]
                pinned = self.stream is not None
                self.buffers[turn] = torch.empty(shape, dtype=numbers.dtype, pin_memory=pinned)
            if places is None:  # both ways use all threads of torch
                self.buffers[turn][own].copy_(numbers)
            else:
                torch.index_select(numbers, 0, tensor_of(places), out=self.buffers[turn][own])
            if scale is not None:
                scales.append((own, self.device.copy(scale)))
            place = own.stop
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            raw = self.buffers[turn][:place].to(self.device.device, non_blocking=True)
        if self.stream is not None:
            self.copied[turn] = event = self.stream.record_event()

        def wide() -> Tensor:
            if self.stream is not None:
                current = torch.cuda.current_stream(self.device.device)
                current.wait_event(event)
                raw.record_stream(current)
            rows = raw.double()
            for own, scale in scales:
                rows[own] *= scale
            return rows

        return wide


def codes_of(rows: Rows, span: slice) -> Iterator[tuple[np.ndarray, Indices | None, np.ndarray | None]]:
    """The stored numbers of a span, file by file, with the used places (None: all) and the scales of int8."""
    if isinstance(rows, SelectedVectors):
        places = rows.indices[span]
        start = int(places[0])
        for codes, _, scale in codes_of(rows.vectors, slice(start, int(places[-1]) + 1)):
            first, last = np.searchsorted(places, [start, start + len(codes)])
            yield codes, places[first:last] - start, scale
            start += len(codes)
    elif isinstance(rows, StoredVectors) and rows.kind != "binary":
        for codes, storage in rows.pieces(span):
            yield codes, None, storage.scales
    else:
        yield rows[span], None, None


def halves_of(metric: str, rows: Tensor) -> Block:
    """Rows of length 1 or less in half precision, (m, d), and the factor of their products, ()."""
    lengths = torch.linalg.vector_norm(rows, dim=1)
    if metric == "cosine":
        return rows.div_(lengths.clamp_min(SMALLEST_NORM)[:, None]).half(), lengths.new_ones(())
    longest = lengths.amax()
    factor = longest + (longest == 0)
    return rows.div_(factor).half(), factor


def singles_of(mean: Tensor, rows: Tensor) -> Block:
    """Rows minus the mean in float32, (m, d), and their lengths, (m,)."""
    rows -= mean
    return rows.float(), torch.linalg.vector_norm(rows, dim=1).float()


@dataclass(frozen=True, slots=True)
class Best:
    """Candidates for the best rows of each query."""

    pairs: Pairs
    above: int  # pairs that certainly reach the limit, which are no candidates
    open: Indices  # queries with too many candidates; they are not in `pairs` and `above`
    floors: Float64  # of these queries: at least `top` rows reach them


class Corpus:
    """Rows of half precision, divided by their lengths; for "dot", by the largest length of the block."""

    def __init__(self, rows: Rows, metric: str, device: Device) -> None:
        assert metric in ("cosine", "dot"), "other metrics are no products"
        self.metric, self.device = metric, device
        self.blocks = Blocks(rows, device, partial(halves_of, metric))
        self.count, self.width = rows.shape

    def _queries(self, queries: Float32) -> tuple[Tensor, Float64, Float64]:
        """Queries of length 1 in half precision, (b, d), the errors of their products, and their factors."""
        wide = queries.astype(np.float64)
        norms = np.sqrt(np.vecdot(wide, wide))
        norms = np.maximum(norms, SMALLEST_NORM) if self.metric == "cosine" else norms + (norms == 0)
        wide /= norms[:, None]
        halves = wide.astype(np.float16)
        lost = np.sqrt(np.vecdot(wide - halves, wide - halves))
        of_row = HALF + 2.0**-25 * np.sqrt(self.width)
        of_sum = ((self.width + 32) * 2.0**-22 + HALF) * (1.0 + lost) * (1.0 + of_row) + 2.0**-25
        errors = SLACK * (lost * (1.0 + of_row) + of_row + of_sum)
        return self.device.copy(halves), errors, np.ones(len(norms)) if self.metric == "cosine" else norms

    def reaching(
        self, queries: Float32, thresholds: float | Float64, first: int, limit: int | None
    ) -> Pairs | None:
        """Queries and rows from `first` on that may reach the threshold; None if more than `limit`."""
        halves, errors, factors = self._queries(queries)
        parts, count = [(np.empty(0, np.intp), np.empty(0, np.intp))], 0
        floors, errors_there = (self.device.copy(each[:, None]) for each in (thresholds / factors, errors))
        with exact_sums():
            for span, (rows, factor) in self.blocks(first):
                reached = halves @ rows.T >= (floors / factor - errors_there).float()
                count += int(reached.count_nonzero())
                if limit is not None and count > limit:
                    return None
                query, column = (each.cpu().numpy() for each in reached.nonzero(as_tuple=True))
                parts.append((query, column + span.start))
        of_queries, of_rows = zip(*parts, strict=True)
        return np.concatenate(of_queries), np.concatenate(of_rows)

    def best(self, queries: Float32, top: int, limits: Float64 | None = None) -> Best:
        """Candidates for the `top` best rows of each query; with limits, for the best ones below them.

        With the error of a query, each product gives an upper and a lower limit of the similarity. The
        `top`-th lower limit is a floor: rows with an upper limit below it are not among the best.
        """
        halves, errors, factors = self._queries(queries)
        kept, limits = min(top + SPARE, self.count), None if limits is None else limits / factors
        upper, lower, rows, above = self._largest(halves, errors, limits, kept)
        surely = lower if limits is None else np.where(upper < limits[:, None], lower, -np.inf)
        floors = np.full(len(queries), -np.inf)
        if kept >= top:
            floors = np.partition(surely, -top, axis=1)[:, -top]
        least = upper.min(axis=1)  # rows that are not kept are not above it
        full = (least >= floors) & (least > -np.inf) & (kept < self.count)
        query, place = np.nonzero((upper >= floors[:, None]) & (upper > -np.inf) & ~full[:, None])
        open_ = np.flatnonzero(full)
        return Best(
            (query, rows[query, place]), int(above[~full].sum()), open_, floors[open_] * factors[open_]
        )

    def _largest(
        self, halves: Tensor, errors: Float64, limits: Float64 | None, kept: int
    ) -> tuple[Float64, Float64, Indices, Indices]:
        """Limits of the largest products, (b, c), their rows, and the number of rows above `limits`, (b,)."""
        margins = self.device.copy(errors[:, None])
        below = None if limits is None else self.device.copy(limits[:, None])
        with exact_sums():
            upper = margins.new_full((len(halves), kept), -torch.inf)
            lower, rows = upper.clone(), torch.zeros_like(upper, dtype=torch.long)
            above = rows.new_zeros(len(rows))
            for span, (block, factor) in self.blocks():
                products = halves @ block.T
                if below is not None:
                    reached = products >= (below / factor + margins).float()
                    above += reached.sum(1)
                    products.masked_fill_(reached, -torch.inf)
                values, columns = largest(products, kept)
                wide = values.double()
                upper = torch.cat([upper, (wide + margins) * factor], 1)
                upper, places = upper.topk(kept, sorted=False)
                lower = torch.cat([lower, (wide - margins) * factor], 1).gather(1, places)
                rows = torch.cat([rows, columns + span.start], 1).gather(1, places)
            found = [each.cpu().numpy() for each in (upper, lower, rows, above)]
        return found[0], found[1], found[2], found[3]


def largest(products: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest numbers of each row, or all, (b, m) -> (b, c), and their columns; in any order.

    As `topk`, in less time: each of the largest numbers is in one of the `count` groups with the largest
    maxima, or is not above any of these maxima.
    """
    width = products.shape[1]
    count, groups = min(count, width), width // GROUP
    if width % GROUP or 2 * count > groups:
        return products.topk(count, sorted=False)
    parts = products.view(len(products), GROUP, groups)  # column i is in group i % groups
    chosen = parts.amax(1).topk(count, sorted=False).indices  # (b, c)
    inner = parts.gather(2, chosen[:, None].expand(-1, GROUP, -1)).flatten(1)  # (b, GROUP * c)
    values, places = inner.topk(count, sorted=False)
    return values, places // count * groups + chosen.gather(1, places % count)


class Points:
    """Rows in float32, compared with centres.

    The nearest centre c of a row r has the largest r c - |c|^2 / 2, for vectors minus the mean of the rows.
    """

    def __init__(self, rows: Float32, mean: Float64, device: Device) -> None:
        self.device, self.width = device, len(mean)
        self.blocks = Blocks(rows, device, partial(singles_of, device.copy(mean)))

    def nearest(self, centres: Float64) -> tuple[Indices, Indices]:
        """The nearest centre of each row (n,), and the rows for which another one may be nearer.

        `centres` (k, d) are those minus the mean. Errors are those of the formula above, with SINGLE in place
        of HALF, and those of |c|^2 / 2 and of the difference.
        """
        singles, squares = centres.astype(np.float32), np.vecdot(centres, centres)
        lost = np.sqrt(np.vecdot(centres - singles, centres - singles))
        relative = SLACK * (lost + np.sqrt(squares) * (2 * SINGLE + (self.width + 32) * 2.0**-22)).max()
        absolute = SLACK * (SINGLE * squares.max() + UNDERFLOW * self.width)
        weights, offsets = self.device.copy(singles), self.device.copy((squares / 2).astype(np.float32))
        size = max(1, VALUES_PER_BLOCK // len(centres))
        labels, certain = list[Tensor](), list[Tensor]()
        with exact_sums():
            for _, block in self.blocks():
                for rows, lengths in zip(*(each.split(size) for each in block), strict=True):
                    values = rows @ weights.T - offsets
                    best, label = values.max(1)
                    values.scatter_(1, label[:, None], -torch.inf)
                    certain.append(best - values.amax(1) > 2 * (relative * lengths + absolute))
                    labels.append(label.int())
            near, sure = torch.cat(labels).cpu().numpy(), torch.cat(certain).cpu().numpy()
        return near.astype(np.intp), np.flatnonzero(~sure)
