"""Products of rows with queries or centres on a GPU. They only select candidates; float64 on the
CPU decides.

Rows pass through the device in blocks. Blocks that fit into its memory stay there.

Letters in shapes: n rows, d dimensions, b queries, m rows of a block, k centres, c candidates of a
query.

Rounding errors of a product of half precision. Let q and r be a query and a row, divided by their
lengths (or by a larger number), so |q|, |r| <= 1. Let q' and r' be these vectors in half precision.
1. The length of q' - q is computed in float64 for each query: e.
2. A number in half precision has an error of at most 2^-11 of itself, or 2^-25 if it is below
  2^-14, so
   |r' - r| <= ROW = 2^-11 + 2^-25 sqrt(d). By the inequality of Cauchy and Schwarz,
   |q' r' - q r| <= |q' - q| |r'| + |q| |r' - r| <= e (1 + ROW) + ROW.
3. Products of two such numbers are exact in float32. A tensor core adds t of them (4 to 32) to the
  sum at a
   time and cuts off what is below 2^-23 of the largest of these t + 1 numbers (Fasi and others,
   Numerical behavior of NVIDIA tensor cores, 2021). No number or partial sum exceeds A = sum |q'_i
   r'_i| <= |q'| |r'|, so the d / t + 1 steps have errors of at most (d / t + 1) (t + 2) 2^-23 A <=
   (d + 32) 2^-22 A. This is also more than the error of sums in float32 that round to nearest, in
   any order: (d + 1) 2^-24 A.
4. Half precision of the sum, which is at most |q'| |r'| <= (1 + e) (1 + ROW), adds 2^-11 of it and
  2^-25. SLACK is more than all products of these errors, and the errors of float64 and of
  comparisons in float32.
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

# The largest block of rows.
NUMBERS_PER_BLOCK = 1 << 25
ROWS_PER_BLOCK = 1 << 17
VALUES_PER_BLOCK = 1 << 26  # products of rows and centres in float32
SPARE = 64  # candidates of a query besides the `top` rows
GROUP = 32  # products of which the largest is found first
RESIDENT_SHARE = 0.7  # of the free memory, for blocks that stay
# Relative rounding errors.
HALF = 2.0**-11
SINGLE = 2.0**-24
SLACK = 1.01

# Settings of torch that add products in half precision, or shorten float32.
SHORTER = {"allow_fp16_accumulation": False, "allow_fp16_reduced_precision_reduction": False}

IndexPairs = tuple[Indices, Indices]  # the index of a query, and of a row
Block = tuple[Tensor, Tensor]  # rows as they are multiplied, (m, d), and factors or lengths


class Device:
    """A device of torch that compares vectors."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        free_bytes = sys.maxsize
        if device.type != "cpu":
            free_bytes, _ = torch.cuda.mem_get_info(device)
        self.free_bytes = int(RESIDENT_SHARE * free_bytes)  # for blocks that stay

    def corpus(self, rows: Rows, metric: str) -> "DeviceCorpus":
        return DeviceCorpus(rows, metric, self)

    def points(self, rows: Float32, mean: Float64) -> "DevicePoints":
        return DevicePoints(rows, mean, self)

    def copy(self, values: np.ndarray) -> Tensor:
        """Copy values to the device. The host does not wait for the work that the device
        still has.
        """
        tensor = tensor_of(values)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)


def tensor_of(values: np.ndarray) -> Tensor:
    """The same memory as a tensor; a copy of an array that is not writable, of which torch
    warns.
    """
    return torch.from_numpy(np.require(values, requirements="W"))


@contextmanager
def exact_sums() -> Iterator[None]:
    """Let products add in float32 without shortcuts, as the bounds require."""
    settings: Any = torch.backends.cuda.matmul
    exact_settings: dict[str, Any] = dict(SHORTER)
    if hasattr(settings, "fp32_precision"):
        exact_settings["fp32_precision"] = "ieee"
    else:
        exact_settings["allow_tf32"] = False
    before = {name: getattr(settings, name) for name in exact_settings if hasattr(settings, name)}
    try:
        for name in before:
            setattr(settings, name, exact_settings[name])
        with torch.inference_mode():
            yield
    except torch.cuda.OutOfMemoryError as error:
        problem = "the memory of the device is too small"
        raise UnavailableError(problem, advice="use --device cpu") from error
    finally:
        for name, value in before.items():
            setattr(settings, name, value)


