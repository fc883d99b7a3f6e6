"""`sentkit predict`: classes and scores beside transformers, sentence-transformers and
scikit-learn.
"""

import json
import shutil
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from sentkit.formats.rows.rows import Inputs, Rejects
from sentkit.formats.vectors.first_row import from_first_row
from support import PAIRS, TEXTS, in_jsonl, logits_of, make_classifier

LABELS = ["entailment", "contradiction", "neutral"]
NLI = [
    {"text_a": a, "text_b": b, "gold": LABELS[n % 3]} for n, (a, b) in enumerate(pairwise(TEXTS))
]


def shares_of(result):
    return np.array([list(row["probabilities"].values()) for row in result.rows])


@pytest.mark.parametrize(
    ("kind", "columns", "config"),
    [
        *(("bert", 1, {}), ("modernbert", 1, {})),
        *((kind, 2, {}) for kind in ("roberta", "distilbert", "mpnet", "deberta-v2")),
        (
            "modernbert",
            2,
            {"classifier_pooling": "mean", "classifier_bias": True, "norm_eps": 1e-3},
        ),
    ],
)
def test_probabilities_are_those_of_transformers(sentkit, tmp_path, kind, columns, config):
    """DeBERTa runs through transformers, the others are packed."""
    folder = make_classifier(kind, 3, tmp_path / "model", **config)
    rows = NLI if columns == 2 else [{"text": text} for text in TEXTS]
    flags = ("--all", "--precision", "fp32", "-q")
    result = sentkit("predict", "-m", folder, *flags, stdin=in_jsonl(*rows))
    expected = [np.exp(row) / np.exp(row).sum() for row in logits_of(folder, rows)]

    assert (result.code, result.err) == (0, "")
    assert [row["label"] for row in result.rows] == [f"LABEL_{np.argmax(row)}" for row in expected]
    assert {tuple(row["probabilities"]) for row in result.rows} == {
        ("LABEL_0", "LABEL_1", "LABEL_2")
    }
    assert shares_of(result) == pytest.approx(np.array(expected), abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("convbert", {"embedding_size": 16}),
        ("convbert", {"embedding_size": 16, "max_position_embeddings": 8}),
        ("big_bird", {"block_size": 2, "num_random_blocks": 1}),
    ],
)
def test_a_classifier_that_reads_padding_gets_none(sentkit, tmp_path, kind, config):
    """The convolutions of ConvBERT read it, so a batch has texts of one length. BigBird reads long
    texts with another attention, also after short ones.
    """
    config = {**config, "initializer_range": 0.5}
    folder = make_classifier(kind, 3, tmp_path / "model", **config)
    flags = ("--all", "--precision", "fp32", "-q")
    rows = [{"text": text} for text in [*TEXTS, "the cat sleeps by the river " * 4]]
    together = shares_of(sentkit("predict", "-m", folder, *flags, stdin=in_jsonl(*rows)))
    for row, shares in zip(rows, together, strict=True):
        alone = sentkit("predict", "-m", folder, *flags, stdin=in_jsonl(row))
        assert shares_of(alone)[0] == pytest.approx(shares, abs=1e-5)
    if "max_position_embeddings" not in config:
        [logits] = logits_of(folder, rows[-1:])
        powers = np.exp(logits - logits.max())
        assert together[-1] == pytest.approx(powers / powers.sum(), abs=1e-5)


@pytest.mark.parametrize(
    ("config", "function"),
    [
        ({}, lambda x: 1 / (1 + np.exp(-x))),
        ({"problem_type": "regression"}, lambda x: x),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            lambda x: x,
        ),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh"}, np.tanh),
    ],
    ids=["sigmoid", "regression", "identity", "tanh"],
)
def test_one_output_is_a_score(sentkit, tmp_path, config, function):
    folder = make_classifier("bert", 1, tmp_path / "model", **config)
    result = sentkit(
        "predict", "-m", folder, "--precision", "fp32", "--name", "s", stdin=in_jsonl(*PAIRS)
    )

    expected = [function(value) for value in logits_of(folder, PAIRS)[:, 0]]
    assert [row["s"] for row in result.rows] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("declared", ["Sigmoid", "Identity", "Softmax"])
