"""Merge dictionaries and write rows with "entry" and "definition".

Input, each also as .gz:
  data.noun, data.verb, data.adj, data.adv: WordNet. Each word of a synset gets the gloss without
  examples.
  .jsonl: rows with "entry" and "definition".
  Other files have no header. With two columns they are those of DefSent and DefSent+, in UTF-8 or
  UTF-16: the entry, and definitions with <|list_more_def|> between them. With four columns or more
  they are those of
  Ishiwatari et al.: WORD%SENSE, part of speech, source, definition. Its tokens are joined again.
Output: JSONL. The definitions of an entry are adjacent, and the entries have the order of their
first definitions. A repeated definition of an entry is skipped.
"""

import argparse
import codecs
import gzip
import io
import json
import os
import re
import sys
from pathlib import Path

WORDNET = re.compile(r"data\.(noun|verb|adj|adv)(\.gz)?")
MARKER = re.compile(r"\((a|p|ip)\)$")  # the position of an adjective
EXAMPLES = re.compile(r'\s*(;\s*|^)".*$')
SEPARATOR = "<|list_more_def|>"
JOINED = (  # of tokens
    (re.compile(r"``\s*(.*?)\s*''"), r'"\1"'),
    (re.compile(r"\s+([.,;:!?)\]]|n't\b|'(?:s|m|d|re|ve|ll)\b)"), r"\1"),
    (re.compile(r"([(\[])\s+"), r"\1"),
    (re.compile("\u2018\\s*(.*?)\\s*\u2019"), "\u2018\\1\u2019"),
)


def main():
    parser = argparse.ArgumentParser(description="Merge dictionaries and write rows.")
    parser.add_argument("file", nargs="+", help="WordNet, Ishiwatari et al., DefSent, or JSONL")
    parser.add_argument(
        "--single-tokens",
        metavar="TOKENIZER",
        help="keep only entries of one token; a folder or a hub name",
    )
    arguments = parser.parse_args()
    dictionary = {}  # entry -> its definitions, in order
    for path in arguments.file:
        rows = 0
        for row in read(path):
            entry, definition = (" ".join(text.split()) for text in row)
            if entry and definition:
                dictionary.setdefault(entry, {})[definition] = None
                rows += 1
        print(f"dictionary_rows.py: {path}: {rows:,} definitions", file=sys.stderr)
    if arguments.single_tokens:
        dictionary = of_one_token(dictionary, arguments.single_tokens)
    for entry, definitions in dictionary.items():
        for definition in definitions:
            row = {"entry": entry, "definition": definition}
            sys.stdout.write(json.dumps(row, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def of_one_token(dictionary, name):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name)
    entries = list(dictionary)
    ids = tokenizer(entries, add_special_tokens=False)["input_ids"]
    return {
        entry: dictionary[entry]
        for entry, tokens in zip(entries, ids, strict=True)
        if len(tokens) == 1 and tokens[0] != tokenizer.unk_token_id
    }


def read(path):
    """The entries and definitions of a file."""
    number = 0
    name = Path(path).name
    opener = gzip.open if name.endswith(".gz") else io.open
    try:
        with opener(path, "rb") as file:
            encoding = "utf-8-sig"
            if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                encoding = "utf-16"
            file.seek(0)
            for line in io.TextIOWrapper(file, encoding, newline="\n"):
                number += 1
                if not line.strip():
                    continue
                if WORDNET.fullmatch(name):
                    yield from of_synset(line)
                elif name.removesuffix(".gz").endswith(".jsonl"):
                    row = json.loads(line)
                    yield row["entry"] + "", row["definition"] + ""  # a number is a TypeError
                else:
                    yield from of_columns(line.rstrip("\r\n").split("\t"))
    except (OSError, EOFError) as error:
        sys.exit(f"dictionary_rows.py: {path}: {getattr(error, 'strerror', None) or error}")
    except (ValueError, LookupError, TypeError) as error:
        problem = str(error)
        if isinstance(error, KeyError):
            problem = f"{error} is missing"
        sys.exit(f"dictionary_rows.py: {path}: line {number}: not of a known format: {problem}")


def of_synset(line):
    if line.startswith("  "):  # the license
        return
    data, gloss = line.split(" | ", 1)
    fields = data.split(" ")
    for word in fields[4 : 4 + 2 * int(fields[3], 16) : 2]:
        yield MARKER.sub("", word).replace("_", " "), EXAMPLES.sub("", gloss.strip())


def of_columns(cells):
    if len(cells) == 2:
        for definition in cells[1].split(SEPARATOR):
            yield cells[0], definition
    elif len(cells) < 4:
        raise ValueError("expected columns with tabs between them, 2 or at least 4")
    else:
        definition = cells[3]
        for pattern, joined in JOINED:
            definition = pattern.sub(joined, definition)
        yield cells[0].rpartition("%")[0].replace("_", " "), definition


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # `| head`: close stdout where Python's exit cannot fail on it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)
