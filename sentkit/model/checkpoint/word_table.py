"""The word vectors of a transformer: the table that turns token ids into the input of the first layer."""

import numpy as np
from numpy.typing import NDArray

from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.model.transformer.architecture import EMBEDDINGS, UnsupportedArchitecture, architecture_of
from sentkit.model.transformer.transformers_model import load_transformers_model
from sentkit.model.transformer.weights import canonical, fit, read_weights


def word_table(checkpoint: Checkpoint) -> NDArray[np.float32]:
    """Return the vectors (v, d), before positions are added and the layer norm is applied."""
    try:
        architecture = architecture_of(checkpoint)
    except UnsupportedArchitecture:
        table = load_transformers_model(checkpoint.transformer).model.get_input_embeddings().weight
    else:
        tensors = canonical(read_weights(checkpoint.transformer, checkpoint.name), architecture)
        fit(tensors, architecture, source=checkpoint.name)
        table = tensors[f"{EMBEDDINGS['words']}.weight"]
    return table.numpy(force=True).astype(np.float32, copy=False)
