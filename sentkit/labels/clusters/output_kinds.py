"""The forms of output of a clustering: rows, or one of the reports; and which flags go with each."""

from collections.abc import Sequence

from sentkit.errors import UsageError

SEEDS = {"counts": range(5), "stability": range(10)}  # where none are given; else 0 alone
NEW_MEMBERS = {"rows": ("cluster",), "stability": ("cluster", "stability"), "describe": ()}


def form_of(truth: str | None, counts: Sequence[int] | None, *, describe: bool, stability: bool) -> str:
    """The one that is asked for."""
    asked = {
        "--truth": ("truth", truth is not None),
        "--describe": ("describe", describe),
        "--stability": ("stability", stability),
        "several -k": ("counts", counts is not None and len(counts) > 1),
    }
    flags = [flag for flag, (_, given) in asked.items() if given]
    if len(flags) > 1:
        raise UsageError(f"{' and '.join(flags)} are forms of output: take one")
    return asked[flags[0]][0] if flags else "rows"


def check_form(
    form: str, *, rows: list[bool], centroids: str | None, telling: list[int | None], json: bool
) -> None:
    """Refuse flags that the form has no use for."""
    if json and form in ("rows", "stability"):
        raise UsageError("--json belongs to reports: rows are JSON anyway")
    if any(rows) and form not in ("rows", "stability"):
        raise UsageError("--keep-vectors and --replace belong to rows, and this makes a report")
    if centroids is not None and form in ("truth", "counts"):
        raise UsageError("--centroids are of one clustering, and this compares several")
    if telling != [None, None] and form != "describe" and centroids is None:
        raise UsageError("--keywords and --nearest belong to --describe and --centroids")


def seeds_of(form: str, given: Sequence[int] | None, algorithm: str, *, random: bool) -> Sequence[int]:
    """Those given, or the form's own; one will do where they are all the same."""
    if not random:
        for flag, asked in (("--seed", given is not None), ("--stability", form == "stability")):
            if asked:
                raise UsageError(f"{flag} is for what seeds may change: not {algorithm}")
        return range(1)
    seeds = given or SEEDS.get(form, range(1))
    if form == "stability" and len(seeds) < 2:
        raise UsageError("--stability compares several --seed, for example 0..9")
    if form in ("rows", "describe") and len(seeds) > 1:
        raise UsageError("several --seed belong to --truth, --stability and several -k")
    return seeds
