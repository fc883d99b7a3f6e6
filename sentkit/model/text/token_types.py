"""The token types that the tokenizer of a folder gives to a model, as in transformers 5."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sentkit.errors import DataError
from sentkit.formats.files import read_object_if_there
from sentkit.model.text.rules import library_errors
from sentkit.model.text.tokens import Ints

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
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError('"model_input_names" is not a list of names', source=str(path))
        return NAME in names
    class_name = tokenizer_config.get("tokenizer_class") or config.get("tokenizer_class")
    if class_name is None:
        return config.get("model_type") in TYPED_MODELS
    if not isinstance(class_name, str):
        raise DataError('"tokenizer_class" is not a name', source=str(folder))
    return class_name.removesuffix("Fast") in TYPED_CLASSES


@dataclass(frozen=True, slots=True)
class TextTypes:
    """The types of a text without a second one: XLNet has another one for its last token."""

    before: tuple[int, ...]  # of the special tokens before the text
    text: int  # of all tokens of the text
    after: tuple[int, ...]  # of the special tokens after it

    def of_batch(self, lengths: Sequence[int]) -> Ints:
        """The types (n,) of the tokens of texts, which have these lengths with special tokens."""
        types = np.full(sum(lengths), self.text, np.int64)
        ends = np.cumsum(lengths)
        starts = ends - lengths
        for index, type_of_token in enumerate(self.before):
            types[starts + index] = type_of_token
        for index, type_of_token in enumerate(self.after, -len(self.after)):
            types[ends + index] = type_of_token
        return types


def read_text_types(folder: Path, config: Mapping[str, Any]) -> TextTypes | None:
    """Return the types of texts; None if all are 0, as of most models, or if the model gets none.

    tokenizer.json has them in the template of its post-processor.
    """
    if not gives_token_types(folder, config):
        return None
    path = folder / "tokenizer.json"
    rules = read_object_if_there(path)
    before: list[int] = []
    after: list[int] = []
    type_of_text = 0
    with library_errors(str(path), "not a tokenizer"):
        processor = rules.get("post_processor") or {}
        for step in processor.get("processors", [processor]):
            special_types = before
            for piece in step.get("single", ()):
                if "Sequence" in piece:
                    type_of_text = piece["Sequence"]["type_id"]
                    special_types = after
                else:
                    token = piece["SpecialToken"]
                    count = len(step["special_tokens"][token["id"]]["ids"])
                    special_types += [token["type_id"]] * count
    if not any((*before, type_of_text, *after)):
        return None
    return TextTypes(tuple(before), type_of_text, tuple(after))
