"""Changed, copied and swapped blocks, headers and run.json: each is found, and none is a bug of
sentkit.
"""

import gzip
import json
import os
import random
import shutil
from functools import reduce
from operator import getitem
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from hostile import ODD_VALUES, places, replaced
from sentkit.formats.vectors.tensors import STORES, read_header
from support import contents

RESUME = ("encode", "corpus.jsonl", "-m", "words.txt", "-o", "whole/", "--resume")


def flip_bit(path, offset):
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("kind", "tensor"),
    [*((kind, "embeddings") for kind in STORES), ("float32", "row_offsets"), ("float32", "rows")],
)
def test_cat_and_check_find_a_changed_bit_of_a_block(sentkit, encode, corpus, kind, tensor):
    encode(corpus, "-o", "whole/", "--store", kind)
    before = sentkit("cat", "whole").out
    block = sorted(Path("whole").glob("0*"))[2]
    flip_bit(block, read_header(block).entries[tensor].start)
    joined = sentkit("cat", "whole", "-o", "all.safetensors")
    deep = sentkit("check", "whole", "--deep", "--shards", 4)

    assert sentkit("check", "whole").code == 0
    assert (joined.code, joined.told) == (
        65,
        [f"sentkit cat: {block}: damaged: its digest is wrong", ADVICE],
    )
    assert not Path("all.safetensors").exists()
    assert (deep.code, deep.rows[0]["problems"]) == (1, [f"{block}: damaged: its digest is wrong"])
    assert deep.rows[0]["missing_shards"] == "2"
    removed = sentkit("check", "whole", "--deep", "--remove")
    assert (removed.code, removed.rows[0]["removed"], block.exists()) == (1, 1, False)
    assert removed.told[1].startswith("  removed blocks: 1; encode --resume writes them again")
    assert encode(corpus, "-o", "whole/", "--resume").code == 0
    assert sentkit("check", "whole", "--deep").code == 0
    assert sentkit("cat", "whole").out == before


ADVICE = (
    "  sentkit check whole --deep --remove removes damaged blocks; encode --resume writes "
    "them again"
)


def test_a_damaged_block_is_not_kept_linked_or_copied(sentkit, encode, corpus, folder):
    """Of the same input, or with another input before it, which changes the number in the
    record.
    """
    block = sorted(folder.glob("0*"))[2]
    flip_bit(block, read_header(block).entries["embeddings"].start)
    Path("first.jsonl").write_text('{"text":"the"}\n')
    problem = f"sentkit encode: {block}: damaged: its digest is wrong"
    for files, output, more in (
        ([corpus], "whole/", ["--resume"]),
        ([corpus], "linked/", ["--reuse", "whole"]),
        (["first.jsonl", corpus], "copied/", ["--reuse", "whole"]),
    ):
        result = encode(*files, "-o", output, *more)
        assert (result.code, result.told[0]) == (65, problem)
    assert result.told[1] == ADVICE
    block.unlink()
    assert encode(corpus, "-o", "whole/", "--resume").code == 0
    assert encode(corpus, "-o", "linked/", "--resume", "--reuse", "whole").code == 0
    assert sentkit("check", "linked", "--deep").code == 0


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--normalize"], 'its "_emb" is "words.txt/mean/n:'),
        (["--store", "float16"], 'its "store" is "float16", run.json has "float32"'),
        (["--max-length", "9"], 'its "max_length" is 9, run.json has null'),
        (["--field", "text=label"], "its space, fields or storage differ from "),
    ],
)
def test_a_block_of_another_folder_is_refused_by_all(
    sentkit, encode, corpus, folder, flags, problem
):
    encode(corpus, *flags, "-o", "other/")
    name = sorted(path.name for path in folder.glob("0*"))[2]
    shutil.copy(Path("other", name), folder / name)
    deep = sentkit("check", "whole", "--deep")
    resumed = encode(corpus, "-o", "whole/", "--resume")

    assert (deep.code, len(deep.rows[0]["problems"])) == (1, 1)
    assert (resumed.code, sentkit("cat", "whole").code) == (65, 65)
    assert problem in deep.rows[0]["problems"][0]
    assert f"sentkit encode: whole/{name}: {problem}" in resumed.told[0]


