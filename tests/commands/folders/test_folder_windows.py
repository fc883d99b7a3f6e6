"""Vector folders with windows: blocks have more rows than the input, and depend only on the settings."""

import pytest

FLAGS = ("--max-length", 2, "--on-truncate", "window", "--stride", 1)


@pytest.mark.parametrize("chunks", [(), ("--chunks",)])
def test_shards_and_one_process_write_the_same_bytes(encode, corpus, joined, sentkit, chunks):
    assert encode(corpus, *FLAGS, *chunks, "-o", "one/").code == 0
    assert encode(corpus, *FLAGS, *chunks, "-o", "two/", "--shard", "2/2").code == 0
    assert encode(corpus, *FLAGS, *chunks, "-o", "two/", "--shard", "1/2").code == 0
    assert encode(corpus, *FLAGS, *chunks, "-o", "two/", "--resume").code == 0

    assert joined("one") == joined("two")
    # The texts have 2, 3 (without "a"), 3, 1 and 5 words; with "a", which is unknown, the second has 4.
    rows = 8 * (1 + 3 + 2 + 1 + 4) if chunks else 40
    assert sentkit("check", "two", "--deep", "--json").rows[0]["rows"] == rows
    assert len(sentkit("cat", "two").rows) == rows


@pytest.mark.parametrize(
    ("flags", "name"),
    [(["--stride", "2"], "stride"), (["--window", "1"], "window"), (["--chunks"], "chunks")],
)
def test_other_windows_are_refused_by_name(encode, corpus, flags, name):
    encode(corpus, *FLAGS, "-o", "one/")
    done = encode(corpus, *FLAGS, *flags, "-o", "one/", "--resume")

    assert (done.code, f'one/run.json: "{name}" is ' in done.err) == (65, True)
