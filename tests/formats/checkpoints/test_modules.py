"""Declarations of checkpoints in the current and the old schema of sentence-transformers."""

import json

import numpy as np
import pytest
import safetensors.numpy

from sentkit.errors import DataError, NoInputError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.checkpoints.modules import StoredDeclaration, read_modules
from sentkit.formats.files import write_json

OLD = "sentence_transformers.models."
NOT = "is not supported"
OTHER = f"with these settings {NOT}"


def modules():
    from sentence_transformers.sentence_transformer import modules

    return modules


def pipeline(*extra):
    """A modules.json of these types; the folders are the root, 1_Type, 2_Type, ..."""
    kinds = ["Transformer", *extra]
    return [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": OLD + kind,
        }
        for index, kind in enumerate(kinds)
    ]


def folder_of(tmp_path, listing, **files):
    """A folder with this modules.json; `files` are JSON by path, `__` for a slash."""
    write_json(tmp_path / "config.json", {"model_type": "bert", "output_hidden_states": True})
    write_json(tmp_path / "modules.json", listing)
    for name, value in files.items():
        write_json(tmp_path / f"{name.replace('__', '/')}.json", value)
    return tmp_path


def pooled(tmp_path, pooling=None, **files):
    return folder_of(tmp_path, pipeline("Pooling"), **{"1_Pooling__config": pooling or {}}, **files)


def declared(folder):
    return read_modules(folder)[1]


def problem_of(folder):
    with pytest.raises(DataError) as caught:
        read_modules(folder)
    return str(caught.value).removeprefix(f"{folder}/")


def test_a_default_prompt_without_text_is_empty(saved):
    assert (
        declared(saved(lambda: [modules().Pooling(8)], prompts={"query": "query : "})).prompt == ""
    )


NO_LISTING = 'modules.json: expected a list of modules, each with "type" and "path"'
OUTSIDE = 'modules.json: the path of a module, "{}", is outside the folder'
POOLED = pipeline("Pooling")
DECLARED = "config_sentence_transformers"
PROMPTS = '"prompts" is not an object of strings'
DIM = '"truncate_dim" is {!r}, expected 1 or more'
DEFAULT = '"default_prompt_name" is {!r}, which is not in "prompts"'


@pytest.mark.parametrize(
    ("listing", "files", "problem"),
    [
        *(
            (POOLED, {"1_Pooling__config": {}, DECLARED: declared}, f"{DECLARED}.json: {problem}")
            for declared, problem in (
                ({"prompts": ["query : "]}, PROMPTS),
                ({"prompts": {"query": 1}}, PROMPTS),
                ({"prompts": {"query": "a"}, "default_prompt_name": "q"}, DEFAULT.format("q")),
                ({"default_prompt_name": ["q"]}, DEFAULT.format(["q"])),
                *(({"truncate_dim": n}, DIM.format(n)) for n in (0, 2.0, True)),
            )
        ),
        *(
            (
                pipeline(*kinds),
                {f"{n}_{kind}__config": {} for n, kind in enumerate(kinds, 1)},
                problem,
            )
            for kinds, problem in (
                (["Normalize", "Pooling"], f"1_Normalize: module Normalize {OTHER}"),
                (["Dense", "Pooling"], f"1_Dense: module Dense {OTHER}"),
                (["Pooling", "Pooling"], f"2_Pooling: module Pooling {OTHER}"),
            )
        ),
        *(
            (
                POOLED,
                {"1_Pooling__config": {"pooling_mode": mode}},
                f"1_Pooling: pooling {words} {NOT}",
            )
            for mode, words in ((["cls", "median"], "cls + median"), (None, "None"), ([], ""))
        ),
        *(
            ([{"type": "x.Dense", "path": path}], {}, OUTSIDE.format(path))
            for path in ("../b", "a/../b")
        ),
        *((listing, {}, NO_LISTING) for listing in ({}, [{"type": "Pooling"}])),
    ],
)
def test_an_invalid_declaration_is_refused(tmp_path, listing, files, problem):
    """sentence-transformers also refuses a default prompt that does not exist."""
    assert problem_of(folder_of(tmp_path, listing, **files)) == problem


def test_the_prompt_of_instructor_models_is_excluded_by_their_name(tmp_path, monkeypatch):
    """Their files do not declare it; sentence-transformers also uses the name."""
    folder = pooled(tmp_path, {"include_prompt": True})
    monkeypatch.setattr("sentkit.formats.checkpoints.folders.find_model", lambda name: folder)

    for name in ("hkunlp/instructor-large", "hkunlp/instructor-xl@main"):
        assert not read_checkpoint(name).declaration.prompt_is_read
    assert read_checkpoint("own/instructor-large").declaration.prompt_is_read