def test_a_pipe_is_no_vector_file(sentkit):
    os.mkfifo("x.safetensors")
    assert sentkit("cat", "x.safetensors").told == [
        "sentkit cat: x.safetensors: is a pipe, expected a file"
    ]


def test_a_vector_file_is_not_written_to_a_pipe(sentkit, corpus):
    """Its header is the last part that is written."""
    os.mkfifo("x.safetensors")
    for command in (("encode", "-m", "static"), ("cat",)):
        result = sentkit(*command, corpus, "-o", "x.safetensors")
        problem = "x.safetensors: is a pipe or a device, a vector file needs a file"
        assert (result.code, result.told) == (2, [f"sentkit {command[0]}: {problem}"])


def copied(folder, names):
    shutil.copy(folder / names[1], folder / names[2])


def swapped(folder, names):
    for old, new in ((names[2], "x"), (names[3], names[2]), ("x", names[3])):
        (folder / old).rename(folder / new)


def with_record(**changes):
    """Change the record of a block in its header."""

    def change(folder, names):
        path = folder / names[2]
        metadata = read_header(path).metadata
        tensors = safetensors.numpy.load_file(path)
        record = json.loads(metadata["block"]) | changes
        block = json.dumps(record, separators=(",", ":"))
        safetensors.numpy.save_file(tensors, path, {**metadata, "block": block})

    return change


@pytest.mark.parametrize("name", ["name", "path", "grid", "rows", "size", "head", "tail", "format"])
def test_every_reader_refuses_settings_without_a_value(sentkit, folder, name):
    path = folder / "run.json"
    settings = json.loads(path.read_text())
    del settings["inputs"][0][name]
    path.write_text(json.dumps(settings))

    for command in (("check", "whole", "--deep"), ("cat", "whole"), RESUME):
        result = sentkit(*command)
        assert result.code == 65
        assert f'whole/run.json: input 0: "{name}" is missing' in result.err


@pytest.mark.parametrize(
    "command", [("cat", "whole"), ("score", "whole"), ("inspect", "whole"), ("check", "whole")]
)
def test_every_reader_says_that_settings_are_not_json(sentkit, folder, command):
    path = folder / "run.json"
    path.write_text(path.read_text()[:300])
    result = sentkit(*command)

    assert result.code == 65
    assert "whole/run.json" in result.err
    assert "not JSON" in result.err


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (copied, None),
        (swapped, None),
        (with_record(rows=2), None),
        (with_record(stop=201), None),
        (with_record(last=True), None),
        (with_record(skipped="1"), 'block: "skipped" is "1", which is not valid'),
        (with_record(truncated={}), 'block: "truncated" is {}, which is not valid'),
    ],
)
def test_every_reader_refuses_a_block_that_does_not_fit(sentkit, folder, change, problem):
    names = sorted(path.name for path in folder.glob("0*"))
    change(folder, names)
    if problem is None:
        problem = f"this file is not the block {names[2]}: "
        problem += "it was copied, renamed or made with other inputs"

    for command in (("check", "whole"), ("cat", "whole"), RESUME):
        result = sentkit(*command)
        assert (result.code, result.told) == (
            65,
            [f"sentkit {command[0]}: whole/{names[2]}: {problem}", ADVICE],
        )


