"""Convert the test sets of the papers, as distributed, to the names that `sentkit report` reads.

python examples/data_of_papers.py RAW... OUT
sentkit report nano --data OUT --format text

RAW: folders with the distributed files, at any depth. TABLE below has the files and counts of each
set. If they are missing or refused, rows in the names of `report`, such as sickr.test.jsonl, are
copied.
OUT: gets sts/, senteval/ and clustering/. It may already have rows, which are checked too.

stdout: table 2 of PairSupCon, the statistics of the clustering sets. stderr: each missing set with
the place where it is published, and each file that is refused because it is of another language or
version.
Exit codes: 0, 65 if a set was refused, 66 without any set, 73 if a file cannot be written.
"""

import argparse
import gzip
import json
import os
import re
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

PLACES = {
    "sts": "http://ixa2.si.ehu.eus/stswiki",
    "es": "https://alt.qcri.org/semeval2014/task10",
    "sts17": "https://alt.qcri.org/semeval2017/task1",
    "sick": "https://zenodo.org/records/2787612",
    "senteval": "https://github.com/facebookresearch/SentEval",
    "short": "https://github.com/rashadulrakib/short-text-clustering-enhancement",
}
# Name; place; format; language; rows, and with labels the classes and the rows of the smallest and
# largest class; file and its parts. Of two parts, the first one has the class 1, as in SentEval.
TABLE = """
sts/sts12        sts pairs en 3108 STS12-en-test/STS.input.{}.txt MSRpar MSRvid SMTeuroparl \
                 surprise.OnWN \
    surprise.SMTnews
sts/sts13        sts pairs en 1500 STS13-en-test/STS.input.{}.txt FNWN headlines OnWN
sts/sts14        sts pairs en 3750 STS14-en-test/STS.input.{}.txt deft-forum deft-news headlines \
                 images OnWN \
    tweet-news
sts/sts15        sts pairs en 3000 STS15-en-test/STS.input.{}.txt answers-forums \
                 answers-students belief \
    headlines images
sts/sts16        sts pairs en 1186 STS16-en-test/STS2016.input.{}.txt answer-answer headlines \
                 plagiarism \
    postediting question-question
sts/stsb.train   sts stsb  en 5749 sts-train.csv
sts/stsb.dev     sts stsb  en 1500 sts-dev.csv
sts/stsb.test    sts stsb  en 1379 sts-test.csv
sts/sickr.train  sick sick en 4500 SICK/SICK_train.txt
sts/sickr.trial  sick sick en 500  SICK/SICK_trial.txt
sts/sickr.test   sick sick en 4927 SICK/SICK_test_annotated.txt
sts/sts14_es     es  pairs es 804  STS.input.{}.txt wikipedia news
sts/sts17_track1_arar.test sts17 pairs ar 250 STS.input.{}.txt track1.ar-ar
sts/sts17_track3_eses.test sts17 pairs es 250 STS.input.{}.txt track3.es-es
sts/sts17_track5_enen.test sts17 pairs en 250 STS.input.{}.txt track5.en-en
senteval/mr          senteval text en 10662/2/5331/5331  MR/rt-polarity.{} pos neg
senteval/cr          senteval text en 3775/2/1368/2407   CR/custrev.{} pos neg
senteval/subj        senteval text en 10000/2/5000/5000  SUBJ/subj.{} objective subjective
senteval/mpqa        senteval text en 10606/2/3312/7294  MPQA/mpqa.{} pos neg
senteval/sst2.train  senteval sst  en 67349/2/29780/37569 SST/binary/sentiment-train
senteval/sst2.dev    senteval sst  en 872/2/428/444      SST/binary/sentiment-dev
senteval/sst2.test   senteval sst  en 1821/2/909/912     SST/binary/sentiment-test
senteval/trec.train  senteval trec en 5452/6/86/1250     TREC/train_5500.label
senteval/trec.test   senteval trec en 500/6/9/138        TREC/TREC_10.label
senteval/mrpc.train  senteval mrpc en 4076/2/1323/2753   MRPC/msr_paraphrase_train.txt
senteval/mrpc.test   senteval mrpc en 1725/2/578/1147    MRPC/msr_paraphrase_test.txt
clustering/agnews         short class   - 8000/4/2000/2000   clustering/agnews.tsv
clustering/searchsnippets short cluster - 12340/8/370/2660   clustering/searchsnippets.tsv
clustering/stackoverflow  short cluster - 20000/20/1000/1000 clustering/stackoverflow.tsv
clustering/biomedical     short cluster - 20000/20/1000/1000 clustering/biomedical.tsv
clustering/tweet          short json    - 2472/89/1/249      clustering/Tweet.json
clustering/googlenews_ts  short json    - 11109/152/3/430    clustering/TS.json
clustering/googlenews_s   short json    - 11109/152/3/430    clustering/S.json
clustering/googlenews_t   short json    - 11109/152/3/430    clustering/T.json
"""
TEXT, TEXTS = "(?P<text>.*)", "(?P<text_a>[^\t]+)\t(?P<text_b>[^\t]+)"
FORMATS = {  # the pattern of a line, the start of the header, and the encoding
    "pairs": (f"{TEXTS}.*", "", "utf-8"),  # the scores are in STS.gs
    "stsb": (f"(?P<topic>(?:[^\t]+\t){{3}})[^\t]*\t(?P<score>[^\t]+)\t{TEXTS}.*", "", "utf-8"),
    "sick": (
        f"[0-9]+\t{TEXTS}\t(?P<score>[^\t]+)\t[A-Z]+",
        "pair_ID\tsentence_A\tsentence_B\t",
        "utf-8",
    ),
    "text": (TEXT, "", "latin-1"),
    "sst": (f"{TEXT}\t(?P<label>[01])", "", "utf-8"),
    "trec": (f"(?P<label>[A-Z]+):[^ ]+ {TEXT}", "", "latin-1"),
    "mrpc": (
        f"(?P<label>[01])\t[^\t]*\t[^\t]*\t{TEXTS}",
        "Quality\t#1 ID\t#2 ID\t#1 String\t",
        "utf-8-sig",
    ),
    "class": (f"(?P<label>[0-9]+)\t{TEXT}", "", "utf-8"),
    "cluster": (
        f"[0-9]+\t(?P<label>[0-9]+)\t{TEXT}",
        "",
        "utf-8",
    ),  # a predicted cluster, the true class
    "json": ("", "", ""),  # "text" and "cluster"
}
FIELDS = ("text", "text_a", "text_b", "label", "score", "topic")
# Possible most frequent words. Some clustering sets lost their frequent words, so they have no
# language.
WORDS = {"en": ("the", "a", "of", "what"), "es": ("de", "un", "la"), "ar": ("في",)}
PRINTED = {"clustering/tweet": "5K"}  # texts in table 2 of PairSupCon, where they differ from TABLE


