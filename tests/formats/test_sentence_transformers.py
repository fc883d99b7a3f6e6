"""Folders of sentence-transformers: the same vectors as that library gives, or a refusal by
name.
"""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy

from sentkit import Encoder
from sentkit.cli import run_command_line
from sentkit.errors import DataError, SentkitError, UsageError
from sentkit.formats.files import write_json
from sentkit.model import find_encoder
from sentkit.model.encoding import encode_texts
from sentkit.model.reading import ReadingOptions

TEXTS = ["the cat sat .", "a dog", "query : the dogs sat a cat . . .", "the zebra"]
STATES = {"config_kwargs": {"output_hidden_states": True}}
PROMPTS = {"prompts": {"q": "query : "}, "default_prompt_name": "q"}


def modules():
    from sentence_transformers.sentence_transformer import modules

    return modules


def found_in(folder, **wishes):
    return find_encoder(str(folder), ReadingOptions(**wishes), device="cpu", precision="fp32")


def encoder_of(folder, **wishes):
    return found_in(folder, **wishes).encoder()


def vectors_of(folder, texts=TEXTS, **wishes):
    model = found_in(folder, **wishes)
    tokenizer = model.reading.tokenizer if hasattr(model, "reading") else model.tokenizer
    (vectors,) = encode_texts(tokenizer(texts), model.encoder(), 4096)
    return vectors


def library_vectors(folder, texts=TEXTS, **options):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(texts, **options)


def are_equal(folder, texts=TEXTS, **options):
    return np.allclose(
        vectors_of(folder, texts, **options), library_vectors(folder, texts, **options), atol=1e-6
    )


def space_of(folder, **wishes):
    return encoder_of(folder, **wishes).spaces[0].hash


def change(file, **values):
    write_json(file, json.loads(file.read_text()) | values)


def save_modules(steps, folder):
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(modules=steps, device="cpu").save(str(folder), create_model_card=False)


def exported(folder, out, *flags):
    assert run_command_line(["export", "-m", str(folder), *flags, "-o", str(out)]) == 0
    return out


# StaticEmbedding


@pytest.fixture
def static(base, tmp_path):
    """A folder with a StaticEmbedding and then these modules."""

    def save(*behind, truncation=None, **options):
        import torch
        from sentence_transformers import SentenceTransformer
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
        if truncation is not None:
            tokenizer.enable_truncation(truncation)
        table = torch.randn(
            tokenizer.get_vocab_size(), 6, generator=torch.Generator().manual_seed(0)
        )
        embedding = modules().StaticEmbedding(tokenizer, embedding_weights=table)
        model = SentenceTransformer(modules=[embedding, *behind], device="cpu", **options)
        model.save(str(tmp_path / "static"), create_model_card=False)
        return tmp_path / "static"

    return save


def test_a_static_embedding_gives_the_same_vectors(static):
    """Unknown words and empty texts included: the unknown token has a vector here.

    Older versions save it in a subfolder, with and without a config.json beside it.
    """
    folder = static()

    assert are_equal(folder, [*TEXTS, "", "zebra zebra"])
    assert np.abs(vectors_of(folder, ["zebra"])).max() > 0
    expected = library_vectors(folder)
    (folder / "0_StaticEmbedding").mkdir()
    for name in ("tokenizer.json", "model.safetensors"):
        (folder / name).rename(folder / "0_StaticEmbedding" / name)
    listing = json.loads((folder / "modules.json").read_text())
    listing[0]["path"] = "0_StaticEmbedding"
    write_json(folder / "modules.json", listing)
    assert np.allclose(vectors_of(folder), expected, atol=1e-6)
    write_json(folder / "config.json", {})
    assert np.allclose(vectors_of(folder), expected, atol=1e-6)


def test_a_static_embedding_that_normalises_truncates_and_has_a_prompt(static):
    prompts = {"prompts": {"query": "a cat "}, "default_prompt_name": "query"}
    folder = static(modules().Normalize(), truncation=3, **prompts)

    assert are_equal(folder)
    assert are_equal(folder, prompt="")


def test_a_static_embedding_with_a_dense_layer_is_refused(static):
    folder = static(modules().Dense(6, 3))

    problem = 'sentkit cannot run the module "1_Dense" after a StaticEmbedding'
    with pytest.raises(DataError, match=problem):
        vectors_of(folder)