@pytest.mark.parametrize(
    "name", ["00000-000000000100.safetensors", "00001-000000000000.safetensors"]
)
def test_a_block_outside_the_grid_is_found_and_removed(sentkit, encode, corpus, folder, name):
    """The grid is that of one input, with blocks of 200 bytes."""
    before = contents(folder)
    blocks = len(before) - 1
    shutil.copy(min(folder.glob("0*")), folder / name)
    problem = f"whole/{name}: this block is not in the grid of run.json"
    for command in ("check", "cat"):
        result = sentkit(command, "whole")
        assert (result.code, result.told) == (65, [f"sentkit {command}: {problem}", ADVICE])
    found = sentkit("check", "whole", "--deep")
    removed = sentkit("check", "whole", "--deep", "--remove")

    for result in (found, removed):
        record = result.rows[0]
        assert (result.code, record["blocks"], record["missing"]) == (1, blocks, 0)
        assert record["problems"] == [f"whole/{name}: damaged: not in the grid of run.json"]
    assert found.told[1] == ADVICE
    assert removed.rows[0]["removed"] == 1
    assert encode(corpus, "-o", "whole/", "--resume").code == 0
    assert contents(folder) == before


@pytest.mark.parametrize("flags", [[], ["--shard", "2/2"]])
def test_blocks_without_run_json_need_resume(encode, corpus, folder, flags):
    before = contents(folder)
    (folder / "run.json").unlink()
    blocks = contents(folder)
    for block_bytes in (200, 524_288):
        result = encode(corpus, "-o", "whole/", "--block-bytes", block_bytes, *flags)
        problem = "sentkit encode: whole/: has blocks, but no run.json"
        advice = "  repeat the first command with --resume, or name another folder"
        assert (result.code, result.told) == (73, [problem, advice])
        assert contents(folder) == blocks
    resumed = encode(corpus, "-o", "whole/", "--resume", *flags)

    assert (resumed.code, contents(folder)) == (0, before)


@pytest.mark.parametrize(
    "settings",
    [
        # The blocks start at multiples of 200; those of the settings are longer, shorter or one.
        ["--block-bytes", 400],
        ["--block-bytes", 100],
        ["--block-bytes", 524_288],
        ["--normalize"],
        ["--store", "float16"],
        ["--max-length", 2],
    ],
)
@pytest.mark.parametrize("shard", [[], ["--shard", "2/2"]])
def test_a_new_run_json_fits_the_blocks_that_exist(encode, corpus, folder, settings, shard):
    before = contents(folder)
    (folder / "run.json").unlink()
    refused = encode(corpus, "-o", "whole/", "--resume", *settings, *shard)
    remaining = contents(folder)
    resumed = encode(corpus, "-o", "whole/", "--resume")

    problem = "run.json is missing, and this block has other inputs or settings than this command"
    assert (refused.code, f": {problem}\n" in refused.err) == (65, True)
    assert "run.json" not in remaining
    assert (resumed.code, contents(folder)) == (0, before)


@pytest.mark.parametrize("change", ["rows", "field"])
def test_a_new_run_json_is_removed_if_the_rows_do_not_fit(encode, corpus, folder, change):
    """The headers of the blocks do not show these differences. Nothing was written."""
    before = contents(folder)
    rows = Path(corpus).read_bytes()
    (folder / "run.json").unlink()
    if change == "rows":
        Path(corpus).write_bytes(rows.replace(b"the cat", b"the dog"))
        refused = encode(corpus, "-o", "whole/", "--resume")
        Path(corpus).write_bytes(rows)
    else:
        max(folder.glob("0*")).unlink()
        refused = encode(corpus, "-o", "whole/", "--resume", "--field", "text=title")

    assert (refused.code, (folder / "run.json").exists()) == (65, False)
    assert encode(corpus, "-o", "whole/", "--resume").code == 0
    assert contents(folder) == before