def test_the_new_schema_has_priority(tmp_path):
    readout = declared(
        pooled(tmp_path, {"pooling_mode": "max", "pooling_mode_cls_token": True})
    ).readout

    assert readout.name == "max"


def test_a_transformer_in_a_subfolder_is_found(tmp_path):
    listing = pipeline("Pooling")
    listing[0]["path"] = "0_Transformer"
    settings = {"max_seq_length": 128, "do_lower_case": True}
    files = {"0_Transformer__sentence_roberta_config": settings}
    files["0_Transformer__tokenizer_config"] = {"model_max_length": 512}
    folder = pooled(tmp_path, modules=listing, **files)

    transformer, declaration = read_modules(folder)

    assert transformer == folder / "0_Transformer"
    assert (declaration.max_length, declaration.lowercase) == (128, True)


@pytest.mark.parametrize(
    ("transformer_length", "tokenizer_length", "length"),
    [
        (None, 1e30, None),  # transformers' word for "no limit"
        (64, 512, 64),
        (None, 512, 512),
        (1e30, 512, None),
        (64.0, None, 64),
    ],
)
def test_the_first_stated_length_is_used(tmp_path, transformer_length, tokenizer_length, length):
    folder = pooled(tmp_path)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": transformer_length})
    write_json(folder / "tokenizer_config.json", {"model_max_length": tokenizer_length})

    _, declaration = read_modules(folder)

    assert declaration.max_length == length


def test_a_folder_without_modules_declares_only_the_length_of_its_tokenizer(tmp_path):
    settings = {"max_seq_length": 64, "do_lower_case": True}
    write_json(tmp_path / "sentence_bert_config.json", settings)
    write_json(tmp_path / "tokenizer_config.json", {"model_max_length": 512})

    assert read_modules(tmp_path) == (tmp_path, StoredDeclaration(max_length=512))


def test_a_module_without_files_is_refused(tmp_path):
    with pytest.raises(NoInputError, match=r"1_Pooling/config\.json: no such file"):
        read_modules(folder_of(tmp_path, pipeline("Pooling")))


@pytest.mark.parametrize(
    ("start", "weights"), [(1, [1.0, 2.0]), (1, []), (1, [np.nan]), (True, [1.0]), (-1, [1.0])]
)
def test_layers_of_unequal_weight_are_refused(tmp_path, start, weights):
    files = {"1_WeightedLayerPooling__config": {"layer_start": start}, "2_Pooling__config": {}}
    folder = folder_of(tmp_path, pipeline("WeightedLayerPooling", "Pooling"), **files)
    arrays = {"layer_weights": np.array(weights, np.float32)}
    safetensors.numpy.save_file(arrays, folder / "1_WeightedLayerPooling/model.safetensors")

    assert problem_of(folder).endswith("layers of unequal weight are not supported")


def own(tmp_path, **values):
    files = {"1_Pooling__config": {}, "sentkit": values}
    folder = folder_of(tmp_path, pipeline("Pooling", "Normalize"), **files)
    return read_checkpoint(str(folder)).declaration


def test_sentkit_json_with_a_readout_has_priority_over_modules(tmp_path):
    """Without a readout it is only lineage."""
    texts = {"template": "[X] is [MASK]", "full_stop": "sncse", "prompt": "query: "}
    values = {**texts, "max_length": 32, "lowercase": True}
    declaration = own(tmp_path, readout="prompt", steps=("normalise", "2_Dense"), **values)

    assert (declaration.source, declaration.readout.name) == ("sentkit.json", "prompt")
    assert declaration.step_names == ("normalise", "2_Dense")
    assert {name: getattr(declaration, name) for name in values} == values
    lineage = own(tmp_path, method="simcse", steps=["2_Dense"])
    assert (lineage.source, lineage.step_names) == ("modules.json", ("normalise",))