def test_a_cross_encoder_gives_its_scores(sentkit, tmp_path, declared):
    import torch
    from sentence_transformers import CrossEncoder

    base = make_classifier("bert", 1, tmp_path / "base")
    model = CrossEncoder(str(base), device="cpu", activation_fn=getattr(torch.nn, declared)())
    model.save_pretrained(str(tmp_path / "ce"))
    result = sentkit(
        "predict", "-m", "ce", "--precision", "fp32", "--replace", stdin=in_jsonl(*PAIRS)
    )
    expected = model.predict([(row["text_a"], row["text_b"]) for row in PAIRS]).ravel().tolist()

    assert result.code == 0
    assert [row["score"] for row in result.rows] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "declared",
    [
        {"tokenizer_class": "BertTokenizer"},
        {"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids", "attention_mask"]},
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        },
        {},
    ],
)
@pytest.mark.parametrize("kind", ["bert", "convbert"])
def test_a_cross_encoder_gets_the_token_types_of_its_tokenizer(sentkit, tmp_path, kind, declared):
    """ConvBERT runs through transformers."""
    from sentence_transformers import CrossEncoder

    folder = make_classifier(kind, 1, tmp_path / "ce")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["tokenizer_class"]
    path.write_text(json.dumps(config | declared))
    scores = CrossEncoder(str(folder), device="cpu").predict(
        [(row["text_a"], row["text_b"]) for row in PAIRS], batch_size=1
    )
    flags = ("--precision", "fp32", "--replace", "-q")
    result = sentkit("predict", "-m", "ce", *flags, stdin=in_jsonl(*PAIRS))

    assert [row["score"] for row in result.rows] == pytest.approx(scores.tolist(), abs=1e-5)


def test_the_classes_of_several_labels_have_independent_probabilities(sentkit, tmp_path):
    folder = make_classifier(
        "bert", 3, tmp_path / "model", problem_type="multi_label_classification"
    )
    result = sentkit("predict", "-m", folder, "--all", "--precision", "fp32", stdin=in_jsonl(*NLI))

    expected = 1 / (1 + np.exp(-logits_of(folder, NLI)))
    assert shares_of(result) == pytest.approx(expected, abs=1e-5)


def test_the_accuracy_is_that_of_the_test_of_its_training(sentkit, tiny, tmp_path):
    rows = [row | {"label": row["gold"]} for row in NLI] * 3
    (tmp_path / "nli.jsonl").write_text(in_jsonl(*rows))
    flags = ("--set", "steps=4", "--lr", 0.01, "--batch", 4, "--threads", 1, "-q")
    trained = sentkit(
        "train", "classify", "nli.jsonl", "-m", tiny, "-o", "c", "--test", "nli.jsonl", *flags
    )
    result = sentkit("predict", "nli.jsonl", "-m", "c", "--name", "p", "--precision", "fp32", "-q")
    correct = sum(row["p"] == row["label"] for row in result.rows)

    assert (trained.code, result.code) == (0, 0)
    assert 100 * correct / len(rows) == pytest.approx(trained.rows[0]["test"]["accuracy"])


@pytest.fixture
def reviews(tmp_path):
    """Vectors of three classes that overlap, and of a second file; as rows."""
    random = np.random.default_rng(3)

    def write(name, count, classes):
        names = [LABELS[n % classes] for n in range(count)]
        vectors = random.standard_normal((count, 4)) + [
            [LABELS.index(label), 0, 0, 0] for label in names
        ]
        rows = (
            {"id": n, "label": label, "embedding": vector, "_emb": "m/cls:0a1b00000000"}
            for n, (label, vector) in enumerate(zip(names, vectors.tolist(), strict=True))
        )
        (tmp_path / name).write_text(in_jsonl(*rows))
        return name

    return write


