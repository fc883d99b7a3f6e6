"""Encoders that run through transformers have the interface of `Bert` and the states of
AutoModel.
"""

import json

import pytest
import torch

from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.formats.vectors.fingerprint import digest
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import apply_readouts
from sentkit.model.transformer.transformers_model import load_transformers_model

MIXED = [5, 1, 12, 5]
FAMILIES = {
    "mpnet": {"max_position_embeddings": 34},
    "albert": {"embedding_size": 16},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 8,
    },
    "modernbert": {"local_attention": 4, "global_attn_every_n_layers": 2, "pad_token_id": 0},
    "bert": {"hidden_act": "quick_gelu"},
}


@pytest.fixture(params=FAMILIES)
def folder(request, config_of, tmp_path):
    """A folder that transformers saved, with random weights."""
    import transformers

    torch.manual_seed(0)
    config = config_of(request.param, **FAMILIES[request.param])
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    return tmp_path


@torch.no_grad()
def states_of(encoder, batch, **settings):
    return list(encoder.states(pack(batch), **settings))


def check_states(layers, expected):
    """Of one sentence at a time, without padding."""
    assert [states.shape for states in layers] == [(sum(MIXED), 32)] * 4
    assert max((a - b).abs().max() for a, b in zip(layers, expected, strict=True)) < 1e-5


def test_states_equal_those_of_automodel_and_tensors_those_of_the_file(folder, sentences, oracle):
    """A sentence can have the maximum length. The first states cannot be changed."""
    from safetensors.torch import load_file
    from transformers import AutoModel

    encoder = load_transformers_model(folder)
    saved = load_file(folder / "model.safetensors")
    batch = sentences(MIXED)
    model = AutoModel.from_pretrained(folder).eval()
    check_states(states_of(encoder, batch), oracle(model, batch))
    assert (encoder.depth, encoder.width) == (3, 32)
    tensors = encoder.tensors()
    assert all(torch.equal(tensors[name], saved[name]) for name in saved)
    batch = sentences([encoder.max_tokens, 3])
    layers = states_of(encoder, batch)
    rows = pack(batch).starts
    *before, last = states_of(encoder, batch, deepest=2, rows_of_last=rows)
    assert len(before) == 2
    assert torch.equal(last, layers[2][rows])
    with pytest.raises(UsageError, match="a change of the first states is not supported"):
        states_of(encoder, [[5, 6]], disturb=lambda states: states)


@pytest.mark.parametrize(
    ("family", "value"),
    [
        ("granite", {"residual_multiplier": 0.2}),
        ("olmo", {"clip_qkv": 0.01}),
        ("gpt2", {"activation_function": "relu"}),
        ("gpt2", {"layer_norm_epsilon": 0.5}),
        ("gpt_neox", {"use_parallel_residual": False}),
        ("deberta-v2", {"pos_att_type": ["c2p"]}),
        ("esm", {"token_dropout": True, "mask_token_id": 4}),
    ],
)
def test_the_hash_covers_values_of_any_family(family, value, config_of, tmp_path):
    """The tensors are the same, and the vectors differ."""
    import transformers

    torch.manual_seed(0)
    settings = FAMILIES.get(family, {}) | {"pad_token_id": 0}
    transformers.AutoModel.from_config(config_of(family, **settings)).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    before = load_transformers_model(tmp_path).hashed_values
    file.write_text(json.dumps(json.loads(file.read_text()) | value))

    assert digest(load_transformers_model(tmp_path).hashed_values) != digest(before)


def test_the_hash_omits_values_without_an_effect_on_vectors(folder):
    file = folder / "config.json"
    before = load_transformers_model(folder).hashed_values
    idle = {
        "architectures": ["Other"],
        "transformers_version": "4.1.0",
        "_name_or_path": "other",
        "dtype": "float16",
        "use_cache": False,
        "hidden_dropout_prob": 0.5,
        "attention_dropout": 0.5,
        "classifier_dropout": 0.5,
        "initializer_range": 0.5,
        "id2label": {"0": "yes", "1": "no"},
        "label2id": {"yes": 0, "no": 1},
        "problem_type": "regression",
        "eos_token_id": 3,
        # as version 4 of transformers wrote them
        "torch_dtype": "float32",
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "cross_attention_hidden_size": None,
        "pruned_heads": {},
        "torchscript": False,
        "tokenizer_class": None,
        "_attn_implementation_autoset": True,
        "summary_type": "first",
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | idle))

    assert digest(load_transformers_model(folder).hashed_values) == digest(before)


