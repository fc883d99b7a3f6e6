"""Static encoders: their words, vectors of a plain loop and of other libraries, spaces, and wrong
options.
"""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from sentkit.errors import DataError, UsageError
from sentkit.formats.vectors.tensors import read_array
from sentkit.model import find_encoder
from sentkit.model.encoding import encode_texts
from sentkit.model.reading import ReadingOptions
from sentkit.model.static import tokenizers
from sentkit.model.static.distillation import sif_weights, token_table, zipf_weights
from sentkit.model.static.models import arrays_hash
from sentkit.model.static.tokenizers import CollectedWords, WordLookup, words_of
from support import DATA, write_affine

POTION = DATA.parent / "checkpoints/potion-base-4M-int8"
TEXTS = ["The cat sat.", "a dog", "", "zebra", "the zebra plays", "playing cats", "dog " * 30]
ONLY_PROMPT = "a template and its full stops can be used only with the readout prompt"
WORDS = "the 1 0 0\ncat 0 2 0\n. 0 0 3\nDog -1 -1 -1\n"


def vectors_of(name, texts, **wishes):
    model = find_encoder(str(name), ReadingOptions(**wishes))
    (vectors,) = encode_texts(model.tokenizer(texts), model.encoder(), 7)
    return vectors


def encoder_of(name, **wishes):
    return find_encoder(str(name), ReadingOptions(**wishes)).encoder()


def looped(folder, texts, *, max_length=512, normalize=False, reduce=np.mean):
    """As model2vec: no special tokens, no unknown tokens, truncation, mean, unit length."""
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    arrays = load_file(folder / "model.safetensors")
    rows = arrays["embeddings"].astype(np.float64)
    if "mapping" in arrays:
        rows = rows[arrays["mapping"]]
    if "weights" in arrays:
        rows = rows * arrays["weights"][:, None].astype(np.float64)
    unknown = backend.token_to_id("[UNK]")
    vectors = np.zeros((len(texts), rows.shape[1]))
    for text, vector in zip(texts, vectors, strict=True):
        ids = [i for i in backend.encode(text, add_special_tokens=False).ids if i != unknown][
            :max_length
        ]
        if ids:
            vector[:] = reduce([rows[i] for i in ids], axis=0)
        length = sum(number**2 for number in vector) ** 0.5
        if normalize and length:
            vector /= length
    return vectors


@pytest.fixture
def words(tmp_path):
    (tmp_path / "words.txt").write_text(WORDS)
    return tmp_path / "words.txt"


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(
    ("declared", "flag", "length"), [(512, None, 512), (2, None, 2), (2, 3, 3)]
)
def test_model2vec_folders_equal_a_plain_loop(model2vec, normalize, declared, flag, length):
    """The flag overrides the length in the config."""
    folder = model2vec(normalize=normalize, max_length=declared)
    expected = looped(folder, TEXTS, max_length=length, normalize=normalize)

    assert vectors_of(folder, TEXTS, max_length=flag) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("readout", ["mean", "max"])
@pytest.mark.parametrize("names", [["mapping"], ["weights"], ["mapping", "weights"]], ids=str)
def test_mapped_and_weighted_rows_equal_a_plain_loop(model2vec, names, readout):
    """A text without words gets zeros, even for max, and even if no text of the batch has words."""
    random = np.random.default_rng(0)
    arrays = {
        "mapping": random.integers(0, 4, 13),
        "weights": np.linspace(0.5, 2, 13, dtype=np.float32),
    }
    rows = {"embeddings": random.standard_normal((13, 6)).astype(np.float32)}
    folder = model2vec(rows | {name: arrays[name] for name in names})
    expected = looped(folder, TEXTS, reduce={"mean": np.mean, "max": np.max}[readout])

    model = find_encoder(str(folder), ReadingOptions(readout=readout))
    [[vectors]] = model.encoder().encode([model.tokenizer(TEXTS)])  # one batch, which is not sorted

    assert vectors == pytest.approx(expected, abs=1e-6)
    assert not vectors_of(folder, ["", ""], readout=readout).any()


