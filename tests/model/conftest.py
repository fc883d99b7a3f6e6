"""Tiny transformers of every family, random weights and odd settings, made by transformers
itself.
"""

import json

import numpy as np
import pytest
import torch

from sentkit.model.transformer.architecture import read_architecture
from sentkit.model.transformer.bert import load_bert
from sentkit.model.transformer.weights import canonical, fit, read_tensors

USUAL = {
    "bert": {},
    "roberta": {"max_position_embeddings": 66, "pad_token_id": 1},
    "xlm-roberta": {"max_position_embeddings": 66, "pad_token_id": 1},
    "camembert": {"max_position_embeddings": 66, "pad_token_id": 1},
    "distilbert": {},
    "electra": {"embedding_size": 20},
    "mpnet": {"max_position_embeddings": 66},
    "modernbert": {"local_attention": 8, "pad_token_id": 0},
    "llama": {},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 6},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 1, "head_dim": 16},
}
ODD = {
    "bert": {
        "vocab_size": 211,
        "hidden_size": 42,
        "num_attention_heads": 3,
        "num_hidden_layers": 1,
        "intermediate_size": 37,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-3,
        "type_vocab_size": 5,
        "max_position_embeddings": 67,
    },
    "roberta": {
        "hidden_act": "relu",
        "layer_norm_eps": 1e-5,
        "pad_token_id": 3,
        "type_vocab_size": 1,
        "max_position_embeddings": 71,
    },
    "xlm-roberta": {
        "hidden_act": "silu",
        "num_hidden_layers": 4,
        "hidden_size": 20,
        "pad_token_id": 1,
    },
    "camembert": {"hidden_act": "gelu_pytorch_tanh", "intermediate_size": 11, "vocab_size": 129},
    "distilbert": {
        "activation": "relu",
        "dim": 30,
        "n_heads": 5,
        "n_layers": 2,
        "hidden_dim": 13,
        "sinusoidal_pos_embds": True,
        "max_position_embeddings": 65,
    },
    "electra": {
        "embedding_size": 32,
        "hidden_act": "silu",
        "layer_norm_eps": 1e-4,
        "num_hidden_layers": 2,
    },
    "mpnet": {
        "hidden_act": "relu",
        "layer_norm_eps": 1e-5,
        "pad_token_id": 0,
        "max_position_embeddings": 330,
    },
    "llama": {
        "hidden_size": 40,
        "head_dim": 10,
        "num_key_value_heads": 4,
        "hidden_act": "gelu",
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    },
    "mistral": {
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "hidden_size": 18,
        "head_dim": 2,
        "sliding_window": None,
        "num_hidden_layers": 2,
    },
    "qwen2": {
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "hidden_size": 42,
        "intermediate_size": 37,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
        "vocab_size": 211,
    },
    "qwen3": {
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "head_dim": 6,
        "use_sliding_window": True,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
DECODERS = ("llama", "mistral", "qwen2", "qwen3")
SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


def tiny_config(family, **settings):
    import transformers

    if family == "distilbert":
        names = {
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
        }
        names["intermediate_size"] = "hidden_dim"
        small = {names.get(name, name): value for name, value in SMALL.items()}
    else:
        small = SMALL
    padding = {"pad_token_id": 0} if family in DECODERS else {}
    return transformers.AutoConfig.for_model(
        family, **(small | padding | USUAL.get(family, {}) | settings)
    )


def scatter_weights(model, seed=0):
    """Larger weights than in a new model; norms differ from 1 and biases from 0, so each term
    matters.
    """
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=random)
            scale = (
                0.5
                if "embeddings" in name
                else weight.shape[-1] ** -0.5
                if weight.ndim > 1
                else 0.2
            )
            start = (
                1.0 if name.endswith("norm.weight") or name.endswith("LayerNorm.weight") else 0.0
            )
            weight.copy_(start + noise * scale)


def make_model(family, head="Model", seed=0, **settings):
    """A model of transformers in evaluation mode, such as BertModel or DistilBertForMaskedLM."""
    import transformers

    kind = getattr(transformers, f"Auto{head}" if head == "Model" else f"AutoModel{head}")
    model = kind.from_config(tiny_config(family, **settings))
    scatter_weights(model, seed)
    return model.eval()


def load_folder(folder):
    """What `save_pretrained` wrote, read by sentkit."""
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    architecture = read_architecture(
        json.loads((folder / "config.json").read_text()), "config.json"
    )
    tensors = canonical(read_tensors(files), architecture)
    fit(tensors, architecture, source=str(folder))
    return load_bert(tensors, architecture)


def random_sentences(lengths, vocabulary=97, seed=0):
    """Random ids, none of which is a padding id (they are below 5)."""
    random = np.random.default_rng(seed)
    return [random.integers(5, vocabulary, length) for length in lengths]


@torch.no_grad()
def hidden_states(model, batch):
    """transformers' hidden states, (n, d) a layer: one sentence at a time, and so without
    padding.
    """
    runs = [model(torch.from_numpy(ids)[None], output_hidden_states=True) for ids in batch]
    layers = zip(*(run.hidden_states for run in runs), strict=True)
    return [torch.cat([states[0] for states in layer]) for layer in layers]


@torch.no_grad()
def states_of(encoder, packed, **options):
    return list(encoder.states(packed, **options))


@pytest.fixture
def bert(tmp_path):
    """Three blocks of width 32, with a pooler."""
    make_model("bert").save_pretrained(tmp_path / "bert")
    return load_folder(tmp_path / "bert")


# Test files cannot import this one, so the functions come to them as fixtures.
make = pytest.fixture(lambda: make_model, name="make")
config_of = pytest.fixture(lambda: tiny_config, name="config_of")
load = pytest.fixture(lambda: load_folder, name="load")
sentences = pytest.fixture(lambda: random_sentences, name="sentences")
oracle = pytest.fixture(lambda: hidden_states, name="oracle")
states = pytest.fixture(lambda: states_of, name="states")


@pytest.fixture(
    params=[
        *(
            (name, "usual")
            for name in ("bert", "roberta", "electra", "mpnet", "modernbert", *DECODERS)
        ),
        *((name, "odd") for name in ODD),
    ],
    ids="-".join,
)
def checkpoint(request):
    """Each family with odd settings, and some with their usual ones: a model of transformers."""
    family, kind = request.param
    return make_model(family, **(ODD[family] if kind == "odd" else {}))
