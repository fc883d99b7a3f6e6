"""The negation of an English sentence by its words alone, after the rules of SNCSE (arXiv:2201.05979).

They ask for a parser; without one there is no "does not like": a sentence with no "not" and no auxiliary
gets "Not" set before it. "has" and "did" are taken for auxiliaries wherever they stand.
"""

from collections.abc import Sequence

from sentkit.augment.case_and_punctuation import bare, capitalised, plain, written_like
from sentkit.augment.draw import Draw
from sentkit.augment.english import ASKED, AUXILIARIES, CONTRACTED, CUT, NAMES_TOO, SMALL, WITH_IS, WITH_NOT
from sentkit.augment.steps import Changed

NT = "n't"


def negate(words: Sequence[str], draw: Draw) -> Changed:
    """The first that can be done: take a "not" out, set one behind an auxiliary, set one before it all."""
    found = without_not(words) or with_not(words)
    if found is None and words:
        before, core, after = bare(words[0])
        first = core.lower() if core.lower() in SMALL else core
        found = ["Not", f"{before}{first}{after}", *words[1:]], {"rule": "prefix"}
    return found or (words, {"rule": "none"})


def without_not(words: Sequence[str]) -> Changed | None:
    for place, word in enumerate(words):
        before, core, after = bare(word)
        small = plain(core)
        note = {"rule": "drop", "at": place}
        if small in ("not", NT) and len(words) > 1:
            return without(words, place), note
        stem, contracted, more = small.rpartition(NT)
        if small in WITH_NOT or (contracted and stem and more in ("", "'ve")):
            positive = written_like(core, WITH_NOT.get(small, WITH_NOT.get(stem + NT, stem) + more))
            return [*words[:place], f"{before}{positive}{after}", *words[place + 1 :]], note
    return None


def without(words: Sequence[str], place: int) -> list[str]:
    """The words but one: what stood beside it goes to its neighbours, and so does its capital."""
    before, core, after = bare(words[place])
    if before and after:  # brackets or quotes of its own
        before = after = ""
    left, right = list(words[:place]), list(words[place + 1 :])
    if left and plain(core) == NT:
        left[-1] = written_like(left[-1], CUT.get(left[-1].lower(), left[-1]))
    if left:
        left[-1] += after
    if right:
        right[0] = before + (capitalised(right[0]) if core[:1].isupper() and not core.isupper() else right[0])
    return left + right


def with_not(words: Sequence[str]) -> Changed | None:
    for place, word in enumerate(words):
        before, core, after = bare(word)
        asks = place == 0 and plain(words[1]) in ASKED if len(words) > 1 else False
        if is_auxiliary(before, core, first=place == 0, asks=asks):
            new = "NOT" if len(core) > 1 and core.isupper() else "not"
            changed = [*words[:place], before + core, f"{new}{after}", *words[place + 1 :]]
            return changed, {"rule": "insert", "at": place + 1}
    return None


def is_auxiliary(before: str, core: str, *, first: bool, asks: bool) -> bool:
    """`first` in its sentence, which then may have a capital; and it `asks` where a pronoun follows."""
    small = plain(core)
    if small in AUXILIARIES:
        as_first = first and (asks or small not in NAMES_TOO)
        return core == small or core.isupper() or as_first
    return small in WITH_IS or plain(before + core).endswith(CONTRACTED)
