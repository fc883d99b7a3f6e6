"""`sentkit.Encoder`: the vectors of the command, copies by pickle, columns of a batch."""

import io
import json
import pickle
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file

import sentkit
from sentkit.cli import run_command_line
from sentkit.errors import DataError, NoInputError, UsageError
from sentkit.model.groups import FIRST_GROUP
from support import NANO, TEXTS


@pytest.fixture(scope="module")
def encoder():
    return sentkit.Encoder("nano", precision="fp32", device="cpu")


@pytest.mark.parametrize("rows", [FIRST_GROUP, FIRST_GROUP + 4])
def test_vectors_equal_those_of_the_command(encoder, tmp_path, rows):
    """To the bit, if the command has one group, too. Other batches may round in another way."""
    texts = [f"{text} {number}" for number in range(4) for text in TEXTS][:rows]
    (tmp_path / "texts.txt").write_text("".join(text + "\n" for text in texts))
    output = tmp_path / "vectors.safetensors"
    command = ["encode", str(tmp_path / "texts.txt"), "--precision", "fp32", "-q"]
    assert run_command_line([*command, "-o", str(output)]) == 0

    vectors = encoder.encode(texts)
    vectors_of_command = load_file(output)["embeddings"]

    assert vectors.dtype == np.float32
    if rows == FIRST_GROUP:
        np.testing.assert_array_equal(vectors, vectors_of_command)
    np.testing.assert_allclose(vectors, vectors_of_command, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [3, 40])
