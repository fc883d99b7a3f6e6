"""Writes the texts for a third stage of `distill.sh`: passages with their titles, and pairs of
short texts.

Usage: python examples/passage_texts.py WIKI NLI WORDNET PACKAGES DEV
    WIKI, NLI, WORDNET   as for distill_texts.py
    PACKAGES             the descriptions of the packages of Debian: a decompressed file
                         Translation-en
    DEV                  a folder that gets a retrieval test: one of ten packages, which is not in
                         the texts

The texts are synopses and descriptions of packages, sentences of WIKI with others about the same
topic in one passage, sentences with a text made from them, pairs of NLI, and entries with
definitions of WORDNET. The test finds the description of a package by its synopsis; `sentkit report
--data DEV/..` reads it.
"""

import hashlib
import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from distill_texts import NOUN, QUESTIONS, headline, is_held_out, lines, names_in, partner, question
from models import write_set

import sentkit

Package = tuple[str, str, list[str]]  # name, synopsis, paragraphs
ASKED = ["how to {}", "what is {}?", "{} for Linux", "which program is a {}?", "I need a {}"]
ANCHORS, NEAREST = (
    7_000,
    8,
)  # sentences of WIKI that become passages, and how many others can join them


def packages(content: str) -> Iterator[Package]:
    """Packages with a first paragraph of 150 characters or more, of which no other has the same
    start.
    """
    seen = set()
    for record in content.split("\n\n"):
        name = re.search(r"^Package: (\S+)", record, re.M)
        found = re.search(r"^Description-en: (.*?)\n((?: .*\n?)*)", record, re.M)
        if name is None or found is None:
            continue
        paragraphs: list[list[str]] = [[]]
        for line in found[2].splitlines():
            if (
                line.strip() == "." or line.startswith("  ") or re.match(r"\s*[*-] ", line)
            ):  # lists are left out
                paragraphs.append([])
            else:
                paragraphs[-1].append(line.strip())
        texts = [" ".join(paragraph) for paragraph in paragraphs if paragraph]
        if texts and len(texts[0]) >= 150 and texts[0][:60] not in seen:
            seen.add(texts[0][:60])
            yield name[1], found[1], texts


def is_for_dev(package: Package) -> bool:
    return int(hashlib.sha256(package[0].encode()).hexdigest(), 16) % 10 == 3


def sampled(rows: Sequence[Any], count: int, chance: random.Random) -> list[Any]:
    return chance.sample(rows, min(count, len(rows)))


def cut(text: str, words: int) -> str:
    return " ".join(text.split()[:words])


def of_packages(known: list[Package], chance: random.Random) -> Iterator[str]:
    chance.shuffle(known)
    for number, (_, synopsis, paragraphs) in enumerate(known):
        yield synopsis
        if number < 13_000:
            yield cut(" ".join(paragraphs[:2]) if number % 3 else paragraphs[0], 90)
        if number % 6 == 0:
            yield chance.choice(ASKED).format(synopsis[0].lower() + synopsis[1:])


def passages(sentences: list[str], chance: random.Random) -> Iterator[str]:
    """A sentence with its nearest others by `static`, and for half of them a question or a
    headline.
    """
    vectors = np.asarray(sentkit.Encoder("static").encode(sentences), np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    anchors = sampled(range(len(sentences)), ANCHORS, chance)
    nearest_at_most = min(NEAREST, len(sentences) - 1)
    for start in range(0, len(anchors), 500):
        some = anchors[start : start + 500]
        similar = vectors[some] @ vectors.T
        nearest = np.argpartition(-similar, nearest_at_most, axis=1)[:, :nearest_at_most]
        for anchor, row, places in zip(some, similar, nearest, strict=True):
            order = sorted(map(int, places), key=lambda place: -row[place])
            yield cut(" ".join(sentences[place] for place in order[: chance.randint(2, 6)]), 120)
            if chance.random() < 0.5:
                yield question(sentences[anchor]) or headline(sentences[anchor], chance)


def short_texts(
    sentences: list[str],
    pairs: list[dict[str, str]],
    synsets: list[dict[str, str]],
    chance: random.Random,
) -> Iterator[str]:
    names = [name for sentence in sentences[:20_000] for name in names_in(sentence)]
    for sentence in sampled(
        [sentence for sentence in sentences if len(sentence) < 220], 20_000, chance
    ):
        yield sentence
        yield partner(sentence, names, chance)
    for pair in sampled(pairs, 15_000, chance):
        yield from (text for text in (pair["text_a"], pair["text_b"]) if len(text) < 200)
    for row in sampled(synsets, 11_000, chance):
        yield row["entry"]
        yield row["definition"]
        if chance.random() < 0.3:
            yield chance.choice(QUESTIONS.get(row["pos"], NOUN.split("|"))).format(row["entry"])
        if chance.random() < 0.2:
            yield f"{row['entry']}: {row['definition']}"


def main(wiki: str, nli: str, wordnet: str, descriptions: str, dev: str) -> None:
    known, chance = list(packages(Path(descriptions).read_text())), random.Random(4)
    relevant = {
        package[1]: {cut(" ".join(package[2][:2]), 200)} for package in known if is_for_dev(package)
    }
    write_set(Path(dev), [text for texts in relevant.values() for text in texts], relevant)
    sentences, rows = lines(wiki), [json.loads(line) for line in lines(wordnet)]
    held_out = {row[name] for row in rows if is_held_out(row) for name in ("entry", "definition")}
    texts = [
        *of_packages([package for package in known if not is_for_dev(package)], chance),
        *passages(sentences, chance),
        *short_texts(
            sentences,
            [json.loads(line) for line in lines(nli)],
            [row for row in rows if not is_held_out(row)],
            chance,
        ),
    ]
    texts = [text for text in dict.fromkeys(texts) if text.strip() and text not in held_out]
    chance.shuffle(texts)
    for text in texts:
        print(json.dumps({"text": text}, ensure_ascii=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