@pytest.mark.parametrize("damage", ["truncated", "changed bit"])
def test_a_damaged_block_of_a_folder_without_run_json_has_advice_that_works(
    sentkit, encode, corpus, folder, damage
):
    before = contents(folder)
    (folder / "run.json").unlink()
    block = sorted(folder.glob("0*"))[2]
    if damage == "truncated":
        block.write_bytes(block.read_bytes()[:300])
    else:
        flip_bit(block, read_header(block).entries["embeddings"].start)
    refused = encode(corpus, "-o", "whole/", "--resume")
    removed = sentkit("check", "whole", "--deep", "--remove")
    resumed = encode(corpus, "-o", "whole/", "--resume")

    assert (refused.code, refused.told[1]) == (65, ADVICE)
    assert (removed.code, removed.rows[0]["removed"]) == (1, 1)
    assert (resumed.code, contents(folder)) == (0, before)


@pytest.mark.parametrize("number", [0, 2, -1])
@pytest.mark.parametrize("stdin", [False, True])
def test_a_truncated_block_is_found_removed_and_written_again(
    sentkit, encode, corpus, stdin, number
):
    """Also the last block of a stream, whose header has the end of the stream."""
    rows = Path(corpus).read_bytes()
    command = ["-o", "whole/"] if stdin else [corpus, "-o", "whole/"]
    assert encode(*command, "--block-bytes", 640, stdin=rows).code == 0
    before = sentkit("cat", "whole").out
    block = sorted(Path("whole").glob("0*"))[number]
    block.write_bytes(block.read_bytes()[:300])
    results = [sentkit("check", "whole"), sentkit("cat", "whole")]
    results.append(encode(*command, "--block-bytes", 640, "--resume", stdin=rows))
    deep = sentkit("check", "whole", "--deep", "--remove")

    for result in results:
        assert result.code == 65
        assert f"{block}: incomplete or damaged safetensors file" in result.told[0]
        assert result.told[1:] == [ADVICE]
    assert (deep.code, deep.rows[0]["removed"], block.exists()) == (1, 1, False)
    assert encode(*command, "--block-bytes", 640, "--resume", stdin=rows).code == 0
    assert sentkit("check", "whole", "--deep").code == 0
    assert sentkit("cat", "whole").out == before


def test_an_input_that_is_gone_is_no_damage(sentkit, folder, corpus):
    """No block has to be removed."""
    Path(corpus).rename("moved.jsonl")
    advice = f"  no block is damaged; restore {Path(corpus).resolve()}"
    for flags in ([], ["--remove"]):
        result = sentkit("check", folder, "--deep", *flags)
        assert (result.code, result.rows[0]["missing"]) == (1, 0)
        assert result.told == [f"sentkit check: {Path(corpus).resolve()}: no such file", advice]


def test_damaged_blocks_without_their_input_have_advice_for_both(sentkit, encode, folder, corpus):
    """--resume needs the input."""
    block = sorted(folder.glob("0*"))[2]
    flip_bit(block, read_header(block).entries["embeddings"].start)
    Path(corpus).rename("moved.jsonl")
    found = sentkit("check", "whole", "--deep")
    removed = sentkit("check", "whole", "--deep", "--remove")
    restore = f"restore {Path(corpus).resolve()}"
    resume = "encode --resume writes them again"

    assert found.rows[0]["problems"] == [
        f"{Path(corpus).resolve()}: no such file",
        f"{block}: damaged: its digest is wrong",
    ]
    remove = "sentkit check whole --deep --remove removes damaged blocks"
    assert found.told[1] == f"  {restore}; {remove}; {resume}"
    assert removed.told[1] == f"  {restore}; removed blocks: 1; {resume}"
    Path("moved.jsonl").rename(corpus)
    assert encode(corpus, "-o", "whole/", "--resume").code == 0


