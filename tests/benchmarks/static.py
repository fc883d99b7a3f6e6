"""A static encoder against sentence-transformers' and model2vec, if installed: static.py FOLDER
TEXTS.txt

CPU seconds of one thread from texts to vectors, without loading. FOLDER is one of model2vec.
"""

import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import importlib.util
import sys
import time

import numpy as np
from timing import print_speeds, read_texts, rounds_of
from usage import check_arguments

from sentkit.model import find_encoder
from sentkit.model.encoding import encode_texts
from sentkit.model.reading import ReadingOptions

COUNT = 10_000


def main():
    check_arguments(__doc__, least=2, most=2)
    folder = sys.argv[1]
    texts = read_texts(sys.argv[2], COUNT)
    model = find_encoder(folder, ReadingOptions())
    encoder = model.encoder()

    def by_sentkit():
        (vectors,) = encode_texts(model.tokenizer(texts), encoder, encoder.tokens_per_batch)
        return vectors

    ways = {"sentkit": by_sentkit}
    if importlib.util.find_spec("model2vec"):
        from model2vec import StaticModel

        static_model = StaticModel.from_pretrained(folder)
        ways["model2vec"] = lambda: static_model.encode(texts, use_multiprocessing=False)
    from safetensors.numpy import load_file
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, StaticEmbedding
    from tokenizers import Tokenizer

    # Put together by hand: of whole numbers it makes no parameters.
    table = load_file(f"{folder}/model.safetensors")["embeddings"].astype(np.float32)
    static = StaticEmbedding(
        Tokenizer.from_file(f"{folder}/tokenizer.json"), embedding_weights=table
    )
    stock = SentenceTransformer(modules=[static, Normalize()], device="cpu")
    ways["sentence-transformers"] = lambda: stock.encode(texts, batch_size=1024)
    vectors = {name: way() for name, way in ways.items()}
    differences = {}
    for name, vectors_of_way in vectors.items():
        difference = np.abs(vectors_of_way - vectors["sentkit"]).max()
        differences[name] = [f"{difference:.1e}"]
    seconds = rounds_of(ways, clock=time.process_time)
    columns = "what | texts/s | speed relative to sentkit: least | median | largest difference"
    print_speeds(columns, seconds, "sentkit", len(texts), differences.get)


if __name__ == "__main__":
    main()
