"""SimCSE, ESimCSE, RankEncoder, PromptBERT and SNCSE: steps beside a reference, and their parts."""

import copy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from scipy.stats import spearmanr

from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.rows.kinds import TRIPLET
from sentkit.model.checkpoint_reading import plan_reading
from sentkit.model.encoding import encode_texts
from sentkit.model.reading import ReadingOptions
from sentkit.model.transformer.encoder import TransformerEncoder
from sentkit.training.base import open_named
from sentkit.training.catalogue import METHODS
from sentkit.training.data.corpus import stream
from sentkit.training.method import changing_tensors
from sentkit.training.methods.esimcse import ESimCSE
from sentkit.training.methods.promptbert import SNCSE, PromptBERT
from sentkit.training.methods.rank_encoder import RankEncoder
from sentkit.training.methods.simcse import SimCSE, SupervisedSimCSE
from sentkit.training.runs.checkpoint import write_checkpoint
from sentkit.training.runs.command import warning_of_equal_views
from training.losses.formulas import loop_in_batch, loop_soft_negatives, loop_triplet, mean
from training.methods.loops import RECIPE, copies, masked
from training.small import changed_by, equal, gradient_of, make_base


def test_five_steps_are_those_of_a_padded_reference(trainer_of, check_steps, texts, reference):
    trainer = trainer_of(SimCSE, texts, **RECIPE)
    weight, bias = copies(trainer.method.head)

    def loss_of(batch, rows):
        vectors = torch.tanh(reference.first(batch.texts[0]) @ weight.T + bias)
        return mean(loop_in_batch(vectors, vectors, 0.05))

    check_steps(trainer, [*reference.model.parameters(), weight, bias], loss_of)


def test_two_dropout_masks_make_two_views(trainer_of, texts):
    trainer = trainer_of(SimCSE, texts, batch=4)
    trainer.method.train()
    outputs = trainer.method.encode(trainer.run.corpus.batch(trainer.order.at(0)))

    assert not torch.equal(outputs["one"], outputs["other"])
    trainer.method.eval()
    outputs = trainer.method.encode(trainer.run.corpus.batch(trainer.order.at(0)))
    assert torch.equal(outputs["one"], outputs["other"])


def test_masked_tokens_are_predicted_as_by_transformers(trainer_of, texts, base_folder):
    """BertForMaskedLM gives the same loss; labels of -100 are not predicted. The trained head is
    kept.
    """
    trainer = trainer_of(SimCSE, texts, double=True, batch=13, dropout=0, mlm_weight=0.1)
    batch = trainer.batch(0)
    terms = trainer.method.loss(trainer.method.encode(batch))
    model = transformers.BertForMaskedLM.from_pretrained(base_folder, dtype=torch.float64).eval()
    expected = model(**masked(batch)).loss.item()

    assert terms["mlm"].value.item() == pytest.approx(0.1 * expected, rel=0, abs=1e-9)
    assert terms["mlm"].weight == sum(
        max(1, round(0.15 * (len(text) - 2))) for text in batch.texts[0]
    )
    before = trainer.method.finished().tensors
    trainer.train()
    after = trainer.method.finished().tensors
    assert before.keys() == after.keys()
    assert not torch.equal(before["cls.predictions.bias"], after["cls.predictions.bias"])
    assert trainer.method.finished().heads.keys() == {"head.weight", "head.bias"}


NAMES = ("anchor", "positive", "negative")


@pytest.fixture
def triplets(texts):
    return [dict(zip(NAMES, texts[i : i + 3], strict=True)) for i in range(10)]


def test_six_steps_are_those_of_a_padded_reference(trainer_of, check_steps, triplets, reference):
    trainer = trainer_of(SupervisedSimCSE, triplets, hard_negative_weight=0.5, **RECIPE)
    weight, bias = copies(trainer.method.head)

    def loss_of(batch, rows):
        heads = [torch.tanh(reference.first(column) @ weight.T + bias) for column in batch.texts]
        return mean(loop_triplet(*heads, 0.05, 0.5))

    check_steps(trainer, [*reference.model.parameters(), weight, bias], loss_of, count=6)


