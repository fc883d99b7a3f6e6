"""Writes two retrieval tests, as folders with corpus.jsonl, queries.jsonl and qrels.tsv for `sentkit report`.

Usage: python examples/retrieval_sets.py WORDNET MRPC OUT
    WORDNET  rows with "entry", "definition" and "synset"
    MRPC     pairs with label 1 if they are paraphrases

`definitions` finds the words of a definition among the entries of every fifth synset. Its queries are the
synsets that `distill_texts.py` leaves out. `paraphrases` finds the paraphrase of a sentence among all second
sentences.
"""

import json
import sys
from pathlib import Path

from distill_texts import is_held_out, lines


def write(folder: Path, corpus: list[str], queries: list[str], relevant: set[tuple[str, str]]) -> None:
    """Write one test; `relevant` has pairs of a query and a text of the corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {}
    for name, texts in (("corpus", corpus), ("queries", queries)):
        numbers[name] = {text: f"{name[0]}{number}" for number, text in enumerate(dict.fromkeys(texts))}
        rows = ({"_id": number, "text": text} for text, number in numbers[name].items())
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        )
    marks = [
        f"{numbers['queries'][query]}\t{numbers['corpus'][text]}\t1\n" for query, text in sorted(relevant)
    ]
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(marks))


def main(wordnet: str, mrpc: str, out: str) -> None:
    rows = [json.loads(line) for line in lines(wordnet)]
    held_out = [row for row in rows if is_held_out(row)]
    others = [row for row in rows if int(row["synset"].partition("-")[0]) % 5 == 0]
    write(
        Path(out, "definitions"),
        [row["entry"] for row in (*held_out, *others)],
        [row["definition"] for row in held_out],
        {(row["definition"], row["entry"]) for row in held_out},
    )
    pairs = [json.loads(line) for line in lines(mrpc)]
    same = [(row["text_a"], row["text_b"]) for row in pairs if str(row["label"]) == "1"]
    write(Path(out, "paraphrases"), [row["text_b"] for row in pairs], [a for a, _ in same], set(same))


if __name__ == "__main__":
    main(*sys.argv[1:])
