"""`encode --reuse`: the output is that of a fresh run, and only new texts are encoded."""

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest

from sentkit.formats.vectors import vector_file
from sentkit.model import encoding
from sentkit.model.runs import folder_writer
from support import contents, in_jsonl

OLD = ["the cat", "a dog runs .", "cat cat dog", "the", "dog runs the cat runs"]
# 3 texts of OLD, 2 others
NEW = ["the", "cat .", "dog runs the cat runs", "the cat", "cat .", "runs"]


def write(name, texts, **more):
    Path(name).write_text(
        in_jsonl(*({"id": n, "text": text, **more} for n, text in enumerate(texts)))
    )
    return name


@pytest.fixture
def encoded(monkeypatch):
    """The number of texts that the model has read in each call."""
    counts = []
    encode_texts = encoding.encode_texts

    def counting(tokens, *rest):
        counts.append(len(tokens))
        return encode_texts(tokens, *rest)

    monkeypatch.setattr(encoding, "encode_texts", counting)
    return counts


@pytest.fixture
def run(sentkit, words):
    return lambda *arguments: sentkit("encode", "-m", words, *arguments)


WINDOW, CHUNKS = (
    ("--max-length", 2, "--window", "2:1", "--on-truncate", form) for form in ("window", "chunks")
)
KINDS = [  # of the old and the new file
    *(("float32", kind) for kind in ("float32", "float16", "int8", "binary")),
    ("float16", "float16"),
    ("binary", "binary"),
]


@pytest.mark.parametrize(
    ("old_kind", "kind", "flags"),
    [
        *((*kinds, ()) for kinds in KINDS),
        *(
            ("float32", "float32", flags)
            for flags in (("--prompt", "the "), ("--on-truncate", "mark"), WINDOW)
        ),
        *((*kinds, CHUNKS) for kinds in KINDS),
    ],
)
def test_a_file_is_that_of_a_fresh_run(run, encoded, old_kind, kind, flags):
    """With rows, with vector files of any kind, and with old vectors of a folder."""
    old = write("old.jsonl", OLD)
    new = write("new.jsonl", NEW, label="x")
    run(old, *flags, "-o", "old.safetensors", "--store", old_kind)
    run(old, *flags, "-o", "old/", "--block-bytes", 50, "--store", old_kind)
    fresh = run(new, *flags, "-o", "fresh.safetensors", "--store", kind)
    encoded.clear()
    for path in ("old.safetensors", "old"):
        [plan] = run(new, *flags, "--reuse", path, "-n").rows if old_kind == "float32" else [{}]
        assert (plan.get("reused", 3), plan.get("encoded", 3)) == (3, 3)
        encoded.clear()
        result = run(new, *flags, "-o", "made.safetensors", "-f", "--store", kind, "--reuse", path)

        assert Path("made.safetensors").read_bytes() == Path("fresh.safetensors").read_bytes()
        if "chunks" not in flags:  # otherwise unneeded rows are chunks
            assert (
                result.told[-1] == "sentkit encode: reused rows: 3, encoded: 3, no longer needed: 2"
            )
            assert result.told[:-1] == fresh.told
        assert encoded == [2]  # "cat ." occurs twice
    if old_kind == "float32":
        assert run(new, *flags, "--reuse", "old").out == run(new, *flags).out


def test_a_dry_run_counts_only_the_batches_of_new_texts(run):
    """With a budget of one token, each distinct text has a batch."""
    run(write("old.jsonl", OLD), "-o", "old.safetensors")
    write("new.jsonl", NEW)
    plans = [
        run(path, "--batch-tokens", 1, "--reuse", "old.safetensors", "-n").rows[0]
        for path in ("old.jsonl", "new.jsonl")
    ]

    assert [(plan["encoded"], plan["batches"]) for plan in plans] == [(0, 0), (3, 2)]


