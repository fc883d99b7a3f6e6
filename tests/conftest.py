"""Small real encoders built in code; no test opens the network."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

# Tiny matrices on a shared machine: two threads waiting for each other cost more than they earn.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "the", "cat", "dog", "sat", ".", "play", "##ing", "##s"]


@pytest.fixture
def model2vec(tmp_path: Path) -> Callable[..., Path]:
    """A folder of model2vec: thirteen word pieces, random vectors of five numbers if no others are given."""
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    def made(arrays: Mapping[str, Any] | None = None, name: str = "static", **config: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        words = {word: number for number, word in enumerate(PIECES)}
        backend = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        backend.save(str(folder / "tokenizer.json"))
        random = np.random.default_rng(0).standard_normal((len(PIECES), 5))
        save_file(dict(arrays or {"embeddings": random.astype(np.float32)}), folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"model_type": "model2vec"} | config))
        return folder

    return made
