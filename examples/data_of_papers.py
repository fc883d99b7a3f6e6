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

SOURCES = {  # where the sets are published
    "sts": "http://ixa2.si.ehu.eus/stswiki",
    "es": "https://alt.qcri.org/semeval2014/task10",
    "sts17": "https://alt.qcri.org/semeval2017/task1",
    "sick": "https://zenodo.org/records/2787612",
    "senteval": "https://github.com/facebookresearch/SentEval",
    "short": "https://github.com/rashadulrakib/short-text-clustering-enhancement",
}
# Name; source; format; language; rows, and with labels the classes and the rows of the smallest and
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
sts/sts15.train  sts unscored en 5500 STS15-en-test/STS.input.{}.txt answers-forums \
                 answers-students belief \
    headlines images
sts/sts16.train  sts unscored en 7997 STS16-en-test/STS2016.input.{}.txt answer-answer headlines \
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
TEXT = "(?P<text>.*)"
TEXTS = "(?P<text_a>[^\t]+)\t(?P<text_b>[^\t]+)"
FORMATS = {  # the pattern of a line, the start of the header, and the encoding
    "pairs": (f"{TEXTS}.*", "", "utf-8"),  # the scores are in STS.gs
    "unscored": (f"{TEXTS}.*", "", "utf-8"),  # those without a score, which ConSERT trains on
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
    # a predicted cluster, the true class
    "cluster": (
        f"[0-9]+\t(?P<label>[0-9]+)\t{TEXT}",
        "",
        "utf-8",
    ),
    "json": ("", "", ""),  # "text" and "cluster"
}
FIELDS = ("text", "text_a", "text_b", "label", "score", "topic")
# Possible most frequent words. Some clustering sets lost their frequent words, so they have no
# language.
WORDS = {"en": ("the", "a", "of", "what"), "es": ("de", "un", "la"), "ar": ("في",)}
PRINTED = {"clustering/tweet": "5K"}  # texts in table 2 of PairSupCon, where they differ from TABLE


class Set(NamedTuple):
    source: str  # where it is published
    form: str
    language: str
    expected: tuple[int, ...]  # rows; with labels also classes, smallest and largest class
    files: list[str]
    pattern: str  # of the files, as a shell writes it


def parsed(table):
    for line in table.strip().splitlines():
        name, source, form, language, counts, path, *names = line.split()
        files = [path.format(name_of_file) for name_of_file in names] or [path]
        pattern = files[0]
        if len(names) > 1:
            pattern = path.format(f"{{{','.join(names)}}}")
        expected = tuple(int(count) for count in counts.split("/"))
        yield name, Set(SOURCES[source], form, language, expected, files, pattern)


SETS = dict(parsed(TABLE))


class Refused(Exception):
    """The message has the place, the problem and the fix."""


def main():
    parser = argparse.ArgumentParser(description="Convert the test sets of the papers to rows.")
    parser.add_argument(
        "raw", nargs="+", metavar="RAW", help="a folder with distributed files, or rows"
    )
    parser.add_argument("out", metavar="OUT", help="a folder for `sentkit report --data`")
    arguments = parser.parse_args()
    for folder in arguments.raw:
        if not Path(folder).is_dir():
            complain(f"{folder}: not a folder")
            return 66
    out = Path(arguments.out).resolve()
    # The files in OUT are only read for sets that RAW does not have.
    in_raw = set()
    for folder in arguments.raw:
        paths = Path(folder).resolve().rglob("*")
        in_raw.update(path for path in paths if path.is_file())
    in_out = {path for name in SETS for path in (out / name).parent.glob("*.jsonl*")}
    readings = (
        (distributed_rows, sorted(in_raw - in_out)),
        (rows_of_report, sorted(in_raw - in_out)),
        (rows_of_report, sorted(in_out)),
    )
    sets = {}  # name -> rows
    is_refused = False
    for name, published in SETS.items():
        rows, problems = first_valid(name, published, readings)
        if rows is not None:
            sets[name] = rows
            write(out / f"{name}.jsonl", rows)
        elif problems:
            is_refused = True
        else:
            complain(f"missing: {name} ({published.pattern}), published at {published.source}")
        for problem in problems:
            complain(problem)

    clusters = {name: rows for name, rows in sets.items() if name.startswith("clustering/")}
    if clusters:
        for row in statistics(clusters):
            print("{:<15}{:>8}{:>11}{:>9}{:>11}{:>9}{:>11}{:>10}{:>11}{:>7}{:>12}".format(*row))
    if is_refused:
        return 65
    if not sets:
        return 66
    return 0


def first_valid(name, published, readings):
    """The rows of the first reading that has those of the set, or None; and what was refused."""
    refused = []
    for read, paths in readings:
        try:
            rows, path = read(name, published, paths)
            if path is not None:
                check(rows, published, path)
                return rows, [f"refused: {error}; instead: {path}" for error in refused]
        except Refused as error:
            refused.append(error)
    return None, [f"refused: {error}; published at {published.source}" for error in refused]


def complain(message):
    print(f"data_of_papers.py: {message}", file=sys.stderr)


def distributed_rows(name, published, paths):
    """The rows of the distributed files, and the first file; None if there are none."""
    path_of = {file: matching(paths, f"/{re.escape(file)}$") for file in published.files}
    present = [path for path in path_of.values() if path is not None]
    if not present:
        return [], None
    rows = []
    for index, (file, path) in enumerate(path_of.items()):
        if path is None:
            raise Refused(f"{present[0]}: the set is not complete; add {file}")
        if published.form == "json":
            records = json_rows(path, {"text": str, "cluster": int})
            rows += [{"text": row["text"].strip(), "label": row["cluster"]} for row in records]
        elif published.form in ("pairs", "unscored"):
            gold = matching(paths, f"/{re.escape(file.replace('.input.', '.gs.'))}$")
            pairs = with_scores(list(lines_of(path, published.form)), path, gold)
            has_score = published.form == "pairs"
            rows += [row for row in pairs if ("score" in row) == has_score]
        elif published.form == "text":
            rows += [row | {"label": 1 - index} for row in lines_of(path, published.form)]
        else:
            rows += lines_of(path, published.form)
    return rows, present[0]


