"""Checkpoints of methods that train no pooler, from a base that has one."""

import numpy as np
import pytest
import torch

from sentkit.training.methods.mlm import MaskedLanguageModel
from sentkit.training.runs.run import write_checkpoint


@pytest.fixture
def written(base_of, trainer_of, texts, tmp_path):
    """`written("pooler")`: a trained method, and the folder of its checkpoint with this readout."""

    def write(readout):
        base = base_of("bert", pooler=True)
        trainer = trainer_of(MaskedLanguageModel, texts, base=base, batch=5, lr=1e-3)
        trainer.train()
        write_checkpoint(tmp_path / "made", trainer.method, base, {}, readout)
        return trainer.method.eval(), base, tmp_path / "made"

    return write


@pytest.mark.parametrize("readout", ["pooler", "mean"])
def test_sentence_transformers_reads_the_checkpoint(written, texts, readout):
    """The readout `pooler` is the layer of the base."""
    from sentence_transformers import SentenceTransformer

    method, base, folder = written(readout)
    with torch.no_grad():
        expected = method.vectors(
            method.pack([each.ids for each in base.training_tokenizer(texts)]), readout
        ).numpy()
    found = SentenceTransformer(str(folder), device="cpu").encode(texts)

    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
