"""An encoder for the evaluation library mteb: the description of a model, and the prompt of a task.

mteb is imported only inside functions, because sentkit does not depend on it.
"""

from collections.abc import Mapping
from typing import Any

from sentkit.formats.files import exists
from sentkit.formats.vectors.fingerprint import name_for_label, space_of
from sentkit.model import Model

# The names of a declared prompt for a side; checkpoints use the later ones, too.
NAMES_OF_SIDE = {"query": ("query",), "document": ("document", "passage", "corpus")}


def prompt_of_task(
    prompts: Mapping[str, str], name: str, task_type: str, side: str | None
) -> str | None:
    """The declared prompt for a task of mteb and a side of it, in the order of mteb: that of the
    task and the side, of the task, of its type and the side, of its type, of the side.
    """
    candidates: list[str] = []
    for of_task in (name, task_type):
        if side is not None:
            candidates.append(f"{of_task}-{side}")
        candidates.append(of_task)
    if side is not None:
        candidates += NAMES_OF_SIDE.get(side, (side,))
    for candidate in candidates:
        if candidate in prompts:
            return prompts[candidate]
    return None


def texts_of_task(batches: Any) -> list[str]:
    """The texts of the batches of mteb; a TypeError for a task with other inputs."""
    texts: list[str] = []
    for batch in batches:
        if "text" not in batch:
            inputs = ", ".join(map(str, batch))
            raise TypeError(f"a task of mteb with {inputs}: sentkit encodes texts only")
        texts += batch["text"]
    return texts


def model_meta(model: Model, *, space: str, width: int, metric: str, max_length: int | None) -> Any:
    """The ModelMeta of a model. Its revision is the hash of the space, so that mteb uses the
    results that it keeps only for equal vectors.
    """
    from mteb.models.model_meta import (  # type: ignore[import-not-found, unused-ignore]
        ModelMeta,
        ScoringFunction,
    )

    return ModelMeta.create_empty(
        {
            "name": name_for_mteb(model.name),
            "revision": space_of(space),
            "max_tokens": max_length,
            "embed_dim": width,
            "similarity_fn_name": ScoringFunction(metric),
            "use_instructions": bool(model.prompts),
            "framework": ["PyTorch"],
        }
    )


def name_for_mteb(name: str) -> str:
    """ORGANIZATION/NAME, as mteb needs it: a name of the hub as it is, others as sentkit/NAME."""
    hub_name = name.partition("@")[0]
    if hub_name.count("/") == 1 and all(hub_name.split("/")) and not exists(hub_name):
        return hub_name
    return f"sentkit/{name_for_label(name)}"