@pytest.mark.parametrize("pooler", [False, True])
def test_all_read_the_checkpoint_by_its_head(
    trainer_of, triplets, base_of, texts, tmp_path, pooler
):
    """By sentkit, by transformers and sentence-transformers; nobody reads the pooler that a base
    had.
    """
    from sentence_transformers import SentenceTransformer

    base = base_of(pooler=pooler)
    trainer = trainer_of(SupervisedSimCSE, triplets, base=base, batch=5, lr=1e-3)
    trainer.train()
    method = trainer.method.eval()
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, method, base, {"method": "simcse-sup"})
    tokens = [tokens_of_text.ids for tokens_of_text in base.training_tokenizer(texts)]
    with torch.no_grad():
        states = method.vectors(method.pack(tokens), "cls")
        expected = torch.tanh(states @ method.head.weight.T + method.head.bias).numpy()
    checkpoint = read_checkpoint(str(folder))
    reading = plan_reading(checkpoint, ReadingOptions())
    encoder = TransformerEncoder(checkpoint, reading, device="cpu", precision="fp32")
    model = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        pooled = [model(torch.tensor([ids])).pooler_output[0].numpy() for ids in tokens]

    assert [readout.name for readout in reading.readouts] == ["pooler"]
    np.testing.assert_allclose(
        encode_texts(reading.tokenizer(texts), encoder, 1000)[0], expected, rtol=0, atol=1e-5
    )
    np.testing.assert_allclose(np.stack(pooled), expected, rtol=0, atol=1e-5)
    vectors = SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["distilbert", "electra", "albert"])
def test_a_family_that_has_no_pooler_is_refused_before_training(base_of, albert, family):
    base = open_named(str(albert), 32) if family == "albert" else base_of(family, "Model")
    problem = (
        f'^the trained head is saved as the pooler, but (model type )?"{family}" has no pooler'
    )
    with pytest.raises(UsageError, match=problem):
        SupervisedSimCSE.check(base, SupervisedSimCSE.Settings())


def doubled(ids, positions):
    repeated = []
    for position, number in enumerate(ids):
        repeated += [number, number] if position in positions else [number]
    return np.array(repeated)


def test_ten_steps_are_those_of_a_padded_reference(trainer_of, check_steps, texts, reference):
    recipe = RECIPE | {"epochs": 4, "queue_size": 6, "momentum": 0.9, "repeat_rate": 0.5}
    trainer = trainer_of(ESimCSE, texts, **recipe)
    weight, bias = copies(trainer.method.head)
    slow = replace(reference, model=copy.deepcopy(reference.model))
    queue = []
    repeated = []

    def loss_of(batch, rows):
        with torch.no_grad():
            for slow_weight, weight_now in zip(
                slow.model.parameters(), reference.model.parameters(), strict=True
            ):
                slow_weight.copy_(0.9 * slow_weight + 0.1 * weight_now)
            new = torch.tanh(slow.first(batch.texts[0]) @ weight.T + bias)
        longer = [
            doubled(*ids_and_positions)
            for ids_and_positions in zip(batch.texts[0], batch.draws["repeated"], strict=True)
        ]
        vectors = [reference.first(inputs) for inputs in (batch.texts[0], longer)]
        vectors_a, vectors_b = (torch.tanh(encoded @ weight.T + bias) for encoded in vectors)
        loss = mean(loop_in_batch(vectors_a, [*vectors_b, *queue], 0.05))
        queue[:] = [*queue, *new][-6:]
        repeated.extend(batch.draws["repeated"])
        return loss

    check_steps(trainer, [*reference.model.parameters(), weight, bias], loss_of, count=10)
    assert any(map(len, repeated))