def test_static_embedding_and_model2vec_have_different_spaces(static):
    """The same tensors, but another rule for unknown tokens."""
    from safetensors.numpy import load_file, save_file

    folder = static()
    space = space_of(folder)
    table = load_file(folder / "model.safetensors")["embedding.weight"]
    write_json(folder / "config.json", {"model_type": "model2vec"})
    save_file({"embeddings": table}, folder / "model.safetensors")

    assert space_of(folder) != space


# Refused modules


@pytest.fixture
def pooled(saved):
    return saved(lambda: [modules().Pooling(8)])


def refused(folder):
    with pytest.raises(SentkitError) as caught:
        vectors_of(folder)
    assert caught.value.exit_code == DataError.exit_code
    return str(caught.value).removeprefix(str(folder)).lstrip("/:. ")


def test_a_cross_encoder_is_refused_by_name(base, tmp_path):
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(base), num_labels=1, device="cpu")
    model.save(str(tmp_path / "cross"), create_model_card=False)

    assert refused(tmp_path / "cross") == "a CrossEncoder is not supported"
    (tmp_path / "cross/config_sentence_transformers.json").unlink()
    assert refused(tmp_path / "cross") == "a CrossEncoder is not supported"


@pytest.mark.parametrize(
    "note",
    [
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        {
            "sentence_transformers": {
                "activation_fn": "torch.nn.modules.linear.Identity",
                "version": "4.0.1",
            }
        },
    ],
)
def test_a_cross_encoder_of_an_older_version_is_refused_by_name(pooled, note):
    change(pooled / "config.json", **note)

    assert refused(pooled) == "a CrossEncoder is not supported"


def test_a_sparse_encoder_is_refused_by_name(base, tmp_path):
    from sentence_transformers import SparseEncoder

    SparseEncoder(str(base), device="cpu").save(str(tmp_path / "sparse"), create_model_card=False)

    assert refused(tmp_path / "sparse") == "a SparseEncoder is not supported"
    declaration = tmp_path / "sparse/config_sentence_transformers.json"
    write_json(declaration, {"model_type": "MultiVectorEncoder"})
    assert refused(tmp_path / "sparse") == "a MultiVectorEncoder is not supported"
    declaration.unlink()
    assert refused(tmp_path / "sparse") == (
        "2_SparseAutoEncoder: module SparseAutoEncoder is not supported"
    )


def test_a_transformer_without_token_states_is_refused(pooled):
    for config, problem in (
        ({"transformer_task": "fill-mask"}, 'a transformer for "fill-mask"'),
        ({"transformer_task": "sequence-classification"}, "a CrossEncoder"),
        ({"module_output_name": "scores"}, 'a transformer that gives "scores"'),
    ):
        write_json(pooled / "sentence_bert_config.json", config)
        assert refused(pooled) == f"{problem} is not supported"


def test_a_transformer_that_reads_other_texts_is_refused(saved, base, tmp_path):
    """With a chat template, the library reads `user the cat` in place of `the cat`; with
    processing_kwargs, here, only two tokens.
    """
    plain = saved(lambda: [modules().Pooling(8)])
    expected = library_vectors(plain)
    chat = tmp_path / "chat"
    shutil.copytree(base, chat)
    turns = "{% for turn in messages %}query : {{ turn.content }}{% endfor %}"
    (chat / "chat_template.jinja").write_text(turns)
    cut = {"processing_kwargs": {"text": {"max_length": 3}}}
    for folder, settings, problem in (
        (chat, {}, "a transformer with a chat template"),
        (base, cut, "a transformer with processing_kwargs"),
    ):
        saved_to = tmp_path / problem.rpartition(" ")[2]
        transformer = modules().Transformer(str(folder), max_seq_length=20, **settings)
        save_modules([transformer, modules().Pooling(8)], saved_to)

        assert not np.allclose(library_vectors(saved_to), expected, atol=1e-3)
        assert refused(saved_to) == f"{problem} is not supported"
    harmless = {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}}}
    change(plain / "sentence_bert_config.json", **harmless)
    assert are_equal(plain)


