"""`export`: folders that transformers, sentence-transformers and sentkit itself read to the same
vectors.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from sentkit.formats.files import write_json
from support import ROOT, SMALL, copy_tokenizer, make_bert, write_affine

CLOSE = 1e-5
READOUTS = ("cls", "mean", "mean-last2", "mean-first-last", "mean-emb-last", "L2:cls")
JOINED = ("concat:cls:mean", "concat:mean:cls", "concat:last:max:weighted-mean")
TRANSFORM = ("--transform", "t.safetensors")
FLAGS = {
    "prefix": ("--prompt", "query: "),
    "transform": TRANSFORM,
    "all": ("--prompt", "query: ", "--normalize", *TRANSFORM, "--max-length", "12"),
}


@pytest.fixture
def transform(tmp_path):
    """A random map of 16 numbers to 6."""
    random = np.random.default_rng(3)
    kernel = random.standard_normal((16, 6)).astype(np.float32)
    bias = random.standard_normal(16).astype(np.float32)
    write_affine(tmp_path / "t.safetensors", kernel, bias, {"kind": "whitening"})


def space_of(encoded):
    return encoded.rows[0]["_emb"].rpartition(":")[2]


@pytest.fixture
def exported(sentkit, tiny):
    """The folder that these flags make, and the rows that the same flags encode."""

    def run(*flags, stdin="", model=tiny):
        result = sentkit("export", "-q", "-m", model, "-o", "made", *flags)
        assert (result.code, result.err) == (0, "")
        reading = [word for word in flags if word not in TRANSFORM]
        encode = ("encode", "-q", "-m", model, "--precision", "fp32", *reading)
        encoded = sentkit(*encode, stdin=stdin)
        if set(TRANSFORM) <= set(flags):
            encoded = sentkit("whiten", "apply", "-t", "t.safetensors", stdin=encoded.out)
        return "made", encoded

    return run


@pytest.fixture
def by_library():
    """The vectors of sentence-transformers, as it reads a folder by itself."""

    def run(folder, texts):
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(
            str(folder), device="cpu", model_kwargs={"dtype": torch.float32}
        )
        return model.encode(texts)

    return run


@pytest.fixture
def few_sentences(sentences):
    """One short, one long, one with many scripts; sentence-transformers pads them together."""
    return [sentences[n] for n in (0, 5, 7, 21, 27, 49)]


@pytest.mark.usefixtures("transform")
@pytest.mark.parametrize(
    "flags",
    [
        *(pytest.param(("--readout", readout), id=readout) for readout in READOUTS + JOINED),
        *(
            pytest.param(("--readout", "mean", *flags), id=f"mean {name}")
            for name, flags in FLAGS.items()
        ),
        pytest.param(("--readout", "mean-last2", *FLAGS["all"]), id="mean-last2 all"),
        pytest.param(("--readout", "pooler"), id="pooler"),
        pytest.param(("--readout", "pooler", *FLAGS["all"]), id="pooler all"),
    ],
)
@pytest.mark.usefixtures("with_torch")
def test_a_folder_gives_the_same_vectors_everywhere(
    exported, sentkit, by_library, few_sentences, flags, tmp_path
):
    """In sentkit with the flags and by the folder, in sentence-transformers, and by modules.json
    alone.

    To others, a pooler is a dense layer, so modules.json alone makes another space of it.
    """
    folder, encoded = exported(*flags, stdin="\n".join(few_sentences))
    command = ("encode", "-m", folder, "--precision", "fp32")
    declared = sentkit(*command, stdin="\n".join(few_sentences))
    of_library = by_library(tmp_path / folder, few_sentences)
    Path(folder, "sentkit.json").unlink()
    by_modules = sentkit(*command, stdin="\n".join(few_sentences))

    assert space_of(declared) == space_of(encoded)
    assert "pooler" in flags or space_of(by_modules) == space_of(encoded)
    assert np.array_equal(declared.vectors(), encoded.vectors())
    assert np.abs(by_modules.vectors() - encoded.vectors()).max() < CLOSE
    assert np.abs(of_library - encoded.vectors()).max() < CLOSE


def test_a_pooling_module_in_another_order_is_kept(sentkit, tiny, by_library, few_sentences):
    """The list of its modes, as sentence-transformers 5.4 and later writes them."""
    from sentence_transformers import SentenceTransformer, models

    transformer = models.Transformer(str(tiny))
    pooling = models.Pooling(16, ("mean", "cls"), include_prompt=False)
    SentenceTransformer(modules=[transformer, pooling]).save("base")
    result = sentkit("export", "-m", "base", "-o", "made")
    module = json.loads(Path("made/1_Pooling/config.json").read_text())

    assert (result.code, result.err) == (0, "")
    assert module == {
        "embedding_dimension": 16,
        "pooling_mode": ["mean", "cls"],
        "include_prompt": False,
    }
    assert sentkit("inspect", "made").rows[0]["sentence_transformers"] == "yes, by modules.json"
    vectors = by_library("made", few_sentences)
    assert np.array_equal(vectors, by_library("base", few_sentences))


def test_the_schema_is_the_old_one(exported, tmp_path):
    """All six pooling booleans, of which one is true; modules by their old names."""
    exported("--readout", "max", "--normalize")
    pooling = json.loads((tmp_path / "made/1_Pooling/config.json").read_text())
    modules = json.loads((tmp_path / "made/modules.json").read_text())

    types = [
        f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", "Normalize")
    ]
    assert [key for key, value in pooling.items() if value is True] == ["pooling_mode_max_tokens"]
    assert sum(key.startswith("pooling_mode_") for key in pooling) == 6
    assert [module["type"] for module in modules] == types


@pytest.mark.parametrize(
    ("declared", "expected"), [("dot", 11.0), ("euclidean", -(8**0.5)), (None, 11 / 125**0.5)]
)
def test_the_declared_similarity_is_kept(sentkit, bundled, copy_of, declared, expected):
    """That of (3, 4) and (1, 2), also with another readout; cosine by default."""
    from sentence_transformers import SentenceTransformer

    from sentkit import Encoder

    model = copy_of(bundled)
    path = model / "config_sentence_transformers.json"
    values = json.loads(path.read_text()) | {"similarity_fn_name": declared}
    path.write_text(json.dumps(values))
    for flags in (("-o", "made"), ("--readout", "cls", "-o", "changed")):
        assert sentkit("export", "-m", model, *flags).code == 0
        library = SentenceTransformer(flags[-1], device="cpu")
        assert float(library.similarity([[3.0, 4.0]], [[1.0, 2.0]])) == pytest.approx(expected)
        encoder = Encoder(flags[-1])
        assert encoder.similarity([3, 4], [[1, 2]])[0] == pytest.approx(expected)


def test_the_similarity_is_kept_without_modules(sentkit, bundled, copy_of):
    """The readout of a template has no modules.json; the dot product of (3, 4) and (1, 2) is 11."""
    from sentkit import Encoder

    model = copy_of(bundled)
    path = model / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"similarity_fn_name": "dot"}))
    template = ("--readout", "prompt", "--template", 'The sentence "[X]" means [MASK].')
    assert sentkit("export", "-m", model, *template, "-o", "made").code == 0
    assert sentkit("export", "-m", "made", "-o", "again").code == 0

    for folder in ("made", "again"):
        assert not Path(folder, "modules.json").exists()
        assert Encoder(folder).similarity([3, 4], [[1, 2]])[0] == 11.0


@pytest.mark.parametrize("readout", ["mean", "pooler"])
def test_an_export_of_an_export_keeps_the_other_declarations(
    sentkit, exported, few_sentences, readout
):
    """Steps and prefix pass on; another readout leaves the steps and the pooler of the old one
    behind.
    """
    exported("--readout", readout, "--normalize", "--prompt", "query: ")
    sentkit("export", "-q", "-m", "made", "-o", "again")
    sentkit("export", "-q", "-m", "made", "--readout", "cls", "-o", "changed")
    first_export = sentkit("encode", "-m", "made", stdin="\n".join(few_sentences))
    second_export = sentkit("encode", "-m", "again", stdin="\n".join(few_sentences))
    [inspected] = sentkit("inspect", "made").rows
    [changed] = sentkit("inspect", "changed").rows
    listing = json.loads(Path("changed/modules.json").read_text())

    assert np.array_equal(first_export.vectors(), second_export.vectors())
    assert space_of(first_export) == space_of(second_export)
    assert (inspected["readout"], inspected["steps"]) == (readout, ["normalise"])
    assert inspected["sentence_transformers"] == "yes, by modules.json"
    assert (changed["readout"], changed["steps"], changed["prompt"]) == ("cls", [], "query: ")
    assert changed["lineage"]["parents"][0] == "made"
    assert len(changed["lineage"]["parents"]) == 2
    assert [module["path"] for module in listing] == ["", "1_Pooling"]
    assert not Path("changed/2_Dense").exists()


@pytest.mark.parametrize(
    ("activation", "readout", "reason"),
    [
        ("mish", "pooler", "the readout uses a pooler that transformers runs"),
        ("gelu", "prompt", "the readout uses the mask token of a template"),
    ],
)
def test_what_stock_modules_cannot_say_is_not_said(
    sentkit, tiny, copy_of, activation, readout, reason
):
    """No modules.json that lies: a warning, and inspect says why; sentkit reads the folder
    rightly.
    """
    model = copy_of(tiny)  # with mish, transformers runs it, and keeps its pooler to itself
    (model / "config.json").write_text(
        (tiny / "config.json").read_text().replace("gelu", activation)
    )
    result = sentkit("export", "-m", model, "--readout", readout, "-o", "made")
    inspected = sentkit("inspect", "made").rows[0]
    by_folder = sentkit("encode", "-m", "made", stdin="a cat").rows[0]
    by_flags = sentkit("encode", "-m", model, "--readout", readout, stdin="a cat").rows[0]

    warning = (
        f"sentkit export: warning: modules.json was not written: {reason}, and "
        f"sentence-transformers"
    )
    assert (result.code, result.told) == (0, [f"{warning} has no module for this"])
    assert not Path("made/modules.json").exists()
    assert inspected["readout"] == readout
    assert inspected["sentence_transformers"].startswith(
        f"no: {reason}" if readout == "prompt" else "no: "
    )
    assert by_folder["embedding"] == by_flags["embedding"]
    assert by_folder["_emb"].rpartition(":")[2] == by_flags["_emb"].rpartition(":")[2]


@pytest.mark.parametrize("store", [(), ("--store", "float16")])
def test_the_documents_beside_a_transformer_in_a_folder_are_copied(sentkit, tiny, store):
    """Its card and its license are in the folder of modules.json."""
    shutil.copytree(tiny, "sub/0_Transformer")
    for name, content in (("README.md", "# A card"), ("LICENSE.txt", "A license")):
        Path("sub", name).write_text(content)
    kinds = {"0_Transformer": "Transformer", "1_Pooling": "Pooling"}
    write_json(Path("sub/1_Pooling/config.json"), {"pooling_mode_mean_tokens": True})
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.{kind}"}
        for number, (path, kind) in enumerate(kinds.items())
    ]
    write_json(Path("sub/modules.json"), modules)
    assert sentkit("export", "-m", "sub", *store, "-o", "made").code == 0

    assert Path("made/README.md").read_text() == "# A card"
    assert Path("made/LICENSE.txt").read_text() == "A license"


LANGUAGE_MODELS = {  # the class, and settings that nano's tokenizer and a small model need
    "bert": ("ForPreTraining", {}),  # with the head for the next sentence too
    "distilbert": ("ForMaskedLM", {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2}),
    "modernbert": ("ForMaskedLM", {"pad_token_id": 0}),
    "albert": ("ForMaskedLM", {"embedding_size": 16}),
    "qwen3": (
        "ForCausalLM",
        {"num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": False},
    ),
}


@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
def test_a_head_of_a_language_model_is_left_out(sentkit, few_sentences, kind, tmp_path):
    """transformers, which sentence-transformers calls, finds no unexpected and no missing tensors.

    transformers always builds the pooler of an ALBERT.
    """
    import transformers

    name, settings = LANGUAGE_MODELS[kind]
    config = transformers.AutoConfig.for_model(kind, **SMALL, **settings)
    transformers.set_seed(0)
    auto = {"ForPreTraining": "AutoModelForPreTraining", "ForMaskedLM": "AutoModelForMaskedLM"}
    auto_class = getattr(transformers, auto.get(name, "AutoModelForCausalLM"))
    auto_class.from_config(config).to(torch.float16).save_pretrained("base")
    copy_tokenizer(tmp_path / "base")
    result = sentkit("export", "-m", "base", "--readout", "mean", "-o", "made", "-q")
    declared = json.loads(Path("made/sentence_bert_config.json").read_text())
    options = declared.get("model_args", {})
    model, report = transformers.AutoModel.from_pretrained(
        "made", output_loading_info=True, **options
    )
    missing = report["missing_keys"]
    if kind == "albert":
        missing = {name for name in missing if not name.startswith("pooler.")}
    config = json.loads(Path("made/config.json").read_text())
    tensors = load_file("made/model.safetensors")
    texts = "\n".join(few_sentences)
    before = sentkit("encode", "-m", "base", "--readout", "mean", stdin=texts)
    after = sentkit("encode", "-m", "made", "--readout", "mean", stdin=texts)

    assert result.code == 0
    assert report["unexpected_keys"] == set()
    assert missing == set()
    assert config["architectures"] == [type(model).__name__]
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"float16"}
    assert np.array_equal(before.vectors(), after.vectors())
    assert space_of(before) == space_of(after)


def test_the_heads_of_templates_and_of_classifiers_are_kept(sentkit, classifier, copy_of):
    """The first one can be trained further, and `predict` reads the other one."""
    make_bert(Path("base"), "BertForMaskedLM")
    for model, readout in (("base", "prompt"), (classifier, "mean")):
        result = sentkit("export", "-m", model, "--readout", readout, "-o", "made", "-f", "-q")
        assert result.code == 0
        weights = (Path(name, "model.safetensors").read_bytes() for name in (model, "made"))
        assert len({*weights}) == 1


def test_stored_as_float32_and_float16_the_weights_are_the_same(
    sentkit, tmp_path, bundled, by_library, few_sentences
):
    """As without --store. Every number of float16 is one of float32."""
    sentkit("export", "--readout", "mean-last2", "-o", "made")
    sentkit("export", "--store", "float32", "-o", "whole")
    sentkit("export", "-m", "whole", "--store", "float16", "-o", "half")

    for name in ("made", "half"):
        weights = (tmp_path / name / "model.safetensors").read_bytes()
        assert weights == (bundled / "model.safetensors").read_bytes()
    for name, store in (("whole", "float32"), ("half", "float16")):
        assert json.loads(Path(name, "config.json").read_text())["dtype"] == store
    encoded = sentkit("encode", "-m", "half", "--precision", "fp32", stdin="\n".join(few_sentences))
    assert np.abs(by_library(tmp_path / "half", few_sentences) - encoded.vectors()).max() < CLOSE


def test_a_static_model_is_stored_in_fewer_bytes(
    sentkit, tiny, tmp_path, by_library, few_sentences
):
    sentkit("distill-static", "-q", "-m", tiny, "--dim", "8", "-o", "table")
    whole = load_file(tmp_path / "table/model.safetensors")["embeddings"]
    for store in ("float32", "float16", "int8"):
        assert sentkit("export", "-m", "table", "--store", store, "-o", store).code == 0
        table = load_file(tmp_path / store / "model.safetensors")["embeddings"]
        factor = 127 / max(abs(float(x)) for x in whole.reshape(-1)) if store == "int8" else 1
        expected = [
            [round(float(x) * factor) if store == "int8" else x for x in row] for row in whole
        ]
        assert table.dtype == store
        near = {"atol": 1, "rtol": 0} if store == "int8" else {"atol": 2**-24, "rtol": 2**-11}
        np.testing.assert_allclose(table.astype(float), expected, **near)
        vectors = sentkit("encode", "-m", store, stdin=few_sentences[0]).vectors()
        if store != "int8":  # sentence-transformers has no table of integers
            assert np.abs(by_library(tmp_path / store, few_sentences[:1]) - vectors).max() < 2**-10
    for model, flags, problem in (
        ("table", ("--store", "int8", "--normalize"), "table is a static model"),
        ("nano", ("--store", "int8"), "--store int8 is only for static models"),
    ):
        failed = sentkit("export", "-m", model, *flags, "-o", "refused")
        assert (failed.code, problem in failed.err) == (2, True)


def test_numbers_of_one_byte_that_change_a_static_model_have_a_warning(sentkit, copy_of):
    """One factor for all numbers: tokens with short vectors become coarse, or zero."""
    folder = copy_of(ROOT / "sentkit/static", "table")
    sentkit("export", "-m", folder, "--store", "float32", "-o", "whole")
    tensors = load_file("whole/model.safetensors")
    [(name, rows)] = [(name, array) for name, array in tensors.items() if array.ndim == 2]
    rows[:5] *= 1e-5
    rows[5] = 0.0
    save_file({**tensors, name: rows}, "whole/model.safetensors")
    done = sentkit("export", "-m", "whole", "--store", "int8", "-o", "small")
    half = sentkit("export", "-m", "whole", "--store", "float16", "-o", "half")

    stored = load_file("small/model.safetensors")[name].astype(np.float64)
    coarse = 0
    for row, stored_row in zip(rows.astype(np.float64), stored, strict=True):
        product = np.sqrt((row @ row) * (stored_row @ stored_row))
        coarse += row.any() and (product == 0 or row @ stored_row / product < 0.98)
    assert coarse >= 5
    assert [line for line in done.told if "cosine" in line] == [
        f"sentkit export: warning: --store int8: {coarse} of {len(rows)} vectors of tokens have a"
        " cosine below 0.98 to those of whole; use another --store"
    ]
    assert "cosine" not in half.err


def test_numbers_beyond_float16_are_refused(sentkit, copy_of):
    folder = copy_of(ROOT / "sentkit/static", "table")
    sentkit("export", "-m", folder, "--store", "float32", "-o", "whole")
    tensors = load_file("whole/model.safetensors")
    [(name, rows)] = [(name, array) for name, array in tensors.items() if array.ndim == 2]
    rows[3] *= 1e7
    save_file({**tensors, name: rows}, "whole/model.safetensors")
    done = sentkit("export", "-m", "whole", "--store", "float16", "-o", "half")

    problem = "--store float16: the numbers of whole are too large for it"
    assert (done.code, done.told[0]) == (2, f"sentkit export: {problem}")
    assert not Path("half").exists()


def test_a_static_model_is_written_into_its_own_folder(sentkit, copy_of):
    folder = copy_of(ROOT / "sentkit/static", "table")
    done = sentkit("export", "-m", folder, "--store", "float16", "-o", folder / "half")

    assert done.code == 0
    assert not list(folder.glob("half/**/half"))