def test_the_hash_covers_integers_of_more_than_64_bits(folder):
    """transformers writes 10^30 for a length without a limit."""
    file = folder / "config.json"
    config = json.loads(file.read_text())

    def digest_with(value):
        file.write_text(json.dumps(config | {"task_limit": value}))
        return digest(load_transformers_model(folder).hashed_values)

    values = (None, -(2**63), -(2**64), 2**64, 10**30)
    assert len({digest_with(value) for value in values}) == len(values)
    assert digest_with(10**30) == digest_with(1e30)


LONGROPE = {
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 16,
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("family", "settings", "expected"),
    [
        ("phi3", {"rope_scaling": {"type": "su", **LONGROPE}}, True),
        ("phi3", {"rope_scaling": {"rope_type": "longrope", **LONGROPE}}, True),
        ("phi3", {"rope_parameters": {**PLAIN_ROPE, "rope_type": "longrope", **LONGROPE}}, True),
        ("phi3", {}, False),
        (
            "gemma3_text",
            {
                "rope_parameters": {
                    "full_attention": {**PLAIN_ROPE, "rope_type": "longrope", **LONGROPE},
                    "sliding_attention": PLAIN_ROPE,
                }
            },
            True,
        ),
        (
            "gemma3_text",
            {
                "rope_parameters": {
                    "full_attention": {**PLAIN_ROPE, "rope_type": "linear", "factor": 2.0},
                    "sliding_attention": PLAIN_ROPE,
                }
            },
            False,
        ),
    ],
)
def test_batches_have_one_length_if_their_length_selects_rotary_positions(
    family, settings, expected, config_of, tmp_path
):
    """Also those of models that are too large to be tried with padding."""
    import transformers

    sizes = {"pad_token_id": 0, "head_dim": 8, "original_max_position_embeddings": 16}
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config_of(family, **sizes, **settings))
    model.save_pretrained(tmp_path)

    assert load_transformers_model(tmp_path).reads_padding is expected


@pytest.mark.parametrize("family", ["mpnet", "albert"])
def test_the_pooler_equals_that_of_automodel(family, config_of, tmp_path, sentences):
    import transformers

    model = transformers.AutoModel.from_config(config_of(family, **FAMILIES[family])).eval()
    model.save_pretrained(tmp_path)
    batch = sentences(MIXED)
    with torch.no_grad():
        (pooled,) = apply_readouts(
            load_transformers_model(tmp_path), pack(batch), [parse_readout("pooler")]
        )
        expected = [model(torch.from_numpy(ids)[None]).pooler_output[0] for ids in batch]

    assert (pooled - torch.stack(expected)).abs().max() < 1e-5


def test_weights_that_transformers_would_draw_at_random_are_errors(config_of, tmp_path):
    """A pooler is required only by its readout."""
    import transformers

    model = transformers.MPNetForMaskedLM(config_of("mpnet", **FAMILIES["mpnet"]))
    model.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="no trained pooler"):
        apply_readouts(load_transformers_model(tmp_path), pack([[5, 6]]), [parse_readout("pooler")])
    del model.mpnet.encoder.layer[1].attention.attn.q.weight
    model.save_pretrained(tmp_path)

    with pytest.raises(DataError, match=r'missing "encoder.layer.1.attention.attn.q.weight"$'):
        load_transformers_model(tmp_path)


def test_an_encoder_decoder_is_an_error_with_advice(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bart"}))

    with pytest.raises(DataError, match='"bart" is an encoder-decoder') as error:
        load_transformers_model(tmp_path)
    assert "use an encoder, such as BERT" in error.value.advice


@pytest.fixture(params=["t5", "mt5", "umt5"])
def t5_config(request):
    """A small config, with the gated layers of T5 1.1 if the family has them."""
    import transformers

    sizes = {
        "vocab_size": 97,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 3,
        "num_heads": 4,
    }
    return transformers.AutoConfig.for_model(request.param, **sizes)


@pytest.mark.parametrize("whole", [False, True])
def test_the_encoder_of_t5_runs_without_the_decoder(t5_config, whole, tmp_path, sentences, oracle):
    """For a checkpoint of the encoder, and for one of the whole model."""
    import transformers

    prefix = {"t5": "T5", "mt5": "MT5", "umt5": "UMT5"}[t5_config.model_type]
    kind = getattr(transformers, f"{prefix}EncoderModel")
    saved = getattr(transformers, f"{prefix}ForConditionalGeneration") if whole else kind
    torch.manual_seed(0)
    saved(t5_config).save_pretrained(tmp_path)
    encoder = load_transformers_model(tmp_path)
    batch = sentences(MIXED)

    assert not encoder.has_pooler
    reference = kind.from_pretrained(tmp_path).eval()
    check_states(states_of(encoder, batch), oracle(reference, batch))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        # transformers ignores them.
        ({"position_embedding_type": "relative_key"}, 'positions "relative_key"'),
        (
            {"auto_map": {"AutoModel": "own.Model"}},
            "own Python code; sentkit does not run code of models",
        ),
    ],
)
def test_a_model_that_transformers_alone_cannot_run_is_an_error(
    tmp_path, config_of, settings, problem
):
    config_of("bert", **settings).save_pretrained(tmp_path)

    with pytest.raises(DataError, match=problem):
        load_transformers_model(tmp_path)


