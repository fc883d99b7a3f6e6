"""Spaces and their names: equal steps give equal hashes in every command."""

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.formats.vectors.fingerprint import (
    Spec,
    digest,
    emb_problem,
    name_for_label,
    short_label,
    space_of,
    target_space,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=6,
)


def test_a_digest_is_blake2b_of_the_canonical_json():
    raw = b'{"a":[1,null],"b":"x"}'

    assert digest({"b": "x", "a": [1, None]}) == hashlib.blake2b(raw, digest_size=6).hexdigest()


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), JSON))
def test_a_digest_ignores_the_order_of_names(values):
    backwards = dict(reversed(values.items()))

    assert digest(values) == digest(backwards)
    assert re.fullmatch("[0-9a-f]{12}", digest(values))


def test_a_step_depends_only_on_the_space():
    """A filter that knows only `_emb` comes to the hash that the encoder comes to."""
    encoder = Spec("m/mean", digest("weights"), {"model": "m"})
    at_once = encoder.after("/n", "1111").after("+whitening", "2222")
    filtered = Spec("m/mean/n", space_of(encoder.after("/n", "1111").emb)).after("+whitening", "2222")

    assert filtered.space == at_once.space == digest([digest([encoder.space, "1111"]), "2222"])
    assert at_once.label == filtered.label == "m/mean/n+whitening"
    assert at_once.full == {"_emb": at_once.emb, "model": "m", "steps": ["/n:1111", "+whitening:2222"]}


def test_the_order_of_steps_and_repeated_steps_matter():
    start = Spec("m", "00")
    one, two = start.after("a", "1"), start.after("b", "2")
    specs = [start, one, start.after("a", "2"), one.after("b", "2"), two.after("a", "1")]

    assert len({spec.space for spec in specs}) == 5


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("nano", "nano"),
        ("sentence-transformers/all-MiniLM-L6-v2", "all-MiniLM-L6-v2"),
        ("/tmp/my model/", "my-model"),
        ("pkg:gt_x", "pkg-gt_x"),
        ("somebody/tiny@v1.0", "tiny-v1.0"),
        ("somebody/tiny@refs/pr/1", "tiny-pr-1"),
        ("x/a@b", "a-b"),
        ('a"b\\c\n', "a-b-c-"),
        ("größe", "gr-e"),
        ("/", "model"),
        ("", "model"),
    ],
)
def test_a_label_is_the_last_part_of_a_name(name, label):
    assert name_for_label(name) == label


@pytest.mark.parametrize(
    ("emb", "space", "words"),
    [
        ("ckpt/cls:a1b2c3d4e5f6", "a1b2c3d4e5f6", "ckpt/cls (a1b2…)"),
        ("a:b:0123456", "0123456", "a:b (0123…)"),
        ("0123456", "0123456", "? (0123…)"),
        ("", "", "? (…)"),
    ],
)
def test_the_space_of_an_emb_follows_its_last_colon(emb, space, words):
    assert (space_of(emb), short_label(emb)) == (space, words)
    assert short_label(None) == "without _emb"


@given(
    st.text(min_size=1),
    st.from_regex(r"[a-z0-9+./_-]*(:cls)?(>[0-9a-f]{12})?", fullmatch=True),
    st.lists(st.tuples(st.from_regex(r"[/+][a-z0-9]{1,9}", fullmatch=True), JSON), max_size=3),
)
def test_steps_keep_a_name_well_formed(model, readout, steps):
    label = name_for_label(model)
    spec = Spec(f"{label}/{readout}", digest(model))
    for suffix, step in steps:
        spec = spec.after(suffix, digest(step))

    assert re.fullmatch(r"[A-Za-z0-9._+-]+", label)
    assert emb_problem(spec.emb) is None
    assert emb_problem(None) is None


@pytest.mark.parametrize(
    "emb",
    [
        *("", ":", "x", "x:", "y:", "a1b2c3d4e5f6", ":a1b2c3d4e5f6", "x:a1b2c3d4e5f", "x:a1b2c3d4e5f60"),
        *("x:A1B2C3D4E5F6", "x:a1b2c3d4e5fg", "x:a1b2c3d4e5f6\n", "x y:a1b2c3d4e5f6", "x:a1b2c3d4e5f6 "),
        *("x\x1b:a1b2c3d4e5f6", "é:a1b2c3d4e5f6", "x>:a1b2c3d4e5f6", "x>0123:a1b2c3d4e5f6"),
        *("x:a1b2c3d4e5f6:", "x:١٢٣٤٥٦٧٨٩٠١٢", ">0123456789ab:a1b2c3d4e5f6"),
        *(7, 1.5, True, [], {}),
    ],
)
def test_a_malformed_name_of_a_space_is_described(emb):
    problem = emb_problem(emb)

    assert problem is not None
    assert problem.startswith('"_emb" is ')
    assert problem.endswith("expected LABEL:HASH with 12 hexadecimal digits")


@pytest.mark.parametrize(
    ("emb", "space"),
    [
        ("ckpt/pooler:mean>0123456789ab:a1b2c3d4e5f6", "0123456789ab"),
        ("ckpt/mean>ba9876543210>0123456789ab:a1b2c3d4e5f6", "0123456789ab"),
        ("ckpt/pooler>0123456789ab/n:a1b2c3d4e5f6", None),
        ("ckpt/pooler>0123456789ab+whitening:a1b2c3d4e5f6", None),
        ("ckpt/pooler>0123456789ab\n:a1b2c3d4e5f6", None),
        ("ckpt/pooler>0123456789AB:a1b2c3d4e5f6", None),
        ("ckpt/pooler>0123456789a:a1b2c3d4e5f6", None),
        ("ckpt/pooler>0123456789abc:a1b2c3d4e5f6", None),
        ("ckpt/pooler:a1b2c3d4e5f6", None),
        (">0123456789ab", None),
        ("", None),
    ],
)
def test_the_end_of_a_label_contains_the_target_space(emb, space):
    """Twelve digits behind the last `>`, with nothing after them but the colon and the space itself."""
    assert target_space(emb) == space