@pytest.mark.parametrize("classes", [2, 3])
def test_a_saved_probe_predicts_as_scikit_learn(sentkit, reviews, classes):
    """The classifier is fitted to all rows of TRAIN; the accuracy is that of the probe's test."""
    from sklearn.linear_model import LogisticRegression

    train = reviews("train.jsonl", 60, classes)
    test = reviews("test.jsonl", 30, classes)
    flags = ("--test", test, "--label", "label", "--penalties", "0.5")
    probed = sentkit("probe", train, *flags, "-o", "c.safetensors")
    result = sentkit("predict", test, "-m", "c.safetensors", "--all", "--name", "p")
    train_rows = sentkit("cat", train)
    train_vectors = train_rows.vectors().astype(float)
    test_vectors = sentkit("cat", test).vectors().astype(float)
    model = LogisticRegression(C=0.5, max_iter=1000)
    model.fit(train_vectors, [row["label"] for row in train_rows.rows])
    expected = model.predict_proba(test_vectors)

    assert (probed.code, result.code) == (0, 0)
    assert [row["p"] for row in result.rows] == model.predict(test_vectors).tolist()
    assert {*map(tuple, result.rows)} == {("id", "label", "p", "probabilities")}
    for row, shares in zip(result.rows, expected, strict=True):
        probabilities = [row["probabilities"][name] for name in model.classes_]
        assert probabilities == pytest.approx(shares, abs=1e-6)
    accuracy = 100 * np.mean([row["p"] == row["label"] for row in result.rows])
    assert probed.rows[0]["accuracy"] == pytest.approx(accuracy)


def test_the_penalty_of_a_saved_probe_is_chosen_by_folds(sentkit, reviews):
    """Without --test the penalty is that of the best folds of all rows, as with --test."""
    train = reviews("train.jsonl", 60, 3)
    test = reviews("test.jsonl", 30, 3)
    flags = ("--label", "label", "--folds", "3", "--penalties", "0.001,1")
    sentkit("probe", train, *flags, "-o", "a.safetensors")
    sentkit("probe", train, "--test", test, *flags, "-o", "b.safetensors")
    alone = load_file("a.safetensors")
    with_test = load_file("b.safetensors")

    assert all(np.array_equal(alone[name], with_test[name]) for name in ("weight", "bias"))


@pytest.mark.parametrize(("flag", "value"), [("--device", "cuda"), ("--precision", "fp32")])
def test_rows_with_vectors_need_no_model(sentkit, reviews, flag, value):
    train = reviews("train.jsonl", 60, 3)
    sentkit("probe", train, "--label", "label", "--penalties", "1", "-o", "p.safetensors")
    result = sentkit("predict", train, "-m", "p.safetensors", flag, value)

    problem = f"{flag} has no effect on rows with vectors"
    assert (result.code, result.told) == (2, [f"sentkit predict: {problem}"])


@pytest.fixture
def labelled(tmp_path):
    """Twenty rows with the texts and labels of two topics, of this kind."""

    def write(kind):
        fields = {"pair": ("text_a", "text_b"), "sentence": ("text",)}[kind]
        rows = [
            {**dict.fromkeys(fields, f"{word} number {n}"), "label": word}
            for n in range(10)
            for word in "ab"
        ]
        (tmp_path / "train.jsonl").write_text(in_jsonl(*rows))
        return [{name: row[name] for name in fields} for row in rows]

    return write


@pytest.mark.parametrize("kind", ["sentence", "pair"])
@pytest.mark.parametrize("train", ["v.safetensors", "v.jsonl"])
def test_texts_are_encoded_with_the_model_of_the_probe(sentkit, tiny, labelled, kind, train):
    """A vector file names its model and all options; of other rows, only the label of the space is
    known.
    """
    new = labelled(kind)
    if train == "v.safetensors":
        options = ("--readout", "cls", "--max-length", 8, "--dim", 12, "--normalize")
        reading = ("-m", tiny, "--prompt", "in a: ", *options)
    else:
        reading = ("-m", "nano", "--normalize")
    sentkit("encode", "train.jsonl", *reading, "-o", train)
    flags = ("--label", "label", "--folds", 3, "--penalties", 1)
    assert sentkit("probe", train, *flags, "-o", "p.safetensors").code == 0
    result = sentkit("predict", "-m", "p.safetensors", "--all", stdin=in_jsonl(*new))
    twice = sentkit(
        "predict", "train.jsonl", "train.jsonl", "-m", "p.safetensors", "--name", "p", "-q"
    )
    encoded = sentkit("encode", *reading, stdin=in_jsonl(*new))
    expected = sentkit("predict", "-m", "p.safetensors", "--all", stdin=encoded.out)

    assert (result.code, twice.code, twice.err, len(twice.rows)) == (0, 0, "", 40)
    assert [list(row) for row in result.rows] == [list(row) for row in expected.rows]
    assert shares_of(result) == pytest.approx(shares_of(expected), abs=1e-5)
    named, readout = (tiny, "cls") if train == "v.safetensors" else ("nano", "mean")
    told = f"the rows have no vectors; they are encoded with {named}, readout {readout}"
    assert f"sentkit predict: {told}" in result.told