class Set(NamedTuple):
    place: str
    form: str
    language: str
    expected: tuple[int, ...]
    files: list[str]
    pattern: str  # of the files, as a shell writes it


def parsed(table):
    for line in table.strip().splitlines():
        name, place, form, language, counts, path, *parts = line.split()
        files = [path.format(part) for part in parts] or [path]
        pattern = path.format(f"{{{','.join(parts)}}}") if len(parts) > 1 else files[0]
        yield (
            name,
            Set(PLACES[place], form, language, tuple(map(int, counts.split("/"))), files, pattern),
        )


SETS = dict(parsed(TABLE))


class Refused(Exception):
    """The message has the place, the problem and the fix."""


def main():
    parser = argparse.ArgumentParser(description="Convert the test sets of the papers to rows.")
    parser.add_argument(
        "raw", nargs="+", metavar="RAW", help="a folder with distributed files, or rows"
    )
    parser.add_argument("out", metavar="OUT", help="a folder for `sentkit report --data`")
    given = parser.parse_args()
    for folder in given.raw:
        if not Path(folder).is_dir():
            return complain(f"{folder}: not a folder", 66)
    out = Path(given.out).resolve()
    every = {
        path for folder in given.raw for path in Path(folder).resolve().rglob("*") if path.is_file()
    }
    own = {path for name in SETS for path in (out / name).parent.glob("*.jsonl*")}
    made, refused = {}, 0
    for name, each in SETS.items():
        problems = []
        for read, paths in ((distributed, every - own), (copied, every - own), (copied, own)):
            try:
                rows, source = read(name, each, sorted(paths))
                if source is not None:
                    check(rows, each, source)
                    made[name] = rows
                    write(out / f"{name}.jsonl", rows)
                    break
            except Refused as error:
                problems.append(f"refused: {error}")
        else:
            refused += bool(problems)
            if not problems:
                complain(f"missing: {name} ({each.pattern}), published at {each.place}")
        for problem in problems:
            complain(
                f"{problem}; "
                + (f"instead: {source}" if name in made else f"published at {each.place}")
            )
    clusters = {name: rows for name, rows in made.items() if name.startswith("clustering/")}
    for row in statistics(clusters) if clusters else ():
        print("{:<15}{:>8}{:>11}{:>9}{:>11}{:>7}{:>7}{:>12}".format(*row))
    return 65 if refused else 0 if made else 66