PAPER = {"repeat_range": "paper"}


@pytest.mark.parametrize(
    ("length", "settings", "counts"),
    [
        (3, {}, {0}),  # the rate allows 0
        (12, {}, {0, 1, 2}),  # 0.32 * 12 = 3.84: one of 0, 1 and 2
        (12, PAPER, {0, 1, 2, 3}),
        (4, PAPER, {0, 1, 2}),  # 2, although the rate allows 1
        (3, PAPER, {0, 1}),  # one token is not special
        (2, PAPER, {0}),
        (40, {}, set(range(10))),  # at most 9
        (62, {}, {0, 1, 2}),  # the encoder has 64 positions
        (12, {"repeat_rate": 0}, {0}),
    ],
)
def test_the_number_of_repeated_tokens(method_of, length, settings, counts):
    method = method_of(ESimCSE, **settings)
    dice = np.random.default_rng(0)
    drawn = [method.draw_repeated(length, dice) for _ in range(400)]

    assert {len(positions) for positions in drawn} == counts
    assert all(len(set(positions)) == len(positions) for positions in drawn)
    assert {position for positions in drawn for position in positions} <= set(range(1, length - 1))


def test_the_momentum_encoder_has_no_dropout_and_is_not_kept(method_of):
    method = method_of(ESimCSE, momentum=0.995).train()

    assert not method.slow.training
    assert method.finished().heads.keys() == {"head.weight", "head.bias"}
    assert method_of(ESimCSE, queue_size=0).slow is None


def rank_error(vectors, rankings, low, high):
    """Of all pairs of the batch whose rankings correlate in this range."""
    values = []
    for i, vector_a in enumerate(vectors):
        for j, vector_b in enumerate(vectors):
            similarity = spearmanr(rankings[i], rankings[j]).statistic
            if low <= similarity <= high:
                values.append(
                    (torch.cosine_similarity(vector_a, vector_b, dim=0) - similarity) ** 2
                )
    return sum(values) / max(len(values), 1)


def test_five_steps_with_ranks_are_those_of_a_padded_reference(
    trainer_of, check_steps, texts, reference
):
    trainer = trainer_of(
        RankEncoder, texts, rank_weight=0.5, rank_corpus=9, rank_low=-0.2, **RECIPE
    )
    weight, bias = copies(trainer.method.head)
    corpus_texts = [texts[row] for row in stream(0, 0, "rank corpus").permutation(13)[:9]]
    with torch.no_grad():
        corpus = reference.first(corpus_texts)
        frozen = reference.first(texts)
    cosines = [
        [torch.cosine_similarity(row, corpus_row, dim=0).item() for corpus_row in corpus]
        for row in frozen
    ]

    def loss_of(batch, rows):
        vectors = torch.tanh(reference.first(batch.texts[0]) @ weight.T + bias)
        error = rank_error(vectors, [cosines[row] for row in rows], -0.2, 0.9999)
        return mean(loop_in_batch(vectors, vectors, 0.05)) + 0.5 * error

    check_steps(trainer, [*reference.model.parameters(), weight, bias], loss_of)


@pytest.mark.parametrize(
    ("rows", "problem", "advice"),
    [
        (2, "2 rows can be used, but rank-encoder needs at least 3", None),
        (3, "3 rows, fewer than rank_corpus=10000", "use --set rank_corpus=3"),
    ],
)
def test_too_few_rows_to_rank_are_refused(corpus_of, texts, rows, problem, advice):
    settings = RankEncoder.Settings()
    corpus = corpus_of(RankEncoder, texts[:rows], settings)
    with pytest.raises(DataError, match=problem) as caught:
        RankEncoder.check_rows(corpus, settings, "rows.jsonl")

    assert caught.value.advice == advice