@pytest.mark.parametrize("name", ["tokenizer_args", "processor_kwargs"])
def test_a_length_in_the_arguments_of_the_tokenizer_has_priority(pooled, name):
    arguments = {"model_max_length": 4, "padding_side": "right"}
    write_json(pooled / "sentence_bert_config.json", {"max_seq_length": 6, name: arguments})

    assert are_equal(pooled)
    assert find_encoder(str(pooled), ReadingOptions()).tokenizer.max_length == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"max_seq_length": 6, "tokenizer_args": {"model_max_length": 1e30}},
        {"max_seq_length": 6, "tokenizer_args": {"model_max_length": None}},
        {"tokenizer_args": {"model_max_length": 1e30}, "processor_kwargs": {"model_max_length": 6}},
        {"max_seq_length": 1e30},
    ],
)
def test_a_number_for_no_limit_has_priority_over_later_places(pooled, settings):
    write_json(pooled / "sentence_bert_config.json", settings)
    change(pooled / "tokenizer_config.json", model_max_length=5)

    assert are_equal(pooled)
    assert find_encoder(str(pooled), ReadingOptions()).tokenizer.max_length > 6


@pytest.mark.parametrize(
    "settings",
    [
        {"max_seq_length": 4},
        {"do_lower_case": True},
        {"tokenizer_args": {"model_max_length": 4}},
        {"transformer_task": "fill-mask"},
        {"processing_kwargs": {"text": {"max_length": 3}}},
    ],
)
def test_settings_of_a_transformer_have_no_effect_without_modules(base, tmp_path, settings):
    """The library reads them only if modules.json names a Transformer."""
    folder = tmp_path / "plain"
    shutil.copytree(base, folder)
    write_json(folder / "sentence_bert_config.json", settings)

    assert are_equal(folder, [*TEXTS, "THE cat Sat a dog . the zebra"])
    assert space_of(folder) == space_of(base)


@pytest.mark.parametrize("value", ["x", 1.5, -1, [1], True])
@pytest.mark.parametrize("name", ["config_args", "tokenizer_args", "model_max_length"])
def test_damaged_arguments_are_an_error(pooled, name, value):
    config = json.loads((pooled / "sentence_bert_config.json").read_text())
    damaged = {"tokenizer_args": {name: value}} if name == "model_max_length" else {name: value}
    write_json(pooled / "sentence_bert_config.json", config | damaged)

    problem = refused(pooled)
    assert problem.startswith(f'sentence_bert_config.json: "{name}" is')
    assert problem.endswith(("is not an object", "expected a positive integer"))


def test_arguments_that_change_no_vector_are_accepted(pooled):
    config = json.loads((pooled / "sentence_bert_config.json").read_text())
    arguments = {
        "config_args": {"torch_dtype": "float32", "use_cache": False},
        "tokenizer_args": {"cache_dir": None, "local_files_only": False},
    }
    write_json(pooled / "sentence_bert_config.json", config | arguments)

    assert are_equal(pooled)


@pytest.mark.parametrize("name", ["config_args", "config_kwargs"])
def test_other_arguments_of_the_library_are_refused(pooled, name):
    """Those of config.json, here fewer layers, and those of the tokenizer."""
    expected = library_vectors(pooled)
    config = json.loads((pooled / "sentence_bert_config.json").read_text())
    write_json(pooled / "sentence_bert_config.json", config | {name: {"num_hidden_layers": 1}})

    assert not np.allclose(library_vectors(pooled), expected, atol=1e-3)
    assert refused(pooled) == f'a transformer with {name} "num_hidden_layers" is not supported'
    write_json(
        pooled / "sentence_bert_config.json", config | {"tokenizer_args": {"do_lower_case": False}}
    )
    problem = 'a transformer with tokenizer_args "do_lower_case" is not supported'
    assert refused(pooled) == problem


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_module_of_another_package_is_refused(saved, number):
    """It can have the name of a known one. The library refuses its code, too."""
    folder = saved(lambda: [modules().Pooling(8), modules().Normalize()])
    listing = json.loads((folder / "modules.json").read_text())
    name = f"custom_st.{listing[number]['type'].rpartition('.')[2]}"
    listing[number]["type"] = name
    write_json(folder / "modules.json", listing)

    with pytest.raises((ImportError, ValueError)):
        library_vectors(folder)
    assert refused(folder).endswith(f"module {name} is not supported")


