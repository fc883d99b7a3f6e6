"""Token types are given by the classes of tokenizers of which transformers gives them."""

import json

import pytest

from sentkit.errors import DataError
from sentkit.model.text.token_types import NAME, TYPED_CLASSES, TYPED_MODELS, gives_token_types

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


def test_names_of_inputs_that_are_no_list_are_an_error(tmp_path):
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"model_input_names": NAME}))

    with pytest.raises(DataError, match=f'{path}: "model_input_names" is not a list'):
        gives_token_types(tmp_path, {})
