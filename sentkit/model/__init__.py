"""Takes texts and a model name and returns vectors. Its entry point, `find_encoder`, imports no
torch.
"""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Union

from sentkit.errors import NoInputError, UsageError
from sentkit.formats.checkpoints.folders import (
    INCLUDED,
    WORD_SETS,
    Checkpoint,
    checkpoint_in,
    find_model,
    is_endpoint,
)
from sentkit.formats.files import exists, is_folder, is_safetensors, is_there
from sentkit.model.reading import ReadingOptions

if TYPE_CHECKING:
    from sentkit.model.api import ApiModel
    from sentkit.model.checkpoint_model import CheckpointModel
    from sentkit.model.static.models import StaticModel

WORD_FILES = (".txt", ".vec", ".npy", ".bin", ".gz", ".zst")  # suffixes that models do not have


Model = Union["CheckpointModel", "StaticModel", "ApiModel"]  # `encoder` loads the weights


def find_encoder(
    name: str,
    options: ReadingOptions,
    *,
    device: str = "auto",
    precision: str = "auto",
    recorded_precision: str | None = None,
    download: bool = True,
    compares_vectors: bool = False,
    requests: int | None = None,
) -> Model:
    """Return the model with this name, without loading transformer weights.

    A model of the hub may be downloaded; no request is sent to an API. `recorded_precision` is that
    of earlier vectors of a transformer; other models ignore it. `compares_vectors`: the device is
    also for the comparison of vectors, so another one than the CPU is allowed for a static model.
    `requests` are sent to an API at a time.
    """
    # A model behind an API.
    if is_endpoint(name):
        from sentkit.model.api import ApiModel

        if not download:
            raise NoInputError(f"{name}: texts are sent to an API only with -m")
        device_of_model = "auto" if compares_vectors else device
        return ApiModel(
            name, options, device=device_of_model, precision=precision, requests=requests
        )

    # A transformer. The name can be that of a file of word vectors, which has no checkpoint.
    is_file = name not in INCLUDED and exists(Path(name)) and not is_folder(Path(name))
    if not is_file and Path(name).suffix in WORD_FILES:
        raise NoInputError(f"{name}: no such file")
    if is_file and is_safetensors(name):
        advice = "name the folder of a checkpoint, which has config.json"
        if is_there(Path(name).with_name("config.json")):
            advice = f"name the folder of the checkpoint: {quote(str(Path(name).parent))}"
        raise NoInputError(f"{name}: is a safetensors file, expected a model", advice=advice)
    checkpoint = None
    if not is_file and name != WORD_SETS:
        checkpoint = checkpoint_in(find_model(name, download=download), name)
    if checkpoint is not None and not checkpoint.declaration.is_static:
        from sentkit.model.checkpoint_model import CheckpointModel

        if recorded_precision is not None:
            device, precision = as_earlier(checkpoint, device, precision, recorded_precision)
        return CheckpointModel(checkpoint, options, device=device, precision=precision)

    # A static model: a table of a checkpoint, a file of word vectors, or the sets of words.
    from sentkit.model.static import models

    if device != "cpu" and not device.startswith("auto") and not compares_vectors:
        raise UsageError(f"--device {device}: a static model runs on the CPU")
    if precision not in ("auto", "fp32"):
        raise UsageError(f"--precision {precision}: a static model computes in fp32")
    if checkpoint is not None:
        return models.read_static_folder(checkpoint, options)
    if is_file:
        return models.read_word_vector_file(name, options)
    return models.read_word_sets(options)


def as_earlier(
    checkpoint: Checkpoint, device: str, precision: str, recorded_precision: str
) -> tuple[str, str]:
    """Return the device and the precision that give vectors of the recorded precision.

    Only a CPU computes in int8, and no model that runs through transformers. Others keep their
    precision: the vectors then differ from the earlier ones, but no flag is wrong.
    """
    from sentkit.model.checkpoint_model import PACKED, how_it_runs

    if recorded_precision != "int8":
        return device, recorded_precision
    if not device.startswith(("auto", "cpu")) or how_it_runs(checkpoint) != PACKED:
        return device, precision
    return "cpu", recorded_precision
