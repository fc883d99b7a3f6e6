"""The token types that the tokenizer of a folder gives to a model, as in transformers 5."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentkit.errors import DataError
from sentkit.formats.files import read_object_if_there

NAME = "token_type_ids"
# Classes whose tokenizers give types, unless "model_input_names" says otherwise. Others, and the
# generic ones, give none.
TYPED_CLASSES = (
    "BertTokenizer",
    "CanineTokenizer",
    "ConvBertTokenizer",
    "DebertaTokenizer",
    "DebertaV2Tokenizer",
    "ElectraTokenizer",
    "FNetTokenizer",
    "LayoutLMTokenizer",
    "LxmertTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer",
)
# Model types whose tokenizers have such a class, if no file names a class.
TYPED_MODELS = (
    "bert",
    "canine",
    "convbert",
    "deberta",
    "deberta-v2",
    "electra",
    "ernie",
    "fnet",
    "layoutlm",
    "lxmert",
    "megatron-bert",
    "mobilebert",
    "nomic_bert",
    "squeezebert",
)


def gives_token_types(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether a model gets token types from the tokenizer in its folder; `config`: config.json."""
    path = folder / "tokenizer_config.json"
    tokenizer_config = read_object_if_there(path)
    names = tokenizer_config.get("model_input_names")
    if names is not None:
        if not isinstance(names, list):
            raise DataError('"model_input_names" is not a list', source=str(path))
        return NAME in names
    class_name = tokenizer_config.get("tokenizer_class") or config.get("tokenizer_class")
    if class_name is None:
        return config.get("model_type") in TYPED_MODELS
    return str(class_name).removesuffix("Fast") in TYPED_CLASSES