@pytest.mark.parametrize("file", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_chat_template_without_modules_is_a_conflict(tmp_path, file):
    """sentence-transformers writes each text into a chat then. With modules.json, it does not."""
    write_json(tmp_path / "config.json", {"model_type": "bert"})
    (tmp_path / file).write_text(json.dumps({"chat_template": "{{ messages }}"}))

    assert "its chat template is not used" in declared(tmp_path).conflicts["chat_template"]
    assert declared(pooled(tmp_path)).conflicts == {}


def of_texts(output, method="forward"):
    text = {"method": method, "method_output_name": output}
    return {"modality_config": {"text": text}, "module_output_name": "token_embeddings"}


@pytest.mark.parametrize("output", ["last_hidden_state", ["last_hidden_state"]])
def test_a_transformer_can_name_its_last_states(tmp_path, output):
    folder = pooled(tmp_path, sentence_bert_config=of_texts(output))

    assert declared(folder).readout.name == "mean"


@pytest.mark.parametrize(
    "settings",
    [
        of_texts(["hidden_states", -2]),
        of_texts("pooler_output"),
        of_texts("last_hidden_state", method="get_text_features"),
        {"modality_config": {"image": of_texts("last_hidden_state")["modality_config"]["text"]}},
    ],
)
def test_a_transformer_with_other_states_is_refused(tmp_path, settings):
    folder = pooled(tmp_path, sentence_bert_config=settings)

    with pytest.raises(DataError, match=f"a modality_config with another output of texts {NOT}"):
        read_modules(folder)


@pytest.mark.parametrize("value", [[], 3, "text", True, 1e9])
def test_a_modality_config_that_is_no_object_is_refused(tmp_path, value):
    folder = pooled(tmp_path, sentence_bert_config={"modality_config": value})

    assert problem_of(folder) == 'sentence_bert_config.json: "modality_config" is not an object'


def test_a_number_is_a_truth_value_of_lowercase_but_not_of_the_prompt(tmp_path):
    folder = pooled(tmp_path, sentence_bert_config={"do_lower_case": 1})
    assert declared(folder).lowercase is True

    write_json(folder / "1_Pooling/config.json", {"include_prompt": 0})
    assert problem_of(folder) == (
        '1_Pooling/config.json: "include_prompt" is 0, expected true or false'
    )


@pytest.mark.parametrize("name", ["query", "document"])
def test_a_default_prompt_that_every_model_has_is_empty(tmp_path, name):
    settings = {"default_prompt_name": name, "prompts": {}}
    folder = pooled(tmp_path, config_sentence_transformers=settings)

    assert declared(folder).prompt == ""


def test_the_length_of_a_tokenizer_is_at_most_the_positions_but_not_that_of_the_module(tmp_path):
    folder = pooled(tmp_path)
    write_json(folder / "config.json", {"model_type": "llama", "max_position_embeddings": 32})
    write_json(folder / "tokenizer_config.json", {"model_max_length": 60})
    assert declared(folder).max_length == 32

    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 60})
    assert declared(folder).max_length == 60


def test_a_folder_of_model2vec_has_the_prompts_and_the_length_of_its_vectors(tmp_path):
    """Modules that model2vec does not know are refused."""
    write_json(tmp_path / "config.json", {"model_type": "model2vec"})
    settings = {"prompts": {"q": "query: "}, "default_prompt_name": "q", "truncate_dim": 16}
    write_json(tmp_path / "config_sentence_transformers.json", settings)
    static = pipeline("StaticEmbedding", "Normalize", "Dense")[1:]
    write_json(tmp_path / "modules.json", static[:2])
    assert (declared(tmp_path).prompt, declared(tmp_path).dim) == ("query: ", 16)

    write_json(tmp_path / "modules.json", static)
    with pytest.raises(DataError, match=f"model2vec with the module Dense {NOT}"):
        read_modules(tmp_path)


def test_values_that_sentkit_json_and_the_modules_declare_differently_are_conflicts(tmp_path):
    """A length that the modules do not state is none."""
    files = {
        "1_Pooling__config": {"include_prompt": False},
        "config_sentence_transformers": {"prompts": {"q": "query: "}, "default_prompt_name": "q"},
        "sentkit": {"readout": "mean", "prompt": "", "max_length": 32, "lowercase": True},
    }
    folder = folder_of(tmp_path, pipeline("Pooling"), **files)
    conflicts = read_checkpoint(str(folder)).declaration.conflicts

    assert list(conflicts) == ["prompt", "lowercase"]
    assert conflicts["prompt"] == (
        '"prompt" is "" by sentkit.json, which is used, and "query: " by the files of '
        "sentence-transformers"
    )


def test_sentkit_json_can_declare_averaged_layers(tmp_path):
    readout = own(tmp_path, readout="L1+L3:mean").readout

    assert (readout.layers, readout.reduction) == ((1, 3), "mean")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"readout": 3}, 'sentkit.json: "readout" is 3, expected str'),
        ({"readout": "best"}, 'sentkit.json: unknown readout "best"'),
        (
            {"readout": "cls", "steps": "normalise"},
            "sentkit.json: \"steps\" is 'normalise', expected list",
        ),
        (
            {"readout": "cls", "steps": ["../other"]},
            'sentkit.json: the path of a module, "../other", is outside the folder',
        ),
        (
            {"readout": "cls", "max_length": True},
            'sentkit.json: "max_length" is True, expected int',
        ),
        ({"readout": "cls", "dim": 0}, 'sentkit.json: "dim" is 0, expected 1 or more'),
        (
            {"readout": "cls", "prompts": {"a": 1}},
            'sentkit.json: "prompts" is not an object of strings',
        ),
    ],
)
def test_an_invalid_value_in_sentkit_json_is_refused(tmp_path, values, problem):
    with pytest.raises(DataError) as caught:
        own(tmp_path, **values)

    assert str(caught.value) == f"{tmp_path}/{problem}"
