"""The examples that convert data, on small files in the distributed format; expected rows are by hand."""

import base64
import gzip
import hashlib
import io
import json
import re
import runpy
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from unittest.mock import patch

import numpy as np
import pytest
from safetensors.numpy import save_file

from sentkit import Encoder
from support import DATA, ROOT, in_jsonl, write_rows

EXAMPLES = ROOT / "examples"


def snli(label, annotators, premise, hypothesis):
    """A line of snli_1.0_train.jsonl, with short parses."""
    parses = {
        f"sentence{n}{kind}_parse": parse
        for n in "12"
        for kind, parse in (("_binary", "( A )"), ("", "(ROOT)"))
    }
    names = {"annotator_labels": annotators, "captionID": "1.jpg#4", "pairID": f"1.jpg#4r1{label[0]}"}
    texts = {"sentence1": premise, "sentence2": hypothesis, "gold_label": label}
    return json.dumps(dict(sorted((names | texts | parses).items()))) + "\n"


RIDER = "A person on a horse."
SNLI = (
    snli("neutral", ["neutral"], RIDER, 'A "race" is on.')
    + snli("contradiction", ["contradiction"], RIDER, "A person at a diner.")
    + snli("-", ["entailment", "neutral", "neutral", "entailment"], "Two women embrace.", "The sisters hug.")
    + snli("entailment", ["entailment"], RIDER, "A person is outdoors.")
)
# As in multinli_1.0_train.txt: quotes are text, empty columns of annotators end a line, or are missing.
MNLI = (
    "gold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
    "\tsentence1\tsentence2\tpromptID\tpairID\tgenre\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\n"
    'entailment\t( A )\t( A )\t(ROOT)\t(ROOT)\t"Well, yes.\tHe agrees.\t3\t3e\tfiction\tentailment\t\t\t\t\n'
    "entailment\t( A )\t( A )\t(ROOT)\t(ROOT)\tI don\u2019t go.\tI stay.\t7\t7e\ttelephone\tentailment\n"
    "contradiction\t( A )\t( A )\t(ROOT)\t(ROOT)\tI don\u2019t go.\tn/a\t7\t7c\ttelephone\tcontradiction\n"
    "entailment\t( A )\t( A )\t(ROOT)\t(ROOT)\tI don\u2019t go.\tI stay.\t7\t7e\ttelephone\tentailment\n"
    "neutral\t( A )\t( A )\t(ROOT)\t(ROOT)\tI don\u2019t go.\t \t7\t7n\ttelephone\tneutral\n"
)
# As in nli_for_simcse.csv and, of its first row, nli_train_posneg.csv.
SIMCSE = (
    'sent0,sent1,hard_neg\nyou know,"You ""know"", yes.","No, never."\nFun for adults.,Fun for all.,Dull.\n'
)
PAIRSUPCON = 'sentence1,sentence2,pairsimi\nyou know,"No, never.",0\nyou know,"You ""know"", yes.",1\n'

SNLI_PAIRS = [
    ("A person on a horse.", 'A "race" is on.', "neutral"),
    ("A person on a horse.", "A person at a diner.", "contradiction"),
    ("A person on a horse.", "A person is outdoors.", "entailment"),
]
MNLI_PAIRS = [
    ('"Well, yes.', "He agrees.", "entailment"),
    ("I don\u2019t go.", "I stay.", "entailment"),
    ("I don\u2019t go.", "n/a", "contradiction"),
    ("I don\u2019t go.", "I stay.", "entailment"),
]
SIMCSE_PAIRS = [
    ("you know", 'You "know", yes.', "entailment"),
    ("you know", "No, never.", "contradiction"),
    ("Fun for adults.", "Fun for all.", "entailment"),
    ("Fun for adults.", "Dull.", "contradiction"),
]
SNLI_TRIPLETS = [("A person on a horse.", "A person is outdoors.", "A person at a diner.")]
MNLI_TRIPLETS = [("I don\u2019t go.", "I stay.", "n/a")]
SIMCSE_TRIPLETS = [
    ("you know", 'You "know", yes.', "No, never."),
    ("Fun for adults.", "Fun for all.", "Dull."),
]