def test_by_default_any_number_of_rows_has_the_vectors_of_the_command(
    monkeypatch, capfdbinary, rows
):
    """The errors of some 60 sums of 256 or 1,024 terms add up."""
    monkeypatch.delenv("SENTKIT_PRECISION", raising=False)
    texts = [f"{text} {number}" for number in range(9) for text in TEXTS][:rows]
    stdin = io.BytesIO("\n".join(texts).encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
    assert run_command_line(["encode", "-q", "--device", "cpu"]) == 0
    written = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    encoder = sentkit.Encoder("nano", device="cpu")
    expected = encoder.encode(texts)

    errors = np.abs(np.array([row["embedding"] for row in written], np.float32) - expected)
    assert errors.max() < (60 * 1024) ** 0.5 * 2**-24 * np.abs(expected).max()
    assert {row["_emb"] for row in written} == {encoder.space}


@pytest.mark.parametrize("name", ["max_length", "dim", "window", "stride"])
@pytest.mark.parametrize("value", [0, 2.5, "8"])
def test_numbers_below_one_are_refused_as_by_the_command(name, value):
    with pytest.raises(
        UsageError, match=f"{name} is {value!r}, expected a whole number of 1 or more"
    ):
        sentkit.Encoder("nano", on_truncate="window", **{name: value})


def test_numbers_can_be_of_numpy():
    """They give the vectors and the space of the same whole numbers."""
    numbers = {"max_length": 9, "dim": 16, "window": 7, "stride": 3, "threads": 1}
    texts = ["one two three four five six seven eight nine ten eleven twelve"]
    encoders = [
        sentkit.Encoder("nano", on_truncate="window", **values)
        for values in (numbers, {name: np.int64(value) for name, value in numbers.items()})
    ]

    assert (encoders[0].encode(texts) == encoders[1].encode(texts)).all()
    assert encoders[0].space == encoders[1].space


@pytest.mark.usefixtures("with_torch")
def test_long_texts_can_have_the_mean_of_windows(capfdbinary, monkeypatch):
    """As with the flags of the command, also after a copy by pickle."""
    flags = {
        "precision": "fp32",
        "max_length": 8,
        "on_truncate": "window",
        "window": 7,
        "stride": 4,
    }
    text = "a man plays a guitar and the cat sleeps by the river"
    copy = pickle.loads(pickle.dumps(sentkit.Encoder("nano", **flags)))
    vectors = copy.encode(["a dog", text])
    stdin = io.BytesIO(f"a dog\n{text}".encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
    names = [
        "--precision",
        "fp32",
        "--max-length",
        "8",
        "--on-truncate",
        "window",
        "--window",
        "7:4",
    ]
    assert run_command_line(["encode", "-q", *names]) == 0

    rows = [json.loads(line)["embedding"] for line in capfdbinary.readouterr().out.splitlines()]
    assert np.array_equal(vectors, np.array(rows, np.float32))
    for wrong in ({"window": 7}, {"stride": 7}):
        with pytest.raises(UsageError, match='window and stride need on_truncate="window"'):
            sentkit.Encoder("nano", **wrong)
    with pytest.raises(UsageError, match='on_truncate is "chunks", expected "warn" or "window"'):
        sentkit.Encoder("nano", on_truncate="chunks")


def test_a_copy_by_pickle_gives_the_same_vectors(encoder):
    encoder.encode(["a cat"])  # the weights are loaded, and are not copied
    stored = pickle.dumps(encoder)
    copy = pickle.loads(stored)

    assert len(stored) < 1000
    assert copy.encode(TEXTS).tobytes() == encoder.encode(TEXTS).tobytes()
    assert copy.space == encoder.space


class Short(sentkit.Encoder):
    def __init__(self, numbers):
        super().__init__("static", dim=numbers)


class LowerCase(sentkit.Encoder):
    def encode(self, texts, **arguments):
        return super().encode([text.lower() for text in texts], **arguments)


def test_a_copy_of_a_subclass_is_of_this_class():
    encoder = LowerCase("static", dim=4)
    copy = pickle.loads(pickle.dumps(encoder))

    assert type(copy) is LowerCase
    assert (copy.encode(["A CAT"]) == encoder.encode(["a cat"])).all()
    with_own_arguments = pickle.loads(pickle.dumps(Short(3)))
    assert (type(with_own_arguments), with_own_arguments.width) == (Short, 3)


@pytest.mark.usefixtures("with_torch")
def test_threads_load_and_prepare_the_weights_once(encoder, monkeypatch):
    """The load and the preparation take so long that the second thread arrives before their end."""
    from sentkit.model.transformer import encoder as module

    shared = sentkit.Encoder("nano", precision="fp32", device="cpu")
    calls = []

    def watched(function):
        def call(*values):
            calls.append(function.__name__)
            time.sleep(0.1)
            return function(*values)

        return call

    monkeypatch.setattr(
        shared.model, "encoder_of_program", watched(shared.model.encoder_of_program)
    )
    monkeypatch.setattr(module, "prepare_for_cpu", watched(module.prepare_for_cpu))
    with ThreadPoolExecutor(2) as pool:
        vectors = list(pool.map(shared.encode, [["a cat"], ["a cat"]]))

    assert calls == ["encoder_of_program", "prepare_for_cpu"]
    assert all(
        np.array_equal(vectors_of_thread, encoder.encode(["a cat"]))
        for vectors_of_thread in vectors
    )


@pytest.mark.parametrize("kind", [list, np.array, partial(np.array, dtype=object)])
def test_a_batch_keeps_its_columns_and_gets_two_more(encoder, kind):
    batch = {"id": np.array([7, 8]), "text": kind(["a cat", "a dog"])}
    result = encoder(batch)

    assert list(result) == ["id", "text", "embedding", "_emb"]
    assert result["id"].tolist() == [7, 8]
    assert result["embedding"].tobytes() == encoder.encode(["a cat", "a dog"]).tobytes()
    assert result["_emb"].tolist() == [encoder.space] * 2
    assert encoder.encode([]).shape == (0, encoder.width)


@pytest.mark.parametrize("text", ["a cat", np.str_("a cat"), b"a cat"], ids=repr)
def test_one_row_instead_of_a_batch_is_refused(encoder, text):
    """Its characters would become texts."""
    problem = f'the column "text" is of type {type(text).__name__}, expected a sequence of str'
    with pytest.raises(TypeError, match=problem):
        encoder({"text": text})


def test_truncated_texts_are_counted_in_a_warning():
    encoder = sentkit.Encoder("nano", precision="fp32", max_length=4)
    with pytest.warns(UserWarning, match="1 of 2 rows were truncated to 4 tokens"):
        encoder.encode(["a cat", "a man plays a guitar in the street"])


def test_one_text_has_one_vector(encoder):
    vector = encoder.encode("a cat")

    assert vector.shape == (encoder.width,)
    assert vector.tobytes() == encoder.encode(["a cat"])[0].tobytes()
    with pytest.warns(UserWarning, match="1 of 1 texts are empty"):
        assert not encoder.encode("").any()


def test_texts_of_unknown_tokens_are_counted_in_a_warning(encoder):
    with pytest.warns(UserWarning, match=r"2 of 3 texts have only unknown tokens \(\[UNK\]\)"):
        encoder.encode(["សួស្តី", "កម្ពុជា", "a cat"])


@pytest.mark.parametrize(
    "texts", [b"a cat", {"a": 1}, {"a", "b"}, (text for text in ["a"]), None, 1.5]
)
def test_only_a_text_or_a_sequence_is_accepted(encoder, texts):
    problem = f"texts is of type {type(texts).__name__}, expected str or a sequence of str"
    with pytest.raises(TypeError, match=problem):
        encoder.encode(texts)


METRICS = {  # of two vectors, by their definitions; distances are negated
    "cosine": lambda a, b: a @ b / np.sqrt((a @ a) * (b @ b)),
    "dot": lambda a, b: a @ b,
    "euclidean": lambda a, b: -np.sqrt(((a - b) ** 2).sum()),
    "manhattan": lambda a, b: -np.abs(a - b).sum(),
}


@pytest.mark.parametrize("metric", METRICS)
def test_similarities_of_vectors(encoder, metric):
    """The sum of 256 products in float32 has an error below 1e-4 of the product of the lengths."""
    queries = encoder.encode(TEXTS[:2])
    corpus = encoder.encode(TEXTS[2:5])
    similarities = encoder.similarity(queries, corpus, metric=metric)
    expected = [
        [METRICS[metric](*pair) for pair in zip([a] * 3, corpus.astype(float), strict=True)]
        for a in queries.astype(float)
    ]

    assert (similarities.shape, similarities.dtype) == ((2, 3), np.float32)
    np.testing.assert_allclose(similarities, expected, rtol=1e-4, atol=1e-4)
    of_one = encoder.similarity(queries[0], corpus, metric=metric)
    np.testing.assert_allclose(of_one, expected[:1], rtol=1e-4, atol=1e-4)


def test_by_default_similarity_is_that_of_sentence_transformers(encoder, tmp_path):
    """The declared one, else cosine; 3 x 1 + 4 x 2 = 11."""
    shutil.copytree(NANO, tmp_path / "dot")
    declaration = tmp_path / "dot/config_sentence_transformers.json"
    values = json.loads(declaration.read_text())
    declaration.write_text(json.dumps(values | {"similarity_fn_name": "dot"}))

    assert sentkit.Encoder(str(tmp_path / "dot")).similarity([3, 4], [[1, 2]]).tolist() == [[11.0]]
    assert encoder.similarity([3.0, 4.0], [[6, 8], [-3, -4]]).tolist() == [[1.0, -1.0]]
    assert sentkit.Encoder("static").metric == "cosine"
    declaration.write_text(json.dumps(values | {"similarity_fn_name": "angle"}))
    with pytest.raises(DataError, match="\"similarity_fn_name\" is 'angle', expected cosine, dot"):
        sentkit.Encoder(str(tmp_path / "dot")).similarity([3, 4], [[1, 2]])


@pytest.mark.parametrize(
    ("a", "metric", "kind", "problem"),
    [
        (
            ["a cat"],
            None,
            TypeError,
            "a has values of type <U5, expected numbers: vectors of encode",
        ),
        ([[[1, 2]]], None, ValueError, r"a has 3 axes, expected \(n, width\) or \(width,\)"),
        (
            [1, 2, 3],
            None,
            ValueError,
            "a and b have vectors of 3 and 2 numbers, expected the same width",
        ),
        (
            [1, 2],
            "angle",
            ValueError,
            'metric is "angle", expected "cosine", "dot", "euclidean" or "manhattan"',
        ),
        ([1, 2], 3, TypeError, "metric is of type int, expected str"),
    ],
)
def test_wrong_vectors_and_metrics_are_refused(encoder, a, metric, kind, problem):
    with pytest.raises(kind, match=problem):
        encoder.similarity(a, [[1, 2]], metric=metric)


TEXT_ARGUMENTS = (
    "readout",
    "template",
    "full_stop",
    "prompt",
    "prompt_name",
    "transform",
    "column",
)
TEXT_ARGUMENTS += ("on_truncate", "device", "precision")


@pytest.mark.parametrize("name", TEXT_ARGUMENTS)
def test_texts_of_another_type_are_refused(name):
    with pytest.raises(TypeError, match=f"{name} is of type int, expected str"):
        sentkit.Encoder("nano", **{name: 3})


@pytest.mark.parametrize(
    ("arguments", "kind", "problem"),
    [
        ({"model": None}, TypeError, "model is of type NoneType, expected str"),
        ({"normalise": True}, TypeError, "unexpected keyword argument 'normalise'"),
        ({"normalize": "yes"}, TypeError, "normalize is of type str, expected bool"),
        (
            {"device": "gpu"},
            ValueError,
            'device is "gpu", expected "cpu", "cuda", "cuda:<n>" or "auto"',
        ),
        (
            {"precision": "fp16"},
            ValueError,
            'precision is "fp16", expected "auto", "fp32", "bf16" or "int8"',
        ),
        ({"readout": "sum"}, ValueError, r'unknown readout "sum" \(available: cls, max, mean'),
        (
            {"prompt": "a", "prompt_name": "b"},
            ValueError,
            "^prompt and prompt_name cannot be used together",
        ),
        ({"max_length": 4096}, ValueError, "^max_length 4096: the maximum of this encoder is"),
        ({"dim": 1000}, ValueError, "^dim 1000: the vectors have only 256 numbers"),
        (
            {"model": "static", "device": "cuda"},
            ValueError,
            "^device cuda: a static model runs on the CPU",
        ),
        ({"max_length": True}, ValueError, "max_length is True, expected a whole number"),
    ],
)
def test_wrong_arguments_are_named(arguments, kind, problem):
    with pytest.raises(kind, match=problem):
        sentkit.Encoder(**arguments)


@pytest.mark.parametrize("bad", [3, None, b"", float("nan")], ids=repr)
def test_other_values_than_strings_are_refused(encoder, bad):
    problem = re.escape(f"texts[1] is of type {type(bad).__name__}, expected str")
    for texts in (["a cat", bad], np.array(["a cat", bad, None], object)):
        for read in (encoder.encode, lambda column: encoder({"text": column})):
            with pytest.raises(TypeError, match=problem):
                read(texts)


@pytest.mark.parametrize(
    ("texts", "name"),
    [("\ud800", "texts"), (["a cat", "\ud800"], "texts[1]"), (np.array(["\udfff"]), "texts[0]")],
)
def test_texts_that_are_not_utf8_are_named(encoder, texts, name):
    with pytest.raises(ValueError, match=f"^{re.escape(name)} is not UTF-8$"):
        encoder.encode(texts)


def test_only_flags_of_arguments_are_renamed_in_errors(tmp_path):
    """Two hyphens in a path are no flag, and the advice can have flags of another program."""
    path = str(tmp_path / "a--prompt")
    with pytest.raises(NoInputError, match=re.escape(path)):
        sentkit.Encoder(path)
    with pytest.raises(NoInputError, match="the hub is disabled") as error:
        sentkit.Encoder("org/name@main")
    assert error.value.advice.endswith(": hf download org/name --revision main")


def test_several_readouts_and_sets_of_words_are_refused():
    with pytest.raises(UsageError, match="one readout"):
        sentkit.Encoder("nano", readout="cls,mean")
    with pytest.raises(UsageError, match="the space depends on all texts"):
        sentkit.Encoder("words:binary")


def test_the_import_of_the_package_loads_no_large_library():
    code = "import sentkit, sys; print({'numpy', 'torch'} & set(sys.modules)); sentkit.Encoder"
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert completed.stdout == "set()\n"


def test_dir_lists_the_class_before_the_import_of_numpy():
    code = (
        "import sentkit, sys; print('Encoder' in dir(sentkit), {'numpy', 'torch'} & "
        "set(sys.modules))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert completed.stdout == "True set()\n"


def test_an_attribute_that_the_package_does_not_have_is_an_error():
    with pytest.raises(AttributeError):
        sentkit.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("normalize", "arguments"),
    [
        (False, {"convert_to_numpy": True, "convert_to_tensor": False}),
        (False, {"show_progress_bar": False, "normalize_embeddings": False}),
        (False, {"device": None, "precision": "float32", "prompt_name": None}),
        (True, {"normalize_embeddings": True}),
    ],
)
def test_arguments_of_sentence_transformers_for_what_encode_does(normalize, arguments):
    encoder = sentkit.Encoder("nano", normalize=normalize, threads=1)

    assert np.array_equal(encoder.encode(["a cat"], **arguments), encoder.encode(["a cat"]))


@pytest.mark.parametrize(
    ("normalize", "arguments", "problem"),
    [
        (False, {"batch_size": 32}, r"encode has no batch_size=32: leave it out"),
        (False, {"show_progress_bar": True}, "there is no progress bar"),
        (False, {"convert_to_tensor": True}, r"use torch.from_numpy\(encoder.encode\(texts\)\)"),
        (False, {"normalize_embeddings": True}, r"Encoder\(model, normalize=True\)"),
        (True, {"normalize_embeddings": False}, r"Encoder\(model, normalize=True\)"),
        (False, {"prompt": "query: "}, r"use Encoder\(model, prompt=...\)"),
        (False, {"batchsize": 32}, "unexpected keyword argument 'batchsize'"),
    ],
)
def test_other_arguments_of_sentence_transformers_say_what_to_use(normalize, arguments, problem):
    encoder = sentkit.Encoder("nano", normalize=normalize, threads=1)

    with pytest.raises(TypeError, match=problem):
        encoder.encode(["a cat"], **arguments)
