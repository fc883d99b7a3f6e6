"""The class Encoder as a model of mteb: texts, prompts by task, and the description."""

import sys
from enum import Enum
from types import SimpleNamespace

import numpy as np
import pytest

import sentkit
from sentkit.model.mteb import name_for_mteb, prompt_of_task
from support import TEXTS

PROMPTS = {
    "NFCorpus-query": "1",
    "NFCorpus": "2",
    "Retrieval-query": "3",
    "Retrieval": "4",
    "query": "5",
    "passage": "6",
}


class Side(Enum):
    query = "query"
    document = "document"


@pytest.mark.parametrize("removed", range(6))
@pytest.mark.parametrize("side", ["query", "document", None])
def test_the_prompt_is_the_first_declared_one(removed, side):
    """By hand: of the task and the side, of the task, of the type and the side, and so on."""
    prompts = dict(list(PROMPTS.items())[removed:])
    order = {"query": ["1", "2", "3", "4", "5"], "document": ["2", "4", "6"], None: ["2", "4"]}[
        side
    ]
    expected = next((text for text in order if text in prompts.values()), None)

    assert prompt_of_task(prompts, "NFCorpus", "Retrieval", side) == expected


def test_the_order_is_that_of_mteb():
    pytest.importorskip("mteb")
    from mteb.models.abs_encoder import get_prompt_name
    from mteb.types import PromptType

    task = SimpleNamespace(name="NFCorpus", type="Retrieval")
    prompts = {**PROMPTS, "document": "6"}
    for start in range(len(prompts)):
        declared = dict(list(prompts.items())[start:])
        for side in (PromptType.query, None, PromptType.document):
            name = get_prompt_name(declared, task, side)
            expected = None if name is None else declared[name]
            value = None if side is None else side.value
            if expected is not None or value != "document":
                assert prompt_of_task(declared, task.name, task.type, value) == expected


def metadata_of(name="NFCorpus"):
    return SimpleNamespace(name=name, type="Retrieval")


def test_batches_of_a_task_are_encoded_as_texts():
    encoder = sentkit.Encoder("static", precision="fp32")
    batches = [{"text": TEXTS[:4]}, {"text": TEXTS[4:]}]
    arguments = {"hf_split": "test", "hf_subset": "default", "batch_size": 2}
    vectors = encoder.encode(
        batches, task_metadata=metadata_of(), prompt_type=Side.query, **arguments
    )

    assert np.array_equal(vectors, encoder.encode(TEXTS))
    with pytest.raises(TypeError, match="sentkit encodes texts only"):
        encoder.encode([{"image": []}], task_metadata=metadata_of())
    with pytest.raises(ValueError, match="mteb stores float32"):
        encoder.encode(batches, task_metadata=metadata_of(), precision="int8")
    with pytest.raises(TypeError, match="encode has no batch_size=2"):
        encoder.encode(TEXTS, batch_size=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'prompt_type'"):
        encoder.encode(TEXTS, prompt_type=Side.query)


def test_a_task_has_the_prompt_that_the_model_declares(tmp_path, execute):
    """A prompt of the object is that of all tasks."""
    command = ["sentkit", "export", "-m", "nano", "-o", "nano"]
    assert execute(command, tmp_path).returncode == 0
    declared = '{"prompts": {"query": "ask: ", "document": ""}, "default_prompt_name": null}'
    (tmp_path / "nano/config_sentence_transformers.json").write_text(declared)
    folder = str(tmp_path / "nano")
    encoder = sentkit.Encoder(folder, precision="fp32")
    batches = [{"text": TEXTS[:3]}]
    queries = encoder.encode(batches, task_metadata=metadata_of(), prompt_type=Side.query)
    documents = encoder.encode(batches, task_metadata=metadata_of(), prompt_type=Side.document)
    given = sentkit.Encoder(folder, precision="fp32", prompt="find: ")
    of_given = given.encode(batches, task_metadata=metadata_of(), prompt_type=Side.query)

    asked = sentkit.Encoder(folder, precision="fp32", prompt="ask: ").encode(TEXTS[:3])
    assert queries == pytest.approx(asked, abs=1e-6)
    assert documents == pytest.approx(encoder.encode(TEXTS[:3]), abs=1e-6)
    assert not np.allclose(queries, documents, atol=1e-3)
    assert of_given == pytest.approx(given.encode(TEXTS[:3]), abs=1e-6)


def test_pairwise_similarity_is_the_diagonal():
    encoder = sentkit.Encoder("static")
    a = encoder.encode(TEXTS[:4])
    b = encoder.encode(TEXTS[4:8])

    for metric in ("cosine", "dot", "euclidean", "manhattan"):
        matrix = encoder.similarity(a, b, metric=metric)
        pairs = encoder.similarity_pairwise(a, b, metric=metric)
        assert pairs == pytest.approx(np.diagonal(matrix), abs=1e-5)
    with pytest.raises(ValueError, match="a has 4 vectors, b has 3"):
        encoder.similarity_pairwise(a, b[:3])


def test_names_for_mteb(tmp_path):
    assert name_for_mteb("intfloat/e5-base-v2@main") == "intfloat/e5-base-v2"
    assert name_for_mteb("nano") == "sentkit/nano"
    assert name_for_mteb(str(tmp_path / "my model")) == "sentkit/my-model"


def test_mteb_evaluates_an_encoder():
    """The description of the model, and a task with a data set in memory."""
    mteb = pytest.importorskip("mteb")
    encoder = sentkit.Encoder("static", precision="fp32")
    meta = encoder.mteb_model_meta

    assert (meta.name, meta.revision) == ("sentkit/static", encoder.space.rpartition(":")[2])
    assert (meta.embed_dim, meta.similarity_fn_name.value) == (256, "cosine")
    assert isinstance(encoder, mteb.models.models_protocols.EncoderProtocol)


def test_without_mteb_there_is_no_description(monkeypatch):
    for name in ("mteb", "mteb.models", "mteb.models.model_meta"):
        monkeypatch.setitem(sys.modules, name, None)

    assert not hasattr(sentkit.Encoder("static"), "mteb_model_meta")
