"""Negation of an English sentence by word lists, after the rules of SNCSE (arXiv:2201.05979).

The rules of SNCSE require a parser. Without a parser, "like" never becomes "does not like": a sentence with
no "not" and no auxiliary gets the prefix "Not". "has" and "did" always count as auxiliaries.
"""

from collections.abc import Sequence

from sentkit.augment.operations import Changed, Draw, bare, capitalised, plain, written_like


def listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


AUXILIARIES = listed("""
    am is are was were do does did have has had can could may might must shall should will would ought
""")
NAMES_TOO = listed("may will")  # with a capital usually names (May, Will), except in a question
ASKED = listed("i you he she it we they this that these those there the a an my your his her our their")
CONTRACTED = ("'m", "'re", "'ll", "'ve", "'d")
WITH_IS = listed("""
    he's she's it's that's this's there's here's what's who's where's how's let's
""")  # after other words, 's is often a genitive
WITH_NOT = {"can't": "can", "cannot": "can", "won't": "will", "shan't": "shall", "ain't": "is"}
CUT = {"ca": "can", "wo": "will", "sha": "shall", "ai": "is"}  # from "ca n't", the spelling of treebanks

# These words are capitalised only at the beginning of a sentence.
SMALL = listed("""
    a an the this that these those some any all each every no another both many most several few
    he she it we you they my your his her its our their there here one two three
    in on at by for from of to with after before during since until when while as if because
    although though and but or so then now
""")

NT = "n't"


def negate(words: Sequence[str], draw: Draw) -> Changed:
    """Remove a "not"; else insert one after an auxiliary; else put "Not" before the sentence."""
    changed = without_not(words) or with_not(words)
    if changed is None and words:
        before, core, after = bare(words[0])
        first = core.lower() if core.lower() in SMALL else core
        changed = ["Not", f"{before}{first}{after}", *words[1:]], {"rule": "prefix"}
    return changed or (words, {"rule": "none"})


def without_not(words: Sequence[str]) -> Changed | None:
    text = plain(" ".join(words))
    if "not" not in text and NT not in text:  # every word below contains one of them
        return None
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
    """Remove one word; its punctuation and its capital move to its neighbours."""
    before, core, after = bare(words[place])
    if before and after:  # the word has brackets or quotes around it
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
    """True for an auxiliary verb.

    `first`: the word begins the sentence, so it may have a capital. `asks`: a pronoun or determiner follows
    the first word.
    """
    small = plain(core)
    if small in AUXILIARIES:
        as_first = first and (asks or small not in NAMES_TOO)
        return core == small or core.isupper() or as_first
    return small in WITH_IS or plain(before + core).endswith(CONTRACTED)