@pytest.mark.parametrize("kind", ["Router", "CLIPModel", "BoW", "MLMTransformer"])
def test_an_unknown_first_module_is_refused_by_name(tmp_path, kind):
    """In a folder without config.json, as these kinds have none."""
    module = {"idx": 0, "name": "0", "path": "0_First", "type": f"sentence_transformers.{kind}"}
    write_json(tmp_path / "modules.json", [module])

    assert refused(tmp_path) == f"0_First: module {kind} is not supported"


# T5 encoders


@pytest.fixture
def sentence_t5(base, tmp_path):
    """As sentence-t5 and gtr: T5's encoder, the mean, a dense layer without bias, unit length."""
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    torch.manual_seed(0)
    sizes = {"vocab_size": 14, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2}
    transformers.T5EncoderModel(transformers.T5Config(**sizes)).save_pretrained(tmp_path / "t5")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "t5" / name).write_bytes((base / name).read_bytes())
    encoder = modules().Transformer(str(tmp_path / "t5"), max_seq_length=20)
    dense = modules().Dense(8, 4, bias=False, activation_function=torch.nn.Identity())
    steps = [encoder, modules().Pooling(8), dense, modules().Normalize()]
    SentenceTransformer(modules=steps, device="cpu").save(
        str(tmp_path / "saved"), create_model_card=False
    )
    return tmp_path / "saved"


def test_a_t5_encoder_gives_the_same_vectors_in_a_space_of_its_config(sentence_t5):
    """Each of these settings makes another space of the same tensors."""
    assert are_equal(sentence_t5)
    space = space_of(sentence_t5)
    config = (sentence_t5 / "config.json").read_text()
    for changed in (
        {"layer_norm_epsilon": 1e-3},
        {"relative_attention_max_distance": 64},
        {"dense_act_fn": "gelu_new"},
    ):
        write_json(sentence_t5 / "config.json", json.loads(config) | changed)
        assert space_of(sentence_t5) != space


# Modules behind a transformer


@pytest.mark.parametrize(
    ("modes", "include"),
    [
        (("cls", "mean"), True),
        (("mean", "lasttoken", "cls"), False),
        (("max", "weightedmean"), False),
        (("mean", "mean"), True),
    ],
)
def test_several_poolings_are_joined(saved, tmp_path, modes, include):
    def build():
        return [modules().Pooling(8, modes, include_prompt=include), modules().Normalize()]

    folder = saved(build, prompts={"q": "the cat "}, default_prompt_name="q")
    out = exported(folder, tmp_path / "out")
    expected = library_vectors(folder)

    assert vectors_of(folder).shape == expected.shape == (4, 8 * len(modes))
    assert np.allclose(vectors_of(folder), expected, atol=1e-6)
    assert np.allclose(vectors_of(out), expected, atol=1e-6)
    assert np.allclose(library_vectors(out), expected, atol=1e-6)
    assert vectors_of(folder, dim=11).shape == (4, 11)


def test_the_old_schema_joins_poolings_in_its_order(pooled):
    names = ("pooling_mode_max_tokens", "pooling_mode_mean_tokens", "pooling_mode_cls_token")
    config = {"word_embedding_dimension": 8, **dict.fromkeys(names, True)}
    write_json(pooled / "1_Pooling/config.json", config)

    assert are_equal(pooled)
    assert np.allclose(
        vectors_of(pooled), vectors_of(pooled, readout="concat:cls:max:mean"), atol=0
    )


def test_an_invalid_joined_readout_is_refused(pooled):
    for options, problem in (
        (
            {"readout": "cls,concat:cls:mean"},
            "the readout concat:cls:mean cannot be combined with others",
        ),
        ({"readout": "concat:cls:mean", "dim": 17}, "--dim 17: the vectors have only 16 numbers"),
        *(
            ({"readout": name}, "unknown readout")
            for name in ("concat:cls", "concat:cls:prompt", "concat")
        ),
    ):
        with pytest.raises(UsageError, match=problem):
            vectors_of(pooled, **options)


