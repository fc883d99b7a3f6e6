"""Small real encoders and translators built in code; no test opens the network."""

import gc
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support import PIECES, forking, share_included_models, with_program

SHARED = "SENTKIT_FORKED_PROGRAM"  # an environment variable of the workers of xdist

# Tiny matrices on a shared machine: two threads waiting for each other cost more than they earn.
os.environ["OMP_NUM_THREADS"] = os.environ["SENTKIT_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Otherwise, each program that a test starts compiles all its imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# No test cuts the power, and some disks need 10 ms for a call. It still refuses a wrong file.
os.fsync = os.fstat

# A shell starts background jobs with SIGINT ignored, and the programs that tests start would
# inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine, an example can take any time. Examples may share the fixtures of their test.
# After a change of a reader or a kernel: pytest --hypothesis-profile thorough FILE
for name, examples in (("sentkit", 25), ("thorough", 400)):
    settings.register_profile(
        name,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
settings.load_profile("sentkit")


def pytest_configure(config):
    """Start the process that forks `sentkit` for all workers of xdist, while they collect the
    tests.

    Only `-m gpu` shows a GPU: the numbers that other tests expect are those of a CPU.
    """
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        stack = ExitStack()
        config.add_cleanup(stack.close)
        os.environ[SHARED] = json.dumps(stack.enter_context(forking()))


def pytest_make_parametrize_id(val, argname):
    """Bytes are not in the name of a test: those of an archive contain the time, and workers would
    differ.
    """
    return argname if isinstance(val, bytes) else None


def pytest_collection_finish():
    """What all tests share is no garbage; the collector need not walk through it again and
    again.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def one_thread():
    """Undo what a run of `train` sets: two threads cost ten times the CPU time on tiny matrices."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def included_models_are_read_once():
    """Most tests open nano or static, or another model with the words of nano: 50 ms or more."""
    with pytest.MonkeyPatch.context() as patch:
        share_included_models(patch.setattr)
        yield


@pytest.fixture
def with_torch(monkeypatch):
    """`encode` uses torch for small inputs too, so that vectors can be compared to the last bit."""
    monkeypatch.setattr("sentkit.model.small_encoder.LARGEST_WORK", -1)


@pytest.fixture(scope="session")
def forked_program():
    """A command line that runs `sentkit` as a fork of one process: torch is imported once."""
    shared = os.environ.get(SHARED)
    with nullcontext(json.loads(shared)) if shared else forking() as program:
        # It waits for the imports.
        subprocess.run([*program, "--version"], check=True, capture_output=True)
        yield program


@pytest.fixture(scope="session")
def execute(tmp_path_factory, forked_program):
    """Run a command in a folder, where `sentkit` is the forked program."""
    environment = with_program(tmp_path_factory.mktemp("program"), forked_program)

    def run(command, folder, **variables):
        return subprocess.run(
            command,
            cwd=folder,
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def model2vec(tmp_path):
    """A folder of model2vec: thirteen word pieces, random vectors of five numbers if no others are
    given.
    """
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    def made(arrays=None, name="static", **config):
        folder = tmp_path / name
        folder.mkdir()
        words = {word: number for number, word in enumerate(PIECES)}
        backend = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        backend.save(str(folder / "tokenizer.json"))
        random = np.random.default_rng(0).standard_normal((len(PIECES), 5))
        save_file(
            dict(arrays or {"embeddings": random.astype(np.float32)}), folder / "model.safetensors"
        )
        (folder / "config.json").write_text(json.dumps({"model_type": "model2vec"} | config))
        return folder

    return made


WORDS = (
    "the a cat dog man woman sea plays runs sleeps sings makes music guitar small big old and "
    "is in on of to"
)
SIZES = {"d_model": 16, "max_position_embeddings": 48}
SIZES |= {
    f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")
}
SIZES |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
T5_SIZES = {
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "n_positions": 48,
}
# So that random weights write more than one token again and again, and end.
LIVELY = {"no_repeat_ngram_size": 2, "exponential_decay_length_penalty": [4, 1.3], "num_beams": 3}


def word_pieces():
    """A byte-pair tokenizer of some English words and all letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    letters = " ".join("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:'")
    special = ["<pad>", "</s>", "<unk>", "<s>"]
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([WORDS, letters], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


def make_fsmt(ids):
    import transformers

    sizes = {"src_vocab_size": ids["vocab_size"], "tgt_vocab_size": ids["vocab_size"]}
    special = {name: value for name, value in ids.items() if name != "vocab_size"}
    config = transformers.FSMTConfig(
        langs=["en", "de"], forced_eos_token_id=1, **SIZES, **sizes, **special
    )
    return transformers.FSMTForConditionalGeneration(config)


def make_translator(kind, folder, seed=0):
    """A tiny Marian, FSMT, T5 or NLLB (an M2M100 of two languages) with random weights.

    NLLB and FSMT start from </s>. FSMT has a fast tokenizer: its own needs another package.
    """
    import torch
    import transformers

    pieces = word_pieces()
    if kind == "nllb":
        model = json.loads(pieces.to_str())["model"]
        merges = [tuple(merge) for merge in model["merges"]]
        codes = ["eng_Latn", "deu_Latn"]
        tokenizer = transformers.NllbTokenizer(model["vocab"], merges, extra_special_tokens=codes)
    else:
        names = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=pieces, **names)
    ids = {
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": int(kind in ("nllb", "fsmt")),
    }
    ids["vocab_size"] = len(tokenizer)
    torch.manual_seed(seed)
    if kind == "marian":
        config = transformers.MarianConfig(forced_eos_token_id=1, **SIZES, **ids)
        model = transformers.MarianMTModel(config)
    elif kind == "fsmt":
        model = make_fsmt(ids)
    elif kind == "nllb":
        model = transformers.M2M100ForConditionalGeneration(
            transformers.M2M100Config(**SIZES, **ids)
        )
    else:
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5_SIZES, **ids))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "embed_positions" not in name:
                weight.normal_(std=1.0 if "shared" in name else 1.5 * weight.shape[-1] ** -0.5)
    model.generation_config.update(**LIVELY, **({"max_length": 40} if kind == "marian" else {}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)


@pytest.fixture(scope="session")
def marian(tmp_path_factory):
    return make_translator("marian", tmp_path_factory.mktemp("translators") / "marian")


@pytest.fixture(scope="session")
def fsmt(tmp_path_factory):
    return make_translator("fsmt", tmp_path_factory.mktemp("translators") / "fsmt")


@pytest.fixture(scope="session")
def t5(tmp_path_factory):
    return make_translator("t5", tmp_path_factory.mktemp("translators") / "t5")


@pytest.fixture(scope="session")
def nllb(tmp_path_factory):
    return make_translator("nllb", tmp_path_factory.mktemp("translators") / "nllb")