@pytest.mark.parametrize(
    ("kind", "flags_of_texts"),
    [
        ("pair", ["--prompt", "a=query in a: ,b=b"]),
        ("sentence", ["--on-truncate", "window", "--window", "4:1", "--max-length", 4]),
        ("pair", ["--on-truncate", "window", "--max-length", 5, "--prompt", "a=b ,b="]),
    ],
)
def test_texts_get_the_prompts_by_side_and_the_windows_of_the_probe(
    sentkit, tiny, labelled, kind, flags_of_texts
):
    """`encode` with the same flags gives the expected vectors."""
    new = labelled(kind)
    reading = ("-m", tiny, *flags_of_texts, "-q")
    sentkit("encode", "train.jsonl", *reading, "-o", "v.safetensors")
    flags = ("--label", "label", "--folds", 3, "--penalties", 1)
    assert sentkit("probe", "v.safetensors", *flags, "-o", "p.safetensors").code == 0
    result = sentkit("predict", "-m", "p.safetensors", "--all", stdin=in_jsonl(*new))
    encoded = sentkit("encode", *reading, stdin=in_jsonl(*new))
    expected = sentkit("predict", "-m", "p.safetensors", "--all", stdin=encoded.out)

    assert result.code == 0
    assert shares_of(result) == pytest.approx(shares_of(expected), abs=1e-5)


def test_a_warning_says_that_texts_are_no_chunks(sentkit, tiny, labelled):
    """A text gets one label, also if the probe was fitted on several chunks of each text."""
    new = labelled("sentence")
    chunks = ("--on-truncate", "chunks", "--window", "4:1", "-q")
    sentkit("encode", "train.jsonl", "-m", tiny, *chunks, "-o", "v.safetensors")
    flags = ("--label", "label", "--folds", 3, "--penalties", 1)
    sentkit("probe", "v.safetensors", *flags, "-o", "p.safetensors")
    result = sentkit("predict", "-m", "p.safetensors", "--all", stdin=in_jsonl(*new))
    whole = sentkit("encode", "-m", tiny, stdin=in_jsonl(*new))
    expected = sentkit("predict", "-m", "p.safetensors", "--all", stdin=whole.out)

    assert shares_of(result) == pytest.approx(shares_of(expected), abs=1e-5)
    problem = "p.safetensors was fitted on chunks of texts, but each text is encoded as a whole"
    assert f"warning: {problem}; for chunks, pipe: " in result.err
    assert "warning" not in expected.err


@pytest.mark.parametrize("name", ["window", "stride"])
def test_damaged_windows_of_a_probe_are_refused(sentkit, tiny, labelled, name):
    labelled("sentence")
    windows = ("--on-truncate", "window", "--window", "4:1", "--max-length", 4)
    sentkit("encode", "train.jsonl", "-m", tiny, *windows, "-q", "-o", "v.safetensors")
    flags = ("--label", "label", "--folds", 3, "--penalties", 1)
    sentkit("probe", "v.safetensors", *flags, "-o", "p.safetensors")
    tensors = load_file("p.safetensors")
    with safe_open("p.safetensors", "numpy") as file:
        metadata = file.metadata()
    for value in (True, -1, 0, 10**9, 2.5, "4", [4], {}):
        note = json.loads(metadata["sentkit"])
        note["spec"][name] = value
        save_file(tensors, "p.safetensors", {**metadata, "sentkit": json.dumps(note)})
        result = sentkit("predict", "-m", "p.safetensors", stdin='{"text":"a cat"}')

        assert (value, result.code) == (value, 65)
        assert "has no windows of the recorded size and stride" in result.err


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, (7, True, ["a"], {})) for name in ("model", "readout", "transform", "precision")),
        *((name, (7, True, ["a"], {})) for name in ("template", "full_stop")),
        ("prompt", (7, True, ["a"], {"a": 7})),
        *((name, ("8", True, 0, -1, 2.5, [8])) for name in ("max_length", "dimensions")),
        ("steps", ("/n", {"a": "/n"}, [7])),
        ("chunks", ("no", 0, [])),
    ],
)
def test_a_damaged_record_of_a_probe_is_an_error(
    sentkit, probe_of_two_topics, tmp_path, name, values
):
    """It would be ignored, and the texts would get other vectors. Rows with vectors need none."""
    path = tmp_path / "p.safetensors"
    tensors = load_file(path)
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    for value in values:
        note = json.loads(metadata["sentkit"])
        note["spec"][name] = value
        save_file(tensors, path, {**metadata, "sentkit": json.dumps(note)})
        result = sentkit("predict", "-m", "p.safetensors", stdin='{"text":"a cat"}')

        assert (value, result.code) == (value, 65)
        assert result.told[-1].startswith(f'sentkit predict: p.safetensors: "{name}" is ')
    encoded = sentkit("encode", "-m", "nano", stdin='{"text":"a cat"}')
    assert sentkit("predict", "-m", "p.safetensors", stdin=encoded.out).code == 0