def test_each_side_of_a_pair_is_looked_up(run, encoded):
    """The old rows are sentences of another field; several files of --reuse are searched in their
    order.
    """
    write("old.jsonl", OLD[:3])
    Path("more.csv").write_text("title\n" + "\n".join(OLD[3:]))
    rows = ({"text_a": one, "text_b": other} for one, other in pairwise(NEW))
    Path(pairs := "pairs.jsonl").write_text(in_jsonl(*rows))
    run("old.jsonl", "-o", "old.safetensors")
    run("more.csv", "--field", "text=title", "-o", "more/")
    run(pairs, "-o", "fresh.safetensors")
    encoded.clear()
    result = run(pairs, "-o", "made.safetensors", "--reuse", "old.safetensors", "--reuse", "more")

    assert Path("made.safetensors").read_bytes() == Path("fresh.safetensors").read_bytes()
    assert encoded == [2]
    # Of the pairs of neighbours in NEW, only the third has two texts of OLD.
    assert result.told[-1] == "sentkit encode: reused rows: 1, encoded: 4, no longer needed: 2"
    run(pairs, "-o", "again.safetensors", "--reuse", "made.safetensors")
    assert encoded == [2, 0]


@pytest.mark.parametrize(
    ("flags", "old", "reason"),
    [
        (["--max-length", 2], [], '"max_length" is null, this command has 2'),
        (["--prompt", "the "], [], '"prompt" is "", this command has "the "'),
        (["--readout", "max"], [], '"readout" is "mean", this command has "max"'),
        ([], ["--normalize"], '"steps" is ["/n:'),
        (["-m", "other.txt"], [], '"_emb" is "words.txt/mean:'),
        (
            ["--max-length", 2, "--on-truncate", "window"],
            ["--max-length", 2],
            '"on_truncate" is null, this command has "window"',
        ),
        ([], ["--store", "float16"], '"store" is "float16", this command has "float32"'),
        (
            ["--store", "int8", "-o", "x.safetensors"],
            ["--store", "int8"],
            '"store" is "int8", so only whole',
        ),
    ],
)
def test_another_setting_reuses_nothing_and_is_named(run, flags, old, reason):
    Path("other.txt").write_text("the 1 2 3\ncat 1 1 1\n")
    rows = write("old.jsonl", OLD)
    run(rows, *old, "-o", "old.safetensors")
    result = run(rows, *flags, "--reuse", "old.safetensors")

    assert result.code == 0
    assert f"sentkit encode: warning: --reuse old.safetensors: {reason}" in result.err
    assert result.told[-1].startswith("sentkit encode: reused rows: 0, encoded: 5")


def test_vectors_in_int8_do_not_hide_those_of_a_later_file(run):
    rows = write("old.jsonl", OLD)
    run(rows, "-o", "int8/", "--store", "int8")
    run(rows, "-o", "float32.safetensors")
    for files in (("int8", "float32.safetensors"), ("float32.safetensors", "int8")):
        reuse = [word for path in files for word in ("--reuse", path)]
        result = run(rows, "--store", "int8", "-o", "new.safetensors", "-f", *reuse)
        assert result.code == 0
        assert result.told[-1].startswith("sentkit encode: reused rows: 5, encoded: 0")


def test_a_moved_model_and_another_precision(sentkit, tiny, copy_of):
    """The name of the model is not a setting. The rows are too few for torch without --reuse."""
    rows = write("old.jsonl", OLD)
    sentkit("encode", rows, "-m", tiny, "-o", "old.safetensors", "--precision", "fp32")
    for precision, reused in (("fp32", 5), ("bf16", 0)):
        flags = "--precision", precision, "--reuse", "old.safetensors"
        result = sentkit("encode", rows, "-m", copy_of(tiny, precision), *flags)
        assert f"reused rows: {reused}, encoded: {5 - reused}" in result.told[-1]
    assert '"precision" is "fp32", this command has "bf16"; nothing is reused' in result.err


def test_the_recorded_precision_is_no_flag_of_a_static_model(sentkit, tiny, model2vec):
    """The message names the model of the old vectors, and not a flag that is not given."""
    rows = write("old.jsonl", OLD)
    of_static = ["encode", rows, "-m", model2vec()]
    sentkit("encode", rows, "-m", tiny, "-o", "folder/", "--precision", "bf16")
    resumed = sentkit(*of_static, "-o", "folder/", "--resume")
    reused = sentkit(*of_static, "-o", "new/", "--reuse", "folder")
    in_bf16 = sentkit(*of_static, "-o", "folder/", "--resume", "--precision", "bf16")

    assert (resumed.code, reused.code, in_bf16.code) == (65, 0, 2)
    assert "--precision" not in resumed.err + reused.err
    assert in_bf16.told[0] == "sentkit encode: --precision bf16: a static model computes in fp32"