def complain(message, code=None):
    print(f"data_of_papers.py: {message}", file=sys.stderr)
    return code


def distributed(name, each, paths):
    """The rows of the distributed files, and the first file; None if there are none."""
    found = [matching(paths, f"/{re.escape(file)}$") for file in each.files]
    first = next(filter(None, found), None)
    rows = []
    for place, (file, path) in enumerate(zip(each.files, found, strict=True)):
        if first is None:
            break
        if path is None:
            raise Refused(f"{first}: the set is not complete; add {file}")
        if each.form == "json":
            own = json_rows(path, {"text": str, "cluster": int})
            rows += [{"text": row["text"].strip(), "label": row["cluster"]} for row in own]
        elif each.form == "pairs":
            gold = matching(paths, f"/{re.escape(file.replace('.input.', '.gs.'))}$")
            rows += with_scores(list(lines_of(path, each.form)), path, gold)
        else:
            label = {"label": 1 - place} if each.form == "text" else {}
            rows += (row | label for row in lines_of(path, each.form))
    return rows, first


def copied(name, each, paths):
    """The rows of a file in a name of `report`, and this file; None if there is none."""
    path = matching(paths, rf"/{re.escape(Path(name).name)}(\.test)?\.jsonl(\.gz)?$")
    pair, labelled = "text_a" in FORMATS[each.form][0], len(each.expected) > 1
    kinds = dict.fromkeys(("text_a", "text_b") if pair else ("text",), str)
    kinds |= {"label": str | int} if labelled else {"score": float | int}
    return [] if path is None else json_rows(path, kinds), path


def matching(paths, pattern):
    found = [path for path in paths if re.search(pattern, path.as_posix())]
    if len(found) > 1:
        raise Refused(f"{found[0]}: {found[1]} has the same name; remove one of them")
    return found[0] if found else None


