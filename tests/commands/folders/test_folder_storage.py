"""Vector folders of each kind of storage."""

from pathlib import Path

import pytest

KINDS = ("float16", "int8", "binary")


@pytest.mark.parametrize("kind", KINDS)
def test_the_joined_bytes_do_not_depend_on_shards(sentkit, encode, corpus, joined, kind):
    encode(corpus, "-o", "one/", "--store", kind)
    encode(corpus, "-o", "two/", "--store", kind, "--shard", "2/3")
    next(iter(sorted(Path("two").glob("0*")))).unlink()  # as if this block had been killed
    for shard in ("1/3", "3/3", "2/3"):
        assert encode(corpus, "-o", "two/", "--shard", shard, "--resume").code == 0

    assert {path.name: path.read_bytes() for path in Path("one").iterdir() if path.name != "run.json"} == {
        path.name: path.read_bytes() for path in Path("two").iterdir() if path.name != "run.json"
    }
    assert joined("one") == joined("two")
    for name in ("one", "two"):
        done = sentkit("cat", name, "-o", f"{name}.safetensors", "--store", kind)
        assert (done.code, done.err) == (0, "")
    assert Path("one.safetensors").read_bytes() == Path("two.safetensors").read_bytes()
    assert sentkit("check", "two", "--deep").code == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_read_as_one_file(sentkit, encode, corpus, joined, kind):
    """Blocks have their own scales. A hit of binary is the same for vectors of +1 and -1."""
    encode(corpus, "-o", "whole/", "--store", kind)
    joined("whole")
    for command in (
        ["search", "--queries", "PATH", "--corpus", "PATH", "--top", "3"],
        ["cluster", "PATH", "-k", "2"],
        ["score", "PATH", "--top", "3"],
    ):
        outputs = [
            sentkit(*[path if word == "PATH" else word for word in command])
            for path in ("joined.safetensors", "whole")
        ]
        assert [done.code for done in outputs] == [0, 0]
        assert outputs[0].out == outputs[1].out


def test_a_folder_keeps_its_kind(encode, corpus):
    encode(corpus, "-o", "whole/", "--store", "int8")
    sorted(Path("whole").glob("0*"))[1].unlink()
    done = encode(corpus, "-o", "whole/", "--resume", "--store", "float16")

    assert done.code == 65
    assert 'whole/run.json: "store" is "int8", this command has "float16"' in done.err
    assert encode(corpus, "-o", "whole/", "--resume", "--store", "int8").code == 0


def test_blocks_of_two_kinds_are_refused(sentkit, encode, corpus, folder):
    encode(corpus, "-o", "other/", "--store", "int8")
    names = sorted(path.name for path in folder.glob("0*"))
    (folder / names[2]).write_bytes(Path("other", names[2]).read_bytes())
    done = sentkit("inspect", "whole")

    assert done.code == 65
    assert done.told == [
        f"sentkit inspect: whole/{names[2]}: its vectors are int8, those of whole/{names[0]} are float32"
    ]