@pytest.mark.parametrize(
    ("path", "code", "told"),
    [
        ("-", 2, "--reuse -: expected a vector file or a vector folder"),
        ("old.jsonl", 2, "--reuse old.jsonl: expected a vector file or a vector folder"),
        ("absent", 66, "absent: no such file"),
        ("absent.safetensors", 66, "absent.safetensors: no such file"),
        (
            "cat.safetensors",
            65,
            'cat.safetensors: its record has no "prompt", so its vectors cannot be reused',
        ),
        (
            "rounded.safetensors",
            0,
            'warning: --reuse rounded.safetensors: "rounded" is "float16", this '
            "command"
            " has null; nothing is reused",
        ),
        ("words.safetensors", 65, 'words.safetensors:1: "text" is missing'),
        ("bad.safetensors", 65, "bad.safetensors: damaged: its digest is wrong"),
        ("old.safetensors", 2, "-o old.safetensors: would overwrite the input old.safetensors"),
    ],
)
def test_old_files_that_are_refused(run, sentkit, path, code, told):
    rows = write("old.jsonl", OLD)
    run(rows, "-o", "old.safetensors")
    sentkit("cat", "-o", "cat.safetensors", stdin=run(rows).out)
    run(rows, "-o", "float16.safetensors", "--store", "float16")
    sentkit("cat", "float16.safetensors", "-o", "rounded.safetensors")
    raw = bytearray(Path("old.safetensors").read_bytes())
    Path("words.safetensors").write_bytes(raw.replace(b'"text"', b'"word"'))
    raw[vector_file.read_header("old.safetensors").entries["embeddings"].start] ^= 1
    Path("bad.safetensors").write_bytes(raw)
    result = run(rows, "--reuse", path, *(["-o", path, "-f"] if path == "old.safetensors" else []))

    assert (result.code, result.out == b"") == (code, code > 0)
    assert result.told[0] == f"sentkit encode: {told}"
    for flags in (["-m", "words:binary"], ["--readout", "mean,max", "-o", "x"]):
        assert run(rows, "--reuse", "old.safetensors", *flags).code == 2


@pytest.mark.parametrize("other", [(), ("--window", "2:2", "--on-truncate", "window")])
def test_joined_vectors_of_different_windows_are_refused(run, sentkit, other):
    """The record of the joined file has no window, as if no long text had been split."""
    rows = write("old.jsonl", OLD)
    run(rows, *WINDOW, "-o", "split.safetensors")
    run(write("new.jsonl", NEW), "--max-length", 2, *other, "-o", "other.safetensors")
    sentkit("cat", "split.safetensors", "other.safetensors", "-o", "joined.safetensors")
    result = run(rows, "--max-length", 2, "--reuse", "joined.safetensors")

    assert (result.code, result.out) == (65, b"")
    assert result.told[0] == (
        'sentkit encode: joined.safetensors: its record has no "max_length", so its vectors cannot '
        "be reused"
    )
    sentkit("cat", "split.safetensors", "split.safetensors", "-o", "same.safetensors")
    assert run(rows, *WINDOW, "--reuse", "same.safetensors").code == 0


DAYS = {
    name: [f"the cat {text}" for text in texts]
    for name, texts in {"a.jsonl": ["dog dog"] * 9, "b.jsonl": OLD * 3, "c.jsonl": NEW * 2}.items()
}
CHANGES = {  # the files before and after, and the numbers of reused, encoded and unneeded rows
    "added": (["a", "b"], ["a", "b", "c"], (24 + 6, 6, 0)),
    "added first": (["b"], ["a", "b"], (15, 9, 0)),
    "window": (["a", "b"], ["b", "c"], (15 + 6, 6, 9)),
    "removed": (["a", "b"], ["b"], (15, 0, 9)),
    "grown": (["a", "b"], ["a", "b+"], (24, 1, 0)),
    "edited": (["a", "b"], ["a", "b*"], (24, 0, 0)),
}


