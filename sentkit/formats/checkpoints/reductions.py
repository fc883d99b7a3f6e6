"""The readouts of one layer: each is a function from the states of the tokens to one vector.

The functions use the methods of tensors and import nothing, so that help, completion and the
checks of a command know the names without torch. `model/transformer/readouts.py` calls them.

Axes: b texts, t tokens of the longest, d the width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Tensor = Any  # of torch


class TokenStates(Protocol):
    """The states of the tokens of some texts. Numbers have the type of the vectors."""

    @property
    def token_counts(self) -> Tensor:
        """(b,): the number of tokens of each text."""

    @property
    def positions(self) -> Tensor:
        """(t,): the position of each token in its text, from 1; removed tokens count."""

    @property
    def removed_prompt_length(self) -> int:
        """The number of first tokens of each text that are not among the states."""

    def sum(self, weights: Tensor | None = None) -> Tensor:
        """(b, d): the sum of the states, with weights (t,) or (b, t)."""

    def max(self) -> Tensor:
        """(b, d): the maximum of each number."""


class TextBounds(Protocol):
    """Where texts begin among the rows of all tokens, and how many tokens they have."""

    @property
    def starts(self) -> Tensor:
        """(b,): the row of the first token of each text."""

    @property
    def token_counts(self) -> Tensor:
        """(b,): the number of tokens of each text."""

    @property
    def prompt_length(self) -> int:
        """The number of first tokens that no readout reads."""


Reduce = Callable[[TokenStates], Tensor]  # -> (b, d)
RowOfTexts = Callable[[TextBounds], Tensor]  # -> (b,)


@dataclass(frozen=True, slots=True)
class Plain:
    """A reduction of the token states of a layer to one vector."""

    summary: str  # for the manual
    reduce: Reduce | None = None
    row: RowOfTexts | None = None  # in place of `reduce`: the row of the only token that it reads
    # of a Pooling module of sentence-transformers: in the new schema, and the key of the old one
    pooling: tuple[str, str] | None = None
    linear: bool = True  # reducing the mean of layers gives the mean of the reduced layers
    partial: bool = False  # it can read a part of the token states of a text


PLAIN: dict[str, Plain] = {}  # in the order in which the old schema joins


def readout(
    name: str,
    *,
    pooling: tuple[str, str] | None = None,
    linear: bool = True,
    partial: bool = False,
) -> Callable[[Reduce], Reduce]:
    """Add a readout. The docstring of its function is its text in the manual."""

    def add(reduce: Reduce) -> Reduce:
        PLAIN[name] = Plain(
            summary_of(reduce), reduce=reduce, pooling=pooling, linear=linear, partial=partial
        )
        return reduce

    return add


def readout_of_token(
    name: str, *, pooling: tuple[str, str] | None = None
) -> Callable[[RowOfTexts], RowOfTexts]:
    """Add a readout that is the state of one token. The last block computes no other states."""

    def add(row: RowOfTexts) -> RowOfTexts:
        PLAIN[name] = Plain(summary_of(row), row=row, pooling=pooling)
        return row

    return add


def summary_of(function: Callable[..., Any]) -> str:
    """The first line of the docstring, without the full stop."""
    first_line, _, _ = (function.__doc__ or "").partition("\n")
    return first_line.removesuffix(".")


@readout_of_token("cls", pooling=("cls", "pooling_mode_cls_token"))
def first_token(texts: TextBounds) -> Tensor:
    """The first token."""
    return texts.starts + texts.prompt_length


@readout("max", pooling=("max", "pooling_mode_max_tokens"), linear=False, partial=True)
def maximum(tokens: TokenStates) -> Tensor:
    """The maximum of each number."""
    return tokens.max()


@readout("mean", pooling=("mean", "pooling_mode_mean_tokens"), partial=True)
def mean(tokens: TokenStates) -> Tensor:
    """The mean."""
    return tokens.sum() / tokens.token_counts[:, None]


@readout(
    "mean-sqrt",
    pooling=("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
    partial=True,
)
def mean_sqrt(tokens: TokenStates) -> Tensor:
    """The sum, divided by the square root of the number of tokens."""
    return tokens.sum() / tokens.token_counts.sqrt()[:, None]


@readout("weighted-mean", pooling=("weightedmean", "pooling_mode_weightedmean_tokens"))
def weighted_mean(tokens: TokenStates) -> Tensor:
    """The mean with the weights 1, 2, 3, ...: the position of each token."""
    # A formula, because `cumsum` is not deterministic on CUDA.
    totals = tokens.token_counts * (tokens.token_counts + 1 + 2 * tokens.removed_prompt_length) / 2
    return tokens.sum(tokens.positions) / totals[:, None]


@readout_of_token("last", pooling=("lasttoken", "pooling_mode_lasttoken"))
def last_token(texts: TextBounds) -> Tensor:
    """The last token."""
    return texts.starts + texts.token_counts - 1
