"""The examples that convert data, on small files in the distributed format; expected rows are by
hand.
"""

import base64
import gzip
import hashlib
import json
import random
import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from sentkit import Encoder
from support import DATA, ROOT, in_jsonl, load_script, write_rows

EXAMPLES = ROOT / "examples"


def snli(label, annotators, premise, hypothesis):
    """A line of snli_1.0_train.jsonl, with short parses."""
    kinds = {"1_binary": "( A )", "1": "(ROOT)", "2_binary": "( A )", "2": "(ROOT)"}
    parses = {f"sentence{kind}_parse": parse for kind, parse in kinds.items()}
    names = {
        "annotator_labels": annotators,
        "captionID": "1.jpg#4",
        "pairID": f"1.jpg#4r1{label[0]}",
    }
    texts = {"sentence1": premise, "sentence2": hypothesis, "gold_label": label}
    row = names | texts | parses
    return json.dumps(row, sort_keys=True) + "\n"


RIDER = "A person on a horse."
OUT = "A person is outdoors."
SNLI = (
    snli("neutral", ["neutral"], RIDER, 'A "race" is on.')
    + snli("contradiction", ["contradiction"], RIDER, "A person at a diner.")
    + snli(
        "-",
        ["entailment", "neutral", "neutral", "entailment"],
        "Two women embrace.",
        "The sisters hug.",
    )
    + snli("entailment", ["entailment"], RIDER, OUT)
)
# As in multinli_1.0_train.txt: quotes are text, empty columns of annotators end a line, or are
# missing.
MNLI = (
    "gold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
    "\tsentence1\tsentence2\tpromptID\tpairID\tgenre\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\n"
    'entailment\t( A )\t( A )\t(ROOT)\t(ROOT)\t"Well, yes.\tHe '
    "agrees.\t3\t3e\tfiction\tentailment\t\t\t\t\n"
    "entailment\t( A )\t( A )\t(ROOT)\t(ROOT)\tI don\u2019t go.\tI "
    "stay.\t7\t7e\ttelephone\tentailment\n"
    "contradiction\t( A )\t( A )\t(ROOT)\t(ROOT)\tI don\u2019t "
    "go.\tn/a\t7\t7c\ttelephone\tcontradiction\n"
    "entailment\t( A )\t( A )\t(ROOT)\t(ROOT)\tI don\u2019t go.\tI "
    "stay.\t7\t7e\ttelephone\tentailment\n"
    "neutral\t( A )\t( A )\t(ROOT)\t(ROOT)\tI don\u2019t go.\t \t7\t7n\ttelephone\tneutral\n"
)
# As in nli_for_simcse.csv and, of its first row, nli_train_posneg.csv.
SIMCSE = (
    'sent0,sent1,hard_neg\nyou know,"You ""know"", yes.","No, never."\nFun for adults.,Fun '
    "for all.,Dull.\n"
)
PAIRSUPCON = (
    'sentence1,sentence2,pairsimi\nyou know,"No, never.",0\nyou know,"You ""know"", yes.",1\n'
)

AGREES = "entailment"
UNKNOWN = "neutral"
DIFFERS = "contradiction"
STAY = ("I don\u2019t go.", "I stay.")
YES = ("you know", 'You "know", yes.', AGREES)
NO = ("you know", "No, never.", DIFFERS)
FUN = ("Fun for adults.", "Fun for all.", "Dull.")
# a file, its pairs and triplets, and its rows: of the three labels, of none, and with an empty text
NLI = {
    "SNLI": (
        *("part.jsonl", SNLI),
        [
            (RIDER, 'A "race" is on.', UNKNOWN),
            (RIDER, "A person at a diner.", DIFFERS),
            (RIDER, OUT, AGREES),
        ],
        *([(RIDER, OUT, "A person at a diner.")], (1, 1, 1, 1, 0)),
    ),
    "MNLI": (
        *("part.txt", MNLI),
        [
            ('"Well, yes.', "He agrees.", AGREES),
            (*STAY, AGREES),
            (STAY[0], "n/a", DIFFERS),
            (*STAY, AGREES),
        ],
        *([(*STAY, "n/a")], (3, 1, 1, 0, 1)),
    ),
    "SimCSE": (
        *("a.csv", SIMCSE, [YES, NO, (*FUN[:2], AGREES), (FUN[0], FUN[2], DIFFERS)]),
        *([(*YES[:2], NO[1]), FUN], (2, 0, 2, 0, 0)),
    ),
    "PairSupCon": ("b.csv", PAIRSUPCON, [NO, YES], [(*YES[:2], NO[1])], (1, 0, 1, 0, 0)),
}