def test_a_model_of_a_probe_that_is_not_there_or_has_changed_is_refused(
    sentkit, tiny, other, labelled, copy_of
):
    labelled("sentence")
    copy_of(tiny, "m")
    flags = ("--label", "label", "--folds", 3, "--penalties", 1, "-q")
    sentkit("encode", "train.jsonl", "-m", "m", "-o", "v.safetensors")
    sentkit("cat", "v.safetensors", "-o", "v.jsonl")
    sentkit("probe", "v.safetensors", *flags, "-o", "p.safetensors")
    sentkit("probe", "v.jsonl", *flags, "-o", "q.safetensors")
    rows = [json.loads(line) for line in Path("v.jsonl").read_text().splitlines()]
    without_space = [{n: v for n, v in row.items() if n != "_emb"} for row in rows]
    Path("w.jsonl").write_text(in_jsonl(*without_space))
    sentkit("probe", "w.jsonl", *flags, "-o", "r.safetensors")
    Path("m").rename("moved")
    for probe in ("p", "q"):
        result = sentkit("predict", "-m", f"{probe}.safetensors", stdin='{"text":"a cat"}')

        cure = f"sentkit encode FILE -m MODEL | sentkit predict -m {probe}.safetensors"
        assert (result.code, result.out) == (66, b"")
        assert result.told[0].startswith("sentkit predict: m: ")
        assert result.told[1].endswith(f"if it has moved: {cure}")
    unnamed = sentkit("predict", "-m", "r.safetensors", stdin='{"text":"a cat"}')
    assert (unnamed.code, "does not name the model of its vectors" in unnamed.err) == (66, True)
    copy_of(other, "m")
    changed = sentkit("predict", "-m", "p.safetensors", stdin='{"text":"a cat"}')
    assert (changed.code, "p.safetensors: fitted on m/" in changed.err) == (65, True)
    neither = sentkit("predict", "-m", "p.safetensors", stdin='{"title":"a cat"}')
    assert (neither.code, "-:1: this row has no vector" in neither.err) == (65, True)


READ = 4096  # bytes per read, in place of 64 KiB
LEADING = {  # what comes before the first good row -> number of bad rows
    "\n" * (READ + 100): 0,
    "{\n" * READ: READ,
    '{"text":7}\n{"id":1}\n{\n' * 2: 6,
}


@pytest.fixture(scope="module")
def fitted_once(tmp_path_factory):
    """The file in which `probe_of_two_topics` keeps what it has fitted once."""
    return tmp_path_factory.mktemp("probes") / "p.safetensors"


@pytest.fixture
def probe_of_two_topics(sentkit, labelled, fitted_once):
    """A probe of nano's vectors, and two rows with texts."""
    rows = labelled("sentence")[:2]
    if not fitted_once.exists():
        sentkit("encode", "train.jsonl", "-m", "nano", "-o", "v.safetensors")
        flags = ("--label", "label", "--folds", 3, "--penalties", 1)
        sentkit("probe", "v.safetensors", *flags, "-o", fitted_once)
    shutil.copy(fitted_once, "p.safetensors")
    return rows


