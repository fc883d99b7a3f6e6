"""Token types are given by the classes of tokenizers of which transformers gives them."""

import json

import pytest

from sentkit.errors import DataError
from sentkit.model.text.token_types import (
    NAME,
    TYPED_CLASSES,
    TYPED_MODELS,
    TextTypes,
    gives_token_types,
    read_text_types,
)

UNTYPED_CLASSES = (
    "AlbertTokenizer",
    "DistilBertTokenizer",
    "FunnelTokenizer",
    "MPNetTokenizer",
    "PreTrainedTokenizer",
    "RobertaTokenizer",
    "XLNetTokenizer",
)
UNTYPED_MODELS = ("albert", "big_bird", "modernbert", "mpnet", "nystromformer", "roberta", "xlnet")


@pytest.mark.parametrize("end", ["", "Fast"])
@pytest.mark.parametrize("name", [*TYPED_CLASSES, *UNTYPED_CLASSES])
def test_classes_give_types_as_in_transformers(tmp_path, name, end):
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    declared = {"tokenizer_class": name + end}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(declared))
    has_types = NAME in tokenizer_class_from_name(name + end).model_input_names

    assert gives_token_types(tmp_path, {}) is has_types is (name in TYPED_CLASSES)
    (tmp_path / "tokenizer_config.json").unlink()
    assert gives_token_types(tmp_path, declared | {"model_type": "other"}) is has_types


@pytest.mark.parametrize("model_type", [*TYPED_MODELS, *UNTYPED_MODELS])
def test_tokenizers_without_a_class_give_types_as_in_transformers(tmp_path, model_type):
    from transformers.models.auto import tokenization_auto

    name = tokenization_auto.TOKENIZER_MAPPING_NAMES[model_type]
    has_types = NAME in tokenization_auto.tokenizer_class_from_name(name).model_input_names

    assert gives_token_types(tmp_path, {"model_type": model_type}) is has_types
    assert has_types is (model_type in TYPED_MODELS)


def test_types_of_a_batch_are_those_around_each_text(tmp_path):
    """Also of a template in a sequence of post-processors."""
    bytes_only = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    pieces = [
        {"SpecialToken": {"id": "s", "type_id": 3}},
        {"Sequence": {"id": "A", "type_id": 1}},
        {"SpecialToken": {"id": "e", "type_id": 2}},
    ]
    special = {"s": {"id": "s", "ids": [7, 8]}, "e": {"id": "e", "ids": [9]}}
    template = {"type": "TemplateProcessing", "single": pieces, "special_tokens": special}
    typed = {"model_type": "bert"}

    def types_of(processor):
        (tmp_path / "tokenizer.json").write_text(json.dumps({"post_processor": processor}))
        return read_text_types(tmp_path, typed)

    types = types_of({"type": "Sequence", "processors": [bytes_only, template]})
    assert types == types_of(template) == TextTypes((3, 3), 1, (2,))
    assert types.of_batch((4, 3, 5)).tolist() == [3, 3, 1, 2, 3, 3, 2, 3, 3, 1, 1, 2]
    assert types_of({"type": "BertProcessing", "sep": ["e", 9], "cls": ["s", 7]}) is None
    assert types_of(None) is None
    with pytest.raises(DataError, match="not a tokenizer"):
        types_of({"single": [{"SpecialToken": {"id": "s", "type_id": 1}}]})
    assert read_text_types(tmp_path, {"model_type": "xlnet"}) is None


@pytest.mark.parametrize(
    ("damaged", "problem"),
    [
        ({"model_input_names": NAME}, '"model_input_names" is not a list of names'),
        ({"model_input_names": {NAME: 1}}, '"model_input_names" is not a list of names'),
        ({"model_input_names": [NAME, 5]}, '"model_input_names" is not a list of names'),
        ({"tokenizer_class": 5}, '"tokenizer_class" is not a name'),
        ({"tokenizer_class": ["BertTokenizer"]}, '"tokenizer_class" is not a name'),
    ],
)
def test_names_of_other_types_are_an_error(tmp_path, damaged, problem):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(damaged))

    with pytest.raises(DataError, match=problem):
        gives_token_types(tmp_path, {})