class Blocks:
    """Rows in blocks on a device. The next block is copied while the device computes with
    this one.
    """

    def __init__(self, rows: Rows, device: Device, prepare: Callable[[Tensor], Block]) -> None:
        """`prepare` gets the rows of a block in float64, which it may change."""
        self.rows = rows
        self.device = device
        self.prepare = prepare
        max_rows = max(1, NUMBERS_PER_BLOCK // max(1, rows.shape[1]))
        self.size = min(ROWS_PER_BLOCK, 1 << (max_rows.bit_length() - 1))  # a power of two
        self.resident: dict[int, Block] = {}  # blocks that stay on the device, by their number
        # Two buffers in pinned memory, used in turn, and the last copies from them.
        self.buffers: dict[int, Tensor] = {}
        self.copied: dict[int, torch.cuda.Event] = {}
        self.stream: torch.cuda.Stream | None = None  # of the copies
        if device.device.type == "cuda":
            self.stream = torch.cuda.Stream(device.device)

    def __del__(self) -> None:
        self.device.free_bytes += sum(map(bytes_of, self.resident.values()))

    def __call__(self, first: int = 0) -> Iterator[tuple[slice, Block]]:
        """Yield the blocks with rows from `first` on; a block has no earlier ones."""
        numbers = range(first // self.size, -(-len(self.rows) // self.size))

        def start_copy(number: int) -> Callable[[], Tensor] | None:
            if number not in numbers or number in self.resident:
                return None
            return self._copy(number)

        next_copy = start_copy(numbers.start)
        for number in numbers:
            copy = next_copy
            next_copy = start_copy(number + 1)
            if copy is None:
                block = self.resident[number]
            else:
                block = self.prepare(copy())
                if bytes_of(block) <= self.device.free_bytes:
                    self.resident[number] = block
                    self.device.free_bytes -= bytes_of(block)
            begin = number * self.size
            start = max(first, begin)
            stop = min(begin + self.size, len(self.rows))
            prepared_rows, factors = block
            yield slice(start, stop), (prepared_rows[start - begin :], factors)

    def _copy(self, number: int) -> Callable[[], Tensor]:
        """Start to copy a block to the device. The returned function returns it in float64."""
        span = slice(number * self.size, min((number + 1) * self.size, len(self.rows)))
        turn = number % 2
        if turn in self.copied:
            self.copied[turn].synchronize()  # the buffer may be filled again

        # Fill the buffer with the stored numbers of the block.
        filled = 0
        scales = list[tuple[slice, Tensor]]()  # of int8, for rows of the buffer
        for codes, indices, scale in codes_of(self.rows, span):
            numbers = tensor_of(codes)
            if turn not in self.buffers:
                shape = (min(self.size, len(self.rows)), numbers.shape[1])
                is_pinned = self.stream is not None
                self.buffers[turn] = torch.empty(shape, dtype=numbers.dtype, pin_memory=is_pinned)
            count = len(codes) if indices is None else len(indices)
            target = slice(filled, filled + count)
            if indices is None:  # both ways use all threads of torch
                self.buffers[turn][target].copy_(numbers)
            else:
                torch.index_select(numbers, 0, tensor_of(indices), out=self.buffers[turn][target])
            if scale is not None:
                scales.append((target, self.device.copy(scale)))
            filled += count

        # Copy the buffer while the device computes with the block before.
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            raw = self.buffers[turn][:filled].to(self.device.device, non_blocking=True)
        if self.stream is not None:
            event = self.stream.record_event()
            self.copied[turn] = event

        def rows_in_float64() -> Tensor:
            if self.stream is not None:
                current = torch.cuda.current_stream(self.device.device)
                current.wait_event(event)
                raw.record_stream(current)
            rows = raw.double()
            for target, scale in scales:
                rows[target] *= scale
            return rows

        return rows_in_float64


def bytes_of(block: Block) -> int:
    return sum(tensor.nbytes for tensor in block)


def codes_of(
    rows: Rows, span: slice
) -> Iterator[tuple[np.ndarray, Indices | None, np.ndarray | None]]:
    """The stored numbers of a span, file by file, the selected rows (None: all), the scales of
    int8.
    """
    if isinstance(rows, SelectedVectors):
        indices = rows.indices[span]
        start = int(indices[0])
        stored_span = slice(start, int(indices[-1]) + 1)
        for codes, _, scale in codes_of(rows.vectors, stored_span):
            first, last = np.searchsorted(indices, [start, start + len(codes)])
            yield codes, indices[first:last] - start, scale
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
class DeviceCandidates:
    """Candidates for the best rows of each query."""

    pairs: IndexPairs
    certain_count: int  # pairs that certainly reach the limit, which are not candidates
    # queries with too many candidates; they are not in `pairs` and `certain_count`
    undecided_queries: Indices
    floors: Float64  # of these queries: at least `top` rows reach them


class DeviceCorpus:
    """Rows of half precision, divided by their lengths; for "dot", by the largest length of the
    block.
    """

    def __init__(self, rows: Rows, metric: str, device: Device) -> None:
        assert metric in ("cosine", "dot"), "other metrics are no products"
        self.metric = metric
        self.device = device
        self.blocks = Blocks(rows, device, partial(halves_of, metric))
        self.count, self.width = rows.shape

    def _queries(self, queries: Float32) -> tuple[Tensor, Float64, Float64]:
        """Queries of length 1 in half precision, (b, d), the errors of their products, and their
        factors.

        The errors are those of the module's docstring: `query_errors` is e, `row_error` is ROW.
        """
        wide = queries.astype(np.float64)
        norms = np.sqrt(np.vecdot(wide, wide))
        if self.metric == "cosine":
            norms = np.maximum(norms, SMALLEST_NORM)
            factors = np.ones(len(norms))
        else:
            norms = norms + (norms == 0)
            factors = norms
        wide /= norms[:, None]
        halves = wide.astype(np.float16)
        query_errors = np.sqrt(np.vecdot(wide - halves, wide - halves))
        row_error = HALF + 2.0**-25 * np.sqrt(self.width)
        relative_error = (self.width + 32) * 2.0**-22 + HALF
        sum_errors = relative_error * (1.0 + query_errors) * (1.0 + row_error) + 2.0**-25
        errors = SLACK * (query_errors * (1.0 + row_error) + row_error + sum_errors)
        return self.device.copy(halves), errors, factors

    def reaching(
        self, queries: Float32, thresholds: float | Float64, first: int, limit: int | None
    ) -> IndexPairs | None:
        """Queries and rows from `first` on that may reach the threshold; None if more than
        `limit`.
        """
        halves, errors, factors = self._queries(queries)
        device_floors = self.device.copy((thresholds / factors)[:, None])
        device_errors = self.device.copy(errors[:, None])
        query_indices = [np.empty(0, np.intp)]
        row_indices = [np.empty(0, np.intp)]
        count = 0
        with exact_sums():
            for span, (rows, factor) in self.blocks(first):
                may_reach = halves @ rows.T >= (device_floors / factor - device_errors).float()
                count += int(may_reach.count_nonzero())
                if limit is not None and count > limit:
                    return None
                queries_of_block, columns = may_reach.nonzero(as_tuple=True)
                query_indices.append(queries_of_block.cpu().numpy())
                row_indices.append(columns.cpu().numpy() + span.start)
        return np.concatenate(query_indices), np.concatenate(row_indices)

    def best(self, queries: Float32, top: int, limits: Float64 | None = None) -> DeviceCandidates:
        """Candidates for the `top` best rows of each query; with limits, for the best ones below
        them.

        With the error of a query, each product gives an upper and a lower limit of the similarity.
        The `top`-th lower limit is a floor: rows with an upper limit below it are not among the
        best.
        """
        halves, errors, factors = self._queries(queries)
        if limits is not None:
            limits = limits / factors
        candidate_count = min(top + SPARE, self.count)
        upper, lower, rows, above = self._largest(halves, errors, limits, candidate_count)

        # Lower limits of the rows that are certainly below the limits of the caller.
        surely = lower
        if limits is not None:
            surely = np.where(upper < limits[:, None], lower, -np.inf)
        floors = np.full(len(queries), -np.inf)
        if candidate_count >= top:
            floors = np.partition(surely, -top, axis=1)[:, -top]

        # A query is open if rows that are not candidates may be better than its floor.
        lowest_upper = upper.min(axis=1)  # no other row has a larger upper limit
        is_open = (
            (lowest_upper >= floors) & (lowest_upper > -np.inf) & (candidate_count < self.count)
        )
        is_candidate = (upper >= floors[:, None]) & (upper > -np.inf) & ~is_open[:, None]
        query_indices, columns = np.nonzero(is_candidate)
        open_queries = np.flatnonzero(is_open)
        return DeviceCandidates(
            pairs=(query_indices, rows[query_indices, columns]),
            certain_count=int(above[~is_open].sum()),
            undecided_queries=open_queries,
            floors=floors[open_queries] * factors[open_queries],
        )

    def _largest(
        self, halves: Tensor, errors: Float64, limits: Float64 | None, count: int
    ) -> tuple[Float64, Float64, Indices, Indices]:
        """Limits of the `count` largest products, (b, c), their rows, and the number above
        `limits`, (b,).
        """
        margins = self.device.copy(errors[:, None])
        device_limits = None if limits is None else self.device.copy(limits[:, None])
        with exact_sums():
            upper = margins.new_full((len(halves), count), -torch.inf)
            lower = upper.clone()
            rows = torch.zeros_like(upper, dtype=torch.long)
            above = rows.new_zeros(len(rows))
            for span, (block, factor) in self.blocks():
                products = halves @ block.T
                if device_limits is not None:
                    is_above = products >= (device_limits / factor + margins).float()
                    above += is_above.sum(1)
                    products.masked_fill_(is_above, -torch.inf)
                values, columns = largest(products, count)
                wide = values.double()
                # The largest of those so far and those of this block.
                upper = torch.cat([upper, (wide + margins) * factor], 1)
                upper, chosen = upper.topk(count, sorted=False)
                lower = torch.cat([lower, (wide - margins) * factor], 1).gather(1, chosen)
                rows = torch.cat([rows, columns + span.start], 1).gather(1, chosen)
            return upper.cpu().numpy(), lower.cpu().numpy(), rows.cpu().numpy(), above.cpu().numpy()


def largest(products: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest numbers of each row, or all, (b, m) -> (b, c), and their columns; in any
    order.

    As `topk`, in less time: each of the largest numbers is in one of the `count` groups with the
    largest maxima, or is not above any of these maxima.
    """
    width = products.shape[1]
    count = min(count, width)
    group_count = width // GROUP
    if width % GROUP or 2 * count > group_count:
        return products.topk(count, sorted=False)
    # column i is in group i % group_count
    groups = products.view(len(products), GROUP, group_count)
    chosen = groups.amax(1).topk(count, sorted=False).indices  # (b, c)
    members = groups.gather(2, chosen[:, None].expand(-1, GROUP, -1)).flatten(1)  # (b, GROUP * c)
    values, indices = members.topk(count, sorted=False)
    columns = indices // count * group_count + chosen.gather(1, indices % count)
    return values, columns


class DevicePoints:
    """Rows in float32, compared with centres.

    The nearest centre c of a row r has the largest r c - |c|^2 / 2, for vectors minus the mean of
    the rows.
    """

    def __init__(self, rows: Float32, mean: Float64, device: Device) -> None:
        self.device = device
        self.width = len(mean)
        self.blocks = Blocks(rows, device, partial(singles_of, device.copy(mean)))

    def nearest(self, centres: Float64) -> tuple[Indices, Indices]:
        """The nearest centre of each row (n,), and the rows for which another one may be nearer.

        `centres` (k, d) are those minus the mean. Errors are those of the formula above, with
        SINGLE in place of HALF, and those of |c|^2 / 2 and of the difference.
        """
        singles = centres.astype(np.float32)
        squares = np.vecdot(centres, centres)
        centre_errors = np.sqrt(np.vecdot(centres - singles, centres - singles))
        sum_errors = np.sqrt(squares) * (2 * SINGLE + (self.width + 32) * 2.0**-22)
        relative = SLACK * (centre_errors + sum_errors).max()
        absolute = SLACK * (SINGLE * squares.max() + UNDERFLOW * self.width)
        weights = self.device.copy(singles)
        offsets = self.device.copy((squares / 2).astype(np.float32))
        size = max(1, VALUES_PER_BLOCK // len(centres))
        labels = list[Tensor]()
        is_certain = list[Tensor]()
        with exact_sums():
            for _, (block, lengths_of_block) in self.blocks():
                for rows, lengths in zip(
                    block.split(size), lengths_of_block.split(size), strict=True
                ):
                    values = rows @ weights.T - offsets
                    best, label = values.max(1)
                    values.scatter_(1, label[:, None], -torch.inf)
                    second = values.amax(1)
                    is_certain.append(best - second > 2 * (relative * lengths + absolute))
                    labels.append(label.int())
            nearest = torch.cat(labels).cpu().numpy()
            certain = torch.cat(is_certain).cpu().numpy()
        return nearest.astype(np.intp), np.flatnonzero(~certain)
