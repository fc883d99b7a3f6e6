"""MPNet, ModernBERT and decoders through the commands, as other packed families: readouts,
training.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from support import (
    SMALL,
    copy_tokenizer,
    declare_modules,
    in_jsonl,
    logits_of,
    states_of,
    without_command,
)

SETTINGS = {
    "mpnet": {"pad_token_id": 0},
    "modernbert": {"pad_token_id": 0, "local_attention": 6, "global_attn_every_n_layers": 2},
    "llama": {"num_key_value_heads": 1},
    "mistral": {"num_key_value_heads": 2, "head_dim": 6, "sliding_window": 4},
    "qwen3": {"num_key_value_heads": 1, "head_dim": 10},
}
# for qwen2, transformers changes the rules of nano's tokenizer
DECODERS = ("llama", "mistral", "qwen3")
TEXTS = [
    "a man plays a guitar",
    "the cat sleeps",
    "two people walk along the river and the market fell",
]
REDUCE = {
    "mean": lambda states: states.mean(0),
    "cls": lambda states: states[0],
    "last": lambda x: x[-1],
}


@pytest.fixture(params=SETTINGS)
def family(request):
    return request.param


@pytest.fixture
def folder(family, tmp_path):
    """A model of transformers with random weights and nano's tokenizer."""
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(
        transformers.AutoConfig.for_model(family, **SMALL, **SETTINGS[family])
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4 if weight.ndim > 1 else 1)  # so that attention is not uniform
    model.save_pretrained(tmp_path / "base")
    copy_tokenizer(tmp_path / "base")
    return tmp_path / "base"


def expected(folder, readout="mean", texts=TEXTS):
    """The readout of each text by transformers."""
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]
    return np.array([REDUCE[readout](states) for states in states_of(folder, ids)])


def stdin(texts=TEXTS):
    return "".join(text + "\n" for text in texts)


@pytest.mark.parametrize(
    "settings", [(), ("--set", "lora=2", "--set", "lora_layers=all")], ids=["all", "lora"]
)
def test_a_trained_model_is_read_by_both_libraries(sentkit, family, folder, tmp_path, settings):
    from sentence_transformers import SentenceTransformer

    (tmp_path / "texts.txt").write_text(stdin(TEXTS * 4))
    readout = "last" if family in DECODERS else "cls"
    settings = (*settings, "--set", f"readout={readout}", "--set", "dropout=0.1")
    options = ("--batch", 4, "--lr", 0.01, "--threads", 1, *settings, "-q", "-o", "out")
    assert sentkit("train", "simcse", "texts.txt", "-m", folder, *options).code == 0
    flags = ("--readout", readout, "--precision", "fp32", "-q")
    trained = sentkit("encode", "-m", "out", *flags, stdin=stdin()).vectors()
    before = sentkit("encode", "-m", folder, *flags, stdin=stdin()).vectors()
    of_library = SentenceTransformer("out", device="cpu").encode(TEXTS)

    assert np.abs(trained - before).max() > 0.01
    np.testing.assert_allclose(trained, expected("out", readout), rtol=0, atol=1e-5)
    np.testing.assert_allclose(trained, of_library, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "pooling"), [("mpnet", "mean"), ("modernbert", "cls"), ("modernbert", "mean")]
)
def test_a_classifier_is_read_by_transformers_and_a_stopped_run_resumes(
    sentkit, folder, family, pooling, tmp_path, stop_at
):
    """To the same bytes. `predict` gives its probabilities. An MPNet always reads the first
    token.
    """
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"classifier_pooling": pooling}))
    rows = [{"text": text, "label": str(index)} for index, text in enumerate(TEXTS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 4))
    command = ("train", "classify", "rows.jsonl", "-m", folder, "-q", "--batch", 4, "--threads", 1)
    more = ("--lr", 0.01, "--epochs", 4, "--save-every", 1, "--set", "max_length=32")
    assert sentkit(*command, "-o", "out", *more).code == 0
    if pooling == "mean":  # of each family
        with stop_at(2):
            assert sentkit(*command, "-o", "again", *more).code == 75
        assert sentkit(*command, "-o", "again", *more, "--resume").code == 0
        assert without_command(tmp_path / "again") == without_command(tmp_path / "out")
    flags = ("--all", "--replace", "--precision", "fp32", "-q")
    result = sentkit("predict", "rows.jsonl", "-m", "out", *flags)
    expected = np.exp(logits_of("out", rows))
    expected /= expected.sum(1, keepdims=True)
    steps = [json.loads(line) for line in (tmp_path / "out/steps.jsonl").read_text().splitlines()]
    losses = [step["loss"] for step in steps if "loss" in step]

    assert result.code == 0
    assert [row["label"] for row in result.rows[:3]] == [str(int(row.argmax())) for row in expected]
    probabilities = [list(row["probabilities"].values()) for row in result.rows[:3]]
    np.testing.assert_allclose(probabilities, expected, rtol=0, atol=1e-5)
    assert np.mean(losses[-5:]) < losses[0]
    readout = json.loads((tmp_path / "out/sentkit.json").read_text())["readout"]
    assert readout == (pooling if family == "modernbert" else "cls")


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [("mlm", "--set", "head=fresh"), ("tsdae",), ("consert",)], ids=" ".join
)
def test_methods_with_a_head_a_decoder_or_other_views_learn(
    sentkit, family, folder, tmp_path, method
):
    """The loss of the last steps is below the first one. Decoders have no head."""
    if family in DECODERS and method[0] != "consert":
        pytest.skip("refused")
    rows = tmp_path / "texts.txt"
    rows.write_text(stdin(TEXTS * 10))
    flags = ("--batch", 10, "--epochs", 8, "--lr", 0.01, "--set", "max_length=32")
    command = ("train", method[0], rows, *method[1:], "-m", folder, "-o", "out")
    result = sentkit(*command, *flags, "--threads", 1, "-q")
    assert result.code == 0, result.err
    steps = [json.loads(line) for line in (tmp_path / "out/steps.jsonl").read_text().splitlines()]
    losses = [step["loss"] for step in steps if "loss" in step]

    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < losses[0]
    assert np.isfinite(expected("out")).all()


