"""Writes the texts for `distill.sh`, one row per line, in a fixed random order.

Usage: python examples/distill_texts.py WIKI NLI WORDNET [FIRST]
    WIKI     lines: one sentence each
    NLI      pairs: text_a, text_b
    WORDNET  rows with "entry", "definition", "pos" and "synset"
    FIRST    rows of an earlier output: writes the texts of a second stage

The texts are the sentences, definitions and entries, and short and long texts made from them:
questions, titles, key words, and paragraphs of several sentences. The sentences of NLI are there
twice, because they are the only everyday language; all others once. Every fiftieth synset is left
out, for the tests of `models.py`. The second stage has the pairs of NLI and WordNet whose texts are
both in FIRST, and each sentence of WIKI in
FIRST with a text made from it: a headline, a clause, a question, or a variant with another number
or name.
"""

import gzip
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a an the and or but if of at by for with about to from in on is are was were be been
        being it its this that these those he she they his her their who which what as has have
        had not no can will would may also into than then there when where while some any such
        other more most only own same so too very""",
    )
)
NOUN = (
    "What is {}?|What does {} mean?|Who or what is called {}?|Where can I find {}?|what is the "
    "best {}"
)
VERB = (
    "How to {}?|How do I {} in this case?|When should one {}?|Why do people {}?|error when I "
    "try to {}"
)
OTHER = "What is {} about it?|Why is it {}?|Is it {} or not?|How {} is it?|what makes something {}"
QUESTIONS = {"n": NOUN.split("|"), "v": VERB.split("|"), "a": OTHER.split("|")}  # by part of speech
SMALL_WORDS = frozenset(
    re.findall(r"\w+", "a an the is are was were be been being has had have also its their his her")
)
LONG = 160  # characters
LONG_SHARE = 0.15  # of the long texts is written: each takes the time of several short ones
CLAUSE = re.compile(
    r"^(?P<subject>[A-Z][^,;:]{2,50}?) (?P<verb>is|was|are|were) (?P<rest>[^,;]{8,60}?)[.,;]"
)


PARTICIPLES = ("born", "found", "located", "built", "made", "held", "published", "released")


def lines(path: str) -> list[str]:
    """The lines of a text file, also .gz, without blank lines."""
    content = Path(path).read_bytes()
    if path.endswith(".gz"):
        content = gzip.decompress(content)
    # str.splitlines would also split JSON at U+0085, U+2028 and U+2029.
    return [line.rstrip("\r") for line in content.decode().split("\n") if line.strip()]


def question(sentence: str) -> str | None:
    """Ask for the subject or the rest of a sentence such as "The Seine is a river in France."."""
    match = CLAUSE.match(sentence)
    if match is None:
        return None
    subject, verb, rest = match.group("subject", "verb", "rest")
    if rest.startswith(PARTICIPLES):
        pronoun = "Where" if "located" in rest else "When"
        return f"{pronoun} {verb} {subject} {rest.split()[0]}?"
    if rest.startswith(("a ", "an ", "the ", "one ")):
        pronoun = "Who" if re.match(r"(He|She|They)\b", subject) else "What"
        if len(rest) % 2:
            return f"{pronoun} {verb} {rest}?"
        return f"{pronoun} {verb} {subject}?"
    return f"Why {verb} {subject} {rest}?"


def is_held_out(row: dict[str, str]) -> bool:
    return int(row["synset"].partition("-")[0]) % 50 == 7


def content_words(text: str) -> list[str]:
    return [
        word for word in re.findall(r"[a-z0-9][a-z0-9'-]*", text.lower()) if word not in STOP_WORDS
    ]


def new_texts(
    sentences: list[str], entries: list[tuple[str, str, str]], chance: random.Random
) -> Iterator[str]:
    """Yield questions, titles, key words and paragraphs; `entries`: entry, definition, part of
    speech.
    """
    # Questions about sentences, and about entries.
    for sentence in chance.sample(sentences, min(len(sentences), 80_000)):
        question_of_sentence = question(sentence)
        if question_of_sentence is not None:
            yield question_of_sentence
    for entry, _, part_of_speech in chance.sample(entries, min(len(entries), 40_000)):
        yield chance.choice(QUESTIONS.get(part_of_speech, QUESTIONS["n"])).format(entry)

    # Titles: some words of a sentence.
    for sentence in chance.sample(sentences, min(len(sentences), 40_000)):
        words = sentence.rstrip(".").split()
        start = chance.randrange(max(1, len(words) - 9))
        yield " ".join(words[start : start + chance.randint(3, 9)])

    # Key words of one or two sentences, half of them after those of an entry.
    for _ in range(40_000):
        words = []
        for sentence in chance.sample(sentences, chance.randint(1, 2)):
            words += content_words(sentence)
        entry, definition, _ = chance.choice(entries)
        if chance.random() < 0.5:
            words = content_words(f"{entry} {definition}") + words
        yield " ".join(words[:30])

    # Paragraphs: one of seven is long.
    for number in range(28_000):
        count = chance.randint(2, 4) if number % 7 else chance.randint(5, 10)
        paragraph = chance.sample(sentences, min(count, len(sentences)))
        yield " ".join(paragraph)


def clauses(sentence: str) -> list[str]:
    """The clauses with four words or more."""
    candidates = re.split(r"[,;:()]| and | which | who | while | when ", sentence.rstrip("."))
    return [clause.strip() for clause in candidates if len(clause.split()) >= 4]


def headline(sentence: str, chance: random.Random) -> str:
    """Return the first words of the first clause, without articles and auxiliary verbs."""
    first = (clauses(sentence) or [sentence.rstrip(".")])[0]
    words = [word for word in first.split() if word.lower() not in SMALL_WORDS]
    return " ".join(words[: chance.randint(6, 11)])


def names_in(sentence: str) -> list[str]:
    return [word for word in sentence.split()[1:] if is_name(word)]


def is_name(word: str) -> bool:
    return word[:1].isupper() and word.isalpha()


def variant(sentence: str, names: list[str], chance: random.Random) -> str:
    """Change a number, or a name, or leave out one to four words."""
    words = sentence.split()
    draw = chance.random()
    indices_of_numbers = [i for i, word in enumerate(words) if re.fullmatch(r"\d+[.,]?", word)]
    indices_of_names = [i for i, word in enumerate(words) if i and is_name(word)]
    if indices_of_numbers and draw < 0.35:
        index = chance.choice(indices_of_numbers)
        words[index] = re.sub(r"\d", lambda _: str(chance.randint(0, 9)), words[index])
    elif indices_of_names and draw < 0.6:
        name = chance.choice(names)
        words[chance.choice(indices_of_names)] = name
    elif len(words) > 9:
        start = chance.randrange(len(words) - 4)
        del words[start : start + chance.randint(1, 4)]
    elif words:
        del words[chance.randrange(len(words))]
    return " ".join(words)


def partner(sentence: str, names: list[str], chance: random.Random) -> str:
    """Return a text that is similar to the sentence, or the sentence."""
    draw = chance.random()
    text = None
    if draw < 0.5:
        text = headline(sentence, chance)
    elif draw < 0.65:
        candidates = clauses(sentence)
        if candidates:
            text = chance.choice(candidates)
    elif draw < 0.75:
        text = question(sentence)
    elif draw < 0.9:
        text = variant(sentence, names, chance)
    if text and text != sentence:
        return text
    if chance.random() < 0.6:
        return headline(sentence, chance)
    return variant(sentence, names, chance)


def second_stage(sentences: list[str], pairs: list[tuple[str, str]], first: set[str]) -> list[str]:
    chance = random.Random(5)
    sentences = [sentence for sentence in sentences if sentence in first]
    names = [name for sentence in sentences[:20_000] for name in names_in(sentence)]
    with_partners = [(sentence, partner(sentence, names, chance)) for sentence in sentences]
    pairs_in_first = [pair for pair in pairs if first.issuperset(pair)]
    texts = []
    for text_a, text_b in with_partners + pairs_in_first:
        if text_b and text_a != text_b:
            texts += [text_a, text_b]
    chance.shuffle(texts)
    return texts


def first_stage(
    sentences: list[str],
    pairs: list[tuple[str, str]],
    entries: list[tuple[str, str, str]],
    held_out: set[str],
) -> Iterator[str]:
    chance = random.Random(0)
    everyday = dict.fromkeys(text for pair in pairs for text in pair)
    texts = dict.fromkeys(sentences) | everyday
    texts.update(dict.fromkeys(definition for _, definition, _ in entries))
    texts.update(dict.fromkeys(entry for entry, _, _ in entries))
    texts.update(dict.fromkeys(new_texts(sentences, entries, chance)))
    shuffled = [text for text in (*texts, *everyday) if text.strip() and text not in held_out]
    chance.shuffle(shuffled)
    for text in shuffled:
        if len(text) <= LONG or chance.random() <= LONG_SHARE:
            yield text


def main(wiki: str, nli: str, wordnet: str, first: str | None = None) -> None:
    sentences = lines(wiki)
    rows = [json.loads(line) for line in lines(wordnet)]
    pairs = [(row["text_a"], row["text_b"]) for row in map(json.loads, lines(nli))]
    texts: Iterable[str]
    if first is None:
        held_out = {row[key] for row in rows if is_held_out(row) for key in ("entry", "definition")}
        entries = [
            (row["entry"], row["definition"], row["pos"])
            for row in rows
            if row["entry"] not in held_out
        ]
        texts = first_stage(sentences, pairs, entries, held_out)
    else:
        pairs += [(row["entry"], row["definition"]) for row in rows]
        texts = second_stage(sentences, pairs, {json.loads(line)["text"] for line in lines(first)})
    for text in texts:
        print(json.dumps({"text": text}, ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