def run(program, *arguments, folder):
    """Run a script of Python in this process, and one of the shell in a new process."""
    if program.endswith(".sh"):
        command = ["sh", EXAMPLES / program, *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    code, out, err = 0, io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    given = patch.object(sys, "argv", [program, *arguments])
    with given, chdir(folder), redirect_stdout(out), redirect_stderr(err):
        try:
            runpy.run_path(str(EXAMPLES / program), run_name="__main__")
        except SystemExit as ended:
            code = ended.code or 0
    if isinstance(code, str):  # a message
        code = err.write(f"{code}\n") and 1
    out.flush()
    return subprocess.CompletedProcess(program, code, out.buffer.getvalue().decode(), err.getvalue())


def values(text):
    return [tuple(json.loads(line).values()) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("name", "content", "pairs", "triplets", "counts"),
    [
        ("part.jsonl", SNLI, SNLI_PAIRS, SNLI_TRIPLETS, (1, 1, 1, 1, 0)),
        ("part.txt", MNLI, MNLI_PAIRS, MNLI_TRIPLETS, (3, 1, 1, 0, 1)),
        ("a.csv", SIMCSE, SIMCSE_PAIRS, SIMCSE_TRIPLETS, (2, 0, 2, 0, 0)),
        ("b.csv", PAIRSUPCON, SIMCSE_PAIRS[1::-1], SIMCSE_TRIPLETS[:1], (1, 0, 1, 0, 0)),
    ],
    ids=["SNLI", "MNLI", "SimCSE", "PairSupCon"],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_inference_data_becomes_rows(tmp_path, name, content, pairs, triplets, counts, suffix):
    name += suffix
    (tmp_path / name).write_bytes(gzip.compress(content.encode()) if suffix else content.encode())
    made = run("nli_rows.py", name, folder=tmp_path)
    of_three = run("nli_rows.py", "--triplets", name, folder=tmp_path)

    assert (made.returncode, values(made.stdout)) == (0, pairs)
    assert (of_three.returncode, values(of_three.stdout)) == (0, triplets)
    told = "{}: {} entailment, {} neutral, {} contradiction, {} -, {} with an empty text\n"
    assert made.stderr == of_three.stderr == "nli_rows.py: " + told.format(name, *counts)
    assert [list(json.loads(line)) for line in (made.stdout + of_three.stdout).splitlines()] == [
        *[["text_a", "text_b", "label"]] * len(pairs),
        *[["anchor", "positive", "negative"]] * len(triplets),
    ]


def test_inference_data_of_several_files(tmp_path):
    for name, content in (("part.jsonl", SNLI), ("part.txt", MNLI), ("a.csv", SIMCSE)):
        (tmp_path / name).write_text(content)
    done = run("nli.sh", "out", "part.jsonl", "part.txt", "a.csv", folder=tmp_path)

    assert (done.returncode, done.stdout) == (0, "pairs.jsonl: 11 rows\ntriplets.jsonl: 4 rows\n")
    assert values((tmp_path / "out/pairs.jsonl").read_text()) == SNLI_PAIRS + MNLI_PAIRS + SIMCSE_PAIRS
    assert sorted(values((tmp_path / "out/triplets.jsonl").read_text())) == sorted(
        SNLI_TRIPLETS + MNLI_TRIPLETS + SIMCSE_TRIPLETS
    )


@pytest.mark.skipif(not (DATA / "nli").is_dir(), reason="needs the NLI data")
def test_the_triplets_of_real_pairs_are_those_of_another_program(tmp_path):
    with gzip.open(DATA / "nli/train.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    with gzip.open(DATA / "nli/triplets.jsonl.gz", "rt") as file:
        expected = sorted(values(file.read()))
    names = {"text_a": "sentence1", "text_b": "sentence2", "label": "gold_label"}
    renamed = ({new: row[old] for old, new in names.items()} for row in rows)
    (tmp_path / "part.jsonl").write_text(in_jsonl(*renamed))
    done = run("nli_rows.py", "--triplets", "part.jsonl", folder=tmp_path)

    assert sorted(values(done.stdout)) == expected


# Lines of WordNet 3.0 with fewer pointers: the license, an adjective with a marker, a quote in a gloss.
WORDNET = {
    "data.verb": (
        "  1 This software and database is being provided to you, the LICENSEE, by  \n"
        "00001740 29 v 04 breathe 0 take_a_breath 0 respire 0 suspire 3 001 * 00005041 v 0000 01 + 02 00 "
        '| draw air into, and expel out of, the lungs; "I can breathe better"; "The patient is respiring"  \n'
    ),
    "data.adj": (
        '00013662 00 s 01 galore(ip) 0 001 & 00013160 a 0000 | existing in abundance; "whiskey galore"  \n'
        '00002312 00 a 02 abaxial 0 dorsal 4 001 ;c 06037666 n 0000 | facing away; from the "axis"  \n'
    ),
}
WORDNET_ROWS = [
    *(
        (word, "draw air into, and expel out of, the lungs")
        for word in ("breathe", "take a breath", "respire", "suspire")
    ),
    ("galore", "existing in abundance"),
    ("abaxial", 'facing away; from the "axis"'),
    ("dorsal", 'facing away; from the "axis"'),
]
# Of the Oxford and the WordNet data of Ishiwatari et al.
ISHIWATARI = (
    "dorsal%oxford.0\tpos\toxford\ton the upper side ( of a dog , say ) ; it is n't `` below ''\t[]\t[]\n"
    "dorsal%oxford.1\tpos\toxford\ta fish 's fin .\t[]\t[]\n"
    "dorsal%oxford.1\tpos\toxford\ta fish 's fin .\t[]\t[]\n"
    "take_a_breath%2:29:00::\tv\twordnet\tto breathe\n"
)
ISHIWATARI_ROWS = [
    ("dorsal", 'on the upper side (of a dog, say); it isn\'t "below"'),
    ("dorsal", "a fish's fin."),
    ("take a breath", "to breathe"),
]
DEFSENT_PLUS = "caf\u00e9\ta small restaurant<|list_more_def|>a bar\ndorsal\ton the back\n"
DEFSENT_PLUS_ROWS = [("caf\u00e9", "a small restaurant"), ("caf\u00e9", "a bar"), ("dorsal", "on the back")]


@pytest.mark.parametrize(
    ("files", "rows"),
    [
        (WORDNET, WORDNET_ROWS),
        ({"train.txt": ISHIWATARI}, ISHIWATARI_ROWS),
        ({"a.jsonl": '{"pos": "n", "definition": " a  b", "entry": "x"}\n'}, [("x", "a b")]),
    ],
    ids=["WordNet", "Ishiwatari", "JSONL"],
)
def test_a_dictionary_becomes_rows(tmp_path, files, rows):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    done = run("dictionary_rows.py", *files, folder=tmp_path)

    assert (done.returncode, values(done.stdout)) == (0, rows)
    assert all(list(json.loads(line)) == ["entry", "definition"] for line in done.stdout.splitlines())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
def test_the_dictionary_of_defsent_plus_has_an_entry_in_a_line(tmp_path, encoding):
    (tmp_path / "Ox+WN.csv").write_bytes(DEFSENT_PLUS.encode(encoding))

    assert values(run("dictionary_rows.py", "Ox+WN.csv", folder=tmp_path).stdout) == DEFSENT_PLUS_ROWS


def test_merged_dictionaries_have_the_definitions_of_an_entry_together(tmp_path):
    (tmp_path / "data.adj").write_text(WORDNET["data.adj"])
    (tmp_path / "train.txt").write_text(ISHIWATARI)
    (tmp_path / "b.tsv").write_text("galore\texisting in  abundance\ndorsal\ton the back\n")
    done = run("dictionary_rows.py", "data.adj", "train.txt", "b.tsv", folder=tmp_path)

    assert values(done.stdout) == [
        *WORDNET_ROWS[4:], *ISHIWATARI_ROWS[:2], ("dorsal", "on the back"), ISHIWATARI_ROWS[2],
    ]  # fmt: skip
    assert done.stderr.splitlines()[1] == "dictionary_rows.py: train.txt: 4 definitions"


def test_a_dictionary_has_a_table(tmp_path, execute):
    """Lengths by hand with the pieces of nano: [CLS] and [SEP], and a token for each word and sign."""
    (tmp_path / "a.tsv").write_text(
        "dog\tan animal<|list_more_def|>a bad thing.\ncat\tan animal\nold dog\tit is old\n"
    )
    command = ["sh", EXAMPLES / "dictionary.sh", "out.jsonl", "a.tsv"]
    tables = []
    for more in ({}, {"SINGLE": "yes"}, {"SAMPLE": "--entries 1 --min-definitions 2"}):
        done = execute(command, tmp_path, TOKENIZER=str(ROOT / "sentkit/nano"), **more)
        assert done.returncode == 0, done.stderr
        tables.append(done.stdout.splitlines()[1].split("\t"))

    assert done.stdout.splitlines()[0] == "definitions\tentries\tper entry\tmean tokens\tmost tokens"
    assert tables == [
        ["4", "3", "1.33", "4.75", "6"],  # 4, 6, 4, 5
        ["3", "2", "1.50", "4.67", "6"],
        ["2", "1", "2.00", "5.00", "6"],
    ]
    assert values((tmp_path / "out.jsonl").read_text()) == [("dog", "an animal"), ("dog", "a bad thing.")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tsv", "out.jsonl"]


# The files of GLUE as distributed: quotes are text, SST-2 has blanks at the end, MRPC has a byte order mark.
GLUE = {
    "SST-2": (
        'sentence\tlabel\nhide new secretions from the parental units \t0\nthat "loves" its characters \t1\n',
        [("hide new secretions from the parental units ", "0"), ('that "loves" its characters ', "1")],
    ),
    "CoLA": (
        'gj04\t1\t\tOur friends won\'t buy this analysis.\nks08\t0\t*\tThem love "us".\n',
        [("Our friends won't buy this analysis.", "1"), ('Them love "us".', "0")],
    ),
    "MRPC": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
        '1\t702876\t702977\tHe called "the witness" .\tHe said " witness .\r\n',
        [('He called "the witness" .', 'He said " witness .', "1")],
    ),
    "QNLI": (
        'index\tquestion\tsentence\tlabel\n0\tWhat came after?\tThat day, it "came".\tentailment\n'
        "1\tWhere?\tIn 1990.\tnot_entailment\n",
        [
            ("What came after?", 'That day, it "came".', "entailment"),
            ("Where?", "In 1990.", "not_entailment"),
        ],
    ),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel\n0\tNo weapons found.\tWeapons found.\tnot_entailment\n",
        [("No weapons found.", "Weapons found.", "not_entailment")],
    ),
    "STS-B": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tAn air plane.\t5.000\n",
        [("A plane.", "An air plane.", 5.0)],
    ),
}


@pytest.mark.parametrize("task", GLUE)
def test_glue_becomes_rows(tmp_path, task):
    content, rows = GLUE[task]
    (tmp_path / "train.tsv").write_text(content, newline="")
    done = run("glue_rows.py", "train.tsv", folder=tmp_path)
    texts = ["text"] if len(rows[0]) == 2 else ["text_a", "text_b"]

    assert (done.returncode, done.stderr) == (0, "")
    assert values(done.stdout) == rows
    assert list(json.loads(done.stdout.splitlines()[0])) == [*texts, "score" if task == "STS-B" else "label"]


def test_glue_is_divided_after_the_first_tenth(tmp_path):
    """A tenth of 25 rows is 2."""
    (tmp_path / "dev.tsv").write_text(
        "sentence\tlabel\n" + "".join(f"text {i} \t{i % 2}\n" for i in range(25))
    )
    whole, first, rest = (
        run("glue_rows.py", *part, "dev.tsv", folder=tmp_path).stdout.splitlines()
        for part in ([], ["--part", "validation"], ["--part", "test"])
    )

    assert (len(whole), len(first), first + rest) == (25, 2, whole)


SENTENCES = [f"The city of Rome has {n} old bridges, which cross two rivers." for n in range(10, 90)]


@pytest.fixture
def sources(tmp_path):
    """The texts of distillation: sentences, pairs and definitions, of which that of raft is held out."""
    (tmp_path / "wiki.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    pairs = [{"text_a": "A man sails.", "text_b": "A man moves."}, {"text_a": "Same.", "text_b": "Same."}]
    synsets = [
        {"entry": entry, "definition": f"a kind of {entry}", "pos": "n", "synset": f"{n}-n"}
        for n, entry in ((50, "boat"), (57, "raft"), (60, "ship"))
    ]
    write_rows(tmp_path, {"nli": pairs, "wordnet": synsets})
    return "wiki.txt", "nli.jsonl", "wordnet.jsonl"


def test_the_second_stage_of_distillation_has_a_similar_text_beside_each_known_sentence(tmp_path, sources):
    inputs = ("distill_texts.py", *sources)

    first = [text for (text,) in values(run(*inputs, folder=tmp_path).stdout)]
    assert set(first) & {"boat", "a kind of boat", "raft", "a kind of raft"} == {"boat", "a kind of boat"}

    known = [*SENTENCES[:60], "A man sails.", "A man moves.", "Same.", "boat", "a kind of boat", "ship"]
    write_rows(tmp_path, {"first": [{"text": text} for text in known]})
    done = run(*inputs, "first.jsonl", folder=tmp_path)
    second = [text for (text,) in values(done.stdout)]
    assert run(*inputs, "first.jsonl", folder=tmp_path).stdout == done.stdout

    assert 110 < len(second) <= 60 * 2 + 2 + 2  # a variant can be equal to its sentence, and is left out
    assert set(known[60:]) - set(second) == {"Same.", "ship"}  # equal texts, and one without its definition
    made = set(second) - set(known)
    assert {f"city of Rome {n} old bridges" for n in range(10, 70)} & made  # a headline
    assert {f"The city of Rome has {n} old bridges" for n in range(10, 70)} & made  # a clause
    allowed = {*SENTENCES[0].split(), "bridges"}
    assert all(allowed.issuperset(re.sub(r"\d+", "10", text).split()) for text in made)


def test_passages_of_distillation_and_their_retrieval_test(tmp_path, sources, monkeypatch):
    """A tenth of the packages is only in the test; `is_held_out` words of WordNet are nowhere."""
    monkeypatch.syspath_prepend(EXAMPLES)
    about = "is a program that shows the rows of a table in a terminal, and that sorts them by some columns."
    about += " It is small, and it needs no other program."
    packages = [
        f"Package: tool{n}\nDescription-md5: 0\nDescription-en: viewer of tables {n}\n"
        f" The tool with the number {n}\n {about}\n .\n  * a list\n Second part {n}.\n"
        for n in range(30)
    ]
    (tmp_path / "packages").write_text("\n".join([*packages, packages[0], "Package: bare\n"]))
    inputs = ("passage_texts.py", *sources, "packages", "dev")

    done = run(*inputs, folder=tmp_path)
    texts = {text for (text,) in values(done.stdout)}
    corpus, queries = (
        [row["text"] for row in map(json.loads, (tmp_path / f"dev/{name}.jsonl").read_text().splitlines())]
        for name in ("corpus", "queries")
    )
    marks = (tmp_path / "dev/qrels.tsv").read_text().splitlines()[1:]

    held = [n for n in range(30) if int(hashlib.sha256(f"tool{n}".encode()).hexdigest(), 16) % 10 == 3]
    described = [f"The tool with the number {n} {about}" for n in range(30)]
    assert 0 < len(held) < 30
    assert queries == [f"viewer of tables {n}" for n in held]
    assert corpus == [f"{described[n]} Second part {n}." for n in held]
    assert marks == [f"q{place}\tc{place}\t1" for place in range(len(held))]
    others = [n for n in range(30) if n not in held]
    assert texts & {f"viewer of tables {n}" for n in range(30)} == {f"viewer of tables {n}" for n in others}
    assert sum(text.startswith("The tool") for text in texts) == len(others)
    assert texts & {"boat", "a kind of boat", "raft", "a kind of raft"} == {"boat", "a kind of boat"}
    passages = [text for text in texts if text.count("The city of Rome has") > 1]
    assert len(passages) > 10
    assert all(set(re.findall(r"[^.]+\.", text.replace(". ", "."))) <= set(SENTENCES) for text in passages)
    assert run(*inputs, folder=tmp_path).stdout == done.stdout


@pytest.mark.parametrize(
    ("script", "name", "content", "problem"),
    [
        ("nli", "a.jsonl", SNLI + "{\n", "row 5: Expecting property name"),
        ("nli", "a.jsonl", SNLI.replace('label": "neutral', 'label": "maybe'), "row 1: unknown label"),
        ("nli", "a.csv", PAIRSUPCON + "a,b,2\n", 'row 3: unknown label "2"'),
        ("nli", "a.txt", MNLI + "neutral\t( A )\n", "row 6: expected texts in "),
        ("nli", "snli_1.0_train.jsonl", SNLI, None),
        ("dictionary", "data.noun", "00001740 03 n 01 entity 0 003 ~ 00001930\n", "line 1: not of a known"),
        ("dictionary", "a.jsonl", '{"entry": 1, "definition": "b"}\n', "line 1: not of a known format"),
        ("dictionary", "a.txt", "a\tb\nc\n", "line 2: not of a known format"),
        ("glue", "test.tsv", "index\tsentence\n0\tuneasy .\n", "1: not a labelled file of SST-2"),
        ("glue", "test.tsv", "sentence\tlabel\na \t1\nb\n", "3: too few columns"),
        ("glue", "test.tsv", "sentence1\tsentence2\tscore\na\tb\tx\n", "2: could not convert"),
    ],
)
def test_a_bad_file_is_named(tmp_path, script, name, content, problem):
    """So is a part of a known file, for which the published numbers of rows are printed."""
    (tmp_path / name).write_text(content)
    done = run(f"{script}_rows.py", name, folder=tmp_path)

    assert done.returncode == 1
    if problem is None:
        assert f"{name}: not complete; published: 183,416 entailment, " in done.stderr
    else:
        assert re.match(rf"{script}_rows.py: {name}: ?{re.escape(problem)}", done.stderr)


def test_two_teachers_have_the_mean_of_their_cosines(tmp_path):
    """With fewer texts than dimensions, no part of the vectors is lost."""
    texts = (EXAMPLES / "data/titles.txt").read_text().splitlines()[:24]
    names = {"pairs": texts[:10], "passages": texts[10:]}
    cosines = {}
    for name, count in (("nano", 14), ("static", 9)):
        encoder = Encoder(name)
        for part, own in names.items():
            rows = own if part == "pairs" else own[:count]
            vectors = np.asarray(encoder.encode(rows), np.float64)
            lines = [json.dumps({"text": text}).encode() + b"\n" for text in rows]
            tensors = {
                "embeddings": vectors.astype(np.float32),
                "rows": np.frombuffer(b"".join(lines), np.uint8),
            }
            save_file(tensors, tmp_path / f"{part}-{name}")
            for text, vector in zip(rows, vectors, strict=True):
                cosines[name, text] = vector / np.linalg.norm(vector)
    files = [f"{part}-{name}" for part in names for name in ("nano", "static")]

    done = run("two_teachers.py", "nano", *files, folder=tmp_path)
    found = {
        row["text"]: np.frombuffer(base64.b64decode(row["embedding"]), "<f4").astype(np.float64)
        for row in map(json.loads, done.stdout.splitlines())
    }

    assert sorted(found) == sorted(texts)
    for one in texts[:19]:
        for other in texts[:19]:
            expected = np.mean([cosines[name, one] @ cosines[name, other] for name in ("nano", "static")])
            assert found[one] @ found[other] == pytest.approx(expected, abs=1e-4)
    assert all(np.linalg.norm(vector) == pytest.approx(1, abs=1e-4) for vector in found.values())
    assert np.mean([found[text] @ cosines["nano", text] for text in texts]) > 0.5  # turned to the student