def test_the_guide_can_be_a_trained_checkpoint(tmp_path, trainer_of, base, texts):
    """As in the released recipe: it ranks with its own weights, and another checkpoint is another
    run.

    Training changes neither the guide nor its vectors of the corpus.
    """
    folder = str(make_base(tmp_path / "guide", seed=5))
    trainer = trainer_of(RankEncoder, texts, batch=4, rank_corpus=5, guide=folder)
    guide_weights = open_named(folder, 32).body(None).state_dict()
    self_guided = trainer_of(RankEncoder, texts, batch=4, rank_corpus=5)
    corpus = trainer.method.corpus.clone()

    assert {name.partition(".")[0] for name in changed_by(trainer)} == {"body", "head"}
    assert torch.equal(corpus, trainer.method.corpus)
    assert not trainer.method.guide.training
    assert trainer.method.finished().heads.keys() == {"head.weight", "head.bias"}
    assert {name.partition(".")[0] for name in changing_tensors(trainer.method)} == {"body", "head"}
    assert equal(dict(trainer.method.guide.state_dict()), dict(guide_weights))
    assert not torch.allclose(trainer.method.corpus, self_guided.method.corpus, atol=1e-3)
    assert RankEncoder.other_checkpoints(trainer.method.settings) == {"guide": folder}
    assert RankEncoder.identity(base, trainer.method.settings)["guide_hash"]
    assert RankEncoder.identity(base, self_guided.method.settings) == {}


def test_masked_tokens_are_those_of_the_encoder_beside_a_guide(
    tmp_path, trainer_of, texts, base_folder
):
    """A guide that is a checkpoint adds a column with its own tokens to the rows."""
    folder = str(make_base(tmp_path / "guide", seed=5))
    settings = {"batch": 13, "dropout": 0, "rank_corpus": 5, "guide": folder, "mlm_weight": 0.1}
    trainer = trainer_of(RankEncoder, texts, double=True, **settings)
    batch = trainer.batch(0)
    terms = trainer.method.loss(trainer.method.encode(batch))
    model = transformers.BertForMaskedLM.from_pretrained(base_folder, dtype=torch.float64).eval()
    expected = model(**masked(replace(batch, texts=batch.texts[:1]))).loss.item()

    assert terms["mlm"].value.item() == pytest.approx(0.1 * expected, rel=0, abs=1e-9)


PROMPTS = {
    "a": 'This sentence of "{}" means [MASK].',
    "b": 'This sentence : "{}" means [MASK] .',
    "anchor": 'This sentence : " {} " means [MASK] .',
    "other": 'This sentence of " {} " means [MASK] .',
}


