"""Ways of one task in turn in this process, without loading: one_process.py NAME ARGUMENT...

encode TEXTS.txt [COUNT]: all-MiniLM-L6-v2 beside sentence-transformers, with equal weights and texts
static FOLDER TEXTS.txt: a folder of model2vec beside sentence-transformers, and model2vec if it is installed
pairs: `score` of pairs in JSONL with base64 vectors, beside the least that any program must do
host TEXTS.txt[.gz] [MODEL]: the time of a row besides network and tokenizer; the network gives ones
search: the nearest rows of a corpus beside the flat index of faiss; both hold the corpus already
storage VECTORS.safetensors: kinds of storage: hits of float32 that are kept, and the time of a search
clusters [SEEDS]: k-means beside that of scikit-learn and of faiss

faiss is to be installed beside sentkit. Times are CPU seconds of one thread; with OMP_NUM_THREADS=2, elapsed
seconds of two threads.
"""

import os

os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
os.environ["RAYON_NUM_THREADS"] = os.environ["SENTKIT_THREADS"] = os.environ["OMP_NUM_THREADS"]
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import base64
import importlib.util
import io
import statistics
import time
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import orjson
from timing import (
    MODEL,
    least_cosine,
    print_table,
    print_times,
    read_texts,
    rounds_of,
    run_named,
    sentence_transformers,
    write_texts,
)

import sentkit
from sentkit.cli import status
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.vectors.store import Store, StoredVectors
from sentkit.formats.vectors.tensors import STORES, Storage, scales_of
from sentkit.labels.clusters.clustering import ClusteringOptions, kmeans, of_centres
from sentkit.metrics.neighbours.search import Searcher, SignSearcher
from sentkit.model import find_encoder
from sentkit.model.encoding import LAST_GROUP, encode_texts
from sentkit.model.reading import ReadingOptions

TOP, THREADS = 10, os.environ["OMP_NUM_THREADS"]
CLOCK = time.process_time if THREADS == "1" else time.perf_counter
measure = partial(rounds_of, clock=CLOCK)


def encode(path, count="300"):
    texts, ways = read_texts(path, int(count)), {}
    for precision in ("fp32", "bf16"):
        ours = sentkit.Encoder(MODEL, device="cpu", precision=precision)
        theirs = sentence_transformers(read_checkpoint(MODEL).folder, precision)
        ways[f"sentkit {precision}"] = partial(ours.encode, texts)
        ways[f"sentence-transformers {precision}"] = partial(theirs, texts)
    columns, seconds = "what | sentences/s | speed relative to sentkit fp32: least | median", measure(ways)
    print_times(columns, seconds, "sentkit fp32", lambda least: f"{len(texts) / least:,.0f}", speed=True)
    words = sum(len(text.split()) for text in texts) / len(texts)
    full, reference = ways["sentkit fp32"](), ways["sentence-transformers fp32"]()
    near, rough = least_cosine(full, reference), least_cosine(full, ways["sentkit bf16"]())
    print(
        f"{len(texts)} sentences of {words:.1f} words. Lowest cosine of sentkit with sentence-transformers,"
        f" fp32: {near:.6f}; of bf16 with fp32: {rough:.5f}. Matrix products take"
        f" {100 * product_share(ways['sentkit fp32']):.0f} % of the time of sentkit fp32."
    )