@pytest.fixture
def run(execute, tmp_path):
    def call(name, *arguments):
        program = "sh" if name.endswith(".sh") else "python3"
        return execute([program, EXAMPLES / name, *arguments], tmp_path)

    return call


def values(text):
    return [tuple(json.loads(line).values()) for line in text.splitlines()]


@pytest.mark.parametrize("data", NLI)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_inference_data_becomes_rows(run, tmp_path, data, suffix):
    name, text, pairs, triplets, counts = NLI[data]
    name += suffix
    content = text.encode()
    if suffix:
        content = gzip.compress(content)
    (tmp_path / name).write_bytes(content)
    with_pairs = run("nli_rows.py", name)
    with_triplets = run("nli_rows.py", "--triplets", name)

    assert (with_pairs.returncode, values(with_pairs.stdout)) == (0, pairs)
    assert (with_triplets.returncode, values(with_triplets.stdout)) == (0, triplets)
    kinds = (AGREES, UNKNOWN, DIFFERS, "-", "with an empty text")
    said = ", ".join(f"{count} {kind}" for count, kind in zip(counts, kinds, strict=True))
    assert with_pairs.stderr == f"nli_rows.py: {name}: {said}\n"
    assert with_triplets.stderr == with_pairs.stderr
    for line in with_pairs.stdout.splitlines():
        assert list(json.loads(line)) == ["text_a", "text_b", "label"]
    for line in with_triplets.stdout.splitlines():
        assert list(json.loads(line)) == ["anchor", "positive", "negative"]


def test_inference_data_can_have_a_byte_order_mark(run, tmp_path):
    name, text, pairs, _, _ = NLI["SimCSE"]
    (tmp_path / name).write_text(text, encoding="utf-8-sig")

    assert values(run("nli_rows.py", name).stdout) == pairs


def test_inference_data_of_several_files(run, tmp_path):
    pairs = []
    triplets = []
    for data in ("SNLI", "MNLI", "SimCSE"):
        name, content, pairs_of_file, triplets_of_file, _ = NLI[data]
        (tmp_path / name).write_text(content)
        pairs += pairs_of_file
        triplets += triplets_of_file
    done = run("nli.sh", "out", "part.jsonl", "part.txt", "a.csv")

    assert (done.returncode, done.stdout) == (0, "pairs.jsonl: 11 rows\ntriplets.jsonl: 4 rows\n")
    assert values((tmp_path / "out/pairs.jsonl").read_text()) == pairs
    assert sorted(values((tmp_path / "out/triplets.jsonl").read_text())) == sorted(triplets)