@pytest.fixture
def state_of(reference, base_folder):
    """The state of the mask in transformers' model, of one text at a time, with given positions."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(base_folder)

    def read(prompt, text, without=False):
        ids = tokenizer(PROMPTS[prompt].format(text))["input_ids"]
        positions = list(range(len(ids)))
        if without:  # cut the tokens of the text out, and keep the positions of the others
            size = len(tokenizer(text, add_special_tokens=False)["input_ids"])
            quote = ids.index(tokenizer.convert_tokens_to_ids('"'))
            del ids[quote + 1 : quote + 1 + size]
            del positions[quote + 1 : quote + 1 + size]
        tensors = {"input_ids": torch.tensor([ids]), "position_ids": torch.tensor([positions])}
        return reference.model(**tensors).last_hidden_state[0, ids.index(tokenizer.mask_token_id)]

    return read


def contrast(anchors, candidates):
    return mean(loop_in_batch(anchors, candidates, 0.05))


def promptbert(state_of, head, rows, denoise=True):
    def vector(prompt, text):
        state = state_of(prompt, text)
        return head(state - state_of(prompt, text, without=True) if denoise else state)

    return contrast(*([vector(prompt, row["text"] + ".") for row in rows] for prompt in "ab"))


def supervised(state_of, head, rows, *, has_head=False):
    """All texts in the first template; all negatives of the batch are in each sum.

    The released code subtracts the outputs of the base's head, but the inputs of a fresh head.
    """

    def vector(text):
        state = state_of("a", text + ".")
        bias = state_of("a", text + ".", without=True)
        return head(state) - head(bias) if has_head else head(state - bias)

    anchors, positives, negatives = (
        [vector(row[name]) for row in rows] for name in TRIPLET.text_names
    )
    return contrast(anchors, [*positives, *negatives])


def sncse(state_of, head, rows):
    anchors = [head(state_of("anchor", row["text_a"] + " .")) for row in rows]
    positives = [head(state_of("other", row["text_a"] + " .")) for row in rows]
    opposite = [head(state_of("other", row["text_b"] + " .")) for row in rows]
    return contrast(anchors, positives) + 0.5 * mean(
        loop_soft_negatives(anchors, positives, opposite)
    )


def rows_for(kind, texts, settings):
    if "objective" in settings:
        return [
            dict(zip(TRIPLET.text_names, texts[i:] + texts[:i], strict=False))
            for i in range(len(texts))
        ]
    if kind is SNCSE:
        return [{"text_a": text, "text_b": "not " + text} for text in texts]
    return [{"text": text} for text in texts]


@pytest.mark.parametrize(
    ("kind", "loop", "settings"),
    [
        (PromptBERT, promptbert, {}),
        (PromptBERT, partial(promptbert, denoise=False), {"denoise": "off"}),
        (PromptBERT, supervised, {"objective": "triplets"}),
        (PromptBERT, partial(supervised, has_head=True), {"objective": "triplets", "head": "own"}),
        (SNCSE, sncse, {"margin_weight": 0.5}),
    ],
)
def test_five_steps_are_those_of_a_reference(
    trainer_of, check_steps, texts, base_folder, reference, state_of, kind, loop, settings
):
    """The own head is dense, GELU and LayerNorm of transformers' BertForMaskedLM, and is kept."""
    rows = rows_for(kind, texts, settings)
    trainer = trainer_of(kind, rows, **RECIPE, **settings)
    base_head = transformers.BertForMaskedLM.from_pretrained(
        base_folder
    ).cls.predictions.transform.double()
    weight, *bias = copies(trainer.method.head)

    def fresh(state):
        return torch.tanh(state @ weight.T + bias[0])

    def loss_of(batch, numbers):
        return loop(
            state_of,
            base_head if "head" in settings else fresh,
            [rows[number] for number in numbers],
        )

    if "head" in settings:
        names = {
            f"head.{layer}.{name}" for layer in ("dense", "norm") for name in ("weight", "bias")
        }
        assert trainer.method.finished().heads.keys() == names
    head = base_head.parameters() if "head" in settings else [weight, *bias]
    check_steps(trainer, [*reference.model.parameters(), *head], loss_of)


def test_frozen_biases_have_the_same_loss_and_another_gradient(trainer_of, texts):
    live, frozen = (
        trainer_of(PromptBERT, texts, double=True, batch=7, dropout=0, freeze_denoise=frozen_or_not)
        for frozen_or_not in ("off", "on")
    )
    (live_loss, live_gradient), (frozen_loss, frozen_gradient) = map(gradient_of, (live, frozen))

    assert live_loss == pytest.approx(frozen_loss, abs=1e-12)
    assert torch.equal(live_gradient["head.bias"], frozen_gradient["head.bias"])
    assert not torch.allclose(
        live_gradient["body.words.weight"], frozen_gradient["body.words.weight"], atol=1e-6
    )