def write_days(names):
    """`b+` is b with a row more, and `b*` is b with two rows exchanged, so that it has the same
    size.
    """
    for name in names:
        texts = [*DAYS[f"{name[0]}.jsonl"]]
        if name.endswith("*"):
            texts[6], texts[5] = texts[5], texts[6]
        write(f"{name[0]}.jsonl", texts + ["cat"] * name.endswith("+"))
    return [f"{name[0]}.jsonl" for name in names]


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_folder_of_changed_inputs_is_that_of_a_fresh_run(run, encoded, change, kind):
    """int8 copies whole blocks only."""
    before, after, (reused, new, unneeded) = CHANGES[change]
    flags = "--block-bytes", 200, "--store", kind
    run(*write_days(before), *flags, "-o", "days/")
    files = write_days(after)
    encoded.clear()
    [planned] = run(*files, *flags, "-o", "new/", "--reuse", "days", "-n").rows
    result = run(*files, *flags, "-o", "new/", "--reuse", "days")

    assert result.code == 0
    run(*files, *flags, "-o", "fresh/")
    assert contents(Path("new")) == contents(Path("fresh"))
    if kind == "float32":
        counts = f"reused rows: {reused}, encoded: {new}, no longer needed: {unneeded}"
        assert result.told[-1] == f"sentkit encode: {counts}"
        assert (planned["reused"], planned["encoded"]) == (reused, new)


def test_a_copied_block_does_not_depend_on_a_link_in_the_old_folder(run):
    """Such as in a hub cache, whose files are relative links to a folder of blobs."""
    flags = ("--block-bytes", 200)
    run(*write_days("ab"), *flags, "-o", "days/")
    Path("blobs").mkdir()
    for block in sorted(Path("days").glob("0*")):
        block.rename(Path("blobs", block.name))
        block.symlink_to(Path("..", "blobs", block.name))
    Path("deep/er").mkdir(parents=True)

    assert run("a.jsonl", "b.jsonl", *flags, "-o", "deep/er/new/", "--reuse", "days").code == 0
    run("a.jsonl", "b.jsonl", *flags, "-o", "fresh/")
    assert contents(Path("deep/er/new")) == contents(Path("fresh"))
    assert not any(path.is_symlink() for path in Path("deep/er/new").iterdir())


def test_an_error_in_the_first_block_leaves_no_copied_block_without_settings(run, monkeypatch):
    """The next blocks, which are copied, are read while the first one is written."""
    copy_block = folder_writer.copy_block
    flags = ("--block-bytes", 200)
    run(*write_days("ab"), *flags, "-o", "days/")
    bad = write("bad.jsonl", ["the"], embedding=[1.0])  # this row is refused

    def copy_late(*values):
        time.sleep(0.2)  # so that the error comes first
        copy_block(*values)

    monkeypatch.setattr(folder_writer, "copy_block", copy_late)
    result = run(bad, *write_days("ab"), *flags, "-o", "new/", "--reuse", "days")
    time.sleep(0.4)

    assert (result.code, 'field "embedding" already exists' in result.err) == (65, True)
    assert not list(Path("new").glob("0*")) or Path("new/run.json").exists()


def test_many_blocks_are_reused_and_those_of_an_incomplete_folder_through_a_file(
    run, sentkit, encoded
):
    """The rows are in another order and in a vector file."""
    files = write_days("ab")
    run(*files, "--block-bytes", 50, "-o", "days/")
    run(*files[::-1], "-o", "fresh.safetensors")
    run(*files[::-1], "--block-bytes", 50, "-o", "fresh/")
    encoded.clear()
    assert run(*files[::-1], "--block-bytes", 50, "-o", "new/", "--reuse", "days").code == 0
    *blocks, last = sorted(Path("days").glob("0*"))
    last.unlink()
    assert run(*files[::-1], "--reuse", "days").code == 65  # it is incomplete
    sentkit("cat", *blocks, "-o", "old.safetensors")
    assert run(*files[::-1], "-o", "made.safetensors", "--reuse", "old.safetensors").code == 0

    assert contents(Path("new")) == contents(Path("fresh"))
    assert Path("made.safetensors").read_bytes() == Path("fresh.safetensors").read_bytes()
    assert sum(encoded) == 0  # the last row of b is also in another block


def test_bad_rows_of_unchanged_blocks_are_reported_again(run):
    rows = [json.dumps({"text": text}) for text in OLD * 4]
    rows[7] = "{}"
    Path("a.jsonl").write_text("\n".join(rows))
    run("a.jsonl", "--rejects", "first", "--block-bytes", 200, "-o", "days/")
    Path("b.jsonl").write_text(rows[0])
    flags = "--block-bytes", 200, "-o", "new/", "--reuse", "days"
    result = run("a.jsonl", "b.jsonl", "--rejects", "second", *flags)

    assert result.code == 0
    assert Path("second").read_bytes() == Path("first").read_bytes()
    assert len(Path("first").read_text().splitlines()) == 1