def content(path, encoding):
    """The lines of a file."""
    try:
        data = (gzip.decompress if path.suffix == ".gz" else bytes)(path.read_bytes())
        return data.decode(encoding).removesuffix("\n").split("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise Refused(f"{path}: {error}") from None


def lines_of(path, form):
    """The rows of a distributed file, as far as they are in this file."""
    pattern, header, encoding = FORMATS[form]
    lines = content(path, encoding)
    if not lines[0].startswith(header):
        found, expected = (", ".join(line.strip().split("\t")) for line in (lines[0], header))
        raise Refused(
            f"{path}:1: the columns are not {expected}, but {found}; another language or version"
        )
    for number, line in enumerate(lines[bool(header) :], 1 + bool(header)):
        match = re.fullmatch(pattern, line.removesuffix("\r"))
        if match is None:
            raise Refused(f"{path}:{number}: not a line of this set: {line!r}; another version")
        row = {field: match[field].strip() for field in FIELDS if field in match.groupdict()}
        if "topic" in row:
            row["topic"] = row["topic"].replace("\t", "/")
        if "score" in row:
            row["score"] = number_of(row["score"], f"{path}:{number}")
        if "label" in row and row["label"].isdigit():
            row["label"] = int(row["label"])
        yield row


def with_scores(rows, path, gold):
    """The pairs that have a score."""
    if gold is None:
        raise Refused(
            f"{path}: the set is not complete; add {path.name.replace('.input.', '.gs.')}"
        )
    scores = content(gold, "utf-8")
    if len(scores) != len(rows):
        raise Refused(f"{gold}: {len(scores):,} lines for {len(rows):,} pairs; another version")
    topic = re.sub(r".*\.input\.|\.txt$", "", path.name)
    for number, (row, score) in enumerate(zip(rows, scores, strict=True), 1):
        if score.strip():
            yield row | {"score": number_of(score, f"{gold}:{number}"), "topic": topic}


def number_of(text, place):
    try:
        if 0 <= float(text) <= 5:
            return float(text)
    except ValueError:
        pass
    raise Refused(f"{place}: the score {text!r} is not a number from 0 to 5; another version")


def json_rows(path, kinds):
    rows = []
    for number, line in enumerate(content(path, "utf-8"), 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not all(isinstance(row.get(k), kinds[k]) for k in kinds):
            raise Refused(
                f"{path}:{number}: expected a row with {', '.join(kinds)}; another format"
            )
        rows.append(row)
    return rows


def check(rows, each, source):
    """Raise an error if counts or language are not those of the set."""
    classes = Counter(row["label"] for row in rows).values() if len(each.expected) > 1 else ()
    counts = (len(rows), *((len(classes), min(classes), max(classes)) if classes else ()))
    if counts != each.expected:
        problem = f"{source}: {described(counts)} instead of {described(each.expected)}"
        raise Refused(f"{problem}; a part of the set, or another version")
    if each.language in WORDS:
        words = Counter(word for row in rows for word in re.findall(r"\w+", text_of(row).lower()))
        first = max(words, key=words.__getitem__)
        if first not in WORDS[each.language]:
            raise Refused(f'{source}: the most frequent word is "{first}"; another language')


def described(counts):
    rows, *classes = map("{:,}".format, counts)
    return f"{rows} rows" + (" in {} classes of {} to {}".format(*classes) if classes else "")


def text_of(row):
    return " ".join(row[field] for field in ("text", "text_a", "text_b") if field in row)


def write(path, rows):
    """The file gets its name when it is complete."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text("".join(lines), "utf-8", errors="replace")
        part.replace(path)
    except OSError as error:
        sys.exit(complain(f"{path}: {error.strerror}", 73))


def statistics(sets):
    """Table 2 of PairSupCon: texts, classes, the largest class by the smallest, words, different
    words.
    """
    yield "set", "texts", "published", "classes", "published", "ratio", "words", "vocabulary"
    for name, rows in sets.items():
        expected, words = (
            SETS[name].expected,
            [word for row in rows for word in row["text"].split()],
        )
        sizes = Counter(row["label"] for row in rows).values()
        texts = f"{len(rows):,}", PRINTED.get(name, f"{expected[0]:,}"), len(sizes), expected[1]
        numbers = (
            f"{max(sizes) / min(sizes):.0f}",
            f"{len(words) / len(rows):.1f}",
            f"{len(set(words)):,}",
        )
        yield Path(name).name, *texts, *numbers


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # `| head`: close stdout where Python's exit cannot fail on it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)