def test_model2vec_folders_equal_sentence_transformers(model2vec):
    """The texts have no unknown tokens: sentence-transformers keeps these, and model2vec
    does not.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

    random = np.random.default_rng(1)
    mapping = random.integers(0, 4, 13)
    weights = random.random(13).astype(np.float32)
    rows = random.standard_normal((4, 6)).astype(np.float32)
    folder = model2vec({"embeddings": rows, "mapping": mapping, "weights": weights}, normalize=True)
    model = SentenceTransformer(
        modules=[StaticEmbedding.load(str(folder)), Normalize()], device="cpu"
    )
    texts = ["The cat sat.", "a dog", "playing cats", "dog " * 30]

    assert vectors_of(folder, texts) == pytest.approx(model.encode(texts), abs=1e-6)


@pytest.mark.skipif(not POTION.is_dir(), reason=f"no {POTION}")
def test_potion_equals_a_plain_loop():
    texts = [*TEXTS, "Ein Satz über Straßen 🐈", "word " * 600]
    expected = looped(POTION, texts, max_length=512, normalize=True)

    assert vectors_of(POTION, texts) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "mean", "maximum"),
    [
        ("the cat.", [1 / 3, 2 / 3, 1], [1, 2, 3]),
        ("Dog", [-1, -1, -1], [-1, -1, -1]),
        ("dog", [0, 0, 0], [0, 0, 0]),  # the lookup in lower case is for capitals, not the reverse
        ("zebra CAT", [0, 2, 0], [0, 2, 0]),
        ("", [0, 0, 0], [0, 0, 0]),
    ],
)
def test_word_files_give_mean_or_maximum(words, text, mean, maximum):
    assert vectors_of(words, [text])[0] == pytest.approx(mean)
    assert vectors_of(words, [text], readout="max")[0] == pytest.approx(maximum)


def test_word_sets_have_the_cosine_of_sets(tmp_path):
    """|A & B| / sqrt(|A| |B|): {a, man, plays, .} and {the, man, sings, .} share 2 of 4 and 4."""
    texts = ["A man plays.", "The man sings.", "A man, a man!"]
    first, second, third = vectors_of("words:binary", texts, normalize=True)

    assert first @ second == pytest.approx(2 / 4)
    assert first @ third == pytest.approx(2 / (4 * 4) ** 0.5)  # a, man of {a, man, ",", !}
    assert vectors_of("words:binary", [""]).tolist() == [[0]]


def test_steps_are_truncation_unit_length_and_transform_in_this_order(words, tmp_path):
    """The transform is (x + bias) @ kernel."""
    write_affine(tmp_path / "t.safetensors", np.array([[2.0], [1.0]]), np.array([0.5, 0.0]), {})
    transform = str(tmp_path / "t.safetensors")
    (vector,) = vectors_of(words, ["the cat"], dim=2, normalize=True, transform=transform)
    length = (0.5**2 + 1**2) ** 0.5

    assert vector == pytest.approx([2 * (0.5 / length + 0.5) + 1 / length])


def test_equal_tables_of_different_types_are_one_space(model2vec):
    """So are a declared step and the same step by a flag."""
    declared = encoder_of(model2vec(normalize=True, name="one")).spaces[0]
    by_flag = encoder_of(model2vec(name="two"), normalize=True).spaces[0]
    rows = np.arange(26).reshape(13, 2)
    spaces = {
        encoder_of(model2vec({"embeddings": rows.astype(kind)}, name=f"as-{kind}")).spaces[0].hash
        for kind in ("int8", "float16", "float32")
    }

    assert len(spaces) == 1
    assert declared.hash == by_flag.hash
    assert declared.label == "one/mean/n"


@pytest.mark.parametrize(
    "other",
    [WORDS.replace("3", "4"), WORDS.replace("cat", "dog"), WORDS + "new 1 1 1\n"],
    ids=["a number", "a word", "one more word"],
)
def test_different_tables_are_different_spaces(words, tmp_path, other):
    (tmp_path / "other.txt").write_text(other)

    assert encoder_of(words).spaces[0].hash != encoder_of(tmp_path / "other.txt").spaces[0].hash


def test_prompt_and_length_do_not_change_the_space_but_the_readout_does(words):
    plain = encoder_of(words).spaces[0]
    changed = encoder_of(words, prompt="the ", max_length=3).spaces[0]

    assert plain.hash == changed.hash
    assert (changed.full_metadata["prompt"], changed.full_metadata["max_length"]) == ("the ", 3)
    assert encoder_of(words, readout="max").spaces[0].hash != plain.hash


@pytest.mark.parametrize(
    ("wishes", "problem"),
    [
        *(
            ({"readout": name}, f'unknown readout "{name}" for a static model')
            for name in ("cls", "L0:mean")
        ),
        ({"readout": "mean,prompt"}, 'unknown readout "prompt" for a static model'),
        *(({name: "none"}, ONLY_PROMPT) for name in ("template", "full_stop")),
        ({"dim": 9}, "--dim 9: the vectors have only [35] numbers"),
    ],
)
def test_options_that_static_models_and_word_sets_do_not_have_are_errors(
    words, model2vec, wishes, problem
):
    for name in (words, model2vec()):
        with pytest.raises(UsageError, match=problem):
            find_encoder(str(name), ReadingOptions(**wishes))
    flag = next(iter(wishes))
    problem = (
        f"--{flag} cannot be used with words:binary" if flag in ("readout", "dim") else ONLY_PROMPT
    )
    with pytest.raises(UsageError, match=f"^{problem}$"):
        find_encoder("words:binary", ReadingOptions(**wishes))


@pytest.mark.parametrize(
    "machine", [{"device": "cuda"}, {"device": "cuda:1"}, {"precision": "bf16"}]
)
def test_gpu_and_bf16_are_errors(words, machine):
    with pytest.raises(
        UsageError, match=f"--{next(iter(machine))} {next(iter(machine.values()))}: a static"
    ):
        find_encoder(str(words), ReadingOptions(), **machine)


def test_a_transform_of_another_space_is_an_error(words, tmp_path):
    write_affine(
        tmp_path / "t.safetensors", np.eye(3), np.zeros(3), {"_emb": "m/mean:0123456789ab"}
    )
    model = find_encoder(str(words), ReadingOptions(transform=str(tmp_path / "t.safetensors")))
    with pytest.raises(DataError, match="fitted on m/mean"):
        model.encoder()


def test_a_token_with_the_text_none_has_a_vector(model2vec):
    """The tokenizer of this folder has no unknown token."""
    folder = model2vec()
    path = folder / "tokenizer.json"
    rules = json.loads(path.read_text())
    letters = {letter: number for number, letter in enumerate(["None", *"NonexyzabcdS"])}
    rules["model"] = {"type": "BPE", "vocab": letters, "merges": [], "unk_token": None}
    rules["normalizer"] = rules["post_processor"] = rules["pre_tokenizer"] = None
    one = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": False,
    }
    rules["added_tokens"] = [{"id": 0, "content": "None", **one}]
    path.write_text(json.dumps(rules))
    table = read_array(folder / "model.safetensors", "embeddings")

    assert vectors_of(folder, ["None"])[0] == pytest.approx(table[0])


def test_the_hash_of_arrays_depends_on_names_shapes_and_values():
    rows = np.random.default_rng(0).standard_normal((20, 6))
    mapping = np.arange(30) % 20
    same = arrays_hash({"b": mapping, "a": rows})

    assert same == arrays_hash({"a": np.asfortranarray(rows), "b": mapping})
    assert same != arrays_hash({"a": rows, "b": mapping[::-1]})
    assert same != arrays_hash({"c": rows, "b": mapping})
    assert same != arrays_hash({"a": rows.reshape(6, 20), "b": mapping})


def test_the_rank_is_the_place_among_words():
    """Special tokens, reserved tokens, single characters and numbers without a token have
    rank 1.
    """
    tokens = ["[PAD]", "[unused0]", "<extra_id_0>", "<s>", "a", "##b", "Ġc", "▁"]
    words = ["the", "##ing", "Ġof", "▁sea", "UNK", "cat"]
    vocabulary = {token: number for number, token in enumerate(tokens + words)} | {"sea": 15}
    backend = SimpleNamespace(get_vocab=lambda: vocabulary)
    tokenizer = SimpleNamespace(backend=backend, wordless=frozenset([12]))

    expected = [math.log(2)] * 9 + [math.log(n) for n in (3, 4, 5, 2, 6, 2, 7)]
    assert zipf_weights(tokenizer) == pytest.approx(expected, abs=1e-12)


def test_sif_weights_of_known_frequencies():
    """Frequencies of 0.9, 0.1 and 0."""
    expected = [1e-4 / 0.9001, 1e-4 / 0.1001, 1.0]

    assert sif_weights(np.array([9, 1, 0])) == pytest.approx(expected, rel=1e-12)


def test_all_components_keep_the_differences():
    """A rotation: products of the centred vectors stay, and a weight multiplies a row."""
    vectors = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    weights = np.arange(1.0, 21.0)
    table, warnings = token_table(vectors, weights, 4)
    centred = (vectors - vectors.mean(0)) * weights[:, None]

    assert warnings == ()
    np.testing.assert_allclose(table @ table.T, centred @ centred.T, rtol=0, atol=1e-3)


def test_the_components_are_those_of_a_singular_value_decomposition():
    vectors = np.random.default_rng(0).standard_normal((30, 6)).astype(np.float32)
    table, _ = token_table(vectors, np.ones(30), 2)
    left_vectors, values, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)

    np.testing.assert_allclose(
        np.abs(table), np.abs(left_vectors * values)[:, :2], rtol=0, atol=1e-5
    )


KNOWN = ["the", "Paris", "paris", ".", "U.S.", "...", "don't", "cat", ",", "café"]
INDEXES = {word: index for index, word in enumerate(KNOWN)}


def looked_up(text, max_length=None):
    (tokens,) = WordLookup(INDEXES, max_length=max_length, prompt="")([text])
    return tokens


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man is here.", ["A", "man", "is", "here", "."]),
        ('"Well," he said...', ['"', "Well", ',"', "he", "said", "..."]),
        ("don't re-do", ["don", "'", "t", "re", "-", "do"]),
        ("مرحبا، كيف؟", ["مرحبا", "،", "كيف", "؟"]),
        ("कृपया। cafe\u0301", ["कृपया", "।", "cafe\u0301"]),
        ("“так”…", ["“", "так", "”…"]),
        (" \t\n\u3000", []),
        ("", []),
    ],
)
def test_texts_are_split_into_words_and_runs_of_marks(text, words):
    """Vowel signs and accents are parts of words."""
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("text", "words", "unknown"),
    [
        ("the cat", ["the", "cat"], 0),
        ("The CAT", ["the", "cat"], 0),
        ("Paris paris PARIS", ["Paris", "paris", "paris"], 0),
        ("the U.S.", ["the", "U.S."], 0),
        ("the U.S.!", ["the", "."], 2),
        ("cat, cat...", ["cat", ",", "cat", "..."], 0),
        ("don't", ["don't"], 0),
        ("don't!", [], 2),
        ("zebra cat", ["cat"], 1),
        ("?! cat", ["cat"], 0),
        ("CAFÉ", ["café"], 0),
        ("", [], 0),
    ],
)
def test_words_are_looked_up_as_written_then_in_lower_case(text, words, unknown):
    """Strings between spaces come first. Marks without a vector do not count as unknown words."""
    tokens = looked_up(text)

    assert tokens.ids == [INDEXES[word] for word in words]
    assert (tokens.unknown_count, tokens.full_length, tokens.truncated) == (
        unknown,
        len(words) + unknown,
        False,
    )


@pytest.mark.parametrize(("max_length", "words"), [(3, ["the", "cat", "cat"]), (2, ["the", "cat"])])
def test_only_known_words_count_towards_the_limit(max_length, words):
    """A prompt precedes every text."""
    tokens = looked_up("the zebra cat cat", max_length=max_length)
    [prompted] = WordLookup(INDEXES, max_length=max_length, prompt="the ")(["zebra cat cat"])

    assert tokens.ids == [INDEXES[word] for word in words]
    assert (tokens.unknown_count, tokens.full_length, tokens.truncated) == (1, 4, max_length == 2)
    assert prompted == tokens


def test_collected_words_are_unique_and_in_lower_case():
    words = CollectedWords(max_length=None, prompt="")
    first, second = words(["The cat. The dog.", "a DOG"])

    assert words.indexes == {"the": 0, "cat": 1, ".": 2, "dog": 3, "a": 4}
    assert (first.ids, first.full_length, second.ids) == ([0, 1, 2, 3], 4, [4, 3])


def test_too_many_words_are_an_error_that_names_the_size_of_a_vector(monkeypatch):
    monkeypatch.setattr(tokenizers, "MAX_WORDS", 3)
    words = CollectedWords(max_length=None, prompt="")
    words(["a b", "b c"])
    with pytest.raises(
        UsageError, match="words:binary accepts at most 3 different words"
    ) as caught:
        words(["d"])

    assert caught.value.advice == "use fewer rows or another model"