@pytest.mark.parametrize("normalise", [True, False])
def test_a_declared_dim_gives_the_same_vectors(saved, tmp_path, normalise):
    """The library truncates after all modules, so the vectors do not have unit length."""

    def build():
        return [modules().Pooling(8), *([modules().Normalize()] if normalise else [])]

    folder = saved(build, truncate_dim=5)
    out = exported(folder, tmp_path / "out")
    expected = library_vectors(folder)

    assert vectors_of(folder).shape == expected.shape == (4, 5)
    for vectors in (vectors_of(folder), vectors_of(out), library_vectors(out)):
        assert np.allclose(vectors, expected, atol=1e-6)
    assert vectors_of(folder, dim=6).shape == (4, 6)
    assert vectors_of(folder, readout="cls").shape == (4, 8)
    assert found_in(folder).summary()["dim"] == 5
    refusal = ["export", "-m", str(folder), "--normalize", "-o", str(tmp_path / "no")]
    assert run_command_line(refusal) == UsageError.exit_code


def test_a_declared_dim_above_the_width_keeps_all_numbers(saved):
    folder = saved(lambda: [modules().Pooling(8)], truncate_dim=1000)

    assert np.allclose(vectors_of(folder), library_vectors(folder), atol=1e-6)
    assert vectors_of(folder).shape == (4, 8)


@pytest.mark.parametrize(
    ("layers", "mode", "name"),
    [
        ((0, 3), "cls", "L0+L3:cls"),
        ((1,), "mean", "L1:mean"),
        ((0, 1, 2, 3), "mean", "L0+L1+L2+L3:mean"),
        ((1, 3), "mean_sqrt_len_tokens", "L1+L3:mean-sqrt"),
        ((1, 3), "weightedmean", "L1+L3:weighted-mean"),
        ((1, 3), "lasttoken", "L1+L3:last"),
    ],
)
def test_the_pooling_of_averaged_layers_gives_the_same_vectors(saved, layers, mode, name):
    import torch

    def build():
        weights = torch.tensor([2.0 * (k in layers) for k in range(min(layers), 4)])
        averaging = modules().WeightedLayerPooling(8, 3, min(layers), torch.nn.Parameter(weights))
        return [averaging, modules().Pooling(8, mode)]

    folder = saved(build, transformer=STATES)

    assert are_equal(folder)
    assert encoder_of(folder).spaces[0].metadata["readout"] == name


def with_dense(**settings):
    return lambda: [modules().Pooling(8), modules().Dense(8, 8, **settings)]


# In this case, sentence-transformers silently uses the last layer.
NOT = "is not supported"
NO_STATES = 'this module averages layers, but "output_hidden_states" is not true in config.json'


def averaged(start, mode="mean"):
    return lambda: [modules().WeightedLayerPooling(8, 3, start), modules().Pooling(8, mode)]


@pytest.mark.parametrize(
    ("build", "states", "problem"),
    [
        (
            averaged(2, ("cls", "mean")),
            True,
            f"2_Pooling: pooling cls + mean of averaged layers {NOT}",
        ),
        (averaged(2, "max"), True, f"2_Pooling: pooling max of averaged layers {NOT}"),
        (averaged(1), False, f"1_WeightedLayerPooling: {NO_STATES}"),
        *(
            (with_dense(**settings), False, f"2_Dense: module Dense with these settings {NOT}")
            for settings in (
                {"module_input_name": "tokens"},
                {"module_output_name": "x"},
                {"use_residual": True},
            )
        ),
        (lambda: layers("cls"), False, f"2_Pooling: pooling cls of a convolution {NOT}: only mean"),
        (lambda: layers("max"), False, f"2_Pooling: pooling max of a convolution {NOT}: only mean"),
        (lambda: layers()[::-1], False, f"2_CNN: module CNN with these settings {NOT}"),
        (lambda: layers(stride_sizes=[1, 2, 1]), False, f"1_CNN: a convolution with strides {NOT}"),
        (lambda: layers(kernel_sizes=[1, 2]), False, f"1_CNN: a convolution of even size {NOT}"),
    ],
)
def test_modules_that_cannot_run_are_refused(saved, build, states, problem):
    assert refused(saved(build, transformer=STATES if states else {})) == problem