@pytest.mark.parametrize(
    ("mode", "prompts"),
    [("cls_token", {}), ("mean_tokens", {"query": "query: ", "passage": "passage: "})],
    ids=["bge-m3", "multilingual-e5"],
)
def test_xlm_roberta_with_long_positions_has_the_vectors_of_sentence_transformers(
    sentkit, tmp_path, mode, prompts
):
    """As both declare it: 8,194 rows of positions, cls or mean, and unit length; a text has 2,002
    tokens.
    """
    import transformers
    from sentence_transformers import SentenceTransformer

    torch.manual_seed(0)
    sizes = SMALL | {"max_position_embeddings": 8194, "type_vocab_size": 1, "pad_token_id": 1}
    transformers.XLMRobertaModel(transformers.XLMRobertaConfig(**sizes)).save_pretrained("base")
    copy_tokenizer(tmp_path / "base")
    declared = {"sentence_bert_config": {"max_seq_length": 8192}}
    declared |= {"config_sentence_transformers": {"prompts": prompts}}
    declare_modules(tmp_path / "base", mode, SMALL["hidden_size"], **declared)
    texts = [*TEXTS, "cat " * 2000]
    reference = SentenceTransformer("base", device="cpu")

    record = json.loads(sentkit("inspect", "base", "--json").out)
    assert (record["runs"], record["max_length"]) == ("packed", 8192)
    for name in prompts or (None,):
        flags = ("--prompt-name", name) if name else ()
        command = ("encode", "-m", "base", "--device", "cpu", "--precision", "fp32", "-q", *flags)
        vectors = sentkit(*command, stdin=stdin(texts)).vectors()

        of_library = reference.encode(texts, prompt_name=name, batch_size=1)
        np.testing.assert_allclose(vectors, of_library, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("modernbert", {"local_attention": 16}),
        ("qwen3", {"num_key_value_heads": 1, "head_dim": 8}),
        ("mistral", {"num_key_value_heads": 1, "sliding_window": 4096}),
    ],
    ids=str,
)
def test_a_text_of_8192_tokens_needs_little_memory(kind, settings, tmp_path):
    """Scores of all pairs of tokens would need 2 heads x 8,192 x 8,192 x 4 = 537 million bytes."""
    import transformers

    sizes = SMALL | {"max_position_embeddings": 8192, "pad_token_id": 0} | settings
    config = transformers.AutoConfig.for_model(kind, **sizes)
    transformers.AutoModel.from_config(config).save_pretrained("base")
    copy_tokenizer(tmp_path / "base")
    code = (
        "import resource, sys, numpy as np, torch; from sentkit import Encoder\n"
        "torch.set_num_threads(1)\n"
        "encoder = Encoder('base', device='cpu', precision='bf16', max_length=8192, "
        "readout='mean')\n"
        "encoder.encode(['a cat'])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "vectors = encoder.encode(['cat ' * 9000])\n"
        "np.save('vectors.npy', vectors)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert int(completed.stdout) < 100e6
    [vector] = np.load("vectors.npy")
    [exact] = expected(tmp_path / "base", "mean", ["cat " * 8190])
    assert (vector @ exact) / np.linalg.norm(vector) / np.linalg.norm(exact) > 0.999


def add_typed_tokenizer(folder, names=("input_ids", "token_type_ids", "attention_mask")):
    """nano's tokenizer with the template of XLNet; the last token of a text has type 2."""
    copy_tokenizer(folder)
    rules = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = rules["model"]["vocab"]
    pieces = [
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
        {"SpecialToken": {"id": "[CLS]", "type_id": 2}},
    ]
    second = [
        {"Sequence": {"id": "B", "type_id": 1}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 1}},
    ]
    rules["post_processor"] = {
        "type": "TemplateProcessing",
        "single": pieces,
        "pair": [*pieces[:2], *second, pieces[2]],
        "special_tokens": {
            token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]}
            for token in ("[SEP]", "[CLS]")
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": names,
        "pad_token": "[PAD]",
        "model_max_length": 24,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_a_model_gets_the_token_types_of_its_tokenizer(sentkit, tmp_path):
    """XLNet adds a term to attention between tokens of different types. One text is truncated. A
    classifier would need the types of pairs.
    """
    import transformers
    from sentence_transformers import SentenceTransformer

    sizes = {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}
    config = transformers.XLNetConfig(vocab_size=16384, initializer_range=0.5, **sizes)
    torch.manual_seed(0)
    transformers.XLNetForSequenceClassification(config).save_pretrained(tmp_path / "xlnet")
    texts = [*TEXTS, "the cat " * 20, "a man sleeps"]
    flags = ("-m", "xlnet", "--readout", "mean", "--precision", "fp32", "-q")
    results = {}
    for names in (["input_ids", "attention_mask"], ["input_ids", "token_type_ids"]):
        add_typed_tokenizer(tmp_path / "xlnet", names)
        rows = sentkit("encode", *flags, stdin=stdin(texts)).rows
        vectors = np.array([row["embedding"] for row in rows])
        of_library = SentenceTransformer("xlnet", device="cpu").encode(texts, batch_size=1)
        np.testing.assert_allclose(vectors, of_library, rtol=0, atol=1e-5)
        results[names[1]] = rows[0]["_emb"], vectors
    space_without, without = results["attention_mask"]
    space, vectors = results["token_type_ids"]

    assert space != space_without
    assert np.abs(vectors - without).max() > 1e-3
    refused = sentkit("predict", "-m", "xlnet", stdin=stdin(texts))
    assert refused.code == 65
    assert "gives other token types than 0" in refused.err


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 16,
}
READ_PADDING = {
    "fnet": {},
    "convbert": {"embedding_size": 16},
    "big_bird": {"block_size": 2, "num_random_blocks": 1},
    "llama": {"rope_parameters": LONGROPE, "head_dim": 8},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p"]},  # does not read it
}


