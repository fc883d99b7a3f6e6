"""The packed encoder accepts a closed list of values; wrong values are errors that name the key."""

import json

import pytest

from sentkit.errors import DataError
from sentkit.model.small_encoder import buckets_of
from sentkit.model.transformer.architecture import UnsupportedArchitecture, read_architecture


def saved_config(config_of, tmp_path, family, **settings):
    config_of(family, **settings).save_pretrained(tmp_path)
    return json.loads((tmp_path / "config.json").read_text())


@pytest.fixture
def plain(config_of, tmp_path):
    return saved_config(config_of, tmp_path, "bert")


def test_a_config_with_only_sizes_gets_the_defaults_of_its_family():
    config = {"model_type": "bert", "vocab_size": 100, "hidden_size": 12, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 16}

    architecture = read_architecture(config, "config.json")

    assert (
        architecture.activation,
        architecture.norm_epsilon,
        architecture.types,
        architecture.padding_id,
    ) == ("gelu", 1e-12, 2, 0)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_decoder_with_only_sizes_gets_the_defaults_of_transformers(family):
    import transformers

    sizes = {
        "vocab_size": 100,
        "hidden_size": 640,
        "num_hidden_layers": 3,
        "num_attention_heads": 32,
    }
    sizes |= {"intermediate_size": 8, "max_position_embeddings": 64}
    reference = transformers.AutoConfig.for_model(family, **sizes)

    architecture = read_architecture({"model_type": family, **sizes}, "config.json")

    assert (architecture.key_heads, architecture.norm_epsilon) == (
        reference.num_key_value_heads,
        reference.rms_norm_eps,
    )
    assert architecture.head_size == getattr(reference, "head_dim", 20)
    assert architecture.activation == reference.hidden_act
    assert (
        architecture.attention_windows
        == ((getattr(reference, "sliding_window", None) or 1) - 1,) * 3
    )
    assert architecture.rotary_bases == (reference.rope_parameters["rope_theta"],) * 3
    assert (architecture.dropout, architecture.attention_dropout, architecture.causal) == (
        0.0,
        reference.attention_dropout,
        True,
    )


def test_windows_and_bases_of_decoders_in_the_words_of_transformers_4_and_5():
    sizes = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    qwen = {
        "model_type": "qwen2",
        **sizes,
        "intermediate_size": 8,
        "sliding_window": 8,
        "rope_theta": 1e6,
    }
    qwen |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
    slides = {"use_sliding_window": True, "max_window_layers": 2}
    kinds = {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 500}, "rope_theta": 7}

    def read(**settings):
        architecture = read_architecture(qwen | settings, "config.json")
        return architecture.attention_windows, architecture.rotary_bases[0]

    assert read() == ((0, 0, 0), 1e6)
    assert read(**slides) == ((0, 0, 7), 1e6)
    assert read(**slides, **kinds, **rotary) == ((7, 0, 0), 500)
    assert read(**slides, sliding_window=None) == ((0, 0, 0), 1e6)
    assert read(model_type="mistral", rope_scaling=None) == ((7, 7, 7), 1e6)
    assert read(model_type="mistral", sliding_window=None, layer_types=None) == ((0, 0, 0), 1e6)
    assert read(model_type="mistral", **kinds) == ((7, 0, 0), 1e6)
    assert read(model_type="llama", **slides, **kinds) == ((0, 0, 0), 1e6)


OF_MODERNBERT = [
    {"norm_bias": True},
    {"mlp_dropout": 0.1},
    {"classifier_activation": "relu"},
    {"classifier_pooling": "max"},
    {"classifier_bias": 1},
    {"layer_types": ["full_attention"]},
    {"layer_types": ["full_attention", "chunked", "full_attention"]},
    {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}},
    {"rope_parameters": {"sliding_attention": {"rope_theta": 0}}},
    {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
    {"local_rope_theta": None},
    {"num_attention_heads": 32},
    {"local_attention": 1},
]
OF_QWEN = [
    *({name: True} for name in ("attention_bias", "mlp_bias")),
    *(
        {"rope_scaling": {"rope_type": kind, "factor": 2.0}}
        for kind in ("linear", "yarn", "llama3")
    ),
    {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    {"rope_parameters": [1e4]},
    {"rope_theta": None},
    {"partial_rotary_factor": 0.5},
    {"head_dim": 5},
    {"num_key_value_heads": 3},
    {"use_sliding_window": True, "sliding_window": 1, "max_window_layers": 0},
    {"use_sliding_window": True, "max_window_layers": 0, "is_causal": False},
    {"layer_types": ["sliding_attention"] * 3},
    {"layer_types": "full_attention"},
    {"is_causal": None},
]
OF_MISTRAL = [
    *({"layer_types": kinds} for kinds in ([], ["full_attention"], "full_attention")),
    {"layer_types": ["sliding_attention"] * 3, "sliding_window": None},
]


@pytest.mark.parametrize(
    "change",
    [
        *({"model_type": kind} for kind in ("albert", None, ["bert"])),
        {"position_embedding_type": "relative_key"},
        *({"hidden_act": name} for name in ("quick_gelu", 3)),
        *({name: True} for name in ("is_decoder", "add_cross_attention", "is_encoder_decoder")),
        {"pruned_heads": {"0": [1]}},
        {"quantization_config": {"bits": 4}},
        {"auto_map": {"AutoModel": "modeling.Own"}},
        {"num_attention_heads": 5},
        {"model_type": "mpnet", "relative_attention_num_buckets": 16},
        *({"model_type": "modernbert", **change} for change in OF_MODERNBERT),
        *({"model_type": "qwen3", **change} for change in OF_QWEN),
        *({"model_type": "mistral", "num_key_value_heads": 2, **change} for change in OF_MISTRAL),
    ],
)
def test_other_values_are_not_packed(change, plain):
    with pytest.raises(UnsupportedArchitecture):
        read_architecture(plain | change, "config.json")
    with pytest.raises(UnsupportedArchitecture, match="model type"):
        read_architecture({}, "config.json")


SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
SIZES += ("max_position_embeddings",)
FRACTIONS = ("layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob")
WRONG = [(key, value) for key in SIZES for value in (None, "768", 0, -1, 1.5, True, [1], 10**12)]
WRONG += [(key, value) for key in FRACTIONS for value in ("0.1", -0.5, 1, float("nan"), {})]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_wrong_size_or_fraction_is_an_error_that_names_its_key(key, value, plain):
    with pytest.raises(DataError, match=f'config.json: "{key}"'):
        read_architecture(plain | {key: value}, "config.json")


def test_roberta_without_a_position_for_a_token_is_an_error(config_of, tmp_path):
    config = saved_config(config_of, tmp_path, "roberta")

    with pytest.raises(DataError, match="max_position_embeddings"):
        read_architecture(config | {"max_position_embeddings": 2}, "config.json")


def test_rows_of_relative_positions_by_hand():
    """Rows 0 to 7 and 16 to 23 are of one distance each; 8 to 15 and 24 to 31 of logarithms from 8
    to 128.
    """
    rows = buckets_of(300)

    assert rows[299, [299, 298, 292, 291, 284, 283, 282, 267, 235, 171, 0]].tolist() == [
        *(0, 1, 7, 8, 9, 10, 10, 12, 14, 15, 15)
    ]
    assert rows[0, [1, 7, 8, 16, 32, 64, 128, 299]].tolist() == [17, 23, 24, 26, 28, 30, 31, 31]
    assert (rows.diagonal() == 0).all()
