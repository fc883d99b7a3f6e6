"""Words in the place of others that mean the same (CLEAR, arXiv:2012.15466)."""

from collections.abc import Mapping, Sequence

from sentkit.augment.case_and_punctuation import bare, plain, written_like
from sentkit.augment.draw import Draw
from sentkit.augment.shares import Share
from sentkit.augment.steps import Changed

Synonyms = Mapping[str, Sequence[str]]  # of a word in lower case, with plain apostrophes


def synonym(words: Sequence[str], draw: Draw, share: Share, synonyms: Synonyms) -> Changed:
    """This share of the words, or all of them that have a synonym; which of several is drawn too."""
    parts = [parts_of(word, synonyms) for word in words]
    able = [place for place, (_, core, _) in enumerate(parts) if plain(core) in synonyms]
    count = min(share.of(len(words)), len(able))
    if not count:
        return words, {"at": [], "words": []}
    at = [able[i] for i in draw.sorted(len(able), count)]
    changed, chosen = list(words), []
    for place in at:
        before, core, after = parts[place]
        choices = synonyms[plain(core)]
        model = core if plain(core).replace("'", "").isalpha() else core[:1]  # U.S. is no way of writing
        new = written_like(model, choices[draw.below(len(choices))])
        changed[place] = f"{before}{new}{after}"
        chosen.append(new)
    return " ".join(changed).split(), {"at": at, "words": chosen}  # a synonym may be of several words


def parts_of(word: str, synonyms: Synonyms) -> tuple[str, str, str]:
    """A word with marks of its own, such as U.S., is looked up whole first."""
    return ("", word, "") if plain(word) in synonyms else bare(word)