def rows_of_report(name, published, paths):
    """The rows of a file in a name of `report`, and this file; None if there is none."""
    path = matching(paths, rf"/{re.escape(Path(name).name)}(\.test)?\.jsonl(\.gz)?$")
    if path is None:
        return [], None
    pattern, _, _ = FORMATS[published.form]
    types = {"text": str}
    if "text_a" in pattern:
        types = {"text_a": str, "text_b": str}
    if len(published.expected) > 1:
        types["label"] = str | int
    elif published.form != "unscored":
        types["score"] = float | int
    return json_rows(path, types), path


def matching(paths, pattern):
    """The one path with the pattern, or None."""
    matches = [path for path in paths if re.search(pattern, path.as_posix())]
    if not matches:
        return None
    if len(matches) > 1:
        raise Refused(f"{matches[0]}: {matches[1]} has the same name; remove one of them")
    return matches[0]


def content(path, encoding):
    """The lines of a file."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        return data.decode(encoding).removesuffix("\n").split("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise Refused(f"{path}: {error}") from None


def lines_of(path, form):
    """The rows of a distributed file, as far as they are in this file."""
    pattern, header, encoding = FORMATS[form]
    lines = content(path, encoding)
    if not lines[0].startswith(header):
        columns, expected = (", ".join(line.strip().split("\t")) for line in (lines[0], header))
        raise Refused(
            f"{path}:1: the columns are not {expected}, but {columns}; another language or version"
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
    """The pairs, with their scores as far as they have one."""
    if gold is None:
        raise Refused(
            f"{path}: the set is not complete; add {path.name.replace('.input.', '.gs.')}"
        )
    scores = content(gold, "utf-8")
    if len(scores) != len(rows):
        raise Refused(f"{gold}: {len(scores):,} lines for {len(rows):,} pairs; another version")
    topic = re.sub(r".*\.input\.|\.txt$", "", path.name)
    for number, (row, score) in enumerate(zip(rows, scores, strict=True), 1):
        pair = dict(row)
        if score.strip():
            pair["score"] = number_of(score, f"{gold}:{number}")
        yield pair | {"topic": topic}


def number_of(text, location):
    try:
        if 0 <= float(text) <= 5:
            return float(text)
    except ValueError:
        pass
    raise Refused(f"{location}: the score {text!r} is not a number from 0 to 5; another version")


def json_rows(path, types):
    """The rows of a file whose fields have these types."""
    rows = []
    for number, line in enumerate(content(path, "utf-8"), 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        is_row = isinstance(row, dict)
        if not is_row or not all(isinstance(row.get(key), types[key]) for key in types):
            raise Refused(
                f"{path}:{number}: expected a row with {', '.join(types)}; another format"
            )
        rows.append(row)
    return rows


def check(rows, published, source):
    """Raise an error if counts or language are not those of the set."""
    counts = (len(rows),)
    if len(published.expected) > 1:
        sizes = Counter(row["label"] for row in rows).values()
        counts = (len(rows), len(sizes), min(sizes), max(sizes))
    if counts != published.expected:
        problem = f"{source}: {described(counts)} instead of {described(published.expected)}"
        raise Refused(f"{problem}; a part of the set, or another version")
    if published.language in WORDS:
        words = Counter()
        for row in rows:
            text = text_of(row).lower()
            words.update(re.findall(r"\w+", text))
        most_frequent = max(words, key=words.__getitem__)
        if most_frequent not in WORDS[published.language]:
            problem = f'{source}: the most frequent word is "{most_frequent}"'
            raise Refused(f"{problem}; another language")


def described(counts):
    rows, *classes = map("{:,}".format, counts)
    if not classes:
        return f"{rows} rows"
    count, smallest, largest = classes
    return f"{rows} rows in {count} classes of {smallest} to {largest}"


def text_of(row):
    return " ".join(row[field] for field in ("text", "text_a", "text_b") if field in row)


def write(path, rows):
    """The file gets its name when it is complete."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    temporary = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text("".join(lines), "utf-8", errors="replace")
        temporary.replace(path)
    except OSError as error:
        complain(f"{path}: {error.strerror}")
        sys.exit(73)


def statistics(sets):
    """Table 2 of PairSupCon: texts, classes, the largest and the smallest class, each beside the
    published number; mean words and different words. The published words are in no source here.
    """
    yield (
        "set",
        "texts",
        "published",
        "classes",
        "published",
        "largest",
        "published",
        "smallest",
        "published",
        "words",
        "vocabulary",
    )
    for name, rows in sets.items():
        published_rows, published_classes, smallest, largest = SETS[name].expected
        sizes = Counter(row["label"] for row in rows).values()
        words = [word for row in rows for word in row["text"].split()]
        yield (
            Path(name).name,
            f"{len(rows):,}",
            PRINTED.get(name, f"{published_rows:,}"),
            len(sizes),
            published_classes,
            f"{max(sizes):,}",
            f"{largest:,}",
            f"{min(sizes):,}",
            f"{smallest:,}",
            f"{len(words) / len(rows):.1f}",
            f"{len(set(words)):,}",
        )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # `| head`: close stdout where Python's exit cannot fail on it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)
