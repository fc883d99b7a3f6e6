"""A small whole input is encoded without torch: the same vectors up to rounding, in the
same space.
"""

import numpy as np
import pytest

from sentkit.model import find_encoder
from sentkit.model import small_encoder as small
from sentkit.model.encoding import encode_texts
from sentkit.model.reading import ReadingOptions
from sentkit.model.transformer.encoder import TransformerEncoder

FEW = 31  # rows: one less than the first group of a stream


@pytest.fixture
def opened(monkeypatch):
    """The classes of the encoders that commands open. Auto is fp32 in tests that do not set the
    variable.
    """
    monkeypatch.setenv("SENTKIT_PRECISION", "fp32")
    classes = []

    def watch(start):
        def started(self, *values, **named):
            classes.append(type(self))
            start(self, *values, **named)

        return started

    for kind in (small.SmallEncoder, TransformerEncoder):
        monkeypatch.setattr(kind, "__init__", watch(kind.__init__))
    return classes


def lines(count):
    return "".join(f"the cat {number}\n" for number in range(count))


READINGS = [
    *(
        {"readout": name}
        for name in ("cls,mean,max", "mean-sqrt", "weighted-mean", "last", "L*:cls,L*:mean")
    ),
    *(
        {"readout": name}
        for name in ("mean-first-last", "mean-emb-last", "L1+L3:last", "concat:max:mean")
    ),
    *({"readout": name} for name in ("pooler", "pooler:mean", "prompt", "pooler,mean")),
    {"readout": "mean", "normalize": True, "dim": 5},
    {"readout": "mean", "max_length": 6, "prompt": "query: "},
]


@pytest.mark.parametrize("reading", READINGS, ids=str)
def test_vectors_and_spaces_are_those_of_torch(tiny, sentences, reading):
    model = find_encoder(str(tiny), ReadingOptions(**reading), device="cpu", precision="fp32")
    tokens = model.tokenizer(sentences)
    without_torch = model.encoder(100)
    with_torch = model.encoder()
    assert (type(without_torch), type(with_torch)) == (small.SmallEncoder, TransformerEncoder)

    spaces = [spec.full_metadata for spec in with_torch.spaces]
    assert [spec.full_metadata for spec in without_torch.spaces] == spaces
    assert without_torch.width == with_torch.width
    arrays = encode_texts(tokens, without_torch, 60)
    expected_arrays = encode_texts(tokens, with_torch, 4096)
    for vectors, expected in zip(arrays, expected_arrays, strict=True):
        # Some twenty sums of 16 terms or more follow each other, in an order that depends on the
        # CPU.
        error = 20 * 16 * 2**-24 * float(np.abs(expected).max())
        assert vectors.dtype == np.float32
        assert vectors == pytest.approx(expected, abs=error)


@pytest.mark.parametrize(
    ("arguments", "count", "kind"),
    [
        ([], 1, small.SmallEncoder),
        (["--precision", "fp32", "--device", "cpu"], FEW, small.SmallEncoder),
        (["--on-truncate", "chunks", "--max-length", "8"], FEW, small.SmallEncoder),
        ([], FEW + 1, TransformerEncoder),
        (["--precision", "bf16"], 1, TransformerEncoder),
        (["-m", "nano", "--readout", "L0+L1+L2+L3+L4:wk"], 1, TransformerEncoder),
        # another process can write many rows into it
        (["rows.txt", "-o", "folder/"], 1, TransformerEncoder),
    ],
)
def test_only_a_small_input_needs_no_torch(sentkit, tiny, opened, tmp_path, arguments, count, kind):
    (tmp_path / "rows.txt").write_text(lines(count))
    result = sentkit("encode", "-m", tiny, "--readout", "mean", *arguments, stdin=lines(count))

    assert result.code == 0, result.err
    assert kind is TransformerEncoder or len(result.rows) == count
    assert opened == [kind]


@pytest.mark.parametrize("chosen", ["fp32", "bf16"])
def test_a_variable_selects_what_auto_is(sentkit, tiny, opened, monkeypatch, chosen):
    """In bf16 a small input needs torch too; without auto, the variable has no effect."""
    kind = small.SmallEncoder if chosen == "fp32" else TransformerEncoder
    monkeypatch.setenv("SENTKIT_PRECISION", chosen)
    auto = sentkit("encode", "-m", tiny, stdin=lines(2))
    exact = sentkit("encode", "-m", tiny, "--precision", "fp32", stdin=lines(2))

    assert (auto.code, exact.code) == (0, 0)
    assert {*opened} == {kind, small.SmallEncoder}
    assert (auto.out == exact.out) == (chosen == "fp32")


@pytest.mark.parametrize(
    ("chosen", "kind"), [("fp32", small.SmallEncoder), ("bf16", TransformerEncoder)]
)
def test_the_variable_selects_the_precision_of_a_search(
    sentkit, tiny, opened, monkeypatch, tmp_path, chosen, kind
):
    monkeypatch.setenv("SENTKIT_PRECISION", chosen)
    (tmp_path / "rows.txt").write_text(lines(2))
    result = sentkit("search", "the cat 1", "rows.txt", "--json", "-m", tiny)

    assert result.code == 0
    assert {*opened} == {kind}


def test_the_limit_depends_on_tokens_and_the_size_of_the_model(tiny, monkeypatch):
    """A token needs 3 x (4 x 16 x 16 + 2 x 16 x 24) multiplications in the blocks."""
    model = find_encoder(str(tiny), ReadingOptions(readout="mean"), precision="fp32")
    monkeypatch.setattr(small, "LARGEST_WORK", 5376 * 70)

    assert isinstance(model.encoder(70), small.SmallEncoder)
    assert isinstance(model.encoder(71), TransformerEncoder)
    assert isinstance(model.encoder(), TransformerEncoder)