@pytest.mark.parametrize("leading", LEADING, ids=["blank", "bad", "neither"])
@pytest.mark.parametrize("kind", ["texts", "vectors"])
@pytest.mark.parametrize("paths", [["-"], ["a.jsonl"], ["blank.jsonl", "a.jsonl"]], ids=" ".join)
def test_the_first_good_row_decides_whether_rows_have_vectors(
    sentkit, probe_of_two_topics, leading, kind, paths, monkeypatch
):
    """Also if it is not in the first read of the file."""
    monkeypatch.setattr("sentkit.formats.rows.lines.READ", READ)
    good = in_jsonl(*probe_of_two_topics)
    expected = sentkit("predict", "-m", "p.safetensors", "-q", stdin=good).rows
    if kind == "vectors":
        good = sentkit("encode", "-m", "nano", "-q", stdin=good).out.decode()
    Path("a.jsonl").write_text(leading + good)
    Path("blank.jsonl").write_text(leading)
    flags = ("-m", "p.safetensors", "--rejects", "bad.jsonl")
    result = sentkit("predict", *paths, *flags, stdin=leading + good)
    rejects = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    rejected_lines = {(reject["file"], reject["line"]) for reject in rejects}
    strict = sentkit("predict", *paths, "-m", "p.safetensors", "-q", stdin=leading + good)
    count = LEADING[leading] * len(paths)

    assert result.code == 0
    assert len(rejects) == len(rejected_lines) == count
    assert [row["label"] for row in result.rows] == [row["label"] for row in expected]
    assert strict.code == (65 if count else 0)


def test_a_header_may_arrive_before_its_rows(sentkit, probe_of_two_topics, monkeypatch):
    """A read of a pipe returns the bytes that it has: here, seven."""
    monkeypatch.setattr("sentkit.formats.rows.lines.READ", 7)
    Path("a.csv").write_text(
        "id,text\n" + "".join(f"0,{row['text']}\n" for row in probe_of_two_topics)
    )
    result = sentkit("predict", "a.csv", "-m", "p.safetensors", "-q")

    assert (result.code, [row["label"] for row in result.rows]) == (0, ["a", "b"])


def test_bad_rows_before_the_first_good_row_are_not_kept(tmp_path):
    """Blocks of 64 KiB are read and need about 2 MB; the blocks of 10,000 errors have 7 MB."""
    path = tmp_path / "a.jsonl"
    path.write_text(f"{'{':<63}\n" * 10_000 + '{"text":"a cat"}\n')
    inputs = Inputs([str(path)], rejects=Rejects(skip=True))
    tracemalloc.start()
    with from_first_row(inputs) as (remaining, has_vectors):
        rows = list(remaining.read(lambda row: row.values))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert (rows, has_vectors, inputs.rejects.count) == ([{"text": "a cat"}], False, 10_000)
    assert peak < 4_000_000


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"_emb": "n/cls:0c0000000000"}, "fitted on m/cls (0a1b…), but the vectors are"),
        ({"embedding": [1, 2]}, "-:1: the classifier takes 4 features, this row has 2"),
        ({"label": 1}, 'field "label" already exists'),
    ],
)
def test_other_vectors_are_refused(sentkit, reviews, row, problem):
    flags = ("--label", "label", "--penalties", 1, "--folds", 3, "-o", "c.safetensors")
    sentkit("probe", reviews("train.jsonl", 60, 2), *flags)
    row = {"embedding": [1, 2, 3, 4], "_emb": "m/cls:0a1b00000000", **row}
    result = sentkit("predict", "-m", "c.safetensors", stdin=in_jsonl(row))

    assert result.code == 65
    assert problem in result.err


def test_the_first_bad_row_is_the_first_of_the_file(sentkit, reviews):
    """The reader refuses the last row before a later step refuses those above it."""
    flags = ("--label", "label", "--penalties", 1, "--folds", 3, "-o", "c.safetensors")
    sentkit("probe", reviews("train.jsonl", 60, 2), *flags)
    rows = [{"embedding": [1, 2, 3, 4], "_emb": "m/cls:0a1b00000000", "label": "1"}] * 3
    rows += [{"embedding": "none"}]
    Path("rows.jsonl").write_text(in_jsonl(*rows))
    result = sentkit("predict", "rows.jsonl", "-m", "c.safetensors", "--rejects", "bad.jsonl")

    assert result.code == 65
    warning = 'bad.jsonl: 4; the first is rows.jsonl:1: field "label" already exists'
    assert f"sentkit predict: warning: bad rows written to {warning}" in result.told