def test_the_advice_on_damaged_blocks_of_a_changed_input_works(sentkit, encode, folder, corpus):
    """--resume refuses a changed input, and --reuse a folder with missing blocks."""
    before = sentkit("cat", "whole").rows
    block = sorted(folder.glob("0*"))[0]
    flip_bit(block, read_header(block).entries["embeddings"].start)
    Path(corpus).write_text(Path(corpus).read_text() + '{"text":"the cat runs"}\n')
    result = sentkit("check", "whole", "--deep", "--remove")
    blocks = sorted(folder.glob("0*"))
    sentkit("cat", *blocks, "-o", "OLD.safetensors")
    again = encode(corpus, "-o", "NEW/", "--reuse", "OLD.safetensors")

    join = "sentkit cat whole/*.safetensors -o OLD.safetensors"
    reuse = "sentkit encode -o NEW/ --reuse OLD.safetensors"
    assert result.told[1] == f"  removed blocks: 1; for a changed input: {join} && {reuse}"
    assert again.code == 0
    assert sentkit("cat", "NEW").rows[:-1] == before


def test_the_advice_on_a_changed_input_joins_the_blocks_of_an_incomplete_folder(
    sentkit, encode, folder, corpus
):
    """--reuse refuses a folder with missing blocks."""
    sorted(folder.glob("0*"))[1].unlink()
    Path(corpus).write_text(Path(corpus).read_text() + '{"text":"the cat runs"}\n')
    result = sentkit("check", "whole", "--deep")

    join = "sentkit cat whole/*.safetensors -o OLD.safetensors"
    reuse = "sentkit encode -o NEW/ --reuse OLD.safetensors"
    assert result.told[1] == f"  no block is damaged; for a changed input: {join} && {reuse}"
    assert encode(corpus, "-o", "NEW/", "--reuse", "whole").code != 0


def test_changed_inputs_have_the_advice_to_reuse_the_folder(sentkit, folder, corpus):
    """The name of the folder has a blank, so that the advice quotes it."""
    Path(folder).rename("a b")
    raw = Path(corpus).read_bytes()
    Path(corpus).write_bytes(raw + raw)
    advice = "  no block is damaged; for a changed input: sentkit encode -o NEW/ --reuse 'a b'"
    result = sentkit("check", "a b", "--deep")
    assert result.code == 1
    problem = f"{Path(corpus).resolve()}: has changed: its size differs from run.json"
    assert result.told == [f"sentkit check: {problem}", advice]


def test_check_compares_a_vector_file_with_its_digest(sentkit, folder, joined):
    whole = joined(folder)
    path = Path("joined.safetensors")
    intact = sentkit("check", path)

    assert (intact.code, intact.rows) == (0, [{"file": str(path), "rows": 40, "problems": []}])
    for flags in (["--shards", 2], ["--deep", "--remove"]):
        assert sentkit("check", path, *flags).code == 2
    for offset in random.Random(0).sample(range(8, len(whole)), 40):
        path.write_bytes(whole)
        flip_bit(path, offset)
        result = sentkit("check", path)
        if result.code != 65:  # a header that cannot be read
            assert result.code == 1, offset
            assert result.rows[0]["problems"] == ["its digest is wrong"], offset


@pytest.mark.parametrize("name", [b"caf\xc3\xa9", b"caf\xe9"])
def test_an_input_with_any_name_is_checked_in_any_locale(program, sentkit, encode, corpus, name):
    """run.json cannot name a path that is not UTF-8; such an input is not compared."""
    path = os.fsdecode(name) + ".jsonl"
    shutil.copy(corpus, path)
    encode(path, "-o", "whole/")
    locale = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    in_utf8 = sentkit("check", "--deep", "whole")
    in_c_locale = program("check", "--deep", "whole", env=locale)

    assert (in_utf8.code, in_c_locale.code) == (0, 0)
    Path("whole").rename(os.fsdecode(name))
    [state] = sentkit("check", os.fsdecode(name)).rows
    assert state["folder"] == name.decode(errors="replace")
    Path(os.fsdecode(name)).rename("whole")
    Path(path).write_text("x")
    assert sentkit("check", "--deep", "whole").code == ("\udce9" not in path)