@pytest.mark.parametrize(
    "config",
    ["", "{}", '{"model_type": "no-such"}', '{"model_type": "bert", "hidden_size": "x"}', "[]"],
)
def test_the_error_for_a_folder_that_transformers_cannot_load_is_one_line(tmp_path, config):
    (tmp_path / "config.json").write_text(config)

    problem = r"^[^\n]*(cannot load the model|not JSON|expected a JSON object)[^\n]*$"
    with pytest.raises(DataError, match=problem):
        load_transformers_model(tmp_path)


def test_sizes_that_do_not_fit_the_weights_are_errors_before_a_model_is_built(folder):
    """With 10^9 layers, transformers would not finish. ModernBERT compares 0 layers with its list
    itself.
    """
    config = json.loads((folder / "config.json").read_text())
    sizes = ("num_hidden_layers", "hidden_size", "vocab_size", "num_labels")
    wrong = [(size, 10**9, f'"{size}" cannot be {10**9}$') for size in sizes]
    wrong.append(("hidden_size", 1000, "the model is larger than the stored weights$"))
    problem_of_layers = (
        "cannot load the model: .*layer" if config["model_type"] == "modernbert" else None
    )
    wrong += [
        ("num_hidden_layers", n, problem_of_layers or f'"num_hidden_layers" cannot be {n}$')
        for n in (0, -1)
    ]
    for size, number, problem in wrong:
        (folder / "config.json").write_text(json.dumps(config | {size: number}))

        with pytest.raises(DataError, match=problem):
            load_transformers_model(folder)


def test_tensors_of_other_shapes_are_named(config_of, tmp_path):
    import transformers

    config = config_of("mpnet", **FAMILIES["mpnet"])
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"vocab_size": config.vocab_size + 1}))

    name = '"embeddings.word_embeddings.weight"'
    shapes = f"{config.vocab_size} x 32, expected {config.vocab_size + 1} x 32"
    with pytest.raises(
        DataError, match=f": weights and config.json do not match: {name} is {shapes}$"
    ):
        load_transformers_model(tmp_path)


def test_bf16_and_gradients(folder, sentences):
    """The adapter can be trained, and can run in bfloat16."""
    encoder = load_transformers_model(folder)
    packed = pack(sentences(MIXED))
    readouts = [parse_readout("mean")]
    [vectors] = apply_readouts(encoder, packed, readouts)
    vectors.square().sum().backward()
    with torch.no_grad():
        [exact] = apply_readouts(encoder, packed, readouts)
        [rough] = apply_readouts(encoder.to(torch.bfloat16), packed, readouts)

    assert next(encoder.parameters()).grad is not None
    assert torch.cosine_similarity(exact, rough).min() > 0.999


def test_a_model_that_transformers_builds_but_cannot_run_is_an_error_of_its_folder(tmp_path):
    """The mask of a batch does not fit into the causal mask of XLNet."""
    import transformers

    config = transformers.XLNetConfig(
        vocab_size=40, d_model=32, n_layer=2, n_head=2, d_inner=64, attn_type="uni"
    )
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    encoder = load_transformers_model(tmp_path)

    with pytest.raises(DataError, match=f"{tmp_path}: transformers cannot run the model: output"):
        states_of(encoder, [[5, 6, 7], [5, 6]])


def test_a_model_without_enough_memory_is_no_error_of_its_folder(folder, monkeypatch):
    encoder = load_transformers_model(folder)

    def run(**_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(encoder.model, "forward", run)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        states_of(encoder, [[5, 6, 7]])