LABELS_DIFFER = "the classes and their labels do not match"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"note": {"kind": "whitening"}}, "not a classifier"),
        (
            {"note": {"kind": "classifier", "classes": ["a", "a"]}},
            "the classes and the weights do not match",
        ),
        (
            {"note": {"kind": "classifier", "classes": 7}},
            "the classes and the weights do not match",
        ),
        *(
            (
                {"note": {"kind": "classifier", "classes": ["1", "true"], "labels": labels}},
                LABELS_DIFFER,
            )
            for labels in (7, [1], [1, False], [1.0, True], [[1], True], [2, True])
        ),
        ({"bias": np.zeros(3)}, "the classes and the weights do not match"),
        ({"bias": np.zeros((2, 1))}, "the classes and the weights do not match"),
        (
            {"bias": np.zeros(3), "weight": np.zeros((3, 1))},
            "the classes and the weights do not match",
        ),
        ({"weight": np.array([[1.0], [np.nan]])}, "the classes and the weights do not match"),
        ({"weight": np.zeros((2, 0))}, "the classes and the weights do not match"),
    ],
    ids=str,
)
def test_a_damaged_classifier_is_bad_data(sentkit, changed, problem):
    note = {"kind": "classifier", "classes": ["no", "yes"]}
    tensors = {"weight": np.zeros((2, 1)), "bias": np.zeros(2)}
    note = changed.get("note", note)
    tensors |= {name: array for name, array in changed.items() if name != "note"}
    save_file(tensors, "c.safetensors", {"sentkit": json.dumps(note)})
    result = sentkit("predict", "-m", "c.safetensors", stdin='{"embedding":[1]}\n')

    assert (result.code, result.told[0]) == (65, f"sentkit predict: c.safetensors: {problem}")


def test_the_file_of_an_older_probe_gives_strings(sentkit):
    """It has no "labels"."""
    note = {"kind": "classifier", "classes": ["0", "1"]}
    tensors = {"weight": np.array([[-1.0], [1.0]]), "bias": np.zeros(2)}
    save_file(tensors, "c.safetensors", {"sentkit": json.dumps(note)})
    result = sentkit("predict", "-m", "c.safetensors", stdin='{"embedding":[1]}\n')

    assert result.rows[0]["label"] == "1"


UNUSABLE = "an output of the classifier is NaN or infinity"


def test_outputs_of_a_probe_that_overflow_are_bad_rows(sentkit):
    """1e308 * 10 is infinite, 1e308 * 1 is not; the difference of both outputs, 2e308, is."""
    save_file(
        {"weight": np.array([[1e308], [-1e308]]), "bias": np.zeros(2)},
        "c.safetensors",
        {"sentkit": json.dumps({"kind": "classifier", "classes": ["no", "yes"]})},
    )
    rows = in_jsonl({"embedding": [10]}, {"embedding": [1]})
    result = sentkit(
        "predict", "-m", "c.safetensors", "--all", "--rejects", "bad.jsonl", stdin=rows
    )

    assert (result.code, result.rows) == (
        0,
        [{"label": "no", "probabilities": {"no": 1.0, "yes": 0.0}}],
    )
    assert result.told[0].endswith("bad.jsonl: 1; the first is -:1: " + UNUSABLE)


@pytest.mark.parametrize(
    ("kind", "precision", "value"),
    [
        ("bert", "fp32", np.inf),
        ("bert", "int8", np.inf),
        ("bert", "bf16", 3e38),
        ("deberta-v2", "fp32", 3e38),
    ],
)
def test_outputs_of_a_checkpoint_that_are_not_finite_are_bad_rows(
    sentkit, tmp_path, kind, value, precision
):
    folder = make_classifier(kind, 3, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.weight"][:] = value
    save_file(tensors, folder / "model.safetensors")
    result = sentkit(
        "predict", "-m", folder, "--precision", precision, "-q", stdin='{"text":"a cat"}\n'
    )

    assert (result.code, result.out, result.told) == (
        65,
        b"",
        [f"sentkit predict: -:1: {UNUSABLE}"],
    )


@pytest.mark.parametrize("labels", [{0: "a", 1: "a"}, {0: "a", 1: None}], ids=str)
def test_labels_of_a_checkpoint_are_different_strings(sentkit, tmp_path, labels):
    path = make_classifier("bert", 2, tmp_path / "model") / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"id2label": labels}))
    result = sentkit("predict", "-m", tmp_path / "model", "-q", stdin='{"text":"a cat"}\n')

    assert result.code == 65
    assert '"id2label" has equal labels, or one that is not a string' in result.err