def test_a_file_without_a_digest_can_be_read_but_not_checked(sentkit):
    arrays = {"embeddings": np.eye(2, dtype="f4"), "row_offsets": np.array([0, 3, 6])}
    safetensors.numpy.save_file(
        {**arrays, "rows": np.frombuffer(b"{}\n{}\n", "u1")}, "a.safetensors"
    )
    result = sentkit("check", "a.safetensors")

    assert (result.code, result.told[0]) == (1, "sentkit check: a.safetensors: it has no digest")
    assert len(sentkit("cat", "a.safetensors").rows) == 2
    assert sentkit("cat", "a.safetensors", "-o", "b.safetensors").code == 0
    assert sentkit("check", "b.safetensors").code == 0


def variants(value):
    """Other values in place of this one: of other kinds, and close to it."""
    near = [value + 1, value - 1, value * 10, str(value)] if type(value) is int else []
    near += [f"{value}x", value[:-1], [value]] if isinstance(value, str) and value else []
    near += [not value] if type(value) is bool else []
    return [*ODD_VALUES, *near]


def changed(value):
    """The JSON value with one value at any depth changed."""
    for keys in places(value):
        old = reduce(getitem, keys, value)
        yield from (replaced(value, keys, new) for new in variants(old))


def mutated_files(folder):
    """Pairs of a file of the folder and its bytes with one value of its JSON changed, removed or
    added.
    """
    run = folder / "run.json"
    settings = json.loads(run.read_bytes())
    fewer = [{key: value for key, value in settings.items() if key != name} for name in settings]
    for new_settings in (*changed(settings), *fewer):
        yield run, json.dumps(new_settings).encode()

    block = sorted(folder.glob("0*"))[1]
    raw = block.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    with_new_records = [
        replaced(header, ("__metadata__", key), json.dumps(record))
        for key in ("block", "sentkit")
        for record in changed(json.loads(header["__metadata__"][key]))
    ]
    for new_header in (*with_new_records, *changed(header)):
        new = json.dumps(new_header).encode()
        yield block, len(new).to_bytes(8, "little") + new + raw[8 + length :]


def test_changed_settings_and_headers_are_found_and_are_no_bugs(sentkit, folder):
    """A seeded sample. No command finds another path of the same input, and other batches."""
    for path, new in random.Random(0).sample(list(mutated_files(folder)), 60):
        original = path.read_bytes()
        path.write_bytes(new)
        commands = (("check", "whole", "--deep"), RESUME, ("cat", "whole"))
        results = [sentkit(*command) for command in commands]
        path.write_bytes(original)
        codes = [result.code for result in results]
        assert not {70, 74} & {*codes}, (codes, new, [result.err for result in results])
        if codes == [0, 0, 0]:
            before = json.loads(original)
            after = json.loads(new)
            for settings in (before, after):
                settings["inputs"][0]["path"] = settings["batch_tokens"] = None
            assert before == after


@pytest.mark.parametrize("name", ["p.jsonl.gz", "v.safetensors"])
def test_a_link_to_a_file_without_its_suffix_is_checked(sentkit, encode, corpus, tmp_path, name):
    """As in the cache of the hub. The name of the link is the format."""
    if name == "v.safetensors":
        sentkit("encode", corpus, "-m", "words.txt", "-o", "v.safetensors", "-q")
        content = Path("v.safetensors").read_bytes()
        Path("v.safetensors").unlink()
    else:
        content = gzip.compress(Path(corpus).read_bytes())
    Path("blob").write_bytes(content)
    Path(name).symlink_to("blob")
    written = encode(name, "-o", "out/")
    checked = sentkit("check", "out", "--deep")

    assert (written.code, checked.code, "made from other rows" in checked.err) == (0, 0, False)
    assert json.loads(Path("out/run.json").read_text())["inputs"][0]["path"] == f"{tmp_path}/{name}"


def test_the_included_texts_are_checked(sentkit, encode):
    encode("sentkit:hazards", "-o", "out/")
    checked = sentkit("check", "out", "--deep")

    assert (checked.code, "no such file" in checked.err) == (0, False)