@pytest.mark.parametrize("model_type", READ_PADDING)
def test_a_text_has_one_vector_also_if_the_encoder_reads_padding(sentkit, tmp_path, model_type):
    """A batch has texts of one length then. BigBird changes its attention at a short batch, and
    "longrope" its rotary positions at a long one.
    """
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        model_type, **SMALL, **READ_PADDING[model_type], initializer_range=0.5
    )
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    copy_tokenizer(tmp_path)
    texts = [*TEXTS, "the cat " * 20, "a man sleeps", "the dog " * 20]
    flags = ("-m", tmp_path, "--readout", "mean", "--precision", "fp32", "-q")
    together = sentkit("encode", *flags, stdin=stdin(texts)).rows
    alone = [sentkit("encode", *flags, stdin=stdin([text])).rows[0] for text in texts]

    for row, row_alone in zip(together, alone, strict=True):
        np.testing.assert_allclose(row["embedding"], row_alone["embedding"], atol=2e-5)
    np.testing.assert_allclose(
        alone[1]["embedding"], expected(tmp_path, texts=[texts[1]])[0], atol=2e-5
    )


def test_dev_scores_are_those_of_encode_also_if_the_encoder_reads_padding(sentkit, tmp_path):
    """A rate that changes nothing: the score is that of the base."""
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("fnet", **SMALL, initializer_range=0.5)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "base")
    copy_tokenizer(tmp_path / "base")
    (tmp_path / "texts.txt").write_text(stdin(TEXTS * 4))
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2]), (TEXTS[2], TEXTS[0]), (TEXTS[0], "a cat")]
    rows = [{"text_a": a, "text_b": b, "score": n} for n, (a, b) in enumerate(pairs)]
    (tmp_path / "dev.jsonl").write_text(in_jsonl(*rows))
    options = ("--dev", "dev.jsonl", "--batch", 4, "--lr", 1e-30, "--set", "readout=mean", "-q")
    assert sentkit("train", "simcse", "texts.txt", "-m", "base", *options, "-o", "out").code == 0
    flags = ("-m", "out", "--precision", "fp32", "-q")
    vectors = sentkit("encode", "dev.jsonl", *flags).out
    [report] = sentkit("score", "--gold", "score", stdin=vectors).rows

    dev = json.loads((tmp_path / "out/sentkit.json").read_text())["dev"]
    assert dev == pytest.approx(report["spearman"], abs=1e-6)
