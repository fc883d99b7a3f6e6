"""Words that go: here and there, or in spans (CLEAR, arXiv:2012.15466). One word stays at least."""

from collections.abc import Sequence

from sentkit.augment.draw import Draw
from sentkit.augment.shares import Share, Spans
from sentkit.augment.steps import Changed


def delete(words: Sequence[str], draw: Draw, share: Share, mark: str | None = None) -> Changed:
    """This share of the words goes; each run of them has one mark."""
    count = min(share.of(len(words)), len(words) - 1)
    if count < 1:
        return words, {"at": []}
    at = draw.sorted(len(words), count)
    gone = set(at)
    runs = {place for place in at if place - 1 not in gone}
    return without(words, gone, runs, mark), {"at": at}


def span_delete(words: Sequence[str], draw: Draw, spans: Spans, mark: str | None = None) -> Changed:
    """So many disjoint spans go, or as many of them as leave a word; each has a mark of its own."""
    count, length = spans.fit(len(words), max(len(words) - 1, 0))
    if not count:
        return words, {"length": length, "at": []}
    at = draw.spans(len(words), count, length)
    gone = {start + place for start in at for place in range(length)}
    return without(words, gone, set(at), mark), {"length": length, "at": at}


def without(words: Sequence[str], gone: set[int], marked: set[int], mark: str | None) -> list[str]:
    """The words at other places; the mark, where there is one, at these places."""
    left = []
    for place, word in enumerate(words):
        if place not in gone:
            left.append(word)
        elif mark is not None and place in marked:
            left.append(mark)
    return left
