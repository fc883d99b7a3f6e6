"""Folders of sentence-transformers with a convolution over the tokens, as IS-BERT has: the readout `conv`."""

import json

import numpy as np
import pytest
import safetensors.numpy

from sentkit.errors import DataError, UsageError
from sentkit.formats.files import write_json
from sentkit.model import find_encoder
from sentkit.model.encoding import encode_texts
from sentkit.model.reading import ReadingOptions

TEXTS = ["the cat sat .", "a dog", "query : the dogs sat a cat . . .", "."]
KERNELS = [1, 3, 5]


def layers(mode="mean", **how):
    from sentence_transformers.sentence_transformer import modules

    convolution = modules.CNN(8, 4, **{"kernel_sizes": KERNELS, **how})
    return [convolution, modules.Pooling(convolution.get_embedding_dimension(), mode)]


def vectors_of(folder, **options):
    found = find_encoder(str(folder), ReadingOptions(**options), device="cpu", precision="fp32")
    (vectors,) = encode_texts(found.tokenizer(TEXTS), found.encoder(), 4096)
    return vectors


def theirs(folder):
    """One text at a time: in a batch, this module reads the states of padding."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(TEXTS, batch_size=1)


def encoder_of(folder, **options):
    return find_encoder(str(folder), ReadingOptions(**options), device="cpu", precision="fp32").encoder()


def test_a_convolution_gives_the_vectors_of_one_text_at_a_time(saved):
    folder = saved(layers)
    encoder, found = encoder_of(folder), vectors_of(folder)

    assert found.shape == (4, 12)
    np.testing.assert_allclose(found, theirs(folder), rtol=0, atol=1e-6)
    assert (encoder.specs[0].record["readout"], encoder.width) == ("conv", 12)


def test_a_dense_layer_after_a_convolution_takes_its_features(saved):
    def build():
        from sentence_transformers.sentence_transformer import modules

        return [*layers(), modules.Dense(12, 5), modules.Normalize()]

    folder = saved(build)

    np.testing.assert_allclose(vectors_of(folder), theirs(folder), rtol=0, atol=1e-6)
    assert np.array_equal(vectors_of(folder, dim=3).shape, (4, 3))


def test_other_readouts_do_not_use_the_convolution(saved, base):
    """Their space does not depend on it, and its own readout needs it and no other readout."""
    folder = saved(layers)
    assert np.array_equal(vectors_of(folder, readout="mean"), vectors_of(base, readout="mean"))
    with pytest.raises(UsageError, match='readout "conv": this checkpoint has no convolution'):
        encoder_of(base, readout="conv")
    with pytest.raises(UsageError, match="the readout conv cannot be combined with others"):
        encoder_of(folder, readout="conv,mean")
    before = [encoder_of(folder, **how).specs[0].space for how in ({}, {"readout": "mean"})]
    path = folder / "1_CNN/model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    safetensors.numpy.save_file({**tensors, "convs.0.bias": tensors["convs.0.bias"] + 1}, path)
    after = [encoder_of(folder, **how).specs[0].space for how in ({}, {"readout": "mean"})]

    assert before[0] != after[0]
    assert before[1] == after[1]


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: layers("cls"), "2_Pooling: pooling cls of a convolution is not supported"),
        (lambda: layers("max"), "2_Pooling: pooling max of a convolution is not supported"),
        (lambda: layers()[::-1], "2_CNN: module CNN with these settings is not supported"),
        (lambda: layers(stride_sizes=[1, 2, 1]), "1_CNN: a convolution with strides is not supported"),
        (lambda: layers(kernel_sizes=[1, 2]), "1_CNN: the weight or the bias has a wrong shape"),
    ],
    ids=["cls", "max", "after the pooling", "strides", "kernel of two tokens"],
)
def test_another_convolution_is_refused(saved, build, problem):
    folder = saved(build)
    with pytest.raises(DataError, match=problem):
        encoder_of(folder)


def test_a_damaged_convolution_is_refused(saved):
    folder = saved(layers)
    path = folder / "1_CNN/model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    for name, tensor, problem in (
        ("convs.1.weight", np.zeros((4, 7, 3), np.float32), "the weight or the bias has a wrong shape"),
        ("convs.1.bias", np.zeros(3, np.float32), "the weight or the bias has a wrong shape"),
        ("convs.0.weight", np.zeros((), np.float32), "the weight or the bias has a wrong shape"),
        ("convs.0.bias", np.zeros((), np.float32), "the weight or the bias has a wrong shape"),
        ("convs.1.bias", np.zeros(4, np.int32), "the weight or the bias has another type"),
        ("other", np.zeros(4, np.float32), "these are not the tensors of a convolution"),
    ):
        safetensors.numpy.save_file({**tensors, name: tensor}, path)
        with pytest.raises(DataError, match=problem):
            encoder_of(folder)


def test_a_prompt_that_is_not_read_is_refused(saved):
    folder = saved(layers, prompts={"query": "query : "}, default_prompt_name="query")
    pooling = folder / "2_Pooling/config.json"
    write_json(pooling, json.loads(pooling.read_text()) | {"include_prompt": False})
    with pytest.raises(UsageError, match="the readouts pooler, prompt and conv need them"):
        encoder_of(folder)
