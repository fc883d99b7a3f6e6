"""Writes the texts for `distill.sh`, one row per line, in a fixed random order.

Usage: python examples/distill_texts.py WIKI NLI WORDNET
    WIKI     lines: one sentence each
    NLI      pairs: text_a, text_b
    WORDNET  rows with "entry", "definition", "pos" and "synset"

The texts are the sentences, definitions and entries, and short and long texts made from them: questions,
titles, key words, and paragraphs of several sentences. The sentences of NLI are there twice, because they are
the only everyday language; all others once. Every fiftieth synset is left out, for the tests of `models.py`.
"""

import gzip
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a an the and or but if of at by for with about to from in on is are was were be been being it its
        this that these those he she they his her their who which what as has have had not no can will would
        may also into than then there when where while some any such other more most only own same so too
        very""",
    )
)
NOUN = "What is {}?|What does {} mean?|Who or what is called {}?|Where can I find {}?|what is the best {}"
VERB = "How to {}?|How do I {} in this case?|When should one {}?|Why do people {}?|error when I try to {}"
OTHER = "What is {} about it?|Why is it {}?|Is it {} or not?|How {} is it?|what makes something {}"
QUESTIONS = {"n": NOUN.split("|"), "v": VERB.split("|"), "a": OTHER.split("|")}  # by part of speech
LONG, LONG_SHARE = 160, 0.15  # a long text takes the time of several short ones
CLAUSE = re.compile(r"^(?P<subject>[A-Z][^,;:]{2,50}?) (?P<verb>is|was|are|were) (?P<rest>[^,;]{8,60}?)[.,;]")


def lines(path: str) -> list[str]:
    content = Path(path).read_bytes()
    return (gzip.decompress(content) if path.endswith(".gz") else content).decode().splitlines()


def question(sentence: str) -> str | None:
    """Ask for the subject or the rest of a sentence such as "The Seine is a river in France."."""
    match = CLAUSE.match(sentence)
    if match is None:
        return None
    subject, verb, rest = match.group("subject", "verb", "rest")
    kind = "Who" if re.match(r"(He|She|They)\b", subject) else "What"
    if rest.startswith(("born", "found", "located", "built", "made", "held", "published", "released")):
        return f"{'Where' if 'located' in rest else 'When'} {verb} {subject} {rest.split()[0]}?"
    if rest.startswith(("a ", "an ", "the ", "one ")):
        return f"{kind} {verb} {rest}?" if len(rest) % 2 else f"{kind} {verb} {subject}?"
    return f"Why {verb} {subject} {rest}?"


def is_held_out(row: dict[str, str]) -> bool:
    return int(row["synset"].partition("-")[0]) % 50 == 7


def content_words(text: str) -> list[str]:
    return [word for word in re.findall(r"[a-z0-9][a-z0-9'-]*", text.lower()) if word not in STOP_WORDS]


def made(sentences: list[str], entries: list[tuple[str, str, str]], chance: random.Random) -> Iterator[str]:
    """Yield questions, titles, key words and paragraphs."""
    for sentence in chance.sample(sentences, min(len(sentences), 80_000)):
        asked = question(sentence)
        if asked is not None:
            yield asked
    for entry, _, part in chance.sample(entries, min(len(entries), 40_000)):
        yield chance.choice(QUESTIONS.get(part, QUESTIONS["n"])).format(entry)
    for sentence in chance.sample(sentences, min(len(sentences), 40_000)):
        words = sentence.rstrip(".").split()
        start = chance.randrange(max(1, len(words) - 9))
        yield " ".join(words[start : start + chance.randint(3, 9)])
    for _ in range(40_000):
        words = [
            each for text in chance.sample(sentences, chance.randint(1, 2)) for each in content_words(text)
        ]
        entry, definition, _ = chance.choice(entries)
        first = content_words(f"{entry} {definition}") if chance.random() < 0.5 else []
        yield " ".join([*first, *words][:30])
    for number in range(28_000):
        count = chance.randint(2, 4) if number % 7 else chance.randint(5, 10)
        yield " ".join(chance.sample(sentences, min(count, len(sentences))))


def main(wiki: str, nli: str, wordnet: str) -> None:
    chance = random.Random(0)
    sentences, pairs, rows = lines(wiki), map(json.loads, lines(nli)), list(map(json.loads, lines(wordnet)))
    held_out = {text for row in rows if is_held_out(row) for text in (row["entry"], row["definition"])}
    entries = [(row["entry"], row["definition"], row["pos"]) for row in rows if row["entry"] not in held_out]
    everyday = dict.fromkeys(row[side] for row in pairs for side in ("text_a", "text_b"))
    texts = dict.fromkeys(sentences) | everyday
    texts.update(dict.fromkeys(definition for _, definition, _ in entries))
    texts.update(dict.fromkeys(entry for entry, _, _ in entries))
    texts.update(dict.fromkeys(made(sentences, entries, chance)))
    shuffled = [text for text in (*texts, *everyday) if text.strip() and text not in held_out]
    chance.shuffle(shuffled)
    for text in shuffled:
        if len(text) > LONG and chance.random() > LONG_SHARE:
            continue
        print(json.dumps({"text": text}, ensure_ascii=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
