"""Which encoder of the papers a checkpoint is, such as bert-base.

The recipes of the papers follow the family and the size of the base.
"""

from collections.abc import Mapping
from typing import Any

from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.json_files import read_object_if_there
from sentkit.model.reading import depth_of, width_of

SIZES = {(12, 768): "base", (24, 1024): "large"}  # layers and width
DISTILLED = {(6, 768): "base"}
MULTILINGUAL = 100_000  # mBERT has more tokens than any BERT of one language


def published_base(model: str) -> str | None:
    """The name in the published tables, such as roberta-large; None for an encoder that no paper has."""
    checkpoint = read_checkpoint(model)
    name = name_of(checkpoint.config)
    method = read_object_if_there(checkpoint.folder / "sentkit.json").get("method")
    return f"s{name}" if method == "sbert" and name in ("bert-base", "bert-large") else name


def same_base(published: str | None, base: str) -> bool:
    """Whether a published row is of this encoder, or of none; table 1 of ConSERT names only the family."""
    return published in (None, "", base) or (published, base) == ("bert", "bert-base")


def name_of(config: Mapping[str, Any]) -> str | None:
    family = config.get("model_type")
    sizes = {"bert": SIZES, "roberta": SIZES, "distilbert": DISTILLED}.get(str(family), {})
    size = sizes.get((depth_of(config), width_of(config)))
    if size is None:
        return None
    if family == "bert" and config.get("vocab_size", 0) > MULTILINGUAL:
        return "mbert"
    return f"{family}-{size}"