@pytest.mark.skipif(not (DATA / "nli").is_dir(), reason="needs the NLI data")
def test_the_triplets_of_real_pairs_are_those_of_another_program(run, tmp_path):
    with gzip.open(DATA / "nli/train.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    with gzip.open(DATA / "nli/triplets.jsonl.gz", "rt") as file:
        expected = sorted(values(file.read()))
    distributed = [
        {"sentence1": row["text_a"], "sentence2": row["text_b"], "gold_label": row["label"]}
        for row in rows
    ]
    (tmp_path / "part.jsonl").write_text(in_jsonl(*distributed))
    done = run("nli_rows.py", "--triplets", "part.jsonl")

    assert sorted(values(done.stdout)) == expected


# Lines of WordNet 3.0 with fewer pointers: the license, an adjective with a marker, a quote in a
# gloss.
WORDNET = {
    "data.verb": (
        "  1 This software and database is being provided to you, the LICENSEE, by  \n"
        "00001740 29 v 04 breathe 0 take_a_breath 0 respire 0 suspire 3 001 * 00005041 v 0000 01 + "
        "02 00 "
        '| draw air into, and expel out of, the lungs; "I can breathe better"; "The patient is '
        'respiring"  \n'
    ),
    "data.adj": (
        '00013662 00 s 01 galore(ip) 0 001 & 00013160 a 0000 | existing in abundance; "whiskey '
        'galore"  \n'
        '00002312 00 a 02 abaxial 0 dorsal 4 001 ;c 06037666 n 0000 | facing away; from the "axis" '
        " \n"
    ),
}
BREATH = "draw air into, and expel out of, the lungs"
WORDNET_ROWS = [
    *((word, BREATH) for word in ("breathe", "take a breath", "respire", "suspire")),
    ("galore", "existing in abundance"),
    ("abaxial", 'facing away; from the "axis"'),
    ("dorsal", 'facing away; from the "axis"'),
]
# Of the Oxford and the WordNet data of Ishiwatari et al.
ISHIWATARI = (
    "dorsal%oxford.0\tpos\toxford\ton the upper side ( of a dog , say ) ; it is n't `` below "
    "''\t[]\t[]\n"
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
DEFSENT_PLUS_ROWS = [
    ("caf\u00e9", "a small restaurant"),
    ("caf\u00e9", "a bar"),
    ("dorsal", "on the back"),
]


@pytest.mark.parametrize(
    ("files", "rows"),
    [
        (WORDNET, WORDNET_ROWS),
        ({"train.txt": ISHIWATARI}, ISHIWATARI_ROWS),
        ({"a.jsonl": '{"pos": "n", "definition": " a  b", "entry": "x"}\n\n'}, [("x", "a b")]),
        ({"a.tsv": "x\ta b\n\n"}, [("x", "a b")]),
    ],
    ids=["WordNet", "Ishiwatari", "JSONL", "TSV"],
)
def test_a_dictionary_becomes_rows(run, tmp_path, files, rows):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    done = run("dictionary_rows.py", *files)

    assert (done.returncode, values(done.stdout)) == (0, rows)
    assert all(
        list(json.loads(line)) == ["entry", "definition"] for line in done.stdout.splitlines()
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
def test_the_dictionary_of_defsent_plus_has_an_entry_in_a_line(run, tmp_path, encoding):
    (tmp_path / "Ox+WN.csv").write_bytes(DEFSENT_PLUS.encode(encoding))

    assert values(run("dictionary_rows.py", "Ox+WN.csv").stdout) == DEFSENT_PLUS_ROWS


def test_merged_dictionaries_have_the_definitions_of_an_entry_together(run, tmp_path):
    (tmp_path / "data.adj").write_text(WORDNET["data.adj"])
    (tmp_path / "train.txt").write_text(ISHIWATARI)
    (tmp_path / "b.tsv").write_text("galore\texisting in  abundance\ndorsal\ton the back\n")
    done = run("dictionary_rows.py", "data.adj", "train.txt", "b.tsv")

    assert values(done.stdout) == [
        *WORDNET_ROWS[4:],
        *ISHIWATARI_ROWS[:2],
        ("dorsal", "on the back"),
        ISHIWATARI_ROWS[2],
    ]
    assert done.stderr.splitlines()[1] == "dictionary_rows.py: train.txt: 4 definitions"


def test_a_dictionary_has_a_table(tmp_path, execute):
    """Lengths by hand with the pieces of nano: [CLS] and [SEP], and a token for each word
    and sign.
    """
    lines = ("dog\tan animal<|list_more_def|>a bad thing.", "cat\tan animal", "old dog\tit is old")
    (tmp_path / "a.tsv").write_text("".join(f"{line}\n" for line in lines))
    command = ["sh", EXAMPLES / "dictionary.sh", "out.jsonl", "a.tsv"]
    tables = []
    for more in ({}, {"SINGLE": "yes"}, {"SAMPLE": "--entries 1 --min-definitions 2"}):
        done = execute(command, tmp_path, TOKENIZER=str(ROOT / "sentkit/nano"), **more)
        assert done.returncode == 0, done.stderr
        tables.append(done.stdout.splitlines()[1].split("\t"))

    assert (
        done.stdout.splitlines()[0] == "definitions\tentries\tper entry\tmean tokens\tmost tokens"
    )
    assert tables == [
        ["4", "3", "1.33", "4.75", "6"],  # 4, 6, 4, 5
        ["3", "2", "1.50", "4.67", "6"],
        ["2", "1", "2.00", "5.00", "6"],
    ]
    assert values((tmp_path / "out.jsonl").read_text()) == [
        ("dog", "an animal"),
        ("dog", "a bad thing."),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tsv", "out.jsonl"]


# The files of GLUE as distributed: quotes are text, SST-2 has blanks at the end, MRPC has a byte
# order mark.
GLUE = {
    "SST-2": (
        'sentence\tlabel\nhide new secretions from the parental units \t0\nthat "loves" its '
        "characters \t1\n",
        [
            ("hide new secretions from the parental units ", "0"),
            ('that "loves" its characters ', "1"),
        ],
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
        "index\tquestion\tsentence\tlabel\n0\tWhat?\tThat "
        '"came".\tentailment\n1\tWho?\tI.\tnot_entailment\n',
        [("What?", 'That "came".', "entailment"), ("Who?", "I.", "not_entailment")],
    ),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel\n0\tNo weapons found.\tWeapons "
        "found.\tnot_entailment\n",
        [("No weapons found.", "Weapons found.", "not_entailment")],
    ),
    "STS-B": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tAn air plane.\t5.000\n",
        [("A plane.", "An air plane.", 5.0)],
    ),
}


@pytest.mark.parametrize("task", GLUE)
def test_glue_becomes_rows(run, tmp_path, task):
    content, rows = GLUE[task]
    (tmp_path / "train.tsv").write_text(content, newline="")
    done = run("glue_rows.py", "train.tsv")
    fields = ["text_a", "text_b", "label"]
    if task in ("SST-2", "CoLA"):
        fields = ["text", "label"]
    elif task == "STS-B":
        fields = ["text_a", "text_b", "score"]

    assert (done.returncode, done.stderr) == (0, "")
    assert values(done.stdout) == rows
    assert list(json.loads(done.stdout.splitlines()[0])) == fields


def test_glue_is_divided_after_the_first_tenth(run, tmp_path):
    """A tenth of 25 rows is 2."""
    lines = (f"text {i} \t{i % 2}\n" for i in range(25))
    (tmp_path / "dev.tsv").write_text("".join(["sentence\tlabel\n", *lines]))
    whole = run("glue_rows.py", "dev.tsv").stdout.splitlines()
    validation = run("glue_rows.py", "--part", "validation", "dev.tsv").stdout.splitlines()
    test = run("glue_rows.py", "--part", "test", "dev.tsv").stdout.splitlines()

    assert (len(whole), len(validation)) == (25, 2)
    assert validation + test == whole


def write_sources(folder, sentences):
    """Sentences, pairs of which one has equal texts, and nouns of WordNet; `raft` is held out."""
    pairs = [
        {"text_a": "A man sails.", "text_b": "A man moves."},
        {"text_a": "Same.", "text_b": "Same."},
    ]
    synsets = [
        {"entry": entry, "definition": f"a kind of {entry}", "pos": "n", "synset": f"{n}-n"}
        for n, entry in ((50, "boat"), (57, "raft"), (60, "ship"))
    ]
    (folder / "wiki.txt").write_text("".join(f"{sentence}\n" for sentence in sentences))
    write_rows(folder, {"nli": pairs, "wordnet": synsets})


def test_only_a_line_feed_ends_a_line_of_the_texts_for_distillation(tmp_path):
    """JSON can contain other separators. Blank lines are skipped."""
    script = load_script(EXAMPLES / "distill_texts.py")
    texts = ["one\u2028two", "three\u2029four", "five\x85six"]
    rows = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    content = "\n\n".join(rows) + "\r\n \n"
    (tmp_path / "rows").write_text(content, newline="")
    (tmp_path / "rows.gz").write_bytes(gzip.compress(content.encode()))

    assert script.lines(str(tmp_path / "rows")) == rows
    assert script.lines(str(tmp_path / "rows.gz")) == rows
    for seed in range(40):
        assert script.partner("", [], random.Random(seed)) == ""


def test_the_second_stage_of_distillation_has_a_similar_text_beside_each_known_sentence(
    run, tmp_path
):
    sentences = [
        f"The city of Rome has {n} old bridges, which cross two rivers." for n in range(10, 90)
    ]
    write_sources(tmp_path, sentences)

    def stage(*first):
        done = run("distill_texts.py", "wiki.txt", "nli.jsonl", "wordnet.jsonl", *first)
        return [text for (text,) in values(done.stdout)]

    first_stage = set(stage())
    nouns = {"boat", "a kind of boat", "raft", "a kind of raft"}
    assert first_stage & nouns == {"boat", "a kind of boat"}

    pairs = ["A man sails.", "A man moves.", "Same.", "boat", "a kind of boat", "ship"]
    first = [*sentences[:60], *pairs]
    write_rows(tmp_path, {"first": [{"text": text} for text in first]})
    second = stage("first.jsonl")
    assert stage("first.jsonl") == second

    # A variant can be equal to its sentence, and is left out.
    assert 110 < len(second) <= 60 * 2 + 2 + 2
    # Equal texts, and a text without its definition.
    assert set(pairs) - set(second) == {"Same.", "ship"}
    partners = set(second) - set(first)
    headlines = {f"city of Rome {n} old bridges" for n in range(10, 70)}
    clauses = {f"The city of Rome has {n} old bridges" for n in range(10, 70)}
    assert headlines & partners
    assert clauses & partners
    words = {*f"{sentences[0]} bridges".split()}
    assert all({*re.sub(r"\d+", "10", text).split()} <= words for text in partners)


def test_passages_of_distillation_and_their_retrieval_test(run, tmp_path):
    """A tenth of the packages is only in the test; `is_held_out` words of WordNet are nowhere."""
    about = (
        "is a program that shows the rows of a table in a terminal, and that sorts them by "
        "some columns."
    )
    about += " It is small, and it needs no other program."
    packages = [
        f"Package: tool{n}\nDescription-md5: 0\nDescription-en: viewer of tables {n}\n"
        f" The tool with the number {n}\n {about}\n .\n  * a list\n Second part {n}.\n"
        for n in range(30)
    ]
    without_synopsis = packages[0].replace("viewer of tables 0", "").replace("The tool", "Nameless")
    packages = [*packages, packages[0], "Package: bare\n", without_synopsis]
    (tmp_path / "packages").write_text("\n".join(packages))
    sentences = [
        f"The city of Rome has {n} old bridges, which cross two rivers." for n in range(10, 30)
    ]
    write_sources(tmp_path, sentences)

    def stage():
        done = run("passage_texts.py", "wiki.txt", "nli.jsonl", "wordnet.jsonl", "packages", "dev")
        return done.stdout

    output = stage()
    texts = {text for (text,) in values(output)}
    corpus = [json.loads(line)["text"] for line in (tmp_path / "dev/corpus.jsonl").open()]
    queries = [json.loads(line)["text"] for line in (tmp_path / "dev/queries.jsonl").open()]
    _, *qrels = (tmp_path / "dev/qrels.tsv").read_text().splitlines()

    # The retrieval test: the tools whose names have a hash that ends with the digit 3.
    in_test = []
    for n in range(30):
        digest = hashlib.sha256(f"tool{n}".encode()).hexdigest()
        if int(digest, 16) % 10 == 3:
            in_test.append(n)
    assert 0 < len(in_test) < 30
    assert queries == [f"viewer of tables {n}" for n in in_test]
    assert corpus == [f"The tool with the number {n} {about} Second part {n}." for n in in_test]
    assert qrels == [f"q{i}\tc{i}\t1" for i in range(len(in_test))]

    assert not any(text.startswith("Nameless") for text in [*texts, *corpus])

    # The texts: of the other tools, of WordNet, and passages of known sentences.
    in_texts = [n for n in range(30) if n not in in_test]
    synopses = {f"viewer of tables {n}" for n in range(30)}
    assert texts & synopses == {f"viewer of tables {n}" for n in in_texts}
    assert sum(text.startswith("The tool") for text in texts) == len(in_texts)
    nouns = {"boat", "a kind of boat", "raft", "a kind of raft"}
    assert texts & nouns == {"boat", "a kind of boat"}
    passages = [text for text in texts if text.count("The city of Rome has") > 1]
    assert len(passages) > 10
    for passage in passages:
        assert set(re.findall(r"[^.]+\.", passage.replace(". ", "."))) <= set(sentences)
    assert stage() == output


@pytest.mark.parametrize(
    ("script", "name", "content", "problem"),
    [
        ("nli_rows.py", "a.jsonl", SNLI + "{\n", "row 5: Expecting property name"),
        (
            "nli_rows.py",
            "a.jsonl",
            SNLI.replace('": "neutral', '": "maybe'),
            "row 1: unknown label",
        ),
        ("nli_rows.py", "a.csv", PAIRSUPCON + "a,b,2\n", 'row 3: unknown label "2"'),
        ("nli_rows.py", "a.txt", MNLI + "neutral\t( A )\n", "row 6: expected texts in "),
        ("nli_rows.py", "snli_1.0_train.jsonl", SNLI, None),
        (
            "dictionary_rows.py",
            "data.noun",
            "00001740 03 n 01 entity 0 003 ~ 0001\n",
            "line 1: not of a known",
        ),
        (
            "dictionary_rows.py",
            "a.jsonl",
            '{"entry": 1, "definition": "b"}\n',
            "line 1: not of a known",
        ),
        (
            "dictionary_rows.py",
            "a.csv",
            "a\tb\nc,d\n",
            "line 2: not of a known format: expected columns with tabs between them",
        ),
        (
            "dictionary_rows.py",
            "a.jsonl",
            '{"entry": "a"}\n',
            "line 1: not of a known format: 'definition' is missing",
        ),
        (
            "glue_rows.py",
            "test.tsv",
            "index\tsentence\n0\tuneasy .\n",
            "1: not a labelled file of SST-2",
        ),
        ("glue_rows.py", "test.tsv", "sentence\tlabel\na \t1\nb\n", "3: too few columns"),
        (
            "glue_rows.py",
            "test.tsv",
            "sentence1\tsentence2\tscore\na\tb\tx\n",
            "2: could not convert",
        ),
        (
            "glue_rows.py",
            "test.tsv",
            "sentence1\tsentence2\tscore\na\tb\t1\nc\td\tnan\n",
            '3: the score "nan" is not a number',
        ),
    ],
)
def test_a_bad_file_is_named(run, tmp_path, script, name, content, problem):
    """So is a part of a known file, for which the published numbers of rows are printed."""
    (tmp_path / name).write_text(content)
    done = run(script, name)

    assert done.returncode == 1
    if problem is None:
        assert f"{name}: not complete; published: 183,416 entailment, " in done.stderr
    else:
        assert re.match(rf"{script}: {name}: ?{re.escape(problem)}", done.stderr)


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("rank_scores.py", "PAIRS CORPUS [WEIGHT]"),
        ("two_teachers.py", "STUDENT PAIRS_A PAIRS_B PASSAGES_A PASSAGES_B"),
        ("distill_texts.py", "WIKI NLI WORDNET [FIRST]"),
        ("passage_texts.py", "WIKI NLI WORDNET PACKAGES DEV"),
    ],
)
def test_a_wrong_number_of_arguments_prints_the_usage(run, script, arguments):
    for words in (["a"], ["a"] * 7):
        done = run(script, *words)

        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"Usage: python examples/{script} {arguments}")