def test_a_dense_layer_uses_tanh_by_default_and_an_unknown_activation_is_refused_by_name(saved):
    folder = saved(lambda: [modules().Pooling(8), modules().Dense(8, 6)])
    path = folder / "2_Dense/config.json"
    config = json.loads(path.read_text())
    del config["activation_function"]
    write_json(path, config)

    assert are_equal(folder)
    for name in ("torch.nn.modules.activation.Softplus", "own.Tanh", None, 3):
        change(path, activation_function=name)
        last = str(name).rpartition(".")[2]
        assert refused(folder) == f"2_Dense: a dense layer with activation {last} is not supported"


def test_steps_and_their_export_give_the_same_vectors(saved, tmp_path):
    """Every activation, a layer norm, a dropout and a pooling that only modules declare."""
    import torch

    torch.manual_seed(0)

    def build():
        layers = [
            modules().Dense(8, 8, activation_function=getattr(torch.nn, name)())
            for name in ("GELU", "ReLU", "SiLU", "Sigmoid", "Tanh", "Identity")
        ]
        norm = modules().LayerNorm(8)
        for parameter in norm.parameters():
            torch.nn.init.normal_(parameter)
        pooling = modules().Pooling(8, "weightedmean")
        dropout = modules().Dropout(0.5)
        return [pooling, dropout, *layers, norm, modules().Normalize()]

    folder = saved(build)
    out = exported(folder, tmp_path / "out")
    expected = library_vectors(folder)

    for vectors in (vectors_of(folder), vectors_of(out), library_vectors(out)):
        assert np.allclose(vectors, expected, atol=1e-6)
    assert space_of(folder) == space_of(out)


def test_spaces_of_earlier_versions_are_unchanged():
    """A worked example of each hash, computed from its definition."""
    from hashlib import blake2b

    from sentkit.transforms.steps import Linear

    weight = np.eye(2, dtype=np.float32)
    bias = np.ones(2, np.float32)
    for word, last in (("identity", "false"), ("tanh", "true"), ("gelu", '"gelu"')):
        definition = f'["linear",2,2,"{weight.tobytes().hex()}","{bias.tobytes().hex()}",{last}]'
        assert (
            Linear(weight, bias, word).hash
            == blake2b(definition.encode(), digest_size=6).hexdigest()
        )