def test_a_sentence_is_cut_and_the_template_is_not(corpus_of, base, base_folder, texts):
    """A length that is too short for the template, or has no room for a sentence, is refused."""
    count = sum(map(len, base.training_tokenizer_with("promptbert-1").around_text()))
    short_base = open_named(str(base_folder), count)
    with pytest.raises(UsageError, match=f"the template and the special tokens have {count}"):
        PromptBERT.check(short_base, PromptBERT.Settings())
    corpus = corpus_of(PromptBERT, ["cat " * 60], PromptBERT.Settings())
    lengths = [len(corpus.text(0, column)) for column in range(2)]
    before, after = base.training_tokenizer_with("promptbert-1").around_text()

    assert lengths == [32, 32]
    assert corpus.text(0, 0)[-len(after) :].tolist() == after
    assert corpus.text(0, 0)[: len(before)].tolist() == before


def test_the_template_of_a_tokenizer_with_spaces_in_its_tokens(tmp_path):
    """As in sentencepiece: the token of a word begins at the space before it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = make_base(tmp_path / "base")
    words = ["▁This", "▁sentence", "▁:", "▁'", "▁means", "▁a.", "<unk>", "▁."]
    backend = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.add_special_tokens(["<mask>"])
    for name in ("tokenizer_config.json", "vocab.txt"):
        (folder / name).unlink()
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = open_named(str(folder), 32).training_tokenizer_with("promptroberta")

    assert tokenizer.around_text() == ([0, 1, 2, 3], [3, 4, 8, 7])


NONE = {"view_a": "none", "view_b": "none"}
PAIRS = [{"text_a": "a dog", "text_b": "rain"}] * 2


@pytest.mark.parametrize(
    ("name", "rows", "settings", "is_warned"),
    [
        ("simcse", ["a dog", "rain"], {}, True),
        ("simcse", ["a dog", "rain"], {"mlm_weight": 0.1}, True),
        ("simcse", ["a dog", "rain"], {"dropout": 0.1}, False),
        ("simcse", PAIRS, {}, False),
        ("rank-encoder", ["a dog", "rain"], {}, True),
        ("esimcse", ["a dog", "rain"], {}, False),  # it repeats tokens in one view
        ("esimcse", ["a dog", "rain"], {"repeat_rate": 0.0}, True),
        ("consert", ["a dog", "rain"], {**NONE, "dropout": None}, True),
        ("consert", ["a dog", "rain"], {"dropout": None}, False),
        ("consert", PAIRS, {**NONE, "dropout": None}, False),
    ],
)
def test_views_without_dropout_are_equal_and_a_warning_says_so(
    corpus_of, base, name, rows, settings, is_warned
):
    kind = METHODS[name].load()
    chosen = kind.Settings(**settings)
    corpus = corpus_of(kind, rows, chosen)
    plain = replace(base, has_own_dropout=False)
    problem = f"{base.checkpoint.name} has no dropout, so both views of a sentence are equal"

    assert warning_of_equal_views(base, corpus, chosen) is None
    expected = f"{problem}; try --set dropout=0.1" if is_warned else None
    assert warning_of_equal_views(plain, corpus, chosen) == expected
    if is_warned:
        chosen = replace(chosen, dropout=0.0)
        expected = "dropout=0: both views of a sentence are equal"
        assert warning_of_equal_views(base, corpus, chosen) == expected


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_dropout_of_a_base_is_that_of_its_states(rate, tmp_path):
    """That of a head does not count."""
    config = {"hidden_dropout_prob": rate, "attention_probs_dropout_prob": rate}
    packed = make_base(tmp_path / "bert", **config)
    gpt2 = make_base(
        tmp_path / "gpt2", kind="GPT2Model", resid_pdrop=rate, embd_pdrop=0, attn_pdrop=0
    )
    # This activation is not packed. The config has dropouts of two heads.
    distilbert = make_base(
        tmp_path / "distilbert",
        kind="DistilBertModel",
        activation="mish",
        dropout=rate,
        attention_dropout=0,
    )
    deberta = make_base(tmp_path / "deberta", kind="DebertaV2Model", pooler_dropout=0.1, **config)
    for folder in (packed, gpt2, distilbert, deberta):
        assert open_named(str(folder), 32).has_dropout(SimCSE.Settings()) == (rate > 0)