def test_two_teachers_have_the_mean_of_their_cosines(run, tmp_path):
    """With fewer texts than dimensions, no part of the vectors is lost."""
    texts = (EXAMPLES / "data/titles.txt").read_text().splitlines()[:24]
    pairs = texts[:10]
    passages = texts[10:]
    inputs = {
        "pairs-nano": pairs,
        "pairs-static": pairs,
        "passages-nano": passages,
        "passages-static": passages[:9],
    }
    units = {"nano": {}, "static": {}}  # teacher -> text -> its vector with unit length
    for file, rows in inputs.items():
        _, _, teacher = file.partition("-")
        vectors = np.asarray(Encoder(teacher).encode(rows), np.float64)
        lines = in_jsonl(*({"text": text} for text in rows)).encode()
        tensors = {"embeddings": vectors.astype(np.float32), "rows": np.frombuffer(lines, np.uint8)}
        save_file(tensors, tmp_path / file)
        for text, vector in zip(rows, vectors, strict=True):
            units[teacher][text] = vector / np.linalg.norm(vector)

    done = run("two_teachers.py", "nano", *inputs)
    targets = {}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        content = base64.b64decode(row["embedding"])
        targets[row["text"]] = np.frombuffer(content, "<f4").astype(np.float64)

    assert sorted(targets) == sorted(texts)
    for a in texts[:19]:
        for b in texts[:19]:
            cosine_nano = units["nano"][a] @ units["nano"][b]
            cosine_static = units["static"][a] @ units["static"][b]
            expected = (cosine_nano + cosine_static) / 2
            assert targets[a] @ targets[b] == pytest.approx(expected, abs=1e-4)
    for target in targets.values():
        assert np.linalg.norm(target) == pytest.approx(1, abs=1e-4)
    # The targets are turned to the student.
    assert np.mean([targets[text] @ units["nano"][text] for text in texts]) > 0.5
