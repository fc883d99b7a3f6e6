"""The forms of output of a clustering (rows or a report), and the flags that each accepts."""

from collections.abc import Sequence

from sentkit.errors import UsageError

SEEDS = {"counts": range(5), "stability": range(10)}  # default seeds of a form; other forms use only 0
NEW_MEMBERS = {"rows": ("cluster",), "stability": ("cluster", "stability"), "describe": ()}


def form_of(truth: str | None, counts: Sequence[int] | None, *, describe: bool, stability: bool) -> str:
    """The form of output that the flags select."""
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
    """Refuse flags that the form does not use."""
    if json and form in ("rows", "stability"):
        raise UsageError("--json belongs to reports: rows are JSON anyway")
    if any(rows) and form not in ("rows", "stability"):
        raise UsageError("--keep-vectors and --replace belong to rows, and this makes a report")
    if centroids is not None and form in ("truth", "counts"):
        raise UsageError("--centroids are of one clustering, and this compares several")
    if telling != [None, None] and form != "describe" and centroids is None:
        raise UsageError("--keywords and --nearest belong to --describe and --centroids")


def seeds_of(form: str, given: Sequence[int] | None, algorithm: str, *, random: bool) -> Sequence[int]:
    """The given seeds, or the default of the form; one seed for deterministic algorithms."""
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