@pytest.mark.parametrize(
    "sources",
    [["v.jsonl"], ["v.safetensors"], ["v.jsonl", "v.safetensors"], ["v.safetensors", "v.jsonl"]],
)
@pytest.mark.parametrize(
    ("flags", "number"),
    [
        (["predict", "-m", "c.safetensors", "--name", "more"], 0),  # the field exists
        (["whiten", "apply", "-t", "t.safetensors"], 1),  # another vector
    ],
)
def test_a_row_that_the_writer_rejects_has_its_vector(sentkit, sources, flags, number):
    """Also the row of a vector file, which stores its vector separately."""
    emb = {"_emb": "m/cls:0a1b00000000"}
    rows = [
        {"label": "x", **emb, "embedding": [0.5, -2.25]},
        {"label": "y", **emb, "embedding": [1e-3, 7]},
    ]
    rows[number]["more" if number == 0 else "embedding_a"] = 1
    Path("v.jsonl").write_text(in_jsonl(*rows))
    sentkit("cat", "v.jsonl", "-o", "v.safetensors")
    tensors = {"weight": np.eye(2), "bias": np.zeros(2)}
    save_file(
        tensors,
        "c.safetensors",
        {"sentkit": json.dumps({"kind": "classifier", "classes": [*"ab"], **emb})},
    )
    affine = {"kernel": np.eye(2, dtype="f4"), "bias": np.zeros((1, 2), "f4")}
    save_file(affine, "t.safetensors", {"sentkit": json.dumps({"kind": "pca", **emb})})
    result = sentkit(*flags, *sources, "--rejects", "bad.jsonl")

    assert result.code == 0, result.err
    rejects = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert [(reject["file"], reject["line"]) for reject in rejects] == [
        (source, number + 1) for source in sources
    ]
    for reject in rejects:
        assert json.loads(reject["row"]) == rows[number]
        assert reject["row"].count('"embedding"') == 1


def probabilities_of(*outputs):
    """The softmax of two outputs, of which the second is 0."""
    return [1 / (1 + np.exp(-abs(output))) for output in outputs]


@pytest.fixture
def two_classes():
    """A probe whose outputs are the only number of a vector, and 0."""
    save_file(
        {"weight": np.array([[1.0], [0.0]]), "bias": np.zeros(2)},
        "c.safetensors",
        {"sentkit": json.dumps({"kind": "classifier", "classes": ["no", "yes"]})},
    )
    return in_jsonl(
        {"embedding": [2]}, {"embedding": [0.5]}, {"embedding": [-1]}, {"embedding": [0]}
    )


@pytest.mark.parametrize(
    ("flags", "labels"),
    [
        ([], ["no", "no", "yes", "no"]),
        (["--threshold", 0.7], ["no", "other", "yes", "other"]),  # of 0.88, 0.62, 0.73 and 0.5
        (["--threshold", 0.5], ["no", "no", "yes", "no"]),  # not below
        (["--threshold", 1, "--rest", "?"], ["?"] * 4),
        (["--threshold", 0.7, "--rest", "yes"], ["no", "yes", "yes", "yes"]),
        (["--threshold", 0.7, "--all"], ["no", "other", "yes", "other"]),
    ],
)
def test_rows_below_the_threshold_get_the_label_of_the_rest(sentkit, two_classes, flags, labels):
    result = sentkit("predict", "-m", "c.safetensors", *flags, stdin=two_classes)

    assert (result.code, [row["label"] for row in result.rows]) == (0, labels)
    numbers = [row.get("probability") or max(row["probabilities"].values()) for row in result.rows]
    assert numbers == pytest.approx(probabilities_of(2, 0.5, -1, 0), rel=1e-6)


def test_the_threshold_needs_classes(sentkit, tmp_path, two_classes):
    folder = make_classifier("bert", 1, tmp_path / "model")
    score = sentkit("predict", "-m", folder, "--threshold", 0.5, "-q", stdin='{"text":"a"}')
    rest = sentkit("predict", "-m", "c.safetensors", "--rest", "none", stdin=two_classes)
    large = sentkit("predict", "-m", "c.safetensors", "--threshold", 70, stdin=two_classes)

    assert (score.code, rest.code, large.code) == (2, 2, 2)
    assert "--threshold needs a classifier with classes" in score.err
    assert "--rest needs --threshold" in rest.err