@pytest.mark.parametrize(
    "mode", ["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
)
def test_each_pooling_gives_the_same_vectors_also_without_its_prompt(saved, tmp_path, mode):
    """The prompt is declared, given by a flag, and given as nothing; after an export, declared."""
    assert are_equal(saved(lambda: [modules().Pooling(8, mode)]))
    folder = saved(lambda: [modules().Pooling(8, mode, include_prompt=False)], **PROMPTS)

    for prompt in ({}, {"prompt": "the cat "}, {"prompt": ""}):
        assert are_equal(folder, **prompt)
    assert not np.allclose(vectors_of(folder), vectors_of(folder, prompt=""), atol=1e-3)
    out = exported(folder, tmp_path / "out")
    for vectors in (vectors_of(out), library_vectors(out)):
        assert np.allclose(vectors, vectors_of(folder), atol=1e-6)


@pytest.mark.parametrize("include", [True, False])
def test_named_prompts_give_the_same_vectors(saved, tmp_path, include):
    """Before and after an export with the selected prompt as default."""
    prompts = {"query": "query : ", "document": "the cat "}
    declared = {"prompts": prompts, "default_prompt_name": "document"}
    folder = saved(lambda: [modules().Pooling(8, "mean", include_prompt=include)], **declared)
    out = exported(folder, tmp_path / "out", "--prompt-name", "query")

    for checkpoint in (folder, out):
        for name in prompts:
            assert are_equal(checkpoint, prompt_name=name)
    assert np.allclose(vectors_of(folder), vectors_of(folder, prompt_name="document"), atol=0)
    encoder = Encoder(str(folder), device="cpu", precision="fp32", prompt_name="query")
    expected = library_vectors(folder, prompt_name="query")
    for vectors in (encoder.encode(TEXTS), library_vectors(out), vectors_of(out)):
        assert np.allclose(vectors, expected, atol=1e-6)


def test_a_new_default_prompt_is_added_to_the_named_ones(saved, tmp_path):
    folder = saved(lambda: [modules().Pooling(8)], prompts={"query": "query : "})
    for prompt, default, names in (
        ("a ", "default", {"query", "document", "default"}),
        ("query : ", "query", {"query", "document"}),
        ("", None, {"query", "document"}),
    ):
        out = exported(folder, tmp_path / f"out-{default}", "--prompt", prompt)
        written = json.loads((out / "config_sentence_transformers.json").read_text())
        assert (written["default_prompt_name"], set(written["prompts"])) == (default, names)
        assert np.allclose(library_vectors(out), library_vectors(folder, prompt=prompt), atol=1e-6)


def test_a_second_default_prompt_replaces_the_first_one(saved, tmp_path):
    """Also for sentkit, which reads sentkit.json."""
    folder = saved(lambda: [modules().Pooling(8)])
    first = exported(folder, tmp_path / "first", "--prompt", "the cat ")
    second = exported(first, tmp_path / "second", "--prompt", "query : ")
    expected = library_vectors(folder, prompt="query : ")

    assert np.allclose(library_vectors(second, prompt_name="default"), expected, atol=1e-6)
    assert np.allclose(vectors_of(second, prompt_name="default"), expected, atol=1e-6)
    assert are_equal(second)


def test_training_refuses_a_prompt_that_the_readout_excludes(saved, tmp_path):
    folder = saved(lambda: [modules().Pooling(8, include_prompt=False)], **PROMPTS)
    (tmp_path / "texts.txt").write_text("a cat\na dog\n")

    run = [
        "train",
        "simcse",
        str(tmp_path / "texts.txt"),
        "-m",
        str(folder),
        "-o",
        str(tmp_path / "out"),
    ]
    assert run_command_line(run) == UsageError.exit_code


# Convolutions over the tokens, as IS-BERT has: the readout `conv`


def layers(mode="mean", **settings):
    convolution = modules().CNN(8, 4, **{"kernel_sizes": [1, 3, 5], **settings})
    return [convolution, modules().Pooling(convolution.get_embedding_dimension(), mode)]


def test_a_convolution_gives_the_vectors_of_one_text_at_a_time(saved):
    folder = saved(layers)
    encoder = encoder_of(folder)
    vectors = vectors_of(folder)

    assert vectors.shape == (4, 12)
    np.testing.assert_allclose(vectors, library_vectors(folder, batch_size=1), rtol=0, atol=1e-6)
    assert (encoder.spaces[0].metadata["readout"], encoder.width) == ("conv", 12)


def test_a_dense_layer_after_a_convolution_takes_its_features(saved):
    folder = saved(lambda: [*layers(), modules().Dense(12, 5), modules().Normalize()])

    np.testing.assert_allclose(
        vectors_of(folder), library_vectors(folder, batch_size=1), rtol=0, atol=1e-6
    )
    assert np.array_equal(vectors_of(folder, dim=3).shape, (4, 3))


def test_other_readouts_do_not_use_the_convolution(saved, base):
    """Their space does not depend on it, and its own readout needs it and no other readout."""
    folder = saved(layers)
    assert np.array_equal(vectors_of(folder, readout="mean"), vectors_of(base, readout="mean"))
    with pytest.raises(UsageError, match='readout "conv": this checkpoint has no convolution'):
        encoder_of(base, readout="conv")
    with pytest.raises(UsageError, match="the readout conv cannot be combined with others"):
        encoder_of(folder, readout="conv,mean")
    before = [space_of(folder, **options) for options in ({}, {"readout": "mean"})]
    path = folder / "1_CNN/model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    safetensors.numpy.save_file({**tensors, "convs.0.bias": tensors["convs.0.bias"] + 1}, path)
    after = [space_of(folder, **options) for options in ({}, {"readout": "mean"})]

    assert before[0] != after[0]
    assert before[1] == after[1]


def test_a_damaged_convolution_is_refused(saved):
    folder = saved(layers)
    path = folder / "1_CNN/model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    for name, tensor, problem in (
        (
            "convs.1.weight",
            np.zeros((4, 7, 3), np.float32),
            "the weight or the bias has a wrong shape",
        ),
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
    change(pooling, include_prompt=False)
    with pytest.raises(UsageError, match="the readouts pooler, prompt and conv need them"):
        encoder_of(folder)
