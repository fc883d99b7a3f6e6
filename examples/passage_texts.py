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
ANCHORS = 7_000  # sentences of WIKI that become passages
NEAREST = 8  # sentences that can join each of them


def packages(content: str) -> Iterator[Package]:
    """Packages with a synopsis and a first paragraph of 150 characters or more, of which no other
    has the same start.
    """
    seen = set()
    for record in content.split("\n\n"):
        name = re.search(r"^Package: (\S+)", record, re.M)
        description = re.search(r"^Description-en: (.*?)\n((?: .*\n?)*)", record, re.M)
        if name is None or description is None or not description[1].strip():
            continue
        paragraphs: list[list[str]] = [[]]
        for line in description[2].splitlines():
            is_listed = line.startswith("  ") or re.match(r"\s*[*-] ", line)
            if is_listed or line.strip() == ".":  # lists are left out
                paragraphs.append([])
            else:
                paragraphs[-1].append(line.strip())
        texts = [" ".join(paragraph) for paragraph in paragraphs if paragraph]
        if texts and len(texts[0]) >= 150 and texts[0][:60] not in seen:
            seen.add(texts[0][:60])
            yield name[1], description[1], texts


def is_for_dev(package: Package) -> bool:
    digest = hashlib.sha256(package[0].encode()).hexdigest()
    return int(digest, 16) % 10 == 3


def sampled(rows: Sequence[Any], count: int, chance: random.Random) -> list[Any]:
    return chance.sample(rows, min(count, len(rows)))


def cut(text: str, words: int) -> str:
    return " ".join(text.split()[:words])


def of_packages(described: list[Package], chance: random.Random) -> Iterator[str]:
    """Synopses; descriptions of some packages, and questions with some synopses."""
    chance.shuffle(described)
    for number, (_, synopsis, paragraphs) in enumerate(described):
        yield synopsis
        if number < 13_000:
            count = 2 if number % 3 else 1
            yield cut(" ".join(paragraphs[:count]), 90)
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
        chunk = anchors[start : start + 500]
        cosines = vectors[chunk] @ vectors.T  # (chunk, sentences)
        nearest = np.argpartition(-cosines, nearest_at_most, axis=1)[:, :nearest_at_most]
        for anchor, row, indices in zip(chunk, cosines, nearest, strict=True):
            best_first = sorted(map(int, indices), key=lambda index: -row[index])
            passage = [sentences[index] for index in best_first[: chance.randint(2, 6)]]
            yield cut(" ".join(passage), 120)
            if chance.random() < 0.5:
                yield question(sentences[anchor]) or headline(sentences[anchor], chance)


def short_texts(
    sentences: list[str],
    pairs: list[dict[str, str]],
    synsets: list[dict[str, str]],
    chance: random.Random,
) -> Iterator[str]:
    names = [name for sentence in sentences[:20_000] for name in names_in(sentence)]
    short_sentences = [sentence for sentence in sentences if len(sentence) < 220]
    for sentence in sampled(short_sentences, 20_000, chance):
        yield sentence
        yield partner(sentence, names, chance)
    for pair in sampled(pairs, 15_000, chance):
        yield from (text for text in (pair["text_a"], pair["text_b"]) if len(text) < 200)
    for row in sampled(synsets, 11_000, chance):
        yield row["entry"]
        yield row["definition"]
        if chance.random() < 0.3:
            question_form = chance.choice(QUESTIONS.get(row["pos"], NOUN.split("|")))
            yield question_form.format(row["entry"])
        if chance.random() < 0.2:
            yield f"{row['entry']}: {row['definition']}"


def main(wiki: str, nli: str, wordnet: str, descriptions: str, dev: str) -> None:
    chance = random.Random(4)

    # The retrieval test: the packages that are not in the texts.
    for_texts: list[Package] = []
    relevant: dict[str, set[str]] = {}  # synopsis -> its description
    for package in packages(Path(descriptions).read_text()):
        _, synopsis, paragraphs = package
        if is_for_dev(package):
            relevant[synopsis] = {cut(" ".join(paragraphs[:2]), 200)}
        else:
            for_texts.append(package)
    corpus = [text for texts in relevant.values() for text in texts]
    write_set(Path(dev), corpus, relevant)

    # The texts, without those that are held out.
    sentences = lines(wiki)
    pairs = [json.loads(line) for line in lines(nli)]
    synsets = [json.loads(line) for line in lines(wordnet)]
    held_out = set()
    for row in filter(is_held_out, synsets):
        held_out.update((row["entry"], row["definition"]))
    synsets = [row for row in synsets if not is_held_out(row)]
    texts = [
        *of_packages(for_texts, chance),
        *passages(sentences, chance),
        *short_texts(sentences, pairs, synsets, chance),
    ]
    texts = [text for text in dict.fromkeys(texts) if text.strip() and text not in held_out]
    chance.shuffle(texts)
    for text in texts:
        print(json.dumps({"text": text}, ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) != 6:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