def product_share(run):
    """The part of the time that is spent in matrix products, attention's left out."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    times = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    products = ("aten::addmm", "aten::mm", "aten::linear", "mkldnn::_linear_pointwise")
    return sum(times.get(name, 0) for name in products) / sum(times.values())


def static(folder, path):
    from safetensors.numpy import load_file
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, StaticEmbedding
    from tokenizers import Tokenizer

    texts, model = read_texts(path, 10_000), find_encoder(folder, ReadingOptions())
    encoder = model.encoder()
    ways = {"sentkit": lambda: encode_texts(model.tokenizer(texts), encoder, encoder.budget)[0]}
    if importlib.util.find_spec("model2vec"):
        from model2vec import StaticModel

        theirs = StaticModel.from_pretrained(folder)
        ways["model2vec"] = lambda: theirs.encode(texts, use_multiprocessing=False)
    # Put together by hand: of whole numbers it makes no parameters.
    table = load_file(f"{folder}/model.safetensors")["embeddings"].astype(np.float32)
    module = StaticEmbedding(Tokenizer.from_file(f"{folder}/tokenizer.json"), embedding_weights=table)
    stock = SentenceTransformer(modules=[module, Normalize()], device="cpu")
    ways["sentence-transformers"] = lambda: stock.encode(texts, batch_size=1024)
    vectors = {name: way() for name, way in ways.items()}
    far = {name: [f"{np.abs(own - vectors['sentkit']).max():.1e}"] for name, own in vectors.items()}
    columns = "what | texts/s | speed relative to sentkit: least | median | largest difference"
    shown = lambda least: f"{len(texts) / least:,.0f}"  # noqa: E731
    print_times(columns, measure(ways), "sentkit", shown, far.get, speed=True)


def pairs():
    count, random = 20_000, np.random.default_rng(0)
    with TemporaryDirectory() as folder:
        path = Path(folder, "pairs.jsonl")
        with path.open("wb") as file:
            for number in range(count):
                left, right = random.standard_normal((2, 384), dtype=np.float32)
                row = {
                    "id": number,
                    "text_a": f"sentence number {number}",
                    "text_b": f"another sentence, number {number}",
                    "score": number % 6,
                    "_emb": "made/mean:000000000000",
                    "embedding_a": base64.b64encode(left.tobytes()).decode(),
                    "embedding_b": base64.b64encode(right.tobytes()).decode(),
                }
                file.write(orjson.dumps(row) + b"\n")
        score, loop = ["score", str(path), "-o", "/dev/null"], "loop of orjson, b64decode, cosine and append"
        ways = {
            loop: partial(bare_loop, path),
            "`score`": partial(run, score),
            "`score --gold`, 1,000 resamples": partial(run, [*score, "--gold", "score"]),
        }
        seconds = measure(ways)
    columns = "what | rows/s | time relative to the first row: least | median"
    print_times(columns, seconds, loop, lambda least: f"{count / least:,.0f}")


def run(arguments):
    assert status(arguments) == 0, arguments


def bare_loop(path):
    """orjson, b64decode, cosine, append: no check of anything."""
    out = io.BytesIO()
    with path.open("rb") as file:
        for line in file:
            row = orjson.loads(line)
            left = np.frombuffer(base64.b64decode(row["embedding_a"]), np.float32)
            right = np.frombuffer(base64.b64decode(row["embedding_b"]), np.float32)
            cosine = left.dot(right) / np.sqrt(left.dot(left) * right.dot(right))
            out.write(line[:-2] + b',"similarity":%r}\n' % float(cosine))


def host(path, model="nano"):
    """For few and for all rows, so that the start is not counted; the time of the tokenizer is subtracted."""
    from sentkit.model.transformer.encoder import TransformerEncoder

    few, alone = 8_192, "tokenizer alone"
    outputs = {
        "text to vector file": ("txt", ["-fo", "out.safetensors"]),
        "JSONL to vector file": ("jsonl", ["-fo", "out.safetensors"]),
        "JSONL to vector folder": ("jsonl", ["-o", "out/"]),
        "JSONL to JSONL with base64": ("jsonl", ["--vectors", "base64", "-fo", "out.jsonl"]),
    }
    texts, tokenizer = read_texts(path, 32_768), find_encoder(model, ReadingOptions()).tokenizer
    TransformerEncoder.free_network()

    def tokenize(size):
        if tokenizer.words is not None:
            tokenizer.words.forget()  # as in a new command
        for start in range(0, size, LAST_GROUP):
            tokenizer(texts[start : min(size, start + LAST_GROUP)])

    def write(size, suffix, flags):
        for file in Path("out").glob("*"):
            file.unlink()
        run(["encode", f"{size}.{suffix}", "-m", model, "-q", *flags])

    with TemporaryDirectory() as folder:
        os.chdir(folder)
        sizes = (few, len(texts))
        for size in sizes:
            rows = ({"id": place, "text": text} for place, text in enumerate(texts[:size]))
            write_texts(Path(f"{size}.txt"), texts[:size])
            write_texts(Path(f"{size}.jsonl"), (orjson.dumps(row).decode() for row in rows))
        works = {(alone, size): partial(tokenize, size) for size in sizes}
        works |= {(what, size): partial(write, size, *outputs[what]) for what in outputs for size in sizes}
        least = {key: min(own) for key, own in measure(works).items()}
        os.chdir("/")
    per_row = {
        what: 1e6 * (least[what, len(texts)] - least[what, few]) / (len(texts) - few)
        for what in (alone, *outputs)
    }
    table = [(what, f"{own - per_row[alone] * (what != alone):.1f}") for what, own in per_row.items()]
    print_table("what | microseconds of CPU for each row", table)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def search():
    import faiss

    random, flat = np.random.default_rng(0), "faiss IndexFlatIP"
    corpus, queries = (random.standard_normal((n, 384), dtype=np.float32) for n in (50_000, 1000))
    unit_corpus, unit_queries = unit(corpus), unit(queries)
    index = faiss.IndexFlatIP(384)
    index.add(unit_corpus)
    cosine, dot = Searcher(corpus, "cosine"), Searcher(unit_corpus, "dot")
    print(f"{len(queries)} queries, {len(corpus)} rows of 384 random numbers, top {TOP}, {THREADS} threads")
    ways = {
        flat: lambda: index.search(unit_queries, TOP),
        "sentkit cosine": lambda: cosine.nearest(queries, TOP),
        "sentkit dot": lambda: dot.nearest(unit_queries, TOP),
    }
    columns = "what | time | time relative to faiss: least | median"
    print_times(columns, measure(ways), flat, lambda least: f"{1000 * least:.0f} ms")
    equal = np.mean(cosine.nearest(queries, TOP).rows == index.search(unit_queries, TOP)[1])
    print(f"rows in the same place as faiss has them: {equal:.2%}")


def storage(path):
    """The last 1,000 rows of a file of float32 are the queries, the others the corpus."""
    vectors = Store(path).mapped()[:, 0]
    corpus, queries = np.array(vectors[:-1000]), np.array(vectors[-1000:])
    kinds = {kind: stored(kind, corpus) for kind in STORES}
    signs, exact = kinds["binary"], Searcher(corpus)
    searchers = {
        "float32": exact,
        **{kind: Searcher(kinds[kind]) for kind in ("float16", "int8")},
        "binary, only Hamming distance": SignSearcher(signs, signs, "cosine", TOP),
    }
    seconds_of_hits = {"signs": signs, "int8": kinds["int8"], "float32": corpus}
    for (name, second), count in product(seconds_of_hits.items(), (100, 400, 1000)):
        searchers[f"binary, {count} candidates, {name}"] = SignSearcher(signs, second, "cosine", count)
    print(f"{len(queries)} queries, {len(corpus)} rows of {corpus.shape[1]} numbers, top {TOP}")
    expected = exact.nearest(queries, TOP).rows
    times = {
        count: measure({name: partial(s.nearest, queries[:count], TOP) for name, s in searchers.items()})
        for count in (100, 1)
    }
    rows = []
    for name, searcher in searchers.items():
        hits = [searcher.nearest(queries[n : n + 100], TOP).rows for n in range(0, len(queries), 100)]
        pairs = zip(np.concatenate(hits).tolist(), expected.tolist(), strict=True)
        recall = 100 * sum(len(set(a) & set(b)) for a, b in pairs) / expected.size
        cells = [
            f"{1000 * min(own[name]) / count:.2f} ms, {min(own[name]) / min(own['float32']):.2f} x"
            for count, own in times.items()
        ]
        rows.append([name, f"{recall:.2f}", *cells])
    print_table("corpus | recall | in blocks | alone", rows)


def stored(kind, vectors):
    scales = scales_of(np.abs(vectors).max(axis=0)) if kind == "int8" else None
    storage = Storage(kind, vectors.shape[1], scales)
    codes = storage.encode(vectors)
    return StoredVectors([SimpleNamespace(count=len(codes), storage=storage, codes=lambda: codes)])


def clusters(seeds="10"):
    """Fifty iterations each, as faiss makes them all. Inertias are of all rows.

    faiss looks at 256 rows for a cluster, so a separate line lets it use all rows, as the others do.
    """
    import faiss as library
    from sklearn.cluster import KMeans

    random, k = np.random.default_rng(0), 100
    groups = random.standard_normal((300, 384), dtype=np.float32)  # that run into one another
    rows = 0.5 * groups[random.integers(300, size=50_000)]
    rows = unit(rows + random.standard_normal(rows.shape, dtype=np.float32))

    def faiss(seed, most=256):
        model = library.Kmeans(384, k, niter=50, nredo=1, seed=seed, max_points_per_centroid=most)
        model.train(rows)
        return model.centroids.astype(np.float64)

    def ours(seed):
        options = ClusteringOptions(k, restarts=1, iterations=50, tolerance=-1.0)
        return kmeans(rows, options, np.random.RandomState(seed)).centres

    def scikit_learn(seed):
        model = KMeans(k, n_init=1, max_iter=50, tol=0.0, random_state=seed).fit(rows)
        return model.cluster_centers_.astype(np.float64)

    ways = {"faiss": faiss, "faiss, all rows": partial(faiss, most=len(rows))}
    ways |= {"sentkit": ours, "scikit-learn": scikit_learn}
    print(f"{len(rows)} rows of 384, k = {k}, 50 iterations, {THREADS} threads")
    seconds, inertias = ({name: [] for name in ways} for _ in range(2))
    for seed, (name, way) in product(range(int(seeds)), ways.items()):
        start = CLOCK()
        centres = way(seed)
        seconds[name].append(CLOCK() - start)
        inertias[name].append(of_centres(rows, centres).inertia or 0.0)
    means = {name: statistics.fmean(own) for name, own in inertias.items()}
    cells = {name: [f"{mean:.1f}", f"{mean / means['faiss']:.4f}"] for name, mean in means.items()}
    columns = "what | time | relative to faiss: least | median | inertia | relative to faiss"
    print_times(columns, seconds, "faiss", lambda least: f"{least:.1f} s", cells.get)


if __name__ == "__main__":
    run_named(encode, static, pairs, host, search, storage, clusters)
